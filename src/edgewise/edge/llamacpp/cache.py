"""Sequences of a llama.cpp context: the caches of sessions."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from edgewise.edge.base import Floats
from edgewise.edge.llamacpp.context import Bytes, LlamaContext
from edgewise.edge.sequence import MEMORY, MOST, KvRow, Outputs, SequenceCache, StateCopy

_CLOSE = 1e-2
"""How far logits with and without hidden states may lie apart, of the largest."""


class LlamaSequence(SequenceCache):
    """One sequence of a context. Rows are views, valid until the context's next decode."""

    spacing = 4

    def __init__(
        self,
        context: LlamaContext,
        number: int,
        *,
        idle: list[Bytes],
        room: int = MEMORY,
        most: int = MOST,
    ) -> None:
        """`idle` are buffers to use again: a copy into fresh memory takes many times as long."""
        self._context, self._number, self._idle = context, number, idle
        self.rewinds = "checkpoints" if context.recurrent else "anywhere"
        super().__init__(room=room, most=most)

    @property
    def decodes(self) -> int:
        return self._context.decodes

    def _begin(self) -> None:
        self._context.forget(self._number, 0)

    def _compute(self, ids: Sequence[int], outputs: Outputs, *, hidden: bool) -> Sequence[KvRow]:
        context, every = self._context, outputs == "all"
        last = context.put(self._number, ids, self.length, every=every, last=outputs == "last")
        context.decode(hidden=hidden)
        if outputs == "none":
            return ()
        if not every:
            return (context.row(last, hidden=hidden),)
        return [context.row(index, hidden=hidden) for index in range(last + 1)]

    def _failed(self) -> None:
        # What was computed before stays: a Ctrl-C costs no prompt.
        start = self.length
        self.count()
        self.back(start)

    def count(self) -> None:
        """Know of ids that were computed by others than `run`."""
        self.length = max(self.length, self._context.length(self._number))

    def _size(self) -> int:
        return self._context.state_size(self._number)

    def _copy(self) -> StateCopy:
        size = self._size()
        buffer = self._buffer(size)
        if not self._context.save_state(self._number, buffer, size):
            self._idle.append(buffer)
            raise RuntimeError("llama.cpp did not copy its state")
        return StateCopy(buffer, size)

    def _buffer(self, size: int) -> Bytes:
        for index, buffer in enumerate(self._idle):
            if len(buffer) >= size:
                return self._idle.pop(index)
        if self._idle:
            self._idle.pop()
        return np.empty(size, np.uint8)

    def _reuse(self, state: Bytes) -> None:
        self._idle.append(state)

    def _back(self, count: int, state: Any | None) -> bool:
        position = self.length - count
        if state is None:
            return self._context.cut(self._number, position)
        size = self._copies[position].size
        return self._context.load_state(self._number, state, size, position)


class SequencePool:
    """The sequences of a context, handed out and taken back."""

    def __init__(self, context: LlamaContext, count: int, *, most: int = MOST) -> None:
        idle: list[Bytes] = []
        self.all = [
            LlamaSequence(context, number, idle=idle, room=MEMORY // count, most=most)
            for number in range(count)
        ]
        self._unused = self.all[::-1]

    def new(self) -> LlamaSequence:
        """One that holds nothing."""
        return self._unused.pop()

    def drop(self, sequence: LlamaSequence) -> None:
        """Take one back."""
        sequence.clear()
        self._unused.append(sequence)


def examine(context: LlamaContext) -> tuple[int, bool]:
    """Run a few ids through a recurrent model. The context is empty before and after.

    Returns the bytes of a checkpoint, and whether it hands out hidden states: llama.cpp leaves the
    head out of some hybrids (LFM2) when it does, and in the place of the logits stands what an
    earlier decode left there. Raises `ModelError`.
    """
    rows: list[Floats] = []
    for token, hidden in ((0, False), (1, False), (0, True)):
        context.forget(0, 0)
        context.put(0, [token], 0, last=True)
        context.decode(hidden=hidden)
        rows.append(context.row(0, hidden=False).logits.copy())
    state = context.state_size(0)
    context.forget(0, 0)
    plain, _, beside = rows
    right = np.allclose(beside, plain, rtol=0, atol=_CLOSE * float(np.abs(plain).max()))
    return state, bool(right)
