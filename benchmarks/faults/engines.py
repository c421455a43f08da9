"""Engines that come back as another, before every token of an answer; replicas of one gateway."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx2

from benchmarks.faults.processes import HEALTH_SECONDS, Service, gateway_service, watched
from benchmarks.faults.rig import (
    Other,
    Tireless,
    answer_at,
    answer_of,
    positions,
    scripted,
    whole,
    written,
)
from benchmarks.faults.table import Row
from benchmarks.shared import until
from edgewise.cloud.engine import LlamaServer
from edgewise.engines.vocabulary_check import FRESH_SECONDS
from edgewise.testing.scripted_edge import ByteTokenizer
from tests.doubles.scripted_engine import ScriptedEngine

GARBAGE = 88
DOWN_SECONDS = 2.5 * HEALTH_SECONDS
"""How long an engine takes to start: long enough to be missed."""

Change = Callable[[ScriptedEngine], None]


def another_model(engine: ScriptedEngine) -> None:
    """The same vocabulary and the same words."""
    engine.model = "another"


def another_vocabulary(engine: ScriptedEngine) -> None:
    """What it writes means nothing to the device."""
    engine.tokenizer = Other()
    engine.script = lambda ids: GARBAGE


def as_it_was(engine: ScriptedEngine) -> None:
    engine.model, engine.script, engine.tokenizer = "scripted", written, ByteTokenizer()


def restarted(change: Change, seconds: float = DOWN_SECONDS) -> Change:
    def restarts(engine: ScriptedEngine) -> None:
        if engine.listening:
            engine.stop()
            time.sleep(seconds)
        change(engine)
        engine.start()

    return restarts


def swapped(engine: ScriptedEngine) -> None:
    """Without being down. Looks at an engine are a second apart: nothing is promised before."""
    restarted(another_vocabulary, 0.0)(engine)
    time.sleep(1.1 * FRESH_SECONDS)


ONE: dict[str, tuple[Change, Sequence[int]]] = {
    "the engine comes back as another model": (restarted(another_model), [0]),
    "the engine comes back with another vocabulary": (restarted(another_vocabulary), [0]),
    "the same without being down, asked a second later": (swapped, [0]),
}
TWO: dict[str, tuple[Change, Sequence[int]]] = {
    "a replica comes back with another vocabulary": (restarted(another_vocabulary), [1]),
    "the other replica does": (restarted(another_vocabulary), [0]),
    "both do": (restarted(another_vocabulary), [0, 1]),
    "a replica is killed": (ScriptedEngine.stop, [0]),
    "both are killed": (ScriptedEngine.stop, [0, 1]),
}
"""What is done to which of the engines."""


def engine_faults(every: int = 1) -> list[Row]:
    """Rows of one engine, then of two replicas; at every token, or every so many."""
    return [*_rows(ONE, 1, every), _straight(every), *_rows(TWO, 2, every)]


def _straight(every: int) -> Row:
    """No gateway looks at the engine: the device's own consults find it out."""
    row = Row("the same, straight at the engine")
    for position in positions()[::every]:
        with ExitStack() as stack:
            engine = scripted(stack)
            swap = lambda engine=engine: swapped(engine)  # noqa: E731
            answer = answer_of(LlamaServer(engine.url), position, swap, Tireless())
            row.tried(seen=engine.script is not written, lost=not whole(answer, into=row))
    return row


def _rows(faults: dict[str, tuple[Change, Sequence[int]]], count: int, every: int) -> list[Row]:
    with TemporaryDirectory() as folder, ExitStack() as stack:
        engines = [scripted(stack) for _ in range(count)]
        gateway = gateway_service(stack, [engine.url for engine in engines], Path(folder))
        return [_row(name, *fault, engines, gateway, every) for name, fault in faults.items()]


def _row(
    name: str,
    change: Change,
    which: Sequence[int],
    engines: Sequence[ScriptedEngine],
    gateway: Service,
    every: int,
) -> Row:
    row = Row(name)
    for position in positions()[::every]:
        reached: list[int] = []

        def breaks(reached: list[int] = reached) -> None:
            for number in which:
                change(engines[number])
            reached.append(1)

        answer = answer_at(gateway.url, None, position, breaks, Tireless())
        lost, ended = not whole(answer, into=row), gateway.check()
        blind = not all(watched(engine) for engine in engines if engine.listening)
        blind |= not _restored(engines, gateway)
        row.tried(seen=bool(reached), lost=lost, ended=ended, blind=blind)
    return row


def _restored(engines: Sequence[ScriptedEngine], gateway: Service) -> bool:
    """The engines as they were; False where the gateway does not find them again."""
    for engine in engines:
        if not (engine.listening and engine.model == "scripted" and engine.script is written):
            # Down for a while, else it would be another engine without having been down.
            restarted(as_it_was)(engine)

    def up() -> bool:
        said = httpx2.get(gateway.url + "/ready", timeout=5, trust_env=False).json()
        return said["engines_up"] == len(engines)

    return until(up, 8)
