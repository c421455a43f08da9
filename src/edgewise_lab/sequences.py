"""Sequences of a model that one forward pass of llama.cpp runs together."""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np

from edgewise.edge.base import EdgeModel, Step
from edgewise.edge.kv import BATCH
from edgewise.edge.llamacpp import LlamaModel
from edgewise.edge.llamacpp.cache import LlamaSequence
from edgewise.edge.sequence import MEMORY
from edgewise.edge.step import LogitsStep

_CELLS = 1 << 15
"""Bound on the KV cache of all sequences together, ids."""

_FEW = 2
"""Checkpoints that a sequence needs: where the reading of a prefix began, and where it ended."""


class Chunk(NamedTuple):
    """Ids of a sequence, the first at position `start`; with `output` the step after the last."""

    sequence: int
    start: int
    ids: Sequence[int]
    output: bool


class Sequences(Protocol):
    """`width` sequences of one model, numbered from 0; a batch has at most `max_batch_ids`."""

    width: int
    max_batch_ids: int

    def run(self, chunks: Sequence[Chunk]) -> Sequence[Step]:
        """Runs a forward pass; returns a `Step`, valid until the next, per `output` chunk."""
        ...

    def forget(self, sequence: int, position: int) -> int:
        """Drop a sequence's ids from `position` on, or from earlier; returns how many are left."""
        ...

    def close(self) -> None:
        """Free what the sequences hold; the model stays open."""
        ...


def sequences_of(model: EdgeModel, width: int) -> Sequences | None:
    """Opens at most `width` sequences, which the caller closes; None for other engines."""
    return LlamaSequences(model, width) if isinstance(model, LlamaModel) else None


def width_for(wanted: int, context: int, state: int) -> int:
    """Number of sequences of `context` ids and `state` bytes of state that run together."""
    # llama.cpp wants room for an id of each sequence in one decode.
    width = min(wanted, _CELLS // context, context)
    return max(1, min(width, MEMORY // ((1 + _FEW) * state)) if state else width)


class LlamaSequences:
    """Implements `Sequences` for a GGUF model, in a context of their own, beside its sessions.

    Logits of a row depend a little on what else is in its batch, so a near tie may come out
    otherwise than in a session.
    """

    def __init__(self, model: LlamaModel, width: int) -> None:
        width = width_for(width, model.context, model.state_size)
        self.width, self.max_batch_ids = width, min(BATCH, model.context)
        self._context = context = model.new_context(width)
        self._buffer = np.empty(model.tokenizer.size, np.float32)
        self._sequences = [LlamaSequence(context, number) for number in range(width)]
        self._reading: set[int] = set()

    def run(self, chunks: Sequence[Chunk]) -> Sequence[LogitsStep]:
        asked: list[tuple[int, int]] = []
        at = 0
        for sequence, start, ids, output in chunks:
            self._checkpoint(sequence, len(ids))
            row = self._context.put(sequence, ids, start, last=output, at=at)
            at += len(ids)
            if output:
                asked.append((row, start + len(ids)))
        try:
            self._context.decode(hidden=False)
        finally:
            for chunk in chunks:
                self._sequences[chunk.sequence].count(chunk.ids)
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
        return self._sequences[sequence].back(position)

    def _checkpoint(self, sequence: int, count: int) -> None:
        """The next prefix of a sequence likely begins with this one."""
        if count > 1 or sequence in self._reading:
            self._sequences[sequence].checkpoint()
        (self._reading.add if count > 1 else self._reading.discard)(sequence)

    def close(self) -> None:
        self._context.close()
