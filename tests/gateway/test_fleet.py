"""Replicas that go down and come back, whose consults move, and how many wait."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from edgewise import errors
from edgewise.completion import Completion
from edgewise.engines import vocabulary_check
from edgewise.engines.base import Client
from edgewise.errors import CloudError, CloudUnavailable
from edgewise.gateway import fleet as fleets
from edgewise.gateway.fleet import Fleet
from edgewise.keys.limits import OverLimit
from edgewise.sampling import Sampling
from tests.gateway.doubles import PlainEngine, raising

GONE = CloudUnavailable("gone.")


pytestmark = pytest.mark.anyio


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fleets, "HEALTH_SECONDS", 0.02)


@asynccontextmanager
async def started(
    engines: Sequence[PlainEngine], *, concurrency: int = 4, queue: int = 4
) -> AsyncGenerator[Fleet]:
    fleet = Fleet(engines, concurrency=concurrency, queue=queue)
    await fleet.start()
    try:
        yield fleet
    finally:
        await fleet.close()


async def until(true: Callable[[], object]) -> None:
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0.005)


async def ask(fleet: Fleet, session: str = "s") -> Completion:
    return await fleet.complete([1, 2], 1, Sampling(), Client(session))


@pytest.mark.parametrize(
    ("second", "problem"),
    [("another", "another vocabulary"), ("silent", "tokenizer"), ("gone", "gone")],
)
async def test_what_is_no_fleet(second: str, problem: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two vocabularies, none that is told, no engine that is up."""

    async def nothing(text: str) -> None: ...

    engines = [PlainEngine("one"), PlainEngine("two")]
    engines[1].mark = int(second == "another")
    if second == "silent":
        monkeypatch.setattr(engines[1], "tokenize", nothing)
    if second == "gone":
        engines[0].down = engines[1].down = GONE
    with pytest.raises(CloudUnavailable if second == "gone" else errors.UsageError, match=problem):
        async with started(engines):
            pass
    assert all(engine.closed for engine in engines)


@pytest.mark.parametrize("gone", [True, False], ids=["gone", "another vocabulary"])
async def test_a_consult_finds_out_and_moves_on(
    monkeypatch: pytest.MonkeyPatch, gone: bool
) -> None:
    monkeypatch.setattr(fleets, "HEALTH_SECONDS", 60.0)
    monkeypatch.setattr(vocabulary_check, "FRESH_SECONDS", -1.0)
    engines = [PlainEngine(str(number)) for number in range(3)]
    async with started(engines) as fleet:
        for _ in range(3):
            await ask(fleet)
        (home,) = [engine for engine in engines if engine.asked]
        assert home.asked == 3
        if gone:
            home.down = GONE
        else:
            home.mark = 1
            home.connected()
        assert (await ask(fleet)).ids == (97,)
        assert fleet.up == 2
        assert sum(engine.asked for engine in engines if engine is not home) == 1


@pytest.mark.parametrize("error", [CloudUnavailable("busy."), errors.CloudRejected("too long.")])
async def test_a_consult_stays_at_a_replica_that_is_well(error: CloudError) -> None:
    """429, or declined: elsewhere the session's cache would be missing."""
    engines = [PlainEngine(str(number), raising(error), size=258) for number in range(3)]
    async with started(engines) as fleet:
        with pytest.raises(type(error)):
            await ask(fleet)
        assert sum(engine.asked for engine in engines) == 1
        assert fleet.up == 3
        # Nor are ids beyond the size that an engine tells a completion.
        for engine in engines:
            engine.act = lambda ids, n: Completion(ids=(258,), logprobs=(None,))
        with pytest.raises(errors.CloudProtocolError, match="0 to 257"):
            await ask(fleet)
        assert fleet.up == 3


async def test_concurrency_and_queue_are_bounds() -> None:
    """A prefetch waits for no place, and a cancelled consult gives its place back."""
    engine = PlainEngine()
    async with started([engine], concurrency=2, queue=3) as fleet:
        await fleet.prefill([1], Client("s"))
        assert engine.prefills == 1
        engine.go = asyncio.Event()
        flying = [asyncio.create_task(ask(fleet, str(number))) for number in range(5)]
        await until(lambda: fleet.replicas[0].consults == 5)
        for more in (ask(fleet, "late"), fleet.prefill([1], Client("s"))):
            with pytest.raises(OverLimit):
                await more
        assert engine.asked == 2
        gone = flying.pop(0)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        flying.append(asyncio.create_task(ask(fleet, "late")))
        await until(lambda: engine.asked == 3)
        engine.go.set()
        assert all(completion.ids == (97,) for completion in await asyncio.gather(*flying))
        assert fleet.replicas[0].consults == 0


async def test_a_prefetch_that_is_lost_keeps_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by an attack: prefills that hang held the places of consults until devices left."""
    monkeypatch.setattr(fleets, "PREFILL_SECONDS", 0.05)

    engine = PlainEngine()
    async with started([engine], concurrency=1, queue=4) as fleet:
        engine.go = asyncio.Event()
        prefetching = asyncio.create_task(fleet.prefill([1], Client("s")))
        await until(lambda: engine.prefills)
        engine.go = None
        assert (await asyncio.wait_for(ask(fleet), 60)).ids == (97,)
        with pytest.raises(errors.CloudTimeout):
            await prefetching


@given(st.lists(st.text(min_size=1, max_size=12), min_size=1, max_size=8, unique=True))
def test_only_the_sessions_of_the_one_that_went_move(sessions: list[str]) -> None:
    """Rendezvous hashing, whatever the sessions are called."""
    engines = [PlainEngine(str(number)) for number in range(3)]

    async def home(fleet: Fleet, session: str) -> PlainEngine:
        before = [engine.asked for engine in engines]
        await ask(fleet, session)
        (found,) = (one for one, n in zip(engines, before, strict=True) if one.asked > n)
        return found

    async def work() -> None:
        async with started(engines) as fleet:
            before = [await home(fleet, session) for session in sessions]
            gone = before[0]
            fleet.replicas[engines.index(gone)].up = False
            gone.down = GONE
            for session, engine in zip(sessions, before, strict=True):
                assert (await home(fleet, session) is engine) == (engine is not gone)

    asyncio.run(work())


@pytest.mark.parametrize(("what", "other", "own"), [("mark", 1, 0), ("size", 300, 258)])
async def test_one_that_was_replaced_unseen_is_not_used(what: str, other: int, own: int) -> None:
    """Also by a related model, which splits the fixed strings alike: its size differs."""
    engine = PlainEngine(size=258)
    with capture_logs() as told:
        async with started([engine]) as fleet:
            setattr(engine, what, other)
            await until(lambda: not fleet.up)
            looks = engine.looks
            await until(lambda: engine.looks > looks + 3)
            with pytest.raises(CloudUnavailable, match="engine"):
                await ask(fleet)
            assert engine.asked == 0
            setattr(engine, what, own)
            await until(lambda: fleet.up)
            assert (await ask(fleet)).ids == (97,)
    (why,) = [line["why"] for line in told if line["event"] == "engine not used"]
    assert "another vocabulary" in why


async def test_another_model_of_the_vocabulary_is_logged_once() -> None:
    """Beside the others from the start, or in the place of one of them."""
    engines = [PlainEngine("one"), PlainEngine("two")]
    engines[1].model = "base"
    with capture_logs() as told:
        async with started(engines) as fleet:
            engines[0].model = "tuned"
            for engine, replica in zip([*engines, *engines], [*fleet.replicas] * 2, strict=True):
                # It is probed anew, as after each restart.
                engine.down = GONE
                await until(lambda replica=replica: not replica.up)
                engine.down = None
                await until(lambda replica=replica: replica.up)
    changes = [line for line in told if line["event"] == "another model"]
    assert [(line["engine"], line["model"], line["before"]) for line in changes] == [
        ("two", "base", "letters"),
        ("one", "tuned", "base"),
    ]
    assert {line["log_level"] for line in changes} == {"warning"}


async def test_one_that_is_being_proven_anew_is_not_proven() -> None:
    """Consults for it wait; whoever asks whether the gateway is ready hears no."""
    engine = PlainEngine()
    async with started([engine]) as fleet:
        assert fleet.up == 1
        engine.go, engine.model = asyncio.Event(), "another"
        await until(lambda: not fleet.up)
        waiting = asyncio.create_task(ask(fleet))
        await asyncio.sleep(0.05)
        assert engine.asked == 0
        engine.go.set()
        assert (await waiting).ids == (97,)
        assert fleet.up == 1


PROBLEMS = [
    *(asyncio.CancelledError("of its own"), BaseException("stray"), TimeoutError("late")),
    *(
        RecursionError("deep"),
        errors.UsageError("a flag"),
        errors.CloudRejected("no."),
        StopAsyncIteration(),
    ),
    MemoryError(),
]


@pytest.mark.parametrize("where", ["ready", "tokenize", "describe", "complete"])
@pytest.mark.parametrize("problem", PROBLEMS, ids=lambda problem: type(problem).__name__)
async def test_no_end_of_one_look_ends_a_watch(
    problem: BaseException, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other replica goes down and comes back meanwhile, and so does the one with the bug."""
    engines = [PlainEngine("one"), PlainEngine("two")]

    async def breaks(*_: object, **__: object) -> None:
        engines[0].looks += 1
        raise problem

    with capture_logs() as told:
        async with started(engines) as fleet:
            with monkeypatch.context() as broken:
                broken.setattr(engines[0], where, breaks)
                if where == "complete":
                    engines[0].mark = 1  # so that it is probed
                await until(lambda: fleet.up == 1)
                # It is probed in any case from here; a later probe would see both states.
                engines[0].mark = 0
                looks = engines[0].looks
                await until(lambda: engines[0].looks > looks + 3)
                engines[1].down = GONE
                await until(lambda: fleet.up == 0)
                engines[1].down = None
                await until(lambda: fleet.up == 1)
            await until(lambda: fleet.up == 2)
    of_one = [line["event"] for line in told if line.get("engine") == "one"]
    assert of_one == ["engine not used", "engine used again"]


async def test_a_replica_that_stalls_keeps_nobody_from_looking_at_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fleets, "CHECK_SECONDS", 3600.0)
    engines = [PlainEngine("one"), PlainEngine("two")]
    async with started(engines) as fleet:
        monkeypatch.setattr(engines[0], "ready", asyncio.Event().wait)
        looks = engines[1].looks
        await until(lambda: engines[1].looks > looks + 3)
        engines[1].down = GONE
        await until(lambda: fleet.up == 1)
        engines[1].down = None
        await until(lambda: fleet.up == 2)
