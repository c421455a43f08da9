"""A server that nobody has: all that Edgewise knows of it is in this file."""

from collections.abc import Sequence

import msgspec

from edgewise.completion import Completion
from edgewise.servers.base import (
    EdgeServer,
    Event,
    IdServer,
    NextToken,
    Request,
    ServedModel,
    TextContinuation,
    TextServer,
    Wanted,
    WantedStream,
    WantedText,
    decoded,
)
from edgewise.servers.replies import completion_of


class _Said(msgspec.Struct):
    ids: list[int] = []
    logprobs: list[float] = []
    text: str = ""
    done: bool = False
    read: int | None = None


class AcmeServer(IdServer, EdgeServer):
    """By ids: for a cloud and for an edge."""

    name, owner = "Acme", "acme"
    program, top, most = "Acme", 1, 1
    asks = (Request("/acme"),)

    def complete(self, asked: Wanted) -> Request:
        return Request("/acme/go", {"ids": asked.ids, "n": asked.n, **asked.drawn}, len(asked.ids))

    def completed(self, data: bytes) -> Completion:
        said = decoded(data, _Said)
        tops = [[pair] for pair in zip(said.ids, said.logprobs, strict=True)]
        stopped, read = said.done, said.read
        return completion_of(
            said.ids, said.logprobs, tops, stopped=stopped, prompt=read, cached=None
        )

    def describe(
        self, url: str, model: str | None, context: int | None, *replies: bytes | None
    ) -> ServedModel | None:
        return ServedModel("rocket", "bundled", context or 100) if replies[0] else None

    def stream(self, asked: WantedStream) -> Request:
        body = {"ids": asked.prompt, "n": asked.tokens, "stream": asked.stream}
        return Request("/acme/go", body)

    def streamed(self, data: bytes) -> Event | None:
        said = decoded(data, _Said)
        rows = zip(said.ids, said.logprobs, strict=True)
        return Event([NextToken(one, [(one, p)]) for one, p in rows], over=said.done)

    def metered(self, data: bytes) -> tuple[int, int | None]:
        read = decoded(data, _Said).read
        return read or 0, read


class AcmeText(TextServer):
    """By text."""

    name = "Acme's words"

    def complete(self, asked: WantedText) -> Request:
        said = [turn["content"] for turn in asked.turns]
        return Request("/acme/say", {"said": said, "begun": asked.text, "n": asked.n})

    def continued(self, data: bytes) -> TextContinuation:
        said = decoded(data, _Said)
        return TextContinuation(said.text, said.done, said.read)


def recorded(ids: Sequence[int], *, done: bool = False) -> bytes:
    """What it was once seen to send."""
    said = _Said(list(ids), [-0.5] * len(ids), "", done, 7)
    return msgspec.json.encode(said)
