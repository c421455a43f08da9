"""Sessions that go back, and go on from one another's cache, read as if they had not.

Models that cannot drop their last ids go back to checkpoints.
"""

import ctypes
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edgewise.edge.base import EdgeSession, Floats, Needs
from edgewise.edge.kv import FairLock
from edgewise.edge.llamacpp import LlamaModel
from edgewise.edge.llamacpp.cache import LlamaSequence
from edgewise.edge.llamacpp.library import llama_cpp
from edgewise.edge.sequence import MOST
from edgewise.errors import UsageError
from edgewise.loop.decoder import Decoder
from edgewise.loop.policy import Policy
from edgewise.prompts import Message, Prompt
from edgewise.routers.untrained import MaxProb, Random
from tests.contracts.test_edge import read
from tests.hybrid_models import HYBRIDS, HybridPaths

CONTEXT, NEAR = 128, 1e-2
"""Batches of different sizes differ by less than this part of the largest logit."""

A = [(7 * index) % 250 for index in range(40)]
B = [(11 * index + 3) % 250 for index in range(40)]

Wanted = Callable[[Sequence[int]], Floats]


def load(path: Path, *, context: int = CONTEXT, **options: Any) -> LlamaModel:
    return LlamaModel(path, context=context, threads=1, gpu_layers=0, **options)


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many ids each decode had, from the last `clear()` on."""
    sizes: list[int] = []
    decode = llama_cpp.llama_decode

    def counted(context: Any, batch: Any) -> int:
        sizes.append(batch.n_tokens)
        return decode(context, batch)

    monkeypatch.setattr(llama_cpp, "llama_decode", counted)
    return sizes


@pytest.fixture(scope="module", params=HYBRIDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def path(kind: str, hybrid_paths: HybridPaths) -> Path:
    return hybrid_paths[kind]


@pytest.fixture(scope="module")
def qwen(hybrid_paths: HybridPaths) -> Path:
    return hybrid_paths["qwen35"]


@pytest.fixture
def wanted(path: Path) -> Iterator[Wanted]:
    """Logits after ids that a session without a past reads."""
    with load(path) as model:
        yield lambda ids: read(model, ids)[1]


def assert_near(left: Floats, right: Floats) -> None:
    largest = float(np.abs(right).max())
    np.testing.assert_allclose(left, right, atol=NEAR * largest, rtol=0)
    # Where it is no near tie the likeliest is the same.
    assert right[int(left.argmax())] >= right.max() - 2 * NEAR * largest


def go_on(session: EdgeSession, tokens: Iterable[int]) -> None:
    """One step each."""
    for token in tokens:
        session.extend([token])
        session.step()


def test_back_to_a_checkpoint_nothing_is_read(path: Path, wanted: Wanted, runs: list[int]) -> None:
    with load(path) as model:
        session = model.session(Needs.LOGITS)
        session.open(A)
        session.step()
        session.checkpoint(len(A))
        go_on(session, range(16))
        session.rewind(len(A))
        runs.clear()
        session.extend([99])
        logits = session.step().logits
        assert runs == [1]
        assert_near(logits, wanted([*A, 99]))


@pytest.mark.parametrize("back", [1, 2, 3, 5, 11, 16])
def test_a_little_back_little_is_read_again(qwen: Path, runs: list[int], back: int) -> None:
    with load(qwen) as model:
        session = model.session()
        session.open(A)
        go_on(session, range(48))
        session.rewind(session.position - back)
        session.extend([99])
        runs.clear()
        session.step()
        assert len(runs) == 1, "in one run"
        assert runs[0] <= max(LlamaSequence.spacing, back) + 1


def test_no_more_checkpoints_than_there_may_be_in_memory_that_is_used_again(
    qwen: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places: set[int] = set()
    save = llama_cpp.llama_state_seq_get_data_ext

    def noted(context: Any, buffer: Any, *rest: Any) -> int:
        places.add(ctypes.addressof(buffer.contents))
        return save(context, buffer, *rest)

    monkeypatch.setattr(llama_cpp, "llama_state_seq_get_data_ext", noted)
    with load(qwen, slots=2) as model:
        sessions = [model.session(), model.session()]
        for session, ids in zip(sessions, (A, A[::-1]), strict=True):
            session.open(ids)
            go_on(session, range(80))
        assert len(places) == 2 * MOST


def test_the_next_turn_reads_what_is_new(path: Path, wanted: Wanted, runs: list[int]) -> None:
    """Also where the last message is changed."""
    with load(path, keep_prefixes=True) as model:
        read(model, A)
        longer, changed = [*A, 3, 4, 5], [*A[:25], 7, 7, 7]
        for ids, least in ((longer, len(A)), ([*A, 9], len(A) - 1), (A, len(A) - 1)):
            runs.clear()
            kept, logits = read(model, ids)
            assert least <= kept
            assert sum(runs) == len(ids) - kept, "what is said to be kept is not read"
            assert_near(logits, wanted(ids))
    with load(path, keep_prefixes=True) as model:
        with closing(model.session()) as session:
            session.open(A)
            session.checkpoint(25)
            session.step()
            go_on(session, range(60))
        runs.clear()
        kept, logits = read(model, changed)
        assert (kept, sum(runs)) == (25, 3)
        assert_near(logits, wanted(changed))


def test_the_slot_that_really_keeps_most_is_chosen(qwen: Path) -> None:
    with load(qwen, slots=2, keep_prefixes=True) as model:
        early, late = model.session(), model.session()
        for session, mark in ((early, 3), (late, 20)):
            session.open(A)
            session.checkpoint(mark)
            session.step()
        late.close()
        early.close()
        assert read(model, [*A[:30], 1])[0] == 20


def _spoilt(restore: Any) -> Any:
    def call(context: Any, buffer: Any, size: int, *rest: Any) -> int:
        ctypes.memset(buffer, 0xFF, size)
        return restore(context, buffer, size, *rest)

    return call


def _all_or_nothing(remove: Any) -> Any:
    return lambda memory, sequence, start, end: start <= 0 and remove(memory, sequence, start, end)


FAULTS: dict[str, tuple[str, Callable[[Any], Any]]] = {
    "a checkpoint that is not read": ("llama_state_seq_set_data_ext", lambda _: lambda *_: 0),
    "one that is not read whole": ("llama_state_seq_set_data_ext", lambda _: lambda *_: 7),
    "one that was overwritten": ("llama_state_seq_set_data_ext", _spoilt),
    "one that cannot be made": ("llama_state_seq_get_data_ext", lambda _: lambda *_: 0),
    "a cut that is refused": ("llama_memory_seq_rm", _all_or_nothing),
}


@pytest.mark.parametrize("which", FAULTS)
def test_what_cannot_be_restored_is_read_again_from_the_start(
    qwen: Path, runs: list[int], monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    name, broken = FAULTS[which]
    monkeypatch.setattr(llama_cpp, name, broken(getattr(llama_cpp, name)))
    with load(qwen) as model, load(qwen) as other:
        session = model.session(Needs.LOGITS)
        session.open(A)
        session.step()
        session.extend([1, 2, 3])
        session.step()
        session.rewind(len(A) + 1)
        runs.clear()
        logits = session.step().logits
        assert sum(runs) == len(A) + 1
        assert_near(logits, read(other, [*A, 1])[1])
        session.extend([2])
        assert_near(session.step().logits, read(other, [*A, 1, 2])[1])


def test_no_hidden_states_where_they_cost_right_logits(
    hybrid_paths: HybridPaths,
) -> None:
    with load(hybrid_paths["lfm2"]) as model:
        with pytest.raises(UsageError, match="'lfm2'") as caught:
            model.session(Needs.HIDDEN)
        assert caught.value.setting == "router"
        with closing(model.session(MaxProb().needs)) as session:
            session.open(A)
            assert 0 <= MaxProb().score(session.step()) <= 1


def test_the_next_turn_goes_on_from_the_last_user_message(
    hybrid_paths: HybridPaths,
) -> None:
    """A template may write the turn before it otherwise than it was answered."""
    with LlamaModel(hybrid_paths["qwen35"], threads=1, context=256, keep_prefixes=True) as edge:
        decoder = Decoder(edge, router=Random(1), policy=Policy(cloud_share=0.0))

        def cached(asked: str, behind: str) -> int:
            text = f"Be brief and kind.\n\n{asked}{behind}"
            prompt = Prompt(tuple(edge.tokenizer.encode(text)), (Message("user", asked),))
            return decoder.generate(prompt, max_tokens=40).usage.cached_tokens

        assert cached("What is it that one sees?", "<hidden thoughts>") == 0
        before = len(edge.tokenizer.encode("Be brief and kind.\n\n"))
        assert cached("What is it that one hears?", "<hidden thoughts>") == before
        assert cached("What is it that one hears?", "<other thoughts>") == before


def talk(number: int, turns: int, head: Sequence[int]) -> Iterator[tuple[list[int], list[int]]]:
    """A conversation's prompts, each behind all that was said before, and what answers each."""
    rng = np.random.default_rng(number)
    said = list(head)
    for _ in range(turns):
        asked, answer = rng.integers(0, 250, 8).tolist(), rng.integers(0, 250, 6).tolist()
        said += asked
        yield list(said), answer
        said += answer


@pytest.mark.parametrize("head", [3, 60], ids=["a template's head", "a long system prompt"])
@pytest.mark.parametrize(("slots", "talks"), [(4, 2), (4, 4), (8, 8)])
def test_talks_keep_what_they_have(bpe_path: Path, slots: int, talks: int, head: int) -> None:
    """Where there are slots for all of them, no more is read than what is new."""
    computed = new = 0
    with load(bpe_path, context=256, slots=slots, keep_prefixes=True) as model:
        conversations = [talk(number, 5, A[:1] * head) for number in range(talks)]
        known = [0] * talks
        for turn in zip(*conversations, strict=True):
            for number, (prompt, answer) in enumerate(turn):
                with closing(model.session()) as session:
                    computed += len(prompt) - session.open(prompt)
                    for token in answer:
                        session.step()
                        session.extend([token])
                    session.step()
                new += len(prompt) - known[number]
                known[number] = len(prompt) + len(answer)
    assert computed / new <= 1.05


def test_the_slot_with_most_of_a_prompt_is_found(bpe_path: Path) -> None:
    with load(bpe_path, slots=4, keep_prefixes=True) as model:
        read(model, [*A, 1, 2, 3])
        for answer in ([5, 6, 7], [8, 9]):  # drawn again
            with closing(model.session()) as session:
                session.open(A)
                session.step()
                session.extend(answer)
                session.step()
            assert read(model, A)[0] == len(A)
    # More conversations than slots take the one unused longest, and not the one that begins
    # alike, of which they would keep less than it lost.
    with load(bpe_path, slots=2, keep_prefixes=True) as model:
        read(model, B)
        read(model, A)
        assert read(model, [*A[:3], *range(50, 80)])[0] == 0
        assert read(model, A)[0] == len(A)
    # A session chooses when it is opened; one that is never opened takes nothing.
    with load(bpe_path, slots=2, keep_prefixes=True) as model:
        waiting = model.session()
        read(model, A)
        assert waiting.open([*A, 9]) == len(A)
        waiting.close()
        for _ in range(3):
            model.session().close()
        first, second = model.session(), model.session()
        assert (first.open(B), second.open(A)) == (0, len(A))


def test_threads_are_served_in_the_order_of_their_coming() -> None:
    lock = FairLock()
    order: list[int] = []

    def one(number: int) -> None:
        with lock:
            order.append(number)

    with lock:
        threads = [threading.Thread(target=one, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
            time.sleep(0.01)
    for thread in threads:
        thread.join(60)
    assert order == list(range(8))
