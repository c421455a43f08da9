"""A trace of an answer, as its viewers read it."""

import json
from io import BytesIO
from typing import Any

import pytest

from edgewise.errors import CloudUnavailable, UsageError
from edgewise.loop.decoder import Answer, Decoder, collect
from edgewise.loop.policy import Policy
from edgewise.routers.uncertainty import MaxProb
from edgewise.testing.scripted_cloud import ScriptedCloud
from edgewise.testing.scripted_edge import ScriptedEdge, replying
from edgewise.traces import Recorder

PROMPT = "Q: sky? A:"
IDS = list(PROMPT.encode())


def traced(file: Any, *, cloud: ScriptedCloud | None = None, ahead: int = 8) -> Answer:
    decoder = Decoder(
        ScriptedEdge(replying("grey sky", prompt=PROMPT, unsure=(2, 4))),
        router=MaxProb(),
        policy=Policy(threshold=0.3, speculate=ahead),
        cloud=cloud or ScriptedCloud(replying("gray sky", prompt=PROMPT), delay=0.05),
    )
    recorder = Recorder(file)
    with recorder.decoder(decoder).stream(IDS, pending=True) as events:
        return collect(recorder.events(events))


def records(**given: Any) -> tuple[Answer, list[dict[str, Any]]]:
    file = BytesIO()
    answer = traced(file, **given)
    return answer, json.loads(file.getvalue())


def test_every_step_consult_and_rewind_is_on_record() -> None:
    answer, found = records()
    assert answer.text == "gray sky"
    steps = [one for one in found if "computed" in one["args"]]
    assert steps[0]["args"]["computed"] == len(IDS)
    assert len(steps) > len(answer.tokens)
    assert [one for one in found if one["name"].startswith("rewind ")]
    assert sum(one["args"].get("type") == "token" for one in found) == len(answer.tokens)
    consults = [one["args"] for one in found if one["ph"] == "e"]
    dropped = sum(one["args"].get("consults", 0) for one in found)
    assert len(consults) + dropped == answer.usage.cloud_calls
    assert consults[0]["index"] == 2
    assert max(one["sent_ids"] for one in consults) >= len(IDS) + 2


def test_slices_begin_and_end() -> None:
    _, found = records()
    for one in found:
        assert {"name", "ph", "pid", "tid"} <= set(one)
        assert one["ph"] == "M" or one["ts"] >= 0
        assert one["ph"] != "X" or one["dur"] >= 0
    begun = {one["id"]: one["ts"] for one in found if one["ph"] == "b"}
    ended = {one["id"]: one["ts"] for one in found if one["ph"] == "e"}
    assert set(begun) == set(ended) != set()
    assert all(ended[number] >= begun[number] for number in begun)


def test_waiting_throws_nothing_away() -> None:
    answer, found = records(ahead=0)
    assert not [one for one in found if one["name"].startswith("rewind ")]
    assert sum(one["tid"] == 1 and one["ph"] == "X" for one in found) == len(answer.tokens)


def test_a_fault_is_named() -> None:
    cloud = ScriptedCloud(replying("x", prompt=PROMPT), fault=lambda ask: CloudUnavailable("gone."))
    _, found = records(cloud=cloud)
    outcomes = {one["args"]["outcome"] for one in found if one["ph"] == "e"}
    assert outcomes == {"unavailable"}


def test_a_disk_that_is_full_is_a_sentence() -> None:
    with open("/dev/full", "wb", buffering=0) as full, pytest.raises(UsageError, match="written"):
        traced(full)
