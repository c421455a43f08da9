"""What a summary makes of records, worked out by hand and for any order of them."""

import json
from collections.abc import Sequence
from pathlib import Path

import hypothesis.strategies as st
import msgspec
import pytest
from hypothesis import given

from edgewise.completion import Sent
from edgewise.errors import UsageError
from edgewise.events import Consult, Finished, Timing, Token, Usage
from edgewise.loop.decoder import Decoder, collect
from edgewise.loop.policy import Policy
from edgewise.prompts import Prompt
from edgewise.routers.constant import Constant
from edgewise.routers.uncertainty import MaxProb
from edgewise.testing import ScriptedCloud, ScriptedEdge, noise, replying
from edgewise.testing.scripted_cloud import ScriptedCloudSession
from edgewise.traces import timeline as timelines
from edgewise.traces.recorder import (
    Answered,
    Asked,
    EdgeRewind,
    EdgeStep,
    Pushed,
    Record,
    Recorder,
)
from edgewise.traces.timeline import chrome_trace, read, timeline

PROMPT = "Q: sky? A:"
IDS = list(PROMPT.encode())


def token(index: int, seconds: float, source: str = "edge", text: str = "x") -> Token:
    return Token(
        index=index,
        id=65,
        text=text,
        source=source,  # type: ignore[arg-type]
        score=None,
        logprob=None,
        seconds=seconds,
        wait=0.0,
        reason="below_threshold",
    )


def step(position: int, seconds: float, computed: int = 1) -> EdgeStep:
    return EdgeStep(position=position, computed=computed, seconds=seconds)


def finished(total: float, wait: float = 0.0, **counts: int) -> Finished:
    usage = {
        "prompt_tokens": 3,
        "edge_tokens": 2,
        "cloud_tokens": 1,
        "wasted_tokens": 0,
        "correction_tokens": 0,
        "cloud_calls": 1,
        "failed_calls": 0,
        "cloud_prompt_cached": 0,
        "cloud_prompt_computed": 0,
    }
    return Finished(
        text="",
        finish_reason="stop",
        usage=Usage(cloud_share=0.5, **(usage | counts)),
        timing=Timing(ttft=0.1, total=total, wait=wait),
    )


def records(*events: object) -> list[Record]:
    return [Record(float(at), event) for at, event in enumerate(events)]  # type: ignore[arg-type]


def consulted(outcome: str = "answered") -> Consult:
    return Consult(
        index=1,
        outcome=outcome,  # type: ignore[arg-type]
        asked=1,
        answered=1,
        sent_ids=4,
        sent_bytes=16,
        seconds=0.3,
    )


def test_the_time_of_an_answer_is_shared_out() -> None:
    found = timeline(
        records(
            step(3, 0.10, computed=3),
            token(0, 0.1),
            Asked(0, 4, 1, 1.0),
            step(4, 0.02),
            step(5, 0.03),
            step(6, 0.04),
            Answered(number=0, outcome="answered", seconds=0.3, tokens=1),
            EdgeRewind(4, 2),
            consulted(),
            token(1, 0.5, "cloud"),
            step(5, 0.01),
            token(2, 0.2),
            finished(1.0, wait=0.25, correction_tokens=1),
        )
    )
    assert (found.tokens, found.cloud_tokens) == (3, 1)
    assert (found.wasted_tokens, found.cloud_share) == (0, 0.5)
    assert (found.decodes, found.thrown_away) == (5, 2)
    assert found.decodes_per_token == pytest.approx(5 / 3)
    assert found.edge_thrown_away == pytest.approx(0.07)
    assert found.edge_kept == pytest.approx(0.13)
    assert found.waiting == 0.25
    assert found.rest == pytest.approx(1.0 - 0.20 - 0.25)
    assert (found.confirmed, found.changed, found.cancelled, found.failed) == (0, 1, 0, 0)
    assert found.consult_median == 0.3
    assert found.gaps == pytest.approx((0.35, 0.485, 0.497, 0.5))


def test_cancelled_and_failed_consults_are_told_apart() -> None:
    found = timeline(
        records(
            step(3, 0.1),
            Answered(number=0, outcome="cancelled", seconds=0.1),
            Answered(number=1, outcome="timeout", seconds=0.5),
            consulted("timeout"),
            token(0, 0.1),
            finished(1.0, failed_calls=1),
        )
    )
    assert (found.cancelled, found.failed, found.confirmed) == (1, 1, 0)
    assert found.consult_median is None
    assert found.gaps == (0.0, 0.0, 0.0, 0.0)


@given(
    st.lists(st.tuples(st.booleans(), st.floats(0, 1), st.integers(0, 5)), min_size=1, max_size=40)
)
def test_every_decode_is_kept_or_thrown_away_once(
    moves: Sequence[tuple[bool, float, int]],
) -> None:
    position, events = 0, []
    for forward, seconds, back in moves:
        if forward or not position:
            position += 1
            events.append(step(position, seconds))
        else:
            gone = min(back, position)
            position -= gone
            events.append(EdgeRewind(position, gone))
    found = timeline(records(*events, token(0, 0.1), finished(100.0)))
    steps = [event for event in events if isinstance(event, EdgeStep)]
    assert found.decodes == len(steps)
    assert found.decodes - found.thrown_away == position
    total = sum(event.seconds for event in steps)
    assert found.edge_kept + found.edge_thrown_away == pytest.approx(total)
    assert found.rest >= 0


def test_a_viewer_gets_every_record_in_microseconds() -> None:
    drawn = chrome_trace(
        [
            Record(0.5, step(3, 0.25, computed=3)),
            Record(0.6, step(4, 0.05)),
            Record(0.7, EdgeRewind(3, 1)),
            Record(0.8, Pushed(0, 3)),
            Record(0.9, token(0, 0.4, "cloud", "")),
        ]
    )["traceEvents"]
    named, other, prompt, single, rewound, pushed, written = drawn
    assert {named["args"]["name"], other["args"]["name"]} == {"edge model", "answer"}
    assert (prompt["name"], prompt["ts"], prompt["dur"]) == ("3 ids", 250_000.0, 250_000.0)
    assert single["name"] == "step"
    assert (rewound["name"], rewound["ph"]) == ("rewind 1", "i")
    assert pushed["name"] == "pushed"
    assert (written["name"], written["ts"]) == ("· (cloud)", 500_000.0)
    assert len(json.loads(msgspec.json.encode(drawn))) == len(drawn)


def test_records_survive_the_file(tmp_path: Path) -> None:
    wanted = records(
        step(3, 0.1), Asked(0, 3, 2, 1.5), Pushed(0, 3), consulted(), token(0, 0.1), finished(1.0)
    )
    path = tmp_path / "t.jsonl"
    path.write_bytes(b"".join(msgspec.json.encode(one) + b"\n" for one in reversed(wanted)))
    assert read(path) == wanted


def test_a_trace_beyond_all_measure_is_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "t.jsonl"
    path.write_bytes(msgspec.json.encode(records(step(1, 0.1))[0]) + b"\n")
    monkeypatch.setattr(timelines, "MAX_TRACE", 10)
    for one in (path, Path("/dev/zero")):  # which says of itself that it is empty
        with pytest.raises(UsageError, match="larger than"):
            read(one)


@pytest.mark.parametrize(
    "line", [b"", b"null", b"[]", b'{"at": "x", "event": {}}', b"\xff\xfe", b'{"at": 1}', b"{"]
)
def test_a_line_that_is_no_record_is_one_sentence(tmp_path: Path, line: bytes) -> None:
    path = tmp_path / "t.jsonl"
    good = msgspec.json.encode(records(step(1, 0.1))[0])
    path.write_bytes(good + b"\n" + line + b"\n" + good + b"\n")
    with pytest.raises(UsageError, match=r"Line 2 of .* is no trace record") as problem:
        read(path)
    assert problem.value.setting == "trace"
    assert "\n" not in str(problem.value)


def test_a_recorder_s_models_are_the_models(tmp_path: Path) -> None:
    """Names, tokenizers and closing reach the real ones; answers are what they would be."""
    edge = ScriptedEdge(noise(3))
    cloud = ScriptedCloud(noise(4))
    plain = Decoder(edge, router=Constant(1.0), policy=Policy(threshold=0.5, span=2), cloud=cloud)
    with (tmp_path / "t.jsonl").open("wb") as file:
        watched = Recorder(file).decoder(plain)
        assert watched.edge.name == edge.name
        assert watched.cloud is not None
        assert watched.cloud.name == cloud.name
        assert watched.breaker is plain.breaker
        assert watched.latency is plain.latency
        told = watched.generate(IDS, max_tokens=12)
    assert [t.id for t in told.tokens] == [t.id for t in plain.generate(IDS, max_tokens=12).tokens]
    assert edge.sessions == 0


def test_without_a_cloud_only_steps_are_recorded(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    edge = ScriptedEdge(replying("blue", prompt=PROMPT))
    decoder = Decoder(edge, router=MaxProb(), policy=Policy(threshold=0.3))
    with path.open("wb") as file:
        recorder = Recorder(file)
        with recorder.decoder(decoder).stream(IDS) as events:
            answer = collect(recorder.events(events))
    found = timeline(read(path))
    assert (found.tokens, found.consults, found.waiting) == (len(answer.tokens), 0, 0.0)


def test_what_is_pushed_is_recorded_and_nothing_else(tmp_path: Path) -> None:
    class Pushing(ScriptedCloud):
        def open(self, prompt: Prompt) -> "Session":
            return Session(self)

    class Session(ScriptedCloudSession):
        def push(self, ids: Sequence[int], sent: Sent | None = None) -> int:
            return 4 if len(ids) % 4 == 0 else 0

    path = tmp_path / "t.jsonl"
    decoder = Decoder(
        ScriptedEdge(replying("blue sky", prompt=PROMPT)),
        router=Constant(0.0),
        policy=Policy(threshold=0.5),
        cloud=Pushing(noise()),
    )
    with path.open("wb") as file:
        recorder = Recorder(file)
        with recorder.decoder(decoder).stream(IDS) as events:
            collect(recorder.events(events))
    pushed = [record.event for record in read(path) if isinstance(record.event, Pushed)]
    assert [(push.position, push.new_ids) for push in pushed] == [(8, 4), (12, 4)]


def test_a_disk_that_is_full_is_one_sentence() -> None:
    class Full:
        def write(self, data: bytes) -> int:
            raise OSError(28, "No space left on device")

    edge = ScriptedEdge(replying("blue", prompt=PROMPT))
    decoder = Decoder(edge, router=MaxProb(), policy=Policy(threshold=0.3))
    with pytest.raises(UsageError, match="No space left"):
        Recorder(Full()).decoder(decoder).generate(IDS)  # type: ignore[arg-type]
    assert edge.sessions == 0
