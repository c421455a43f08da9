"""A server that nobody has, here whole: one file and one line of a table."""

import asyncio
from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from edgewise.cloud import registry
from edgewise.completion import Completion
from edgewise.edge.base import EdgeOptions
from edgewise.edge.named import open_tokenizer
from edgewise.edge.served import dialect
from edgewise.edge.served.model import open_server
from edgewise.edge.served.server import Server
from edgewise.engines.text import TextRequest
from edgewise.prompts import Message
from edgewise.registry import Registry
from edgewise.sampling import Sampling
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
        return Request("/acme/go", {"ids": asked.ids, "n": asked.n, **asked.drawn}, asked.ids)

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


URL = "http://127.0.0.1:9"


@pytest.fixture
def add(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines."""
    named = {"acme": f"{__name__}:AcmeServer", "acme-text": f"{__name__}:AcmeText"}
    table: Registry[Any] = Registry("cloud engine", "edgewise.cloud", named)
    monkeypatch.setattr(registry, "ENGINES", table)
    monkeypatch.setattr(dialect, "SERVERS", (AcmeServer(),))


def answering(engine: Any, reply: bytes) -> list[Request]:
    """Let an engine have this reply; returns what it will have been asked."""
    asked: list[Request] = []

    async def send(request: Request, *_: object, **__: object) -> bytes:
        asked.append(request)
        return reply

    engine.send = send
    return asked


@pytest.mark.usefixtures("add")
def test_it_is_a_cloud() -> None:
    by_ids = registry.engine_by_ids("acme", URL)
    asked = answering(by_ids, recorded([5, 6]))
    completion = asyncio.run(by_ids.complete([1, 2, 3], 2, Sampling()))
    assert asked == [("/acme/go", {"ids": [1, 2, 3], "n": 2, "temperature": 0}, [1, 2, 3])]
    assert (completion.ids, completion.logprobs, completion.prompt) == ((5, 6), (-0.5, -0.5), 7)
    assert (by_ids.dialect, by_ids.verifies) == ("Acme", False)
    by_text = registry.opened("acme-text", URL, model="rocket")
    asked = answering(by_text, b'{"text": " two", "done": true}')
    reply = asyncio.run(by_text.complete(TextRequest([Message("user", "Count.")], "one", 4)))
    assert asked == [("/acme/say", {"said": ["Count."], "begun": "one", "n": 4}, ())]
    assert (reply.text, reply.ended) == (" two", True)
    assert registry.takes_text("acme-text")


class Lines(list[bytes]):
    def __enter__(self) -> "Lines":
        return self

    def __exit__(self, *_: object) -> None: ...

    def token(self) -> None: ...


@pytest.mark.usefixtures("add")
def test_it_runs_an_edge_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def sent(server: Server, request: Request) -> bytes:
        if request.path == "/tokenize":
            body = request.body or {}
            return b'{"tokens": %s}' % str(tokenizer.encode(body["prompt"])).encode()
        return b"{}"

    tokenizer = open_tokenizer("bundled")
    monkeypatch.setattr(Server, "found", sent)
    monkeypatch.setattr(Server, "send", sent)
    monkeypatch.setattr(Server, "lines", lambda *_: Lines([recorded([300]), recorded([301])]))
    model = open_server(URL, EdgeOptions(tokenizer="bundled"))
    session = model.session()
    session.open([11, 12])
    written = [session.step().proposed]
    session.extend(written)
    assert [*written, session.step().proposed] == [300, 301]
    assert (model.name, model.context) == ("rocket", 100)
    model.close()
