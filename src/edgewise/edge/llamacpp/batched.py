"""Sequences of a llama.cpp context that one decode runs together."""

from collections.abc import Sequence

import numpy as np

from edgewise.edge.base import Chunk, Sequences
from edgewise.edge.llamacpp.cache import SequencePool
from edgewise.edge.llamacpp.context import LlamaBatch, LlamaContext
from edgewise.edge.sequence import MEMORY
from edgewise.edge.slots import BATCH
from edgewise.edge.step import LogitsStep

_CELLS = 1 << 15
"""Bound on the KV cache of all sequences together, ids."""

_CHECKPOINTS = 2
"""A sequence's checkpoints: where the reading of a prefix began, and where it ended."""


def width_for(wanted: int, context: int, state: int) -> int:
    """How many sequences of `context` ids and `state` bytes of recurrent state run together."""
    # llama.cpp wants room for an id of each sequence in one decode.
    width = min(wanted, _CELLS // context, context)
    return max(1, min(width, MEMORY // ((1 + _CHECKPOINTS) * state)) if state else width)


class LlamaSequences(Sequences):
    """Implements `Sequences` in a context of its own.

    Logits of a row depend a little on what else is in its batch, so a near tie may come out
    otherwise than in a session.
    """

    def __init__(self, context: LlamaContext, *, width: int, longest: int, vocabulary: int) -> None:
        """`context` is freed by `close`; `longest` is its longest sequence, ids."""
        self.width, self.room = width, min(BATCH, longest)
        self._context = context
        self._batch = LlamaBatch()
        self._buffer = np.empty(vocabulary, np.float32)
        self._pool = SequencePool(context, width, most=_CHECKPOINTS)
        self._reading: set[int] = set()

    def run(self, chunks: Sequence[Chunk]) -> Sequence[LogitsStep]:
        self._batch.clear()
        for sequence, _, ids, _ in chunks:
            self._checkpoint(sequence, len(ids))
        asked: list[tuple[int, int]] = []
        for sequence, start, ids, output in chunks:
            row = self._batch.put_of(sequence, ids, start, last=output)
            if output:
                asked.append((row, start + len(ids)))
        try:
            self._context.decode(self._batch, hidden=False)
        finally:
            for chunk in chunks:
                self._pool.all[chunk.sequence].count()
        decode = self._context.decodes
        return [
            LogitsStep(
                position,
                self._context.row(row, hidden=False).logits,
                None,
                is_fresh=lambda: self._context.decodes == decode,
                buffer=self._buffer,
            )
            for row, position in asked
        ]

    def forget(self, sequence: int, position: int) -> int:
        return self._pool.all[sequence].back(position)

    def _checkpoint(self, sequence: int, count: int) -> None:
        """The next prefix of a sequence likely begins with this one."""
        if count > 1 or sequence in self._reading:
            self._pool.all[sequence].checkpoint()
        (self._reading.add if count > 1 else self._reading.discard)(sequence)

    def close(self) -> None:
        self._batch.close()
        self._pool.close()
