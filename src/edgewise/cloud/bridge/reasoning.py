"""Blocks of reasoning that models write before an answer, each family between signs of its own."""

from collections.abc import Sequence
from typing import Literal

from edgewise.edge.base import Tokenizer

Block = Literal["none", "open", "over"]
"""Of a block at an answer's beginning."""

_SIGNS = tuple(
    (begin.encode(), end.encode())
    for begin, end in (
        ("<think>", "</think>"),
        ("[THINK]", "[/THINK]"),
        ("<seed:think>", "</seed:think>"),
        ("<|START_THINKING|>", "<|END_THINKING|>"),
        ("<|channel|>analysis<|message|>", "<|channel|>final<|message|>"),
    )
)
"""Qwen, DeepSeek, GLM and SmolLM; Mistral; Seed; Command; gpt-oss."""

_PROMPT = 16
"""Ids at a prompt's end that are read: a template may begin a block there."""


class Reasoning:
    """Finds a block at an answer's beginning, in ids of a tokenizer's."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        # Signs may be control tokens, which are no text.
        signs = b" ".join(sign for signs in _SIGNS for sign in signs)
        special = ((token, text.encode()) for token, text in tokenizer.special.items())
        self._silent = {token: text for token, text in special if text and text in signs}

    def keeps(self, ids: Sequence[int], start: int, token: int, *, inside: bool) -> bool:
        """Whether `token` behind `ids`, an answer from `start` on, begins or ends a block.

        The blanks behind one end it, too. With `inside` also where it stands inside of one.
        """
        block, left = self.parted([*ids, token], start)
        if block == "open":
            return inside or self.parted(ids, start)[0] != "open"
        return block == "over" and not self._text(left).strip()

    def parted(self, ids: Sequence[int], start: int) -> tuple[Block, Sequence[int]]:
        """Whether there is a block, and the answer's ids inside of one that is open, else behind.

        The sign that begins one, where the answer has it, stays with what is inside.
        """
        end, text = self._end(ids, start), self._text(ids[start:])
        if end is None:
            return "none", ids[start:]
        if end not in text:
            return "open", ids[start:]
        left, number = text.index(end) + len(end), start
        while left > 0:
            left -= len(self._piece(ids[number]))
            number += 1
        return "over", ids[number:]

    def _end(self, ids: Sequence[int], start: int) -> bytes | None:
        """The sign that ends the block with which the answer begins; None where it does not."""
        before = self._text(ids[max(0, start - _PROMPT) : start]).rstrip()
        beginning = self._text(ids[start : start + _PROMPT]).lstrip()
        for begin, end in _SIGNS:
            if before.endswith(begin) or beginning.startswith(begin):
                return end
        return None

    def _text(self, ids: Sequence[int]) -> bytes:
        return b"".join(map(self._piece, ids))

    def _piece(self, token: int) -> bytes:
        return self._silent.get(token) or self._tokenizer.piece(token)
