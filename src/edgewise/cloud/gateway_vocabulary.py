"""What the engines behind a gateway mean by their ids, as far as it tells."""

from collections.abc import Sequence
from typing import Annotated

import msgspec

from edgewise.completion import MOST_IDS
from edgewise.engines.base import NOBODY, Client, Described, Watched
from edgewise.engines.http import Endpoint, decoded
from edgewise.errors import CloudProtocolError, CloudRejected


class _Text(msgspec.Struct):
    content: str


class _Meta(msgspec.Struct):
    n_vocab: Annotated[int, msgspec.Meta(ge=1, le=MOST_IDS)] | None = None
    eos_token: str | None = None


class _Entry(msgspec.Struct):
    id: str
    meta: _Meta | None = None


class _Listed(msgspec.Struct):
    data: list[_Entry]


class GatewayVocabulary(Endpoint):
    """Implements `Speller`. A gateway of before tells nothing."""

    def __init__(self, url: str, *, key: str | None = None) -> None:
        super().__init__(url, key=key)
        self.described = Described()
        self.watched: Watched | None = None
        self._end: str | None = None

    async def describe(self) -> None:
        """Ask what it serves; raises a `CloudError`."""
        try:
            listed = decoded(await self.get("/v1/models"), _Listed, "a gateway").data
        except (CloudRejected, CloudProtocolError):
            listed = []
        self.watched, self._end = None, None
        self.described = Described()
        for entry in listed[:1]:
            meta = entry.meta or _Meta()
            self.described, self._end = Described(entry.id, meta.n_vocab), meta.eos_token

    def remembered_by(self) -> str:
        return f"gateway {self.described.model} {self.described.size} {self._end}"

    async def end_text(self) -> str | None:
        return self._end

    async def detokenize(self, ids: Sequence[int], client: Client = NOBODY) -> str | None:
        try:
            answered = await self.post("/detokenize", {"tokens": ids}, client)
        except CloudRejected as error:
            if error.status in (404, 405):
                return None
            raise
        return decoded(answered, _Text, "a gateway").content
