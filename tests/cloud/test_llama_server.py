"""Faults of a llama-server, on real sockets; and the promise of `--cloud none`."""

import logging
import time
from contextlib import closing
from threading import Event

import pytest

from edgewise.cloud.base import ConsultRequest
from edgewise.cloud.engine import LlamaServer
from edgewise.errors import CloudError, CloudUnavailable, UsageError
from edgewise.loop.decoder import Answer, Decoder
from edgewise.loop.health import Breaker
from edgewise.loop.policy import Policy
from edgewise.pair import Pair
from edgewise.prompts import Prompt
from edgewise.routers.untrained import Constant
from edgewise.testing.scripted_edge import ScriptedEdge, replying
from tests.doubles.scripted_engine import Edited, Misdeed, ScriptedEngine, Wire, said

KEY = "sk-secret-0123"
CUT: list[Misdeed] = [Wire([]), "reset"]
"""A connection that is closed, and one of a process that is gone."""


def consult(address: str, *, key: str | None = None) -> CloudError | None:
    """How one consult ends."""
    with closing(LlamaServer(address, key=key)) as server:
        try:
            server.open(Prompt((1, 2))).ask(ConsultRequest([1, 2], 1, 60.0)).result(60)
        except CloudError as error:
            return error
    return None


def test_the_key_travels_as_a_bearer_token_and_is_never_logged(
    engine: ScriptedEngine, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    engine.key = KEY
    assert consult(engine.url, key=KEY) is None
    assert consult(engine.url) is not None
    assert KEY not in caplog.text


@pytest.mark.parametrize("fault", CUT)
def test_a_kept_connection_closed_while_idle_is_retried_once(
    engine: ScriptedEngine, fault: Misdeed
) -> None:
    engine.fault = lambda number: fault if number == 1 else None
    with closing(LlamaServer(engine.url)) as server:
        session = server.open(Prompt((1,)))
        for _ in range(2):
            assert session.ask(ConsultRequest([1], 1, 30)).result().ids
    assert engine.asked == 3


@pytest.mark.parametrize("fault", CUT)
def test_over_a_new_connection_a_request_is_sent_once(
    engine: ScriptedEngine, fault: Misdeed
) -> None:
    """It was read, and what it computed is billed."""
    engine.fault = lambda number: fault
    assert type(consult(engine.url)) is CloudUnavailable
    assert engine.asked == 1


def test_after_a_pause_a_request_is_sent_once(engine: ScriptedEngine) -> None:
    later = {"Retry-After": "0", "Connection": "close"}
    faults: list[Misdeed | None] = [None, Edited(status=503, headers=later), Wire([])]
    engine.fault = lambda number: faults[min(number, 2)]
    with closing(LlamaServer(engine.url)) as server:
        session = server.open(Prompt((1,)))
        session.ask(ConsultRequest([1], 1, 30)).result()
        with pytest.raises(CloudUnavailable):
            session.ask(ConsultRequest([1], 1, 30)).result()
    assert engine.asked == 3


def test_equal_ids_keep_their_own_logprobs(engine: ScriptedEngine) -> None:
    rows = [
        {"id": token, "logprob": logprob, "top_logprobs": [{"id": token, "logprob": logprob}]}
        for token, logprob in [(5, -0.1), (7, -0.2), (5, -3.0)]
    ]
    reply = {"tokens": [5, 7, 5], "completion_probabilities": rows, "stop_type": "limit"}
    engine.replies["/completion"] = said(reply)
    with closing(LlamaServer(engine.url)) as server:
        found = server.open(Prompt((1,))).ask(ConsultRequest([1], 3, 5)).result()
    assert found.logprobs == (-0.1, -0.2, -3.0)
    assert [top[0].logprob for top in found.top] == [-0.1, -0.2, -3.0]


@pytest.mark.parametrize(
    "address", ["127.0.0.1:80", "ftp://127.0.0.1", "http://", "http://user:pass@127.0.0.1"]
)
def test_bad_addresses_are_one_sentence(address: str) -> None:
    with pytest.raises(UsageError):
        LlamaServer(address)


def answer(server: LlamaServer, breaker: Breaker) -> Answer:
    edge = ScriptedEdge(replying("BLUE SKY", prompt="sky: "))
    policy = Policy(threshold=0.5, deadline=30.0)
    decoder = Decoder(edge, router=Constant(1.0), policy=policy, cloud=server, breaker=breaker)
    return decoder.generate(list(b"sky: "), max_tokens=8)


def test_consults_resume_when_the_link_is_back(engine: ScriptedEngine) -> None:
    now, released = [0.0], Event()

    def fault(number: int) -> Misdeed | None:
        if number < 3:
            return "reset"
        released.wait(60)
        return None

    engine.fault = fault
    breaker = Breaker(clock=lambda: now[0])
    with closing(LlamaServer(engine.url)) as server:
        assert {token.source for token in answer(server, breaker).tokens} == {"edge"}
        assert breaker.is_open
        now[0] = 5.0
        # One consult of this answer is a probe, which nobody waits for.
        assert answer(server, breaker).tokens[0].reason == "circuit_open"
        released.set()
        patience = time.monotonic() + 60
        while breaker.is_open and time.monotonic() < patience:
            time.sleep(0.01)
        assert {token.source for token in answer(server, breaker).tokens} == {"cloud"}


def test_without_a_cloud_no_socket_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a socket was opened")

    monkeypatch.setattr("socket.socket", refuse)
    monkeypatch.setattr("socket.create_connection", refuse)
    with Pair(cloud="none") as pair:
        assert pair.ask("Tell me about copper.", max_tokens=20).tokens
