"""Marks: copies of a sequence's state, to go back to where the sequence cannot be cut.

A recurrent layer holds one state, that after the last id, and a window in a small cache the last
ids alone: neither can drop ids from its end. So copies are made on the way, every few ids and where
the caller may come back to. Going back takes the last copy at or before a position, and the ids
between the two are read again. Cells of full attention are cut, never copied.
"""

from typing import NamedTuple

import numpy as np

from edgewise.edge.llamacpp_context import Bytes, LlamaContext
from edgewise.edge.llamacpp_load import BATCH

SPACING = 4
"""A recurrent model's marks are as many ids apart, or more: a copy is a few percent of a step."""

MOST = 8
"""Marks of a sequence."""

MEMORY = 1 << 30
"""Bound on the marks of all sequences of a context, bytes, where it leaves room for one each."""

_WINDOW_SPACING = BATCH // 2
"""A window in a small cache can be cut as far back as one decode may reach."""


class _Mark(NamedTuple):
    buffer: Bytes
    size: int


class LlamaMarks:
    """One sequence's. Used with the context's lock held."""

    def __init__(
        self, context: LlamaContext, sequence: int, *, most: int, room: int, idle: list[Bytes]
    ) -> None:
        """At most `most` marks and `room` bytes of them; `idle` are buffers to use again.

        A copy into fresh memory takes many times as long as one into memory that was used before.
        """
        self._context, self._sequence = context, sequence
        self._most, self._room, self._idle = most, room, idle
        self._spacing = SPACING if context.recurrent else _WINDOW_SPACING
        self._at: dict[int, _Mark] = {}
        self._lasting: list[int] = []

    def asked(self, position: int, *, lasting: bool) -> None:
        """The caller may come back to where the sequence ends now.

        `lasting` for positions in a prompt: the last two of them go last.
        """
        if lasting:
            self._lasting = [*(old for old in self._lasting if old != position), position][-2:]
        if lasting or self._context.recurrent:
            self._make(position)

    def passing(self, position: int) -> None:
        """The sequence, which ends there now, is about to grow."""
        if position - max(self._at, default=0) >= self._spacing:
            self._make(position)

    def reach(self, position: int) -> int:
        """How many ids `back(position)` would leave."""
        if self._context.can_cut(self._sequence, position):
            return position
        return max((mark for mark in self._at if mark <= position), default=0)

    def back(self, position: int) -> int:
        """Drop the ids from `position` on, or from the last mark before it, or all.

        Returns how many are left. Marks behind it belong to ids that are gone.
        """
        for mark in [mark for mark in self._at if mark > position]:
            self._give_up(mark)
        self._lasting = [mark for mark in self._lasting if mark <= position]
        if position and self._context.cut(self._sequence, position):
            return position
        last = max(self._at, default=0)
        if last and self._context.load_state(self._sequence, *self._at[last], last):
            return last
        for mark in list(self._at):
            self._give_up(mark)
        return self._context.forget(self._sequence, 0)

    def _make(self, position: int) -> None:
        if not position or position in self._at:
            return
        size = self._context.state_size(self._sequence)
        while self._at and (len(self._at) >= self._most or self._bytes + size > self._room):
            self._give_up(self._least(position))
        buffer = self._buffer(size)
        if self._context.save_state(self._sequence, buffer, size):
            self._at[position] = _Mark(buffer, size)
        else:
            self._idle.append(buffer)

    @property
    def _bytes(self) -> int:
        return sum(mark.size for mark in self._at.values())

    def _least(self, end: int) -> int:
        """The mark that is missed least: the gap it would leave is small for how far back it is.

        So marks lie the closer the nearer they are to the sequence's end.
        """
        places = [0, *sorted(self._at), end]
        order = range(1, len(places) - 1)
        spare = [index for index in order if places[index] not in self._lasting]
        least = min(
            spare or order,
            key=lambda index: (places[index + 1] - places[index - 1]) / (end - places[index] + 1),
        )
        return places[least]

    def _buffer(self, size: int) -> Bytes:
        for index, buffer in enumerate(self._idle):
            if len(buffer) >= size:
                return self._idle.pop(index)
        if self._idle:
            self._idle.pop()
        return np.empty(size, np.uint8)

    def _give_up(self, position: int) -> None:
        self._idle.append(self._at.pop(position).buffer)


def how_many(size: int, count: int, *, most: int = MOST, room: int = MEMORY) -> int:
    """Marks of `size` bytes that each of `count` sequences may have."""
    return max(1, min(most, room // count // max(1, size)))


def marks_of(
    context: LlamaContext, count: int, *, most: int = MOST, room: int = MEMORY
) -> dict[int, LlamaMarks]:
    """Of each of `count` sequences, with `room` bytes together; of none where all can be cut."""
    if not (context.recurrent or context.window):
        return {}
    idle: list[Bytes] = []
    return {
        sequence: LlamaMarks(context, sequence, most=most, room=room // count, idle=idle)
        for sequence in range(count)
    }
