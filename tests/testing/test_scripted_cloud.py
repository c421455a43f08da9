"""The scripted cloud: what it records, how it fails, and that it keeps the contract's promises."""

import time

import pytest

from edgewise.errors import CloudError, CloudTimeout, CloudUnavailable
from edgewise.prompts import Prompt
from edgewise.sampling import Sampling
from edgewise.testing.scripted_cloud import ScriptedCloud
from edgewise.testing.scripted_edge import noise, replying

IDS = list(b"sky: ")
PROMPT = Prompt(tuple(IDS))


def test_it_fails_where_it_is_told_to() -> None:
    def fault(ask: int) -> CloudError | None:
        return {1: CloudTimeout("late."), 2: CloudUnavailable("gone.")}.get(ask)

    session = ScriptedCloud(noise(), fault=fault).open(PROMPT)
    futures = [session.ask(IDS, 1, Sampling(), 30) for _ in range(4)]
    assert [type(future.exception()) for future in futures] == [
        type(None),
        CloudTimeout,
        CloudUnavailable,
        type(None),
    ]


@pytest.mark.parametrize("fails", [False, True])
def test_a_delay_holds_back_answers_and_faults(fails: bool) -> None:
    error = CloudUnavailable("gone.") if fails else None
    session = ScriptedCloud(noise(), delay=0.1, fault=lambda ask: error).open(PROMPT)
    begun = time.monotonic()
    future = session.ask(IDS, 1, Sampling(), 30)
    assert not future.done()
    assert (future.exception(60) is not None) is fails
    assert time.monotonic() - begun >= 0.1


def test_a_cancelled_ask_stays_cancelled() -> None:
    session = ScriptedCloud(noise(), delay=0.05).open(PROMPT)
    future = session.ask(IDS, 1, Sampling(), 30)
    assert future.cancel()
    time.sleep(0.1)
    assert future.cancelled()


def test_the_ids_are_those_of_the_moment_it_was_asked() -> None:
    session = ScriptedCloud(replying("yes", prompt="sky: "), delay=0.05).open(PROMPT)
    ids = list(IDS)
    future = session.ask(ids, 1, Sampling(), 30)
    ids.append(ord("y"))
    assert future.result(60).ids == tuple(b"y")
