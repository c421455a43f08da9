"""Verification at a gateway: what is asked of the engine, replied, refused, counted and paid."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from edgewise.completion import Completion, Verified
from tests.gateway.doubles import PlainEngine, VerifyingEngine, letters, own_id, read_along
from tests.gateway.plain_client import PlainClient, check, opened
from tests.gateway.running import Running, gateway

PROMPT = list(b"Where?")
WRITTEN = [own_id(PROMPT), 33, 34]
IDS = PROMPT + WRITTEN
VERIFY = (0, 5000, 0, None, len(WRITTEN))
"""Of an ask: no token, a deadline, no candidates, greedy, and so many ids to verify."""

Add = Callable[..., str]


def wire(completion: Completion) -> list[list[Any]]:
    """As the rows travel."""
    return [[one.logprob, one.id, one.best] for one in completion.verified]


@pytest.fixture
def engine() -> VerifyingEngine:
    made = VerifyingEngine()
    made.size = 258
    return made


@pytest.fixture
def running(engine: VerifyingEngine) -> Iterator[Running]:
    with gateway([engine]) as made:
        yield made


@pytest.fixture
def client(running: Running) -> Iterator[PlainClient]:
    with opened(running.url) as made:
        yield made


def test_the_ids_of_a_device_are_verified(running: Running, client: PlainClient) -> None:
    reply = client.ask(1, 0, IDS, *VERIFY)
    assert (reply[:4], reply[8]) == ([17, 1, [], []], [])
    assert reply[9] == wire(read_along(IDS, len(WRITTEN)))
    assert reply[9][0][1] == WRITTEN[0]
    # Only the new ids travel, and one may be verified alone.
    longer = [*IDS, 35]
    assert client.ask(2, len(IDS), [35], *VERIFY[:-1], 1)[9] == wire(read_along(longer, 1))
    told = running.metrics()
    assert 'edgewise_gateway_verified_tokens_total{key="anybody"} 4.0' in told
    assert 'edgewise_gateway_cloud_tokens_total{key="anybody"} 0.0' in told
    assert 'edgewise_gateway_consults_total{outcome="answered"} 2.0' in told
    # What is verified stands behind the ids that are held.
    client.prefetch(0, IDS)
    assert client.ask(3, len(IDS), [], *VERIFY)[9] == reply[9]
    assert client.ask(4, 90, [1], *VERIFY) == [18, 4]
    # A device that knows no verification leaves the trailing elements out, or some of them.
    for number, known in enumerate(([], [1], [1, 5000, 2, None], [1, 5000, 2, None, 0])):
        assert client.ask(number, 0, IDS, *known)[:3] == [17, number, [own_id(IDS)]]


@pytest.mark.parametrize(
    ("ids", "more"),
    [
        (IDS, [0]),
        (IDS, [1, 5000, 0, None, 2]),
        *((IDS, [0, 5000, 0, None, count]) for count in (0, len(IDS), len(IDS) + 1, 4096)),
        ([], [0, 5000, 0, None, 1]),
    ],
)
def test_what_cannot_be_asked_is_refused_and_the_session_goes_on(
    engine: VerifyingEngine, client: PlainClient, ids: list[int], more: list[Any]
) -> None:
    assert client.ask(1, 0, ids, *more)[:3] == [19, 1, "rejected"]
    assert engine.asked == 0
    assert client.ask(2, 0, IDS, *VERIFY)[0] == 17


@pytest.mark.parametrize("reads_once", [False, True])
def test_no_ask_exhausts_a_gateway_whose_engine_reads_a_prompt_for_each_id(
    engine: VerifyingEngine, client: PlainClient, *, reads_once: bool
) -> None:
    """1500 ids, all but one to be verified, would be two million in a thousand prompts."""
    engine.reads_once = reads_once
    engine.reads = lambda ids, n: Completion(ids=(), logprobs=(), verified=(TRUE,) * n)
    reply = client.ask(1, 0, [1] * 1500, 0, 20_000, 0, None, 1499)
    assert (reply[0] == 17, engine.asked) == (reads_once, int(reads_once))
    if not reads_once:
        said = "Of 1500 ids 1499 cannot be verified; verify fewer in an ask."
        assert reply[1:4] == [1, "rejected", said]
    # A block of a device, behind more than most models take.
    assert client.ask(2, 0, [1] * 131_072, 0, 20_000, 0, None, 16)[0] == 17


def test_more_than_any_gateway_verifies_is_no_frame(client: PlainClient) -> None:
    client.send([3, 1, 0, IDS, check(IDS), 0, 5000, 0, None, 4097])
    assert client.receive()[:3] == [19, None, "protocol"]
    assert client.code() == 1002


@pytest.mark.parametrize("others", [[PlainEngine()], [VerifyingEngine("other"), PlainEngine()]])
def test_a_fleet_verifies_if_all_its_engines_do(others: list[PlainEngine]) -> None:
    with gateway([VerifyingEngine(), *others]) as running, PlainClient(running.url) as client:
        assert client.open()[7] is False
        assert client.ask(1, 0, IDS, *VERIFY)[:3] == [19, 1, "rejected"]
        assert client.ask(2, 0, IDS)[0] == 17
    fleet = [VerifyingEngine(), VerifyingEngine("b")]
    with gateway(fleet) as running, PlainClient(running.url) as client:
        assert client.open()[7] is True


def test_a_verification_costs_one_token(engine: VerifyingEngine, keys: Path, add: Add) -> None:
    secret = add(tokens_per_day=2)
    engine.reads = letters
    with gateway([engine], keys=keys) as running, opened(running.url, secret) as client:
        for number in range(2):
            assert client.ask(number, 0, IDS, *VERIFY)[:3] == [19, number, "protocol"]
        engine.reads = read_along
        for number in range(2):
            assert client.ask(number, 0, IDS, *VERIFY)[0] == 17
        assert client.ask(2, 0, IDS, *VERIFY)[:3] == [19, 2, "unavailable"]
        assert 'verified_tokens_total{key="laptop"} 6.0' in running.metrics()


NAN, INFINITY = float("nan"), float("inf")
TRUE = Verified(-4.5, 98, -0.25)


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [TRUE],
        [TRUE, TRUE, TRUE],
        *([TRUE, Verified(logprob, 98, -0.25)] for logprob in (NAN, -INFINITY)),
        *([TRUE, Verified(*lie)] for lie in ((0.5, 98, 0.5), (-0.5, 98, NAN), (-0.25, 98, -0.5))),
        *([TRUE, Verified(-4.5, token, -0.25)] for token in (-1, 300)),
    ],
)
def test_an_engine_that_lies_fails_the_consult(
    engine: VerifyingEngine, client: PlainClient, rows: list[Verified]
) -> None:
    engine.reads = lambda ids, n: Completion(ids=(), logprobs=(), verified=tuple(rows))
    assert client.ask(1, 0, IDS, 0, 5000, 0, None, 2)[:3] == [19, 1, "protocol"]
    engine.reads = read_along
    assert client.ask(2, 0, IDS, *VERIFY)[0] == 17
    # So does one that verifies unasked.
    engine.act = lambda ids, n: Completion(ids=(97,), logprobs=(-0.1,), verified=(TRUE,))
    assert client.ask(3, 0, IDS)[:3] == [19, 3, "protocol"]
