"""Consults as simpler clients make them: in text, or each over a connection of its own."""

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from edgewise.cloud.engine import EngineCloud
from edgewise.completion import Completion
from edgewise.edge.base import Tokenizer
from edgewise.edge.spelling import bytes_of
from edgewise.engines.base import COMPLETIONS, NOBODY, Client, Engine, sampling_fields
from edgewise.engines.http import HttpEngine
from edgewise.engines.text_replies import AskedText, of_completion
from edgewise.sampling import Sampling

_UNKNOWN = "\N{REPLACEMENT CHARACTER}"


class WrittenOut(HttpEngine):
    """Implements `Engine` by text: `/v1/completions`, where the engine tokenises all of it again.

    What comes back becomes ids of `tokenizer`'s, whatever the cloud's own were; it can be another
    token. Where the engine wrote no whole character the device shows what it shows for such.
    """

    dialect = "completions"

    def __init__(
        self, url: str, tokenizer: Tokenizer, *, key: str | None = None, model: str | None = None
    ) -> None:
        super().__init__(url, key=key, model=model)
        self._tokenizer = tokenizer

    async def complete(
        self, ids: Sequence[int], n: int, sampling: Sampling, client: Client = NOBODY
    ) -> Completion:
        text = bytes_of(self._tokenizer, ids).decode("utf-8", "replace")
        body: dict[str, Any] = {
            "model": await self.model_name(),
            "prompt": text,
            "max_tokens": n,
            **sampling_fields(sampling, len(ids)),
        }
        replied = await self.post(COMPLETIONS, body, client)
        said = of_completion(replied, AskedText(self.url, self.dialect, text, n))
        written = self._tokenizer.encode(said.text)[:n]
        if not written and not said.ended:
            written = self._tokenizer.encode(_UNKNOWN)[:n]
        none = (None,) * len(written)
        return Completion(ids=tuple(written), logprobs=none, stopped=said.ended)


class PlainCloud(EngineCloud):
    """Implements `CloudModel` as `EngineCloud`, of whose engine nothing is proven.

    Unless the connection is `kept`, each consult makes one.
    """

    def __init__(self, engine: Engine, tokenizer: Tokenizer, *, kept: bool) -> None:
        super().__init__(engine)
        self._eos_ids = tokenizer.eos_ids or self._eos_ids
        self._size = tokenizer.size
        self._kept = kept

    async def complete(
        self, ids: list[int], n: int, sampling: Sampling, client: Client
    ) -> Completion:
        if not self._kept:
            client = replace(client, trace={**client.trace, "Connection": "close"})
        return await super().complete(ids, n, sampling, client)
