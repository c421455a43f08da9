"""Reading a trace: where an answer's time went, as figures and for the viewers of traces."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from edgewise.errors import UsageError
from edgewise.events import Consult, Finished, Token
from edgewise.traces.recorder import Answered, Asked, EdgeRewind, EdgeStep, Record

MAX_TRACE = 256 << 20
"""Largest trace that is read, bytes."""

_EDGE, _ANSWER = 1, 2


class Timeline(msgspec.Struct, frozen=True, kw_only=True):
    """What one answer's trace comes to. Times in seconds.

    `gaps` are the 50th, 95th and 99th percentile and the longest time between two tokens as a user
    sees them. `decodes` are forward passes of the edge model, `thrown_away` those whose position
    the answer left again. `edge_kept`, `edge_thrown_away`, `waiting` and `rest` add up to `total`:
    decoding, decoding in vain, waiting for the cloud with nothing to decode, everything else.
    """

    tokens: int
    cloud_tokens: int
    wasted_tokens: int
    cloud_share: float
    total: float
    ttft: float
    gaps: tuple[float, float, float, float]
    decodes: int
    decodes_per_token: float
    thrown_away: int
    consults: int
    confirmed: int
    changed: int
    cancelled: int
    failed: int
    consult_median: float | None
    edge_kept: float
    edge_thrown_away: float
    waiting: float
    rest: float


def read(path: Path) -> list[Record]:
    """The records of a trace in the order of their times. Raises `UsageError`."""
    try:
        # What is no file, such as a pipe, has no size before it was read.
        with path.open("rb") as file:
            held = file.read(MAX_TRACE + 1)
        if len(held) > MAX_TRACE:
            raise UsageError(f"{str(path)!r} is larger than {MAX_TRACE >> 20} MB; trace less.")
        lines = held.splitlines()
    except OSError as error:
        raise UsageError(f"{str(path)!r} cannot be read: {error.strerror}.") from error
    decoder = msgspec.json.Decoder(Record)
    records: list[Record] = []
    for number, line in enumerate(lines, 1):
        try:
            records.append(decoder.decode(line))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise UsageError(
                f"Line {number} of {str(path)!r} is no trace record ({error})",
                hint="give a file that an answer was traced to",
                setting="trace",
            ) from error
    return sorted(records, key=lambda record: record.at)


def timeline(records: Sequence[Record]) -> Timeline:
    """Of one answer's records. Raises `UsageError` where they hold no finished answer."""
    finished = next((r.event for r in records if isinstance(r.event, Finished)), None)
    tokens = [record.event for record in records if isinstance(record.event, Token)]
    if finished is None or not tokens:
        raise UsageError("The trace ends before its answer does; trace one to its end.")
    steps = [record.event for record in records if isinstance(record.event, EdgeStep)]
    ended = [record.event for record in records if isinstance(record.event, Answered)]
    answered = [end.seconds for end in ended if end.outcome == "answered"]
    told = [record.event for record in records if isinstance(record.event, Consult)]
    changed = finished.usage.correction_tokens
    thrown = _thrown_away(records)
    in_vain = sum(step.seconds for step in thrown)
    busy = sum(step.seconds for step in steps)
    total, waiting = finished.timing.total, finished.timing.wait
    gaps = [token.seconds for token in tokens[1:]] or [0.0]
    median, high, highest = (float(q) for q in np.quantile(gaps, (0.5, 0.95, 0.99)))
    return Timeline(
        tokens=len(tokens),
        cloud_tokens=finished.usage.cloud_tokens,
        wasted_tokens=finished.usage.wasted_tokens,
        cloud_share=finished.usage.cloud_share,
        total=total,
        ttft=finished.timing.ttft,
        gaps=(median, high, highest, max(gaps)),
        decodes=len(steps),
        decodes_per_token=len(steps) / len(tokens),
        thrown_away=len(thrown),
        consults=finished.usage.cloud_calls,
        confirmed=sum(consult.outcome == "answered" for consult in told) - changed,
        changed=changed,
        cancelled=sum(end.outcome == "cancelled" for end in ended),
        failed=finished.usage.failed_calls,
        consult_median=float(np.median(answered)) if answered else None,
        edge_kept=busy - in_vain,
        edge_thrown_away=in_vain,
        waiting=waiting,
        rest=max(0.0, total - busy - waiting),
    )


def _thrown_away(records: Sequence[Record]) -> list[EdgeStep]:
    """Steps whose position a later rewind left."""
    kept: list[EdgeStep] = []
    thrown: list[EdgeStep] = []
    for record in records:
        event = record.event
        if isinstance(event, EdgeStep):
            kept.append(event)
        elif isinstance(event, EdgeRewind):
            while kept and kept[-1].position > event.position:
                thrown.append(kept.pop())
    return thrown


def chrome_trace(records: Sequence[Record]) -> dict[str, Any]:
    """The records in the Trace Event Format, which Chrome's tracing page and Perfetto show.

    Microseconds; one track for the edge model, one for the answer, consults as nested async slices.
    """
    events: list[dict[str, Any]] = [
        _named(_EDGE, "edge model"),
        _named(_ANSWER, "answer"),
    ]
    for record in records:
        events.extend(_drawn(record))
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _drawn(record: Record) -> list[dict[str, Any]]:
    event = record.event
    at = _micro(record.at)
    if isinstance(event, EdgeStep):
        name = "step" if event.computed == 1 else f"{event.computed} ids"
        begun = _micro(record.at - event.seconds)
        drawn = {"name": name, "ph": "X", "ts": begun, "dur": _micro(event.seconds), "tid": _EDGE}
    elif isinstance(event, EdgeRewind):
        drawn = {"name": f"rewind {event.tokens}", "ph": "i", "s": "t", "ts": at, "tid": _EDGE}
    elif isinstance(event, Asked):
        drawn = _consult("b", event.number, at)
    elif isinstance(event, Answered):
        drawn = _consult("e", event.number, at)
    elif isinstance(event, Token):
        begun = _micro(record.at - event.seconds)
        name = f"{event.text or '·'} ({event.source})"
        drawn = {"name": name, "ph": "X", "ts": begun, "dur": at - begun, "tid": _ANSWER}
    else:
        # Whatever else was said or sent takes no time of its own.
        name = type(event).__name__.lower()
        drawn = {"name": name, "ph": "i", "s": "t", "ts": at, "tid": _ANSWER}
    return [{"pid": 1, "cat": "edgewise", "args": msgspec.to_builtins(event), **drawn}]


def _consult(phase: str, number: int, at: float) -> dict[str, Any]:
    return {"name": f"consult {number}", "ph": phase, "id": number, "ts": at, "tid": _ANSWER}


def _named(track: int, name: str) -> dict[str, Any]:
    return {"name": "thread_name", "ph": "M", "pid": 1, "tid": track, "args": {"name": name}}


def _micro(seconds: float) -> float:
    return round(1e6 * seconds, 1)
