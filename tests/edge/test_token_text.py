"""Text of tokens, read by many threads at once."""

import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import gguf
import pytest

from edgewise.addresses import bundled
from edgewise.edge.base import Tokenizer
from edgewise.edge.llamacpp import LlamaModel
from edgewise.errors import UsageError
from tests import models

THREADS, ROUNDS = 16, 20


@pytest.fixture
def hurried() -> Iterator[None]:
    """Threads take turns as often as they can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def text_of_all(tokenizer: Tokenizer, first: int = 0) -> list[bytes]:
    """Every id's piece, asked for from `first` on and then around."""
    size = tokenizer.size
    found = {at % size: tokenizer.piece(at % size) for at in range(first, first + size)}
    return [found[token] for token in range(size)]


def text_by_threads(tokenizer: Tokenizer) -> list[list[bytes]]:
    """What each of many threads is told, all of them at once."""
    found: dict[int, list[bytes]] = {}
    ready = threading.Barrier(THREADS)

    def one(number: int) -> None:
        ready.wait()
        found[number] = text_of_all(tokenizer, 37 * number)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return [found[number] for number in range(THREADS)]


@pytest.mark.usefixtures("hurried")
def test_threads_do_not_get_each_other_s_text() -> None:
    with LlamaModel(bundled("edge"), threads=1) as model:
        true = text_of_all(model.tokenizer)
    for _ in range(ROUNDS):
        with LlamaModel(bundled("edge"), threads=1, context=64) as model:
            assert all(found == true for found in text_by_threads(model.tokenizer))
            # ... and nothing wrong was kept for later.
            assert text_of_all(model.tokenizer) == true


def test_a_piece_of_any_length_is_whole(tmp_path: Path) -> None:
    """llama.cpp says how much room it needs; a line of a table may be hundreds of bytes long."""
    used = models.byte_level()
    long = ["a" * length for length in (63, 64, 65, 500, 3000)]
    vocabulary = replace(
        used,
        tokens=[*used.tokens, *long],
        kinds=[*used.kinds, *[gguf.TokenType.USER_DEFINED] * len(long)],
    )
    path = models.write_transformer(tmp_path / "long.gguf", vocabulary)
    with LlamaModel(path, threads=1) as model:
        first = len(used.tokens)
        assert [model.tokenizer.piece(first + i) for i in range(len(long))] == [
            text.encode() for text in long
        ]


@pytest.mark.parametrize("token", [-1, "size", 10**6, 1 << 31, 1 << 32, 1 << 64, -(1 << 40)])
def test_an_id_that_there_is_none_of_is_a_sentence(bpe_path: Path, token: int | str) -> None:
    """llama.cpp would abort the process."""
    with LlamaModel(bpe_path, threads=1) as model:
        size = model.tokenizer.size
        with pytest.raises(UsageError, match=str(size - 1)):
            model.tokenizer.piece(size if token == "size" else int(token))
        assert isinstance(model.tokenizer.piece(size - 1), bytes)
