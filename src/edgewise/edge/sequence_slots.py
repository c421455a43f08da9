"""An engine's sequence caches as KV caches of sessions, which take turns."""

from collections.abc import Callable, Sequence

from edgewise.edge.fair_lock import FairLock
from edgewise.edge.hub_config import told
from edgewise.edge.kv import KvCache, KvRow, Outputs, common_prefix
from edgewise.edge.sequence_cache import FAILURES, SequenceCache
from edgewise.errors import ModelError, UsageError

BATCH = 512
"""Most ids of one run."""

TURN = 64
"""Prompt ids that are computed before another session may decode."""


class SequenceSlots:
    """Who has the model's places. One session runs at a time (`lock`)."""

    def __init__(
        self,
        new: Callable[[], SequenceCache],
        *,
        engine: str,
        name: str,
        count: int,
        keep_prefixes: bool,
    ) -> None:
        """`new` makes a cache that holds nothing; `engine` is what to call the library."""
        self._new, self.engine, self.name = new, engine, name
        self.lock = FairLock()
        self.closed = False
        self.turn = TURN if count > 1 else BATCH
        self._count, self._keep = count, keep_prefixes
        self._used = 0
        # Sequences of closed sessions and what they hold, longest unused first.
        self._kept: list[tuple[list[int], SequenceCache]] = []

    def reserve(self) -> "SequenceSlot":
        """A place for a session. Raises `UsageError`."""
        with self.lock:
            if self.closed:
                raise UsageError(f"{self.name!r} is closed", hint="load it again")
            if self._used == self._count:
                raise UsageError(
                    f"All slots of {self.name!r} are in use",
                    hint="load it with more slots or close a session",
                    setting="slots",
                )
            self._used += 1
        return SequenceSlot(self)

    def take(self, ids: Sequence[int]) -> tuple[list[int], SequenceCache]:
        """What is kept of the sequence most like `ids`, or a new one where there is a place."""
        with self.lock:
            likeness = [common_prefix(held, ids) for held, _ in self._kept]
            best = max(likeness, default=0)
            if best or len(self._kept) + self._used > self._count:
                return self._kept.pop(likeness.index(best) if best else 0)
            return [], self._new()

    def give_back(self, held: Sequence[int], sequence: SequenceCache | None) -> None:
        """A session is over."""
        with self.lock:
            self._used -= 1
            if sequence is not None and self._keep and held and not self.closed:
                self._kept.append((list(held), sequence))

    def close(self) -> bool:
        """Free what is kept; False where that was done before."""
        with self.lock:
            before, self.closed = self.closed, True
            self._kept.clear()
            return not before


class SequenceSlot(KvCache):
    """A session's sequence. Implements `KvCache`."""

    def __init__(self, slots: SequenceSlots) -> None:
        self.lock = slots.lock
        self.batch, self.turn = BATCH, slots.turn
        self._decodes = 0
        self._slots = slots
        self._sequence: SequenceCache | None = None

    @property
    def decodes(self) -> int:
        return self._decodes + self.closed

    @property
    def closed(self) -> bool:
        return self._slots.closed

    def adopt(self, ids: Sequence[int]) -> Sequence[int]:
        held, self._sequence = self._slots.take(ids)
        return held

    def run(
        self, ids: Sequence[int], start: int, outputs: Outputs, *, hidden: bool
    ) -> Sequence[KvRow]:
        assert self._sequence is not None
        assert self._sequence.length == start
        self._decodes += 1
        try:
            rows = self._sequence.run(ids, outputs, hidden=hidden)
        except FAILURES as error:
            raise ModelError(
                f"{self._slots.engine} could not run {len(ids)} tokens of {self._slots.name!r} "
                f"({told(error)})",
                hint="lower the context or the number of slots if memory is short",
                setting="ctx",
            ) from error
        if rows is None:
            return ()
        if rows.hidden is None:
            return [KvRow(row) for row in rows.logits]
        return [KvRow(*row) for row in zip(rows.logits, rows.hidden, strict=True)]

    def mark(self, position: int, *, lasting: bool) -> None:
        """Keep the state at `position`, where the cache ends; any mark may last."""
        if self._sequence is not None and self._sequence.length == position:
            self._sequence.mark()

    def forget(self, position: int) -> int:
        return 0 if self._sequence is None else self._sequence.back(position)

    def release(self, held: Sequence[int]) -> None:
        self._slots.give_back(held, self._sequence)
