"""A new server is one file and one line of a table, for all who ask servers."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from edgewise.cloud import registry
from edgewise.edge.base import EdgeOptions
from edgewise.edge.served import dialect
from edgewise.edge.served.model import open_server
from edgewise.edge.served.server import Server
from edgewise.engines.text import TextRequest
from edgewise.prompts import Message
from edgewise.registry import Registry
from edgewise.sampling import Sampling
from edgewise.servers.base import Request
from tests.servers.acme import AcmeServer, recorded

URL = "http://127.0.0.1:9"
Replies = Callable[[Request], bytes]


@pytest.fixture
def add(monkeypatch: pytest.MonkeyPatch) -> None:
    """The lines."""
    named = {"acme": "tests.servers.acme:AcmeServer", "acme-text": "tests.servers.acme:AcmeText"}
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
def test_it_is_a_cloud_by_ids() -> None:
    engine = registry.engine_by_ids("acme", URL)
    asked = answering(engine, recorded([5, 6]))
    completion = asyncio.run(engine.complete([1, 2, 3], 2, Sampling()))
    assert asked == [("/acme/go", {"ids": [1, 2, 3], "n": 2, "temperature": 0}, 3)]
    assert (completion.ids, completion.logprobs, completion.prompt) == ((5, 6), (-0.5, -0.5), 7)
    assert (engine.dialect, engine.verifies) == ("Acme", False)


@pytest.mark.usefixtures("add")
def test_it_is_a_cloud_by_text() -> None:
    engine = registry.opened("acme-text", URL, model="rocket")
    asked = answering(engine, b'{"text": " two", "done": true}')
    reply = asyncio.run(engine.complete(TextRequest([Message("user", "Count.")], "one", 4)))
    assert asked == [("/acme/say", {"said": ["Count."], "begun": "one", "n": 4}, 0)]
    assert (reply.text, reply.ended) == (" two", True)
    assert registry.takes_text("acme-text")


@pytest.mark.usefixtures("add")
def test_it_runs_an_edge_model(monkeypatch: pytest.MonkeyPatch) -> None:
    def sent(server: Server, request: Request) -> bytes:
        if request.path == "/tokenize":
            body = request.body or {}
            return b'{"tokens": %s}' % str(tokenizer.encode(body["prompt"])).encode()
        return b"{}"

    class Lines(list[bytes]):
        def __enter__(self) -> "Lines":
            return self

        def __exit__(self, *_: object) -> None: ...

        def token(self) -> None: ...

    tokenizer = dialect_tokenizer()
    monkeypatch.setattr(Server, "found", sent)
    monkeypatch.setattr(Server, "send", sent)
    monkeypatch.setattr(
        Server, "lines", lambda server, request: Lines([recorded([300]), recorded([301])])
    )
    model = open_server(URL, EdgeOptions(tokenizer="bundled"))
    session = model.session()
    session.open([11, 12])
    written = [session.step().proposed]
    session.extend(written)
    assert [*written, session.step().proposed] == [300, 301]
    assert (model.name, model.context) == ("rocket", 100)
    model.close()


def dialect_tokenizer() -> Any:
    from edgewise.edge.named import open_tokenizer

    return open_tokenizer("bundled")
