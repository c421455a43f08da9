"""Features of the text around a token: the form and position of the token, never its identity.

Three features look for words of English word lists; the others work in any language.
"""

import math
from collections.abc import Sequence

import numpy as np

from edgewise.edge.base import Floats, Step, Tokenizer, Written

# Bounded, so that a step of a long answer costs no more.
TAIL = 32
"""How many tokens of the answer's end are read at each step."""

_COPULAS = frozenset(("am", "are", "be", "been", "is", "was", "were"))
_ARTICLES = frozenset(("a", "an", "the"))
_PREPOSITIONS = frozenset(
    ("as", "at", "by", "for", "from", "in", "into", "of", "on", "than", "to", "with")
)
_SENTENCE_ENDS = (".", "!", "?", "\n")

NAMES = (
    *("digit", "capital", "letter", "space", "line end", "end"),
    *("in prompt", "second in prompt", "in answer", "after one in prompt"),
    *("new word", "inside word"),
    *("after colon", "after comma", "after bracket", "after digit", "after capital"),
    *("after copula", "after article", "after preposition"),
    *("first", "answer position", "sentence position", "step position", "length"),
)
"""The names of the columns of `text_of`, in order."""


def text_of(step: Step) -> Floats:
    """Return features of the proposed token and of the text before it, in the order of `NAMES`.

    The result is float32. Raises `StaleStepError` if `step` lacks its text or two likeliest ids.
    """
    written, proposed = step.written, step.proposed
    prompt, answer = written.ids[: written.prompt], written.ids[written.prompt :]
    piece = _text(written.tokenizer, [proposed])
    tail = _text(written.tokenizer, answer[-TAIL:])
    second = int(step.top(2)[0][-1])
    columns = (
        *_form(piece),
        proposed in written.tokenizer.eos_ids,
        proposed in prompt,
        second in prompt,
        proposed in answer,
        bool(answer) and answer[-1] in prompt,
        *_before(piece, tail),
        *_position(written, piece, tail),
    )
    return np.array(columns, np.float32)


def _text(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    return b"".join(map(tokenizer.piece, ids)).decode("utf-8", "replace")


def _form(piece: str) -> tuple[bool, ...]:
    return (
        any(map(str.isdigit, piece)),
        any(map(str.isupper, piece)),
        any(map(str.isalpha, piece)),
        piece[:1].isspace(),
        "\n" in piece,
    )


def _before(piece: str, tail: str) -> tuple[bool, ...]:
    """Return features of the text before the token, and whether the token continues a word."""
    last, kept = tail[-1:], tail.rstrip()
    inside = piece[:1].isalnum() and last.isalnum()
    mark = kept[-1:]
    # A continuation of a word follows that word's beginning, not a whole word.
    word = "" if inside else kept.rpartition(" ")[2].rpartition("\n")[2].lower()
    return (
        not inside and piece.lstrip()[:1].isalnum(),
        inside,
        mark == ":",
        mark == ",",
        mark in ("(", "[", "{", '"', "“"),
        mark.isdigit(),
        mark.isupper(),
        word in _COPULAS,
        word in _ARTICLES,
        word in _PREPOSITIONS,
    )


def _position(written: Written, piece: str, tail: str) -> tuple[float, ...]:
    """Return 1 for a first token, and log(1 + length) of answer, sentence, line and token."""
    before = len(written.ids) - written.prompt
    sentence = len(tail) - 1 - max(map(tail.rfind, _SENTENCE_ENDS))
    line = len(tail) - 1 - tail.rfind("\n")
    return before == 0, *(math.log1p(n) for n in (before, sentence, line, len(piece)))
