"""Sequences of a llama.cpp context that one decode runs together."""

from collections.abc import Sequence

import numpy as np

from edgewise.edge.base import Chunk, Sequences
from edgewise.edge.llamacpp_context import LlamaBatch, LlamaContext
from edgewise.edge.llamacpp_load import BATCH
from edgewise.edge.step import LogitsStep

_CELLS = 1 << 15
"""Bound on the KV cache of all sequences together, ids."""


def width_for(wanted: int, context: int) -> int:
    """How many sequences of `context` ids may run together."""
    # llama.cpp wants room for an id of each sequence in one decode.
    return max(1, min(wanted, _CELLS // context, context))


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

    def run(self, chunks: Sequence[Chunk]) -> Sequence[LogitsStep]:
        self._batch.clear()
        asked: list[tuple[int, int]] = []
        for sequence, start, ids, output in chunks:
            row = self._batch.put_of(sequence, ids, start, last=output)
            if output:
                asked.append((row, start + len(ids)))
        self._context.decode(self._batch, hidden=False)
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
        return self._context.forget(sequence, position)

    def close(self) -> None:
        self._batch.close()
        self._context.close()
