"""`SequenceCache`: the KV cache of one sequence, and how it rolls back.

Keys and values of attention layers can be cut at any position. Other layers hold only the state
after the last id (recurrent and convolutional layers, sliding windows that have moved on). This
state cannot be cut, so a copy of it is made now and then: a checkpoint. A rollback restores the
last one at or before the wanted position, and the ids between the two are computed again.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple

import numpy as np

from edgewise.edge.base import Floats, Rewinds

# Most checkpoints of a sequence; each copies the state of all layers that cannot be cut.
MOST = 8

MEMORY = 1 << 30
"""Most bytes of all checkpoints of a model, except that each sequence may always have one."""

FAILURES = (ArithmeticError, LookupError, MemoryError, RuntimeError, ValueError)
"""Exceptions by which an engine's library reports that a run or a copy failed."""

_KEPT_OF_PROMPTS = 2  # at a prompt's end, and at its last turn, to which an edit returns

_CLOSE = 0.05  # most difference of logits computed in two ways, relative to the largest

Outputs = Literal["none", "last", "all"]
"""For which ids of a run the logits are returned."""


class KvRow(NamedTuple):
    """The engine's output for one id of a run; views that are valid until the next decode.

    `logits`: float32[vocabulary]. `hidden`: float32[d], None if it was not asked for.
    """

    logits: Floats
    hidden: Floats | None = None


class SequenceCache(ABC):
    """The KV cache of one sequence. An engine implements the abstract methods."""

    # A run is preceded by a checkpoint if so many ids, or more, came after the last one.
    spacing = 8

    rewinds: Rewinds
    """Where it can roll back to: "anywhere", "checkpoints", or "no" (nowhere). Engines set it."""

    ids: list[int]
    """The ids whose keys and values (or states) are in the cache."""

    prompt = 0
    """Number of ids in the prompt of the last session that used the cache."""

    def __init__(self, *, room: int = MEMORY) -> None:
        """Start empty. Checkpoints take at most `room` bytes, but one is kept whatever its size."""
        self._room = room
        self._copies: dict[int, Any] = {}
        self._runs = 0
        self.clear()

    def clear(self) -> None:
        """Drop all ids and checkpoints."""
        self._drop_copies(-1)
        self._lasting: list[int] = []
        self.ids = []
        self._begin()

    @property
    def length(self) -> int:
        return len(self.ids)

    @property
    def decodes(self) -> int:
        """Number of decodes so far. Rows that `run` returned are invalid once it has changed."""
        return self._runs

    @property
    def cuttable(self) -> bool:
        """Whether the cache can be cut at any position now, without a checkpoint."""
        return self.rewinds == "anywhere"

    @abstractmethod
    def _begin(self) -> None:
        """Make an empty cache in the engine, and set `rewinds` unless it is set."""

    @abstractmethod
    def _compute(self, ids: Sequence[int], outputs: Outputs, *, hidden: bool) -> Sequence[KvRow]:
        """Run `ids` after those in the cache; return the rows that `outputs` asks for."""

    @abstractmethod
    def _back(self, count: int, state: Any | None) -> bool:
        """Cut the last `count` ids; restore the checkpoint `state` if given. False on failure."""

    def _copy(self) -> Any:
        """Return a copy of the state that cannot be cut, for engines that have such a state."""
        raise NotImplementedError

    @property
    def state_size(self) -> int:
        """Size in bytes of the next checkpoint."""
        return 0

    def _reuse(self, state: Any) -> None:  # noqa: B027
        """Take back the memory of a checkpoint that is no longer needed."""

    def _failed(self, ids: Sequence[int]) -> None:
        """Drop what a failed run of `ids` left in the engine; by default, the whole cache."""
        self.clear()

    def run(self, ids: Sequence[int], outputs: Outputs, *, hidden: bool = False) -> Sequence[KvRow]:
        """Run `ids` after those in the cache, and make a checkpoint first if one is due.

        Returns a row for none of `ids`, the last or each, as `outputs` says; with `hidden`, rows
        have hidden states. If the run raises, `ids` are not kept; earlier ids may be dropped, too.
        """
        self.space()
        self._runs += 1
        try:
            rows = self._compute(ids, outputs, hidden=hidden)
        # A Ctrl-C too: the engine may have run some of them.
        except BaseException:
            self._failed(ids)
            raise
        self.ids += ids
        return rows

    def space(self) -> None:
        """Make a checkpoint if rollbacks need one and the last is `spacing` or more ids back."""
        if not self.cuttable and self.length - max(self._copies, default=0) >= self.spacing:
            self.checkpoint()

    def keeps(self, position: int) -> int:
        """Return how many ids would be left after `back(position)`, without rolling back."""
        if position >= self.length:
            return self.length
        if self.cuttable:
            return position
        return max((at for at in self._copies if at <= position), default=0)

    def back(self, position: int) -> int:
        """Roll back to `position`, else to an earlier checkpoint or 0; return how many ids stay."""
        if position >= self.length:
            return self.length
        kept = self.keeps(position)
        self._drop_copies(position)
        self._lasting = [at for at in self._lasting if at <= position]
        back = False
        if kept:
            state = None if self.cuttable else self._copies[kept]
            with suppress(*FAILURES):  # then all ids are computed again
                back = self._back(self.length - kept, state)
        if not back:
            self.clear()
            return 0
        del self.ids[kept:]
        return kept

    def checkpoint(self, *, lasting: bool = False) -> None:
        """Save the state after the last id, unless the engine has no use for checkpoints.

        If there is no room, the oldest checkpoint is dropped; the latest two made with `lasting`
        are dropped last. If the engine cannot copy its state, nothing is saved and nothing raised.
        """
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
            return  # a rollback uses an earlier checkpoint

    def _drop_copies(self, position: int) -> None:
        for at in [at for at in self._copies if at > position]:
            self._reuse(self._copies.pop(at))


def rows_of(logits: Floats, hidden: Floats | None) -> list[KvRow]:
    """Return float32 logits [n, vocabulary] and hidden states [n, d] as n rows.

    The rows have no hidden states if `hidden` is None or has another number of rows.
    """
    if hidden is None or len(hidden) != len(logits):
        return [KvRow(row) for row in logits]
    return [KvRow(*row) for row in zip(logits, hidden, strict=True)]


def alike(left: Floats, right: Floats) -> bool:
    """Return whether two rows of logits are equal but for rounding; False if they hold NaN.

    No logit may differ by more than 5% of the largest absolute value in `left`.
    """
    return bool(np.abs(left - right).max() <= _CLOSE * np.abs(left).max())
