"""Sessions that share passes of llama.cpp: each answers as if it were alone."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

from edgewise.edge.base import EdgeSession, Floats, Needs
from edgewise.edge.kv import KvSession
from edgewise.edge.llamacpp import LlamaModel
from edgewise.edge.llamacpp.cache import LlamaContext
from edgewise.edge.llamacpp.library import llama_cpp
from edgewise.edge.step import LogitsStep
from edgewise.errors import ModelError

SLOTS = 4
ATOL = 0.02
PROMPTS = [[(step * index + 3) % 250 for index in range(24)] for step in (7, 11, 13, 17)]


@pytest.fixture(scope="module")
def model(bpe_path: Path) -> Iterator[LlamaModel]:
    with LlamaModel(bpe_path, threads=1, gpu_layers=0, slots=SLOTS) as loaded:
        yield loaded


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Ids of every pass."""
    decode, seen = llama_cpp.llama_decode, list[int]()

    def counted(context: object, batch: Any) -> int:
        seen.append(batch.n_tokens)
        return int(decode(context, batch))

    monkeypatch.setattr(llama_cpp, "llama_decode", counted)
    return seen


def meanwhile(monkeypatch: pytest.MonkeyPatch, do: Callable[[LlamaContext, int], None]) -> None:
    """Before every pass, on the thread that runs it."""
    decode = LlamaContext.decode

    def doing(context: LlamaContext, *, hidden: bool) -> None:
        do(context, context._batch.n_tokens)  # pyright: ignore[reportPrivateUsage]
        decode(context, hidden=hidden)

    monkeypatch.setattr(LlamaContext, "decode", doing)


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.001)


Operation = tuple[str, int]
ONE = st.one_of(
    st.tuples(st.just("write"), st.integers(1, 4)),
    st.tuples(st.just("verify"), st.integers(1, 6)),
    st.tuples(st.just("rewind"), st.integers(1, 12)),
    st.tuples(st.just("rest"), st.just(0)),
    st.tuples(st.just("reopen"), st.integers(0, 3)),
)


def play(session: EdgeSession, prompt: Sequence[int], script: Sequence[Operation]) -> list[Floats]:
    """Do as the script says; the logits on the way."""
    seen: list[Floats] = []
    session.open(prompt)
    for what, count in script:
        if what == "write":
            for _ in range(count):
                step = session.step()
                seen.append(step.logits.copy())
                session.extend([step.proposed])
        elif what == "verify":
            steps = session.steps([(31 * count + at) % 250 for at in range(count)])
            seen += [step.logits.copy() for step in steps]
        elif what == "rewind":
            session.rewind(max(1, session.position - count))
        elif what == "rest":
            session.rest()
        else:
            session.open([*prompt, *PROMPTS[count]])
    return seen


@given(scripts=st.lists(st.lists(ONE, max_size=6), min_size=2, max_size=SLOTS))
def test_among_others_is_as_alone(model: LlamaModel, scripts: list[list[Operation]]) -> None:
    def played(number: int) -> list[Floats]:
        with closing(model.session()) as session:
            return play(session, PROMPTS[number], scripts[number])

    numbers = range(len(scripts))
    alone = [played(number) for number in numbers]
    with ThreadPoolExecutor(SLOTS) as pool:
        among = list(pool.map(played, numbers))
    for one, other in zip(alone, among, strict=True):
        assert len(one) == len(other)
        for left, right in zip(one, other, strict=True):
            np.testing.assert_allclose(left, right, atol=ATOL)
    assert model.slots.sessions == 0


def more(session: EdgeSession, count: int) -> list[int]:
    """Tokens that the model goes on with; the session holds them then."""
    ids: list[int] = []
    for _ in range(count):
        ids.append(session.step().proposed)
        session.extend(ids[-1:])
    return ids


def written(model: LlamaModel, number: int, count: int, needs: Needs = Needs.NOTHING) -> list[int]:
    with closing(model.session(needs)) as session:
        session.open(PROMPTS[number])
        return more(session, count)


def written_among(model: LlamaModel, numbers: Iterable[int]) -> list[list[int]]:
    """All at once."""
    with ThreadPoolExecutor(SLOTS) as pool:
        running = [pool.submit(written, model, number, 12) for number in numbers]
        return [one.result(60) for one in running]


@pytest.mark.parametrize("needs", [Needs.NOTHING, Needs.HIDDEN])
def test_sessions_that_wait_share_a_pass(
    model: LlamaModel, passes: list[int], monkeypatch: pytest.MonkeyPatch, needs: Needs
) -> None:
    alone = [written(model, number, 16, needs) for number in range(SLOTS)]
    sessions = [model.session(needs) for _ in range(SLOTS)]
    for session, prompt in zip(sessions, PROMPTS, strict=True):
        session.open(prompt)
        session.step()
    passes.clear()

    def wait(context: LlamaContext, count: int) -> None:
        if not passes:
            until(lambda: count + len(model.slots.line) >= SLOTS)  # type: ignore[attr-defined]

    def write(session: EdgeSession) -> list[int]:
        with closing(session):
            return more(session, 16)

    meanwhile(monkeypatch, wait)
    with ThreadPoolExecutor(SLOTS) as pool:
        assert list(pool.map(write, sessions)) == alone
    assert max(passes) >= SLOTS - 1
    assert len(passes) < sum(passes) == SLOTS * 15


def test_alone_no_logits_are_copied(model: LlamaModel, monkeypatch: pytest.MonkeyPatch) -> None:
    copies: list[int] = []

    def kept(step: LogitsStep) -> None:
        copies.append(step.position)

    monkeypatch.setattr(LogitsStep, "keep", kept)
    written(model, 0, 16)
    assert not copies


def test_logits_are_copied_where_they_are_read_after_another_pass(model: LlamaModel) -> None:
    first, second = model.session(Needs.HIDDEN), model.session()
    first.open(PROMPTS[0])
    step = first.step()
    expected = step.logits.copy(), step.hidden.copy(), step.entropy
    again = first.steps([5, 6, 7])
    rows = [one.logits.copy() for one in again]
    second.open(PROMPTS[1])
    second.step()
    for one, row in zip(again, rows, strict=True):
        assert np.array_equal(one.logits, row)
        assert one.logprob(one.proposed) <= 0
    first.rewind(len(PROMPTS[0]))
    fresh = first.step()
    second.extend([1])
    second.step()
    np.testing.assert_allclose(fresh.logits, expected[0], atol=ATOL)
    np.testing.assert_allclose(fresh.hidden, expected[1], atol=ATOL)
    first.close()
    second.close()


def test_a_prompt_stalls_for_one_chunk(long_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with LlamaModel(long_path, threads=1, gpu_layers=0, slots=2) as model:
        sizes: list[int] = []
        steady, long = model.session(), model.session()
        steady.open(PROMPTS[0])
        steady.step()
        done = threading.Event()

        def noted(context: LlamaContext, count: int) -> None:
            sizes.append(count)
            # A pass of two ids is that of both sessions: nobody is left to wait.
            if count != 2 and not done.is_set():
                # Both wait for the next pass by now, whatever the machine is busy with.
                until(lambda: bool(model.slots.line) or done.is_set())  # type: ignore[attr-defined]

        def read() -> None:
            long.open(PROMPTS[1] * 20)
            long.step()
            done.set()

        meanwhile(monkeypatch, noted)
        with ThreadPoolExecutor(1) as pool:
            reading = pool.submit(read)
            while not done.is_set():
                steady.extend([1])
                steady.step()
            reading.result(60)
        chunks = [at for at, size in enumerate(sizes) if size > 2]
        assert len(chunks) >= 7
        assert all(later - earlier > 1 for earlier, later in pairwise(chunks))
        steady.close()
        long.close()


def test_a_failed_pass_goes_one_by_one(model: LlamaModel, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = [written(model, number, 12) for number in range(SLOTS)]
    decode, failed = llama_cpp.llama_decode, list[int]()

    def fails_together(context: object, batch: Any) -> int:
        if len({batch.seq_id[i][0] for i in range(batch.n_tokens)}) > 1:
            failed.append(batch.n_tokens)
            return 1
        return int(decode(context, batch))

    monkeypatch.setattr(llama_cpp, "llama_decode", fails_together)
    assert written_among(model, range(SLOTS)) == alone
    assert failed


def test_who_fails_fails_alone(model: LlamaModel, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = [written(model, number, 12) for number in range(2)]
    decode = llama_cpp.llama_decode

    def refuses(context: object, batch: Any) -> int:
        ids = {batch.token[at] for at in range(batch.n_tokens)}
        return 1 if 249 in ids else int(decode(context, batch))

    def doomed() -> None:
        with closing(model.session()) as session:
            session.open(PROMPTS[2])
            session.step()
            for _ in range(6):
                session.extend([249])
                with pytest.raises(ModelError):
                    session.step()
                session.rewind(len(PROMPTS[2]))

    assert 249 not in {*alone[0], *alone[1], *PROMPTS[0], *PROMPTS[1], *PROMPTS[2]}
    monkeypatch.setattr(llama_cpp, "llama_decode", refuses)
    with ThreadPoolExecutor(1) as pool:
        failing = pool.submit(doomed)
        assert written_among(model, range(2)) == alone
        failing.result()


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="needs POSIX signals")
@pytest.mark.parametrize("at_its_end", [False, True])
def test_a_ctrl_c_ends_one_wait_and_nothing_else(
    model: LlamaModel, monkeypatch: pytest.MonkeyPatch, at_its_end: bool
) -> None:
    alone = [written(model, number, 12) for number in range(2)]
    session = model.session()
    session.open(PROMPTS[0])
    ids = [session.step().proposed]
    here, pressed = threading.get_ident(), threading.Event()
    old = signal.signal(signal.SIGINT, signal.default_int_handler)

    def press(context: LlamaContext, count: int) -> None:
        if not pressed.is_set():
            pressed.set()
            # A signal of this thread's own does not wake the one that waits: it sees it once woken.
            signal.pthread_kill(threading.get_ident() if at_its_end else here, signal.SIGINT)
            # Long enough for the waiting thread to see it.
            time.sleep(0.05)

    meanwhile(monkeypatch, press)
    try:
        session.extend(ids)
        with pytest.raises(KeyboardInterrupt):
            session.step()
    finally:
        signal.signal(signal.SIGINT, old)
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(written, model, 1, 12)
        assert ids + more(session, 11) == alone[0]
        assert other.result(60) == alone[1]
    session.close()


def test_closing_a_model_ends_what_waits(bpe_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And a step may be read while it is closed."""
    model = LlamaModel(bpe_path, threads=1, gpu_layers=0, slots=SLOTS + 1)
    read = model.session()
    read.open(PROMPTS[0])
    step = read.step()
    expected = step.logprob(7)
    read.rest()
    started, go = threading.Event(), threading.Event()

    def hold(context: LlamaContext, count: int) -> None:
        started.set()
        assert go.wait(60)

    with ThreadPoolExecutor(SLOTS) as pool:
        meanwhile(monkeypatch, hold)
        running = [pool.submit(written, model, number, 4) for number in range(SLOTS)]
        assert started.wait(60)
        closing = threading.Thread(target=model.close)
        closing.start()
        go.set()
        for one in running:
            assert isinstance(one.exception(60), Exception) or one.result()
        closing.join(60)
    assert not closing.is_alive()
    assert step.logprob(7) == expected


def test_what_fails_after_a_pass_is_raised_where_it_is_waited_for(
    model: LlamaModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone, session = written(model, 0, 12), model.session()
    session.open(PROMPTS[0])

    def fails(*_: object) -> None:
        raise MemoryError

    with monkeypatch.context() as patched:
        patched.setattr(KvSession, "steps_of", fails)
        with pytest.raises(MemoryError):
            session.step()
    session.close()
    assert written(model, 0, 12) == alone


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_forked_process_runs_passes_of_its_own(bpe_path: Path) -> None:
    """One thread a pass: OpenMP does not survive a fork."""
    with LlamaModel(bpe_path, threads=1, gpu_layers=0) as model:
        expected = written(model, 0, 4)
        child = os.fork()
        if child == 0:
            signal.alarm(60)
            os._exit(0 if written(model, 0, 4) == expected else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
