"""The sequences of a llama.cpp context as KV caches of sessions, which take turns."""

from collections.abc import Sequence

from edgewise.edge.fair_lock import FairLock
from edgewise.edge.kv import KvCache, KvRow, Outputs, common_prefix
from edgewise.edge.llamacpp_context import LlamaBatch, LlamaContext
from edgewise.edge.llamacpp_load import BATCH
from edgewise.edge.llamacpp_marks import LlamaMarks, marks_of
from edgewise.errors import UsageError

TURN = 64
"""Prompt ids that are computed before another session may decode."""


class LlamaSlots:
    """A context's sequences, and who has them. One session uses the context at a time (`lock`)."""

    def __init__(
        self, context: LlamaContext, *, name: str, room: int, count: int, keep_prefixes: bool
    ) -> None:
        """`room` is the longest sequence, ids."""
        self.context = context
        self.lock = FairLock()
        self.closed = False
        self.batch = min(BATCH, room)
        self.turn = min(TURN if count > 1 else BATCH, room)
        self._name, self._keep = name, keep_prefixes
        self._reserved = 0
        self._marks = marks_of(context, count)
        # What each free sequence's KV cache holds, longest unused first.
        self._free: dict[int, list[int]] = {sequence: [] for sequence in range(count)}

    def reserve(self) -> "LlamaSlot":
        """A slot for a session, whose sequence is chosen once its ids are known."""
        with self.lock:
            if self.closed:
                raise UsageError(f"{self._name!r} is closed", hint="load it again")
            if self._reserved == len(self._free):
                raise UsageError(
                    f"All slots of {self._name!r} are in use",
                    hint="load it with more slots or close a session",
                    setting="slots",
                )
            self._reserved += 1
        return LlamaSlot(self)

    def take(self, ids: Sequence[int]) -> tuple[int, list[int]]:
        """The free sequence that holds most of what `ids` begin with, and what it holds."""
        with self.lock:
            self._reserved -= 1
            best = max(self._free, key=lambda sequence: self._kept(sequence, ids))
            return best, self._free.pop(best)

    def _kept(self, sequence: int, ids: Sequence[int]) -> int:
        """How many of `ids` need not be read where a free sequence goes on with them."""
        shared = common_prefix(self._free[sequence], ids)
        marks = self._marks.get(sequence)
        return marks.reach(shared) if marks else shared

    def marks(self, sequence: int) -> LlamaMarks | None:
        """None where a sequence can be cut anywhere."""
        return self._marks.get(sequence)

    def forget(self, sequence: int, position: int) -> int:
        """Drop a sequence's ids from `position` on, or earlier; returns how many are left."""
        marks = self._marks.get(sequence)
        return marks.back(position) if marks else self.context.forget(sequence, position)

    def give_back(self, sequence: int | None, held: Sequence[int]) -> None:
        """The session is over; its sequence, if it took one, holds `held`."""
        with self.lock:
            if sequence is None:
                self._reserved -= 1
                return
            if not self.closed:
                if not self._keep:
                    self.forget(sequence, 0)
                self._free[sequence] = list(held) if self._keep else []

    def close(self) -> bool:
        """Free the context; False where that was done before."""
        with self.lock:
            if self.closed:
                return False
            self.closed = True
            # Views into it are stale from here on.
            self.context.decodes += 1
            self.context.close()
            return True


class LlamaSlot(KvCache):
    """A session's sequence. Implements `KvCache`."""

    def __init__(self, slots: LlamaSlots) -> None:
        self.lock = slots.lock
        self.batch, self.turn = slots.batch, slots.turn
        self._slots, self._context = slots, slots.context
        self.sequence: int | None = None
        """The context's, once the session's ids are known."""

        self._marks: LlamaMarks | None = None
        self._ids = LlamaBatch()

    @property
    def decodes(self) -> int:
        return self._context.decodes

    @property
    def closed(self) -> bool:
        return self._slots.closed

    def adopt(self, ids: Sequence[int]) -> Sequence[int]:
        self.sequence, held = self._slots.take(ids)
        self._marks = self._slots.marks(self.sequence)
        self._ids.belong_to(self.sequence)
        return held

    def run(
        self, ids: Sequence[int], start: int, outputs: Outputs, *, hidden: bool
    ) -> Sequence[KvRow]:
        every = outputs == "all"
        if self._marks:
            self._marks.passing(start)
        self._ids.clear()
        last = self._ids.put(ids, start, every=every, last=outputs == "last")
        self._context.decode(self._ids, hidden=hidden)
        if outputs == "none":
            return ()
        first = 0 if every else last
        return [self._context.row(index, hidden=hidden) for index in range(first, last + 1)]

    def forget(self, position: int) -> int:
        return 0 if self.sequence is None else self._slots.forget(self.sequence, position)

    def mark(self, position: int, *, lasting: bool) -> None:
        if self._marks:
            self._marks.asked(position, lasting=lasting)

    def release(self, held: Sequence[int]) -> None:
        self._ids.close()
        self._slots.give_back(self.sequence, held)
