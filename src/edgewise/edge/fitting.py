"""Whether text can fit a context, found out without tokenising more than a context of it."""

from collections.abc import Iterator, Sequence
from weakref import WeakKeyDictionary

from edgewise.edge.base import Tokenizer
from edgewise.errors import ContextOverflow

CHUNK = 1 << 16
"""Characters that are tokenised at a time to count what they come to."""

_SLACK = 2

_known: WeakKeyDictionary[Tokenizer, int] = WeakKeyDictionary()


def longest_piece(tokenizer: Tokenizer) -> int:
    """Bytes of the longest text that one id stands for; at least 1."""
    found = _known.get(tokenizer)
    if found is None:
        special = (
            len(text.encode("utf-8", "surrogatepass")) for text in tokenizer.special.values()
        )
        pieces = (len(tokenizer.piece(token)) for token in range(tokenizer.size))
        found = _known[tokenizer] = max(1, *special, *pieces)
    return found


def require_short(tokenizer: Tokenizer, texts: Sequence[str], context: int) -> None:
    """Raise `ContextOverflow` for texts that no tokenisation fits into `context` ids.

    By their length alone: no id stands for more than the vocabulary's longest piece, and a
    character is at least a byte.
    """
    if (characters := sum(map(len, texts))) <= CHUNK:
        return
    least = -(-characters // longest_piece(tokenizer))
    if least >= context:
        raise overflow(f"at least {least}", context)


def require_fitting(tokenizer: Tokenizer, texts: Sequence[str], context: int) -> None:
    """Raise `ContextOverflow` for texts that are clearly too long for `context` ids.

    Long texts are tokenised in chunks, and no further than `context` needs. Where a chunk ends a
    few ids differ from the whole text's, so a text is only refused at twice the context; one in
    between, tokenised as a whole, is small by then. Raises as `require_short`.
    """
    require_short(tokenizer, texts, context)
    if sum(map(len, texts)) <= CHUNK:
        return
    count = 0
    for chunk in _chunks(texts):
        count += len(tokenizer.encode(chunk))
        if count >= _SLACK * context:
            raise overflow(f"more than {context}", context)


def overflow(tokens: str, context: int) -> ContextOverflow:
    """That a prompt of so many tokens, in words, does not fit."""
    return ContextOverflow(
        f"The prompt has {tokens} tokens and the context holds {context}", hint="shorten it"
    )


def _chunks(texts: Sequence[str]) -> Iterator[str]:
    for text in texts:
        for start in range(0, len(text), CHUNK):
            yield text[start : start + CHUNK]
