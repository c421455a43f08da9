"""Traces: what is recorded, what a summary makes of it, what viewers are given."""

import json
from collections import Counter
from pathlib import Path

import pytest

from edgewise.errors import CloudUnavailable, UsageError
from edgewise.loop.decoder import Answer, Decoder, collect
from edgewise.loop.policy import Policy
from edgewise.routers.uncertainty import MaxProb
from edgewise.testing.scripted_cloud import ScriptedCloud
from edgewise.testing.scripted_edge import ScriptedEdge, replying
from edgewise.traces.recorder import Answered, Asked, EdgeStep, Recorder
from edgewise.traces.timeline import chrome_trace, read, timeline

PROMPT = "Q: sky? A:"
IDS = list(PROMPT.encode())


def traced(path: Path, *, cloud: ScriptedCloud | None = None, ahead: int = 8) -> Answer:
    decoder = Decoder(
        ScriptedEdge(replying("grey sky", prompt=PROMPT, unsure=(2, 4))),
        router=MaxProb(),
        policy=Policy(threshold=0.3, speculate=ahead),
        cloud=cloud or ScriptedCloud(replying("gray sky", prompt=PROMPT), delay=0.05),
    )
    with path.open("wb") as file:
        recorder = Recorder(file)
        with recorder.decoder(decoder).stream(IDS, pending=True) as events:
            return collect(recorder.events(events))


def test_every_step_consult_and_rewind_is_on_record(tmp_path: Path) -> None:
    answer = traced(tmp_path / "t.jsonl")
    assert answer.text == "gray sky"
    records = read(tmp_path / "t.jsonl")
    kinds = Counter(type(record.event).__name__ for record in records)
    assert kinds["Token"] == len(answer.tokens)
    assert kinds["Asked"] == kinds["Answered"] == answer.usage.cloud_calls
    assert kinds["EdgeStep"] > len(answer.tokens)
    assert kinds["Rewound"] == 1
    assert kinds["EdgeRewind"] >= 1
    assert [record.at for record in records] == sorted(record.at for record in records)
    asked = [record.event for record in records if isinstance(record.event, Asked)]
    assert asked[0].position == len(IDS) + 2
    ended = [record.event for record in records if isinstance(record.event, Answered)]
    assert min(ended, key=lambda end: end.number).sent_ids == len(IDS) + 2
    first = next(record.event for record in records if isinstance(record.event, EdgeStep))
    assert first.computed == len(IDS)


def test_the_summary_says_where_the_time_went(tmp_path: Path) -> None:
    answer = traced(tmp_path / "t.jsonl")
    found = timeline(read(tmp_path / "t.jsonl"))
    assert (found.tokens, found.cloud_tokens) == (len(answer.tokens), answer.usage.cloud_tokens)
    assert found.changed == 1
    assert found.confirmed == 1
    # The one that was sent ahead, unless a busy machine let it come before it was dropped.
    assert found.cancelled <= 1
    assert found.consults == 3
    assert found.thrown_away >= 2
    # One step a token, and those in vain.
    assert found.decodes == found.tokens + found.thrown_away
    parts = found.edge_kept + found.edge_thrown_away + found.waiting + found.rest
    assert parts == pytest.approx(found.total, rel=0.05)
    assert found.consult_median is not None
    assert found.consult_median >= 0.04
    assert found.gaps[3] >= 0.04


def test_waiting_throws_nothing_away(tmp_path: Path) -> None:
    traced(tmp_path / "t.jsonl", ahead=0)
    found = timeline(read(tmp_path / "t.jsonl"))
    assert found.thrown_away == 0
    assert found.decodes_per_token == 1
    assert found.waiting >= 0.08


def test_a_fault_is_named(tmp_path: Path) -> None:
    cloud = ScriptedCloud(replying("x", prompt=PROMPT), fault=lambda ask: CloudUnavailable("gone."))
    traced(tmp_path / "t.jsonl", cloud=cloud)
    records = read(tmp_path / "t.jsonl")
    ended = [record.event for record in records if isinstance(record.event, Answered)]
    assert {end.outcome for end in ended} == {"unavailable"}
    assert timeline(records).failed == len(ended)


def test_viewers_get_slices_that_begin_and_end(tmp_path: Path) -> None:
    traced(tmp_path / "t.jsonl")
    drawn = json.loads(json.dumps(chrome_trace(read(tmp_path / "t.jsonl"))))["traceEvents"]
    for event in drawn:
        assert {"name", "ph", "pid", "tid"} <= set(event)
        assert event["ph"] == "M" or event["ts"] >= 0
        assert event["ph"] != "X" or event["dur"] >= 0
    begun = {event["id"]: event["ts"] for event in drawn if event["ph"] == "b"}
    ended = {event["id"]: event["ts"] for event in drawn if event["ph"] == "e"}
    assert set(begun) == set(ended) != set()
    assert all(ended[number] >= begun[number] for number in begun)


def test_a_trace_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    with pytest.raises(UsageError, match="cannot be read"):
        read(path)
    path.write_text('{"at": 1}\n')
    with pytest.raises(UsageError, match="Line 1"):
        read(path)
    traced(path)
    path.write_bytes(b"\n".join(path.read_bytes().splitlines()[:6]) + b"\n")
    with pytest.raises(UsageError, match="ends before"):
        timeline(read(path))
