"""APIs that sell a catalogue of models and bill each request, prompts included."""

import asyncio
import math
import time
from abc import abstractmethod
from collections.abc import Sequence
from typing import ClassVar

from edgewise.engines.base import NOBODY, Abilities, Client, Described
from edgewise.engines.completions import COMPLETIONS
from edgewise.engines.http import (
    HttpEngine,
    Served,
    described,
    named,
    not_served,
    served_models,
    shown,
)
from edgewise.errors import CloudRejected

LOOK_SECONDS = 60.0
"""For so long a look is good enough: each is three requests, and one of them is billed."""

# They begin with different tokens in any vocabulary: what both begin with, the API puts there.
_BEGINNINGS = ("x", "7")


class HostedEngine(HttpEngine):
    """An API that is asked no more than it must be. It has no other health than its list of models.

    Such a list holds models of all kinds, so one must be named where there are several; and not
    all there is, since what an account deployed for itself may be missing.
    """

    health: ClassVar[str] = "/v1/models"

    def __init__(self, url: str, *, key: str | None = None, model: str | None = None) -> None:
        super().__init__(url, key=key, model=model)
        self._begins: list[int] | None = None
        self._finding = asyncio.Lock()
        self._looked_at = -math.inf
        # Answered though it is not on the list.
        self._unlisted = False

    @abstractmethod
    async def read(self, text: str) -> list[int] | None:
        """Ids of a prompt that is `text`, with what the API puts before it; None untold.

        Raises a `CloudError`.
        """

    async def probe(self) -> Abilities:
        self._begins, self._unlisted = None, False
        abilities = await super().probe()
        self._looked_at = time.monotonic()
        return abilities

    async def unchanged(self) -> bool:
        """As `Engine.unchanged`, asked once a minute."""
        now = time.monotonic()
        if now - self._looked_at < LOOK_SECONDS:
            return True
        same = await super().unchanged()
        self._looked_at = now
        return same

    async def prefill(self, ids: Sequence[int], client: Client = NOBODY) -> None:
        """Nothing: it would be billed like a consult."""

    async def describe(self) -> Described:
        models = await served_models(self)
        if self.model is None and len(models) > 1:
            raise CloudRejected(
                f"{self.url!r} serves {len(models)} models, so one must be named",
                hint=f"name one of {shown([one.id for one in models], '')}",
                setting="cloud_model",
            )
        found = named(models, self.model)
        if found is not None:
            return described(found)
        await self._require_answering(models)
        return Described(self.model)

    async def tokenize(self, text: str) -> list[int] | None:
        try:
            begins, ids = await self._beginning(), await self.read(text)
        except CloudRejected:
            return None
        if ids is None or ids[: len(begins)] != begins:
            return None
        return ids[len(begins) :]

    async def detokenize(self, ids: Sequence[int], client: Client = NOBODY) -> str | None:
        """None: its documents name no such request."""
        return None

    async def _require_answering(self, models: Sequence[Served]) -> None:
        if self._unlisted:
            return
        body = {"model": self.model, "prompt": "x", "max_tokens": 1}
        try:
            await self.post(COMPLETIONS, body)
        except CloudRejected as error:
            if error.status == 404 or str(self.model) in error.message:
                raise not_served(self, models) from error
            raise
        self._unlisted = True

    async def _beginning(self) -> list[int]:
        """What the API puts before every text, such as a token that stands for its beginning."""
        async with self._finding:
            if self._begins is None:
                one, other = [await self.read(text) or [] for text in _BEGINNINGS]
                count = 0
                while count < min(len(one), len(other)) and one[count] == other[count]:
                    count += 1
                self._begins = one[:count]
            return self._begins
