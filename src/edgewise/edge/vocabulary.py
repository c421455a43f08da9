"""Functions of a tokenizer: its fingerprint, texts to ids and back, the length of prompts."""

import functools
import hashlib
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar
from weakref import WeakKeyDictionary

from edgewise.edge.base import PROBES, Tokenizer
from edgewise.errors import ContextOverflow

CHUNK = 1 << 16
"""Characters that are tokenized at a time when a prompt's ids are counted."""

# Chunks cut words, which makes some ids more: a count of them is sure only far over the context.
_SLACK = 2
_CONTEXT = 32  # ids before a text that are read to spell it
_T = TypeVar("_T")


def once(compute: Callable[[Tokenizer], _T]) -> Callable[[Tokenizer], _T]:
    """Decorator: cache the results of `compute`, each for as long as its tokenizer exists."""
    known: WeakKeyDictionary[Tokenizer, _T] = WeakKeyDictionary()
    lock = threading.Lock()

    @functools.wraps(compute)
    def remembered(tokenizer: Tokenizer) -> _T:
        with lock:
            if tokenizer not in known:
                known[tokenizer] = compute(tokenizer)
            return known[tokenizer]

    return remembered


@once
def fingerprint(tokenizer: Tokenizer) -> str:
    """Return a SHA-256 (hex) that is equal for equal vocabularies, apart from padding.

    It covers the text of every id that has one, and the ids of some test strings (`PROBES`).
    """
    digest = hashlib.sha256()
    special = tokenizer.special
    for token in range(tokenizer.size):
        text = special.get(token)
        data = tokenizer.piece(token) if text is None else text.encode("utf-8", "surrogatepass")
        # What has neither is padding: models of one family pad to different sizes.
        if text is not None or data:
            digest.update(b"%d\0%d\0%d\0%b" % (token, text is not None, len(data), data))
    # Vocabularies of equal ids may still have other merges or another pre-tokenizer.
    digest.update(repr([tokenizer.encode(text) for text in PROBES]).encode())
    return digest.hexdigest()


def common_prefix(left: Sequence[object], right: Sequence[object]) -> int:
    """Return how many leading items two sequences have in common."""
    shorter = min(len(left), len(right))
    # Mostly one begins with the other, and comparing lists is much faster than going through them.
    if list(left[:shorter]) == list(right[:shorter]):
        return shorter
    return next(n for n, (a, b) in enumerate(zip(left, right, strict=False)) if a != b)


def bytes_of(tokenizer: Tokenizer, ids: Sequence[int]) -> bytes:
    """Return the UTF-8 bytes that ids stand for; special tokens add nothing."""
    return b"".join(map(tokenizer.piece, ids))


def ids_of_text(tokenizer: Tokenizer, before: Sequence[int], text: str) -> list[int] | None:
    """Return ids that continue the ids `before` with exactly the bytes of `text`, or None.

    It tokenizes `text` together with the text of the last 32 ids of `before`. If that changes these
    ids, or the new ones have other bytes than `text`, it tokenizes `text` alone, then behind a
    newline. At last it takes one id for each byte, and returns None if some byte has no id.
    """
    data = text.encode()
    tail = list(before[-_CONTEXT:])
    context = bytes_of(tokenizer, tail).decode("utf-8", "replace")
    # Before a text alone SentencePiece adds a space, behind a newline it does not.
    for first, ids in ((context, tail), ("", []), ("\n", tokenizer.encode("\n"))):
        found = tokenizer.encode(first + text)
        if found[: len(ids)] == ids and bytes_of(tokenizer, found[len(ids) :]) == data:
            return found[len(ids) :]
    letters = _letters(tokenizer)
    return [letters[byte] for byte in data] if all(byte in letters for byte in data) else None


@once
def _letters(tokenizer: Tokenizer) -> Mapping[int, int]:
    """Return the id of each byte that has an id of its own."""
    pieces = ((tokenizer.piece(token), token) for token in reversed(range(tokenizer.size)))
    return {piece[0]: token for piece, token in pieces if len(piece) == 1}


@once
def longest_piece(tokenizer: Tokenizer) -> int:
    """Return the length in bytes of the longest text that one id stands for; at least 1."""
    special = (len(text.encode("utf-8", "surrogatepass")) for text in tokenizer.special.values())
    return max(1, *special, *(len(tokenizer.piece(token)) for token in range(tokenizer.size)))


def require_fitting(tokenizer: Tokenizer, texts: Sequence[str], context: int) -> None:
    """Raise `ContextOverflow` for texts that together are clearly too long for `context` ids.

    Texts of up to `CHUNK` (65,536) characters in all are not checked. Longer ones are too long if
    they would fill the context even with the vocabulary's longest tokens, or if, tokenized in
    chunks, they give 2 * `context` ids.
    """
    if (characters := sum(map(len, texts))) <= CHUNK:
        return
    # So the longest texts are refused without the time of tokenizing them.
    least = -(-characters // longest_piece(tokenizer))
    if least >= context:
        raise overflow(f"at least {least}", context)
    count = 0
    for text in texts:
        for start in range(0, len(text), CHUNK):
            count += len(tokenizer.encode(text[start : start + CHUNK]))
            if count >= _SLACK * context:
                raise overflow(f"more than {context}", context)


def overflow(tokens: str, context: int) -> ContextOverflow:
    """Return the error for a prompt that is too long; `tokens` is a text like "at least 9000"."""
    return ContextOverflow(
        f"The prompt has {tokens} tokens and the context holds {context}", hint="shorten it"
    )
