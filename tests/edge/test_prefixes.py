"""Sessions of one model that go on from one another's KV cache, and take turns."""

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from edgewise.edge.kv import FairLock
from edgewise.edge.llamacpp import LlamaModel
from tests.contracts.test_edge import read

A = [(7 * index) % 250 for index in range(40)]
B = [(11 * index + 3) % 250 for index in range(40)]


def load(path: Path, *, slots: int, keep: bool) -> LlamaModel:
    return LlamaModel(path, threads=1, gpu_layers=0, slots=slots, keep_prefixes=keep)


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
def test_conversations_in_turn_keep_what_they_have(
    bpe_path: Path, slots: int, talks: int, head: int
) -> None:
    """Where there are slots for all of them, no more is read than what is new."""
    computed = new = 0
    with load(bpe_path, slots=slots, keep=True) as model:
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


def test_an_answer_that_is_drawn_again_finds_its_prompt(bpe_path: Path) -> None:
    with load(bpe_path, slots=4, keep=True) as model:
        read(model, [*A, 1, 2, 3])
        for answer in ([5, 6, 7], [8, 9]):
            with closing(model.session()) as session:
                session.open(A)
                session.step()
                session.extend(answer)
                session.step()
            assert read(model, A)[0] == len(A)


def test_a_conversation_more_than_slots_takes_the_one_unused_longest(bpe_path: Path) -> None:
    """And not the one that begins alike, of which it would keep less than it lost."""
    with load(bpe_path, slots=2, keep=True) as model:
        read(model, B)
        read(model, A)
        assert read(model, [*A[:3], *range(50, 80)])[0] == 0
        assert read(model, A)[0] == len(A)


def test_a_session_chooses_when_it_is_opened(bpe_path: Path) -> None:
    """So that it finds what others leave until then; one that is never opened takes nothing."""
    with load(bpe_path, slots=2, keep=True) as model:
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
