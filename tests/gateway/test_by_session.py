"""Replicas behind one address by X-Session-Id: the haproxy that the Kubernetes manifests run."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pytest

from edgewise.engines.base import Client
from edgewise.engines.llama_server import LlamaServerEngine
from edgewise.sampling import Sampling
from tests.doubles.scripted_engine import ScriptedEngine, reply_to
from tests.gateway.processes import ROOT, haproxy, lasting_port, metric, needs_haproxy, until

pytestmark = [needs_haproxy, pytest.mark.deep]

CONFIGURATION = ROOT / "deploy" / "kubernetes" / "by-session" / "haproxy.cfg"
SESSIONS = [f"session-{number}" for number in range(16)]
IDS = list(b"sky: ")

Places = dict[str, int]
"""From a session to the number of the replica that answers it."""


@pytest.fixture
def replicas() -> Iterator[list[ScriptedEngine]]:
    made = [ScriptedEngine(), ScriptedEngine()]
    yield made
    for one in made:
        one.close()


@contextmanager
def routed(replicas: Sequence[ScriptedEngine]) -> Iterator[tuple[str, str]]:
    """The address of all of them, and where HAProxy shows its numbers."""
    port, numbers = lasting_port(), lasting_port()
    shown = f"http://127.0.0.1:{numbers}/metrics"
    environment = {
        "BY_SESSION_BIND": f"127.0.0.1:{port}",
        "BY_SESSION_NUMBERS": f"127.0.0.1:{numbers}",
    }
    for number, one in enumerate(replicas):
        environment[f"VLLM_{number}"] = f"127.0.0.1:{one.port}"
    with haproxy(CONFIGURATION, shown, **environment):
        yield f"http://127.0.0.1:{port}", shown


async def consult(engine: LlamaServerEngine, session: str) -> None:
    completion = await engine.complete(IDS, 1, Sampling(), Client(session=session))
    assert completion.ids == (reply_to(IDS),)


def places(url: str, replicas: Sequence[ScriptedEngine]) -> Places:
    """Where each session's consults go; three of one session go to one place."""

    async def find() -> Places:
        found: Places = {}
        engine = LlamaServerEngine(url)
        for session in SESSIONS:
            before = [one.asked for one in replicas]
            for _ in range(3):
                await consult(engine, session)
            asked = [one.asked - was for one, was in zip(replicas, before, strict=True)]
            assert sorted(asked) == [0, 3]
            found[session] = asked.index(3)
        await engine.close()
        return found

    return asyncio.run(find())


def test_a_session_stays_at_its_replica_and_only_those_of_a_lost_one_move(
    replicas: list[ScriptedEngine],
) -> None:
    with routed(replicas) as (url, numbers), routed(replicas) as (other, _):
        first = places(url, replicas)
        assert set(first.values()) == {0, 1}
        # A second HAProxy beside it knows no more than the header, and agrees.
        assert places(other, replicas) == first
        replicas[0].stop()
        assert set(places(url, replicas).values()) == {1}
        replicas[0].start()
        until(
            lambda: metric(numbers, "haproxy_server_status", server="vllm-0", state="UP") == 1,
            "haproxy's notice",
        )
        assert places(url, replicas) == first


def test_a_consult_that_is_given_up_stops_at_its_engine(replicas: list[ScriptedEngine]) -> None:
    for one in replicas:
        one.fault = lambda number: "hang"

    async def give_up(url: str) -> None:
        engine = LlamaServerEngine(url)
        asked = asyncio.create_task(consult(engine, "session"))
        await asyncio.to_thread(until, lambda: any(one.running for one in replicas), "the consult")
        asked.cancel()
        await engine.close()

    with routed(replicas) as (url, _):
        asyncio.run(give_up(url))
        until(lambda: sum(one.abandoned for one in replicas) == 1, "the end of the consult")
