"""One sequence's cache in an engine that holds it as an object, and how far back it can go.

Attention's keys and values are cut. What holds one state, that after the last id (recurrent and
convolutional layers, windows that have moved on), cannot be: copies of it, the marks, are taken on
the way, and going back takes the last one at or before a position.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

from edgewise.edge.base import Floats, Marks, Rewinds
from edgewise.edge.kv import Outputs

SPACING = 8
"""Ids between marks, at least."""

MOST = 8
"""Marks of a sequence."""

MEMORY = 1 << 30
"""Bound on the marks of all sequences of a model, bytes, where it leaves room for one each."""

FAILURES = (ArithmeticError, LookupError, MemoryError, RuntimeError, ValueError)
"""What the libraries raise where a run fails, or a copy."""


class Rows(NamedTuple):
    """float32: logits [n, vocabulary]; hidden [n, d], None where nobody asked or there is none."""

    logits: Floats
    hidden: Floats | None


class StateCopy(NamedTuple):
    """`state` is the engine's own, `size` its bytes."""

    state: Any
    size: int


class SequenceCache(ABC):
    """What one sequence holds, `length` ids of it. An engine writes the calls that are abstract."""

    def __init__(self, *, room: int) -> None:
        """At most `room` bytes of marks, but for one."""
        self._room = room
        self.clear()

    def clear(self) -> None:
        """Hold nothing."""
        self._begin()
        self._marks: dict[int, StateCopy] = {}
        self.length = 0

    @property
    @abstractmethod
    def rewinds(self) -> Rewinds:
        """How far back it can go, by its layers."""

    @property
    def cuttable(self) -> bool:
        """Whether all of it can be cut now, without a mark."""
        return self.rewinds == "anywhere"

    @abstractmethod
    def _begin(self) -> None:
        """Make a new cache."""

    @abstractmethod
    def _compute(self, ids: Sequence[int], outputs: Outputs, *, hidden: bool) -> Rows | None:
        """Run `ids` behind what the cache holds: rows for the last, for all, or none."""

    @abstractmethod
    def _copy(self) -> StateCopy:
        """Copy what cannot be cut."""

    @abstractmethod
    def _back(self, count: int, state: Any | None) -> bool:
        """Cut `count` ids off; with a `state`, put it in place of what cannot be cut.

        False where less was cut.
        """

    @property
    def marks(self) -> Marks | None:
        """How many it may have, by the size of the last one; None before the first."""
        if not self._marks:
            return None
        size = self._marks[max(self._marks)].size
        return Marks(max(1, min(MOST, self._room // max(1, size))), size)

    def run(self, ids: Sequence[int], outputs: Outputs, *, hidden: bool = False) -> Rows | None:
        """See `_compute`. What was interrupted leaves nothing behind."""
        if self.length - max(self._marks, default=0) >= SPACING and not self.cuttable:
            self.mark()
        try:
            rows = self._compute(ids, outputs, hidden=hidden)
        except BaseException:
            self.clear()
            raise
        self.length += len(ids)
        return rows

    def keeps(self, position: int) -> int:
        """How many ids `back(position)` would leave."""
        if position >= self.length:
            return self.length
        if self.rewinds == "no":
            return 0
        if self.cuttable:
            return position
        return max((mark for mark in self._marks if mark <= position), default=0)

    def back(self, position: int) -> int:
        """Drop ids from `position` on, or from the last mark before it; returns how many remain."""
        if position >= self.length:
            return self.length
        kept = self.keeps(position)
        self._marks = {at: state for at, state in self._marks.items() if at <= position}
        if not kept or not self._went(kept, anywhere=self.cuttable):
            self.clear()
            return 0
        self.length = kept
        return kept

    def _went(self, kept: int, *, anywhere: bool) -> bool:
        try:
            return self._back(self.length - kept, None if anywhere else self._marks[kept].state)
        except FAILURES:
            return False  # it is read again

    def mark(self) -> None:
        """Keep the state after the last id, where one is needed to come back."""
        if not self.length or self.length in self._marks or self.rewinds != "marks":
            return
        try:
            self._marks[self.length] = self._copy()
        except FAILURES:
            return  # no mark: an earlier place is read from
        while len(self._marks) > 1 and self._too_many():
            del self._marks[self._spare()]

    def _too_many(self) -> bool:
        size = sum(mark.size for mark in self._marks.values())
        return len(self._marks) > MOST or size > self._room

    def _spare(self) -> int:
        """The mark that is missed least: the nearer to the end, the closer marks may lie."""
        places = [0, *sorted(self._marks)]
        gaps = {
            here: (after - before) / (1 + self.length - here)
            for before, here, after in zip(places, places[1:], places[2:], strict=False)
        }
        return min(gaps, key=lambda place: gaps[place])
