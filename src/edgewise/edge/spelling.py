"""What ids stand for, and which ids stand for a text and nothing else."""

from collections.abc import Mapping, Sequence
from weakref import WeakKeyDictionary

from edgewise.edge.base import Tokenizer

_CONTEXT = 32
"""Ids before a text that are read to spell it."""


def bytes_of(tokenizer: Tokenizer, ids: Sequence[int]) -> bytes:
    """What ids stand for; nothing for those that are no text."""
    return b"".join(map(tokenizer.piece, ids))


def ids_spelling(tokenizer: Tokenizer, before: Sequence[int], text: str) -> list[int] | None:
    """Ids of `text` behind the ids `before`, which stand for its bytes and nothing else.

    Those that the whole has where it begins with `before`; else those of the text alone, behind
    a line's end (SentencePiece puts a blank before a text), or byte by byte. None for a vocabulary
    in which none of these are the text.
    """
    data = text.encode()
    tail = list(before[-_CONTEXT:])
    context = bytes_of(tokenizer, tail).decode("utf-8", "replace")
    for first, ids in ((context, tail), ("", []), ("\n", tokenizer.encode("\n"))):
        found = tokenizer.encode(first + text)
        if found[: len(ids)] == ids and bytes_of(tokenizer, found[len(ids) :]) == data:
            return found[len(ids) :]
    letters = _letters(tokenizer)
    return [letters[byte] for byte in data] if all(byte in letters for byte in data) else None


_known: WeakKeyDictionary[Tokenizer, Mapping[int, int]] = WeakKeyDictionary()


def _letters(tokenizer: Tokenizer) -> Mapping[int, int]:
    """The id of each byte that has one of its own."""
    found = _known.get(tokenizer)
    if found is None:
        pieces = ((tokenizer.piece(token), token) for token in reversed(range(tokenizer.size)))
        found = {piece[0]: token for piece, token in pieces if len(piece) == 1}
        _known[tokenizer] = found
    return found
