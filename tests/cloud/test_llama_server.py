"""Faults of a llama-server, on real sockets; and the promise of `--cloud none`."""

import json
import logging
import os
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socket import SHUT_RDWR, SO_LINGER, SOL_SOCKET

import pytest
import trustme

from edgewise.cloud.engine import LlamaServer
from edgewise.errors import (
    CloudError,
    CloudUnavailable,
    UsageError,
)
from edgewise.loop.decoder import Answer, Decoder
from edgewise.loop.health import Breaker
from edgewise.loop.policy import Policy
from edgewise.pair import Pair
from edgewise.prompts import Prompt
from edgewise.routers.constant import Constant
from edgewise.sampling import Sampling
from edgewise.testing.scripted_edge import ScriptedEdge, replying
from tests.server_process import free_port

KEY = "sk-secret-0123"
PROMPT, TEXT = "sky: ", "blue sky"
GOOD = b'{"tokens":[%d],"completion_probabilities":[],"stop_type":"limit"}'

Act = Callable[["_Handler", int], None]
"""What the engine does with its n-th request."""


class Engine(ThreadingHTTPServer):
    """Speaks the dialect as badly as `act` says; `seen` are the requests' keys."""

    daemon_threads = True

    def __init__(self, act: Act) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.act = act
        self.seen: list[str | None] = []

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is part of these tests."""


class _Handler(BaseHTTPRequestHandler):
    server: Engine  # type: ignore[assignment]
    protocol_version = "HTTP/1.1"

    def log_message(self, format: str, *args: object) -> None:
        pass

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.server.seen.append(self.headers.get("Authorization"))
        self.server.act(self, len(self.server.seen) - 1)

    def reply(self, status: int, body: bytes, *, length: int | None = None) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body) if length is None else length))
        self.end_headers()
        self.wfile.write(body)

    def cut(self) -> None:
        self.close_connection = True
        self.connection.shutdown(SHUT_RDWR)

    def reset(self) -> None:
        """As the system answers for a process that is gone."""
        self.close_connection = True
        self.connection.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
        os.close(self.connection.detach())


@pytest.fixture
def serve() -> Iterator[Callable[[Act], Engine]]:
    engines: list[Engine] = []

    def start(act: Act) -> Engine:
        engines.append(Engine(act))
        threading.Thread(target=engines[-1].serve_forever, args=(0.02,)).start()
        return engines[-1]

    yield start
    for engine in engines:
        engine.shutdown()
        engine.server_close()


def url(engine: Engine) -> str:
    return f"http://127.0.0.1:{engine.server_address[1]}"


def consult(address: str, *, deadline: float = 5.0, key: str | None = KEY) -> CloudError | None:
    """How one consult ends."""
    server = LlamaServer(address, key=key)
    try:
        session = server.open(Prompt((1, 2)))
        session.ask([1, 2], 1, Sampling(), deadline).result(deadline + 5)
    except CloudError as error:
        return error
    finally:
        server.close()
    return None


def test_the_key_travels_as_a_bearer_token_and_is_never_logged(
    serve: Callable[[Act], Engine], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    engine = serve(lambda handler, n: handler.reply(200, GOOD % 98))
    assert consult(url(engine)) is None
    assert engine.seen == [f"Bearer {KEY}"]
    assert KEY not in caplog.text
    assert KEY not in repr(LlamaServer.__dict__)


@pytest.mark.parametrize("end", [lambda handler: handler.cut(), lambda handler: handler.reset()])
def test_a_kept_connection_closed_while_idle_is_retried_once(
    serve: Callable[[Act], Engine], end: Callable[["_Handler"], None]
) -> None:
    def act(handler: _Handler, n: int) -> None:
        end(handler) if n == 1 else handler.reply(200, GOOD % 98)

    engine = serve(act)
    server = LlamaServer(url(engine))
    session = server.open(Prompt((1,)))
    for _ in range(2):
        assert session.ask([1], 1, Sampling(), 30).result().ids == (98,)
    server.close()
    assert len(engine.seen) == 3


@pytest.mark.parametrize("end", [lambda handler: handler.cut(), lambda handler: handler.reset()])
def test_over_a_new_connection_a_request_is_sent_once(
    serve: Callable[[Act], Engine], end: Callable[["_Handler"], None]
) -> None:
    """It was read, and what it computed is billed."""
    engine = serve(lambda handler, n: end(handler))
    assert type(consult(url(engine))) is CloudUnavailable
    assert len(engine.seen) == 1


def test_equal_ids_keep_their_own_logprobs(serve: Callable[[Act], Engine]) -> None:
    rows = [
        {"id": token, "logprob": logprob, "top_logprobs": [{"id": token, "logprob": logprob}]}
        for token, logprob in [(5, -0.1), (7, -0.2), (5, -3.0)]
    ]
    said = {"tokens": [5, 7, 5], "completion_probabilities": rows, "stop_type": "limit"}
    engine = serve(lambda handler, n: handler.reply(200, json.dumps(said).encode()))
    with closing(LlamaServer(url(engine))) as server:
        found = server.open(Prompt((1,))).ask([1], 3, Sampling(), 5).result()
    assert found.logprobs == (-0.1, -0.2, -3.0)
    assert [top[0].logprob for top in found.top] == [-0.1, -0.2, -3.0]


def test_closing_ends_the_thread(serve: Callable[[Act], Engine]) -> None:
    engine = serve(lambda handler, n: time.sleep(0.5))
    server = LlamaServer(url(engine))
    asked = server.open(Prompt((1,))).ask([1], 1, Sampling(), 30)
    server.close()
    server.close()
    assert not any(thread.name == "cloud" for thread in threading.enumerate())
    assert asked.done()


def test_why_it_cannot_be_reached_is_said(serve: Callable[[Act], Engine]) -> None:
    engine = serve(lambda handler, n: handler.cut())
    for address, why in {
        url(engine): "hung up",
        url(engine).replace("http", "https"): "TLS",
        f"http://127.0.0.1:{free_port()}": "refused",
    }.items():
        error = consult(address)
        assert type(error) is CloudUnavailable
        assert why in error.message


@pytest.mark.parametrize(
    "address", ["127.0.0.1:80", "ftp://127.0.0.1", "http://", "http://user:pass@127.0.0.1"]
)
def test_bad_addresses_are_one_sentence(address: str) -> None:
    with pytest.raises(UsageError):
        LlamaServer(address)


@pytest.mark.parametrize("trusted", [False, True])
def test_certificates_are_verified(
    serve: Callable[[Act], Engine],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    trusted: bool,
) -> None:
    engine = serve(lambda handler, n: handler.reply(200, GOOD % 98))
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    engine.socket = context.wrap_socket(engine.socket, server_side=True)
    if trusted:
        authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
        monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    error = consult(url(engine).replace("http:", "https:"))
    if trusted:
        assert error is None
    else:
        assert type(error) is CloudUnavailable
        assert "certificate" in str(error)
        assert engine.seen == []


def answer(
    server: LlamaServer, *, breaker: Breaker | None = None, deadline: float = 30.0
) -> Answer:
    edge = ScriptedEdge(replying(TEXT.upper(), prompt=PROMPT))
    policy = Policy(threshold=0.5, deadline=deadline)
    decoder = Decoder(edge, router=Constant(1.0), policy=policy, cloud=server, breaker=breaker)
    return decoder.generate(list(PROMPT.encode()), max_tokens=len(TEXT))


@pytest.mark.parametrize("fault", ["cut", "hang", "garbage"])
def test_a_link_that_dies_at_any_token_costs_no_token(
    serve: Callable[[Act], Engine], fault: str
) -> None:
    """From consult k on the link is dead; the answer is the cloud's up to k, then the edge's."""
    hangs = fault == "hang"
    # Each silence takes the deadline, and so long a healthy reply may take on a busy machine.
    for k in (0, 3, len(TEXT) - 1) if hangs else range(len(TEXT)):
        over = threading.Event()

        def act(handler: _Handler, n: int, k: int = k, over: threading.Event = over) -> None:
            if n < k:
                handler.reply(200, GOOD % TEXT.encode()[n])
            elif fault == "cut":
                handler.cut()
            elif fault == "garbage":
                handler.reply(200, b"\x00")
            else:
                over.wait(60)

        server = LlamaServer(url(serve(act)))
        result = answer(server, deadline=2.0 if hangs else 30.0)
        over.set()
        server.close()
        assert result.text == TEXT[:k] + TEXT[k:].upper()
        assert {t.source for t in result.tokens[k:]} == {"edge"}
        assert result.tokens[k].reason in ("unavailable", "timeout", "protocol")


def test_consults_resume_when_the_link_is_back(serve: Callable[[Act], Engine]) -> None:
    now = [0.0]

    def act(handler: _Handler, n: int) -> None:
        if n < 3:
            handler.cut()
        else:
            handler.reply(200, GOOD % 98)

    server = LlamaServer(url(serve(act)))
    breaker = Breaker(clock=lambda: now[0])
    assert {t.source for t in answer(server, breaker=breaker).tokens} == {"edge"}
    assert breaker.is_open
    now[0] = 5.0
    # One consult of this answer is a probe, which nobody waits for.
    assert answer(server, breaker=breaker).tokens[0].reason == "circuit_open"
    patience = time.monotonic() + 60
    while breaker.is_open and time.monotonic() < patience:
        time.sleep(0.01)
    assert {t.source for t in answer(server, breaker=breaker).tokens} == {"cloud"}
    server.close()


def test_without_a_cloud_no_socket_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr("socket.socket", refuse)
    monkeypatch.setattr("socket.create_connection", refuse)
    with Pair(cloud="none") as pair:
        assert pair.ask("Tell me about copper.", max_tokens=20).tokens
