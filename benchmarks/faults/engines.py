"""Engines that come back as another, before every token of an answer; replicas of one gateway."""

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import httpx2

from benchmarks.faults.processes import HEALTH_SECONDS, Service, gateway_service, watched
from benchmarks.faults.rig import Other, answer_at, answer_of, positions, whole, written
from benchmarks.faults.table import Row, told
from benchmarks.faults.tireless import Tireless
from edgewise.cloud.engine import LlamaServer
from edgewise.engines.vocabulary_check import FRESH_SECONDS
from edgewise.loop.decoder import Answer
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


def _restarted(engine: ScriptedEngine, change: Change, seconds: float) -> None:
    engine.stop()
    time.sleep(seconds)
    change(engine)
    engine.start()


def _swapped(engine: ScriptedEngine) -> None:
    """Without being down. Looks at an engine are a second apart: nothing is promised before."""
    _restarted(engine, another_vocabulary, 0.0)
    time.sleep(1.1 * FRESH_SECONDS)


def _killed(engine: ScriptedEngine) -> None:
    engine.stop()


def _both_restarted(engines: Sequence[ScriptedEngine]) -> None:
    for engine in engines:
        _restarted(engine, another_vocabulary, DOWN_SECONDS)


def _both_killed(engines: Sequence[ScriptedEngine]) -> None:
    for engine in engines:
        _killed(engine)


Break = Callable[[Sequence[ScriptedEngine]], None]

ONE: dict[str, Break] = {
    "the engine comes back as another model": lambda e: _restarted(
        e[0], another_model, DOWN_SECONDS
    ),
    "the engine comes back with another vocabulary": lambda e: _restarted(
        e[0], another_vocabulary, DOWN_SECONDS
    ),
    "the same without being down, asked a second later": lambda e: _swapped(e[0]),
}
TWO: dict[str, Break] = {
    "a replica comes back with another vocabulary": lambda e: _restarted(
        e[1], another_vocabulary, DOWN_SECONDS
    ),
    "the other replica does": lambda e: _restarted(e[0], another_vocabulary, DOWN_SECONDS),
    "both do": _both_restarted,
    "a replica is killed": lambda e: _killed(e[0]),
    "both are killed": _both_killed,
}


def engine_faults(every: int = 1) -> list[Row]:
    """Rows of one engine, then of two replicas; at every token, or every so many."""
    return [*_rows(ONE, 1, every), _straight(every), *_rows(TWO, 2, every)]


def _straight(every: int) -> Row:
    """No gateway looks at the engine: the device's own consults find it out."""
    tries = seen = lost = 0
    reasons: list[str] = []
    for position in positions()[::every]:
        engine = ScriptedEngine(script=written)

        def breaks(number: int, position: int = position, engine: ScriptedEngine = engine) -> None:
            if number == position:
                _swapped(engine)

        try:
            answer = answer_of(LlamaServer(engine.url), breaks, Tireless())
        finally:
            engine.close()
        tries += 1
        seen += engine.script is not written
        lost += not whole(answer)
        reasons += [str(token.reason) for token in answer.tokens]
    return Row("the same, straight at the engine", tries, seen, lost, note=told(reasons))


def _rows(faults: dict[str, Break], count: int, every: int) -> list[Row]:
    with TemporaryDirectory() as folder, ExitStack() as stack:
        engines = [ScriptedEngine(script=written) for _ in range(count)]
        for engine in engines:
            stack.callback(engine.close)
        gateway = gateway_service([engine.url for engine in engines], Path(folder))
        stack.callback(gateway.close)
        return [_row(name, fault, engines, gateway, every) for name, fault in faults.items()]


def _row(
    name: str, fault: Break, engines: Sequence[ScriptedEngine], gateway: Service, every: int
) -> Row:
    tries = seen = lost = dead = blind = 0
    reasons: list[str] = []
    for position in positions()[::every]:
        reached: list[int] = []

        def breaks(number: int, position: int = position, reached: list[int] = reached) -> None:
            if number == position:
                fault(engines)
                reached.append(number)

        answer = _answered(gateway, breaks)
        tries += 1
        seen += bool(reached)
        lost += answer is None or not whole(answer)
        dead += gateway.check()
        blind += not all(watched(engine) for engine in engines if engine.listening)
        blind += not _restored(engines, gateway)
        reasons += [str(token.reason) for token in answer.tokens] if answer else []
    return Row(name, tries, seen, lost, dead, blind, told(reasons))


def _answered(gateway: Service, breaks: Callable[[int], None]) -> Answer | None:
    try:
        return answer_at(gateway.url, None, breaks, Tireless())
    except Exception:
        # Whatever it is, there is no answer; the row says so.
        return None


def _restored(engines: Sequence[ScriptedEngine], gateway: Service) -> bool:
    """The engines as they were; False where the gateway does not find them again."""
    for engine in engines:
        if engine.listening and engine.model == "scripted" and engine.script is written:
            continue
        if engine.listening:
            engine.stop()
            # Else it would be another engine without having been down.
            time.sleep(DOWN_SECONDS)
        engine.model, engine.script, engine.tokenizer = "scripted", written, ByteTokenizer()
        engine.start()
    end = time.monotonic() + 8
    while time.monotonic() < end:
        found = httpx2.get(gateway.url + "/ready", timeout=5, trust_env=False).json()
        if found["engines_up"] == len(engines):
            return True
        time.sleep(0.02)
    return False
