"""The cache of one sequence in an engine, and how far it can roll back.

Attention's keys and values are cut anywhere. A layer with one state, that after the last id
(recurrent and convolutional layers, windows that have moved on), cannot be cut: the state is copied
now and then. A rollback takes the last of these checkpoints at or before a position, and the ids
between the two are computed again.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple

import numpy as np

from edgewise.edge.base import Floats, Rewinds

# Checkpoints of a sequence: each copies the state of all layers that cannot be cut.
MOST = 8

MEMORY = 1 << 30
"""Bound on the checkpoints of all sequences of a model, bytes; each may have one beyond it."""

FAILURES = (ArithmeticError, LookupError, MemoryError, RuntimeError, ValueError)
"""Exceptions of the libraries where a run fails, or a copy."""

_KEPT_OF_PROMPTS = 2  # its end, and its last turn, which an edited message comes back to

_CLOSE = 0.05  # most difference of logits computed in two ways, relative to the largest

Outputs = Literal["none", "last", "all"]
"""Ids of a run whose logits are returned."""


class KvRow(NamedTuple):
    """Views until the next decode: `logits` float32[vocabulary], `hidden` float32[d] or None."""

    logits: Floats
    hidden: Floats | None = None


class SequenceCache(ABC):
    """The cache of one sequence. An engine implements the abstract methods."""

    # Ids between checkpoints at least: a rollback computes no more again, in one pass.
    spacing = 8

    rewinds: Rewinds
    """How far its layers can roll back. Set by `_begin`."""

    ids: list[int]
    """The ids that are computed."""

    prompt = 0
    """Length in ids of its last session's prompt."""

    def __init__(self, *, room: int = MEMORY) -> None:
        """Its checkpoints have `room` bytes together; one may be larger."""
        self._room = room
        self._copies: dict[int, Any] = {}
        self._runs = 0
        self.clear()

    def clear(self) -> None:
        """Hold nothing."""
        self._drop_copies(-1)
        self._lasting: list[int] = []
        self.ids = []
        self._begin()

    @property
    def length(self) -> int:
        return len(self.ids)

    @property
    def decodes(self) -> int:
        """Grows with every run that makes earlier rows invalid."""
        return self._runs

    @property
    def cuttable(self) -> bool:
        """Whether all of it can be cut now, without a checkpoint."""
        return self.rewinds == "anywhere"

    @abstractmethod
    def _begin(self) -> None:
        """Make a new cache, and say how far back it goes."""

    @abstractmethod
    def _compute(self, ids: Sequence[int], outputs: Outputs, *, hidden: bool) -> Sequence[KvRow]:
        """Run `ids` after those in the cache: rows for the last, for all, or none."""

    @abstractmethod
    def _back(self, count: int, state: Any | None) -> bool:
        """Cut `count` ids off; `state` replaces what cannot be cut. False where less was cut."""

    def _copy(self) -> Any:
        """Copy what cannot be cut. An engine whose caches are all cut anywhere needs none."""
        raise NotImplementedError

    @property
    def state_size(self) -> int:
        """Bytes of the next copy."""
        return 0

    def _reuse(self, state: Any) -> None:  # noqa: B027
        """A copy is no longer needed: an engine may want its memory."""

    def _failed(self, ids: Sequence[int]) -> None:
        """A run of `ids` was interrupted: drop what it left."""
        self.clear()

    def run(self, ids: Sequence[int], outputs: Outputs, *, hidden: bool = False) -> Sequence[KvRow]:
        """See `_compute`. A run that is interrupted leaves nothing behind."""
        self.space()
        self._runs += 1
        try:
            rows = self._compute(ids, outputs, hidden=hidden)
        except BaseException:
            self._failed(ids)
            raise
        self.ids += ids
        return rows

    def space(self) -> None:
        """Make the checkpoint that is due before a run, if one is."""
        if not self.cuttable and self.length - max(self._copies, default=0) >= self.spacing:
            self.checkpoint()

    def keeps(self, position: int) -> int:
        """Number of ids that `back(position)` would leave."""
        if position >= self.length:
            return self.length
        if self.cuttable:
            return position
        return max((at for at in self._copies if at <= position), default=0)

    def back(self, position: int) -> int:
        """Drop ids from `position` on, or from a checkpoint before; returns how many remain."""
        if position >= self.length:
            return self.length
        kept = self.keeps(position)
        self._drop_copies(position)
        self._lasting = [at for at in self._lasting if at <= position]
        back = False
        if kept:
            state = None if self.cuttable else self._copies[kept]
            with suppress(*FAILURES):  # else it is read again
                back = self._back(self.length - kept, state)
        if not back:
            self.clear()
            return 0
        del self.ids[kept:]
        return kept

    def checkpoint(self, *, lasting: bool = False) -> None:
        """Copy the state after the last id; the last two `lasting` ones, in a prompt, stay."""
        if self.rewinds != "checkpoints" or not self.length:
            return
        if lasting:
            before = [at for at in self._lasting if at != self.length]
            self._lasting = [*before, self.length][-_KEPT_OF_PROMPTS:]
        if self.length in self._copies:
            return
        fitting = self._room // max(1, self.state_size)
        while len(self._copies) >= max(1, min(MOST, fitting)):
            oldest = sorted(self._copies)
            spare = [at for at in oldest if at not in self._lasting] or oldest
            self._reuse(self._copies.pop(spare[0]))
        try:
            self._copies[self.length] = self._copy()
        except FAILURES:
            return  # an earlier place is read from

    def _drop_copies(self, position: int) -> None:
        for at in [at for at in self._copies if at > position]:
            self._reuse(self._copies.pop(at))


def rows_of(logits: Floats, hidden: Floats | None) -> list[KvRow]:
    """float32 logits [n, vocabulary] and hidden states [n, d], row by row."""
    if hidden is None or len(hidden) != len(logits):
        return [KvRow(row) for row in logits]
    return [KvRow(*row) for row in zip(logits, hidden, strict=True)]


def alike(left: Floats, right: Floats) -> bool:
    """Whether two rows of logits are the same but for rounding; not where they are no numbers."""
    return bool(np.abs(left - right).max() <= _CLOSE * np.abs(left).max())
