"""The slots of a model: which session has which sequence of the engine, and what free ones hold."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from edgewise.edge.hub.folder import told
from edgewise.edge.kv import KvCache, KvRow, Outputs, common_prefix
from edgewise.edge.sequence import FAILURES, SequenceCache
from edgewise.errors import ModelError, UsageError

BATCH = 512
"""Most ids of one run."""

TURN = 64
"""Prompt ids that are computed before another session may decode."""

_SLACK = 16
"""A prompt that goes on with another one loses at most one id of it for so many that it keeps."""


class FairLock:
    """`with lock:`; not reentrant.

    A `threading.Lock` goes to whoever asks first after its release, which is mostly the thread that
    just released it: one session would decode on and on while the others wait.
    """

    def __init__(self) -> None:
        self._waiting: deque[threading.Lock] = deque()
        self._inner = threading.Lock()
        self._taken = False

    def __enter__(self) -> None:
        with self._inner:
            if not self._taken:
                self._taken = True
                return
            turn = threading.Lock()
            turn.acquire()
            self._waiting.append(turn)
        try:
            turn.acquire()
        except BaseException:
            with self._inner:
                if turn in self._waiting:
                    self._waiting.remove(turn)
                else:  # it was handed over already
                    self._hand_on()
            raise

    def __exit__(self, *_: object) -> None:
        with self._inner:
            self._hand_on()

    def _hand_on(self) -> None:
        if self._waiting:
            self._waiting.popleft().release()
        else:
            self._taken = False


P = TypeVar("P", bound=SequenceCache)


class _Free(NamedTuple, Generic[P]):
    """A cache that no session has: its ids, of which the first `prompt` were a session's prompt."""

    place: P
    held: list[int]
    prompt: int


class Slots(Generic[P]):
    """At most `count` sessions, each with a cache of its own. One runs at a time (`lock`)."""

    def __init__(
        self,
        new: Callable[[], P],
        *,
        name: str,
        count: int,
        keep_prefixes: bool,
        batch: int = BATCH,
        turn: int = BATCH,
        drop: Callable[[P], None] | None = None,
    ) -> None:
        """`new` makes an empty cache, `drop` frees one where Python's collector does not.

        `batch` is the longest run, `turn` the longest of a prompt, ids.
        """
        self.lock = FairLock()
        self.closed = False
        self.batch, self.turn = batch, min(batch, turn, TURN if count > 1 else BATCH)
        self._new, self._drop, self.name = new, drop, name
        self._count, self._keep = count, keep_prefixes
        self._sessions = self._made = 0
        # Longest unused first.
        self._free: list[_Free[P]] = []

    def reserve(self) -> None:
        """Count a session, whose cache is chosen once its ids are known. Raises `UsageError`."""
        with self.lock:
            self._check_open()
            if self._sessions == self._count:
                raise UsageError(
                    f"All slots of {self.name!r} are in use",
                    hint="load it with more slots or close a session",
                    setting="slots",
                )
            self._sessions += 1

    def take(self, ids: Sequence[int]) -> tuple[P, list[int]]:
        """A cache for a session that begins with `ids`, and the ids that it holds.

        That of the same conversation; else an empty one. Where all hold something it is one that
        keeps more than it loses, or the one that was not used for the longest time. Conversations
        begin alike (a BOS, a template's head, a system prompt), so a few common ids are no reason
        to drop another one's.
        """
        with self.lock:
            self._check_open()
            kept = [free.place.keeps(common_prefix(free.held, ids)) for free in self._free]
            gains = [n for n, free in enumerate(self._free) if 2 * kept[n] > len(free.held)]
            same = [n for n in gains if _goes_on(self._free[n].prompt, kept[n])]
            if not same and self._made < self._count:
                place = self._new()
                self._made += 1
                return place, []
            chosen = max(same or gains, key=kept.__getitem__, default=0)
            place, held, _ = self._free.pop(chosen)
            return place, held

    def give_back(self, place: P | None, held: Sequence[int], prompt: int) -> None:
        """A session is over. Its cache, if it took one, holds `held`."""
        with self.lock:
            self._sessions -= 1
            if place is None or self.closed:
                return
            if self._keep and held:
                self._free.append(_Free(place, list(held), min(prompt, len(held))))
            else:
                self._made -= 1
                if self._drop is not None:
                    self._drop(place)

    def close(self) -> bool:
        """Let nothing run any more; False where that was done before."""
        with self.lock:
            before, self.closed = self.closed, True
            self._free.clear()
            return not before

    def _check_open(self) -> None:
        if self.closed:
            raise UsageError(f"{self.name!r} is closed", hint="load it again")


def _goes_on(prompt: int, kept: int) -> bool:
    """Whether who keeps so many ids goes on with a conversation, or answers its prompt again."""
    return _SLACK * (prompt - kept) <= kept


class Slot(KvCache):
    """A session's part of `Slots`. Implements `KvCache`."""

    def __init__(self, slots: Slots[Any], *, engine: str) -> None:
        """`engine` is what to call the library. Raises `UsageError` where all are in use."""
        slots.reserve()
        self.lock = slots.lock
        self.batch, self.turn = slots.batch, slots.turn
        self._slots, self._engine = slots, engine
        self._prompt = 0
        self.sequence: SequenceCache | None = None
        """Once the session's ids are known."""

    @property
    def decodes(self) -> int:
        return (self.sequence.decodes if self.sequence else 0) + self._slots.closed

    @property
    def closed(self) -> bool:
        return self._slots.closed

    def adopt(self, ids: Sequence[int]) -> Sequence[int]:
        self._prompt = len(ids)
        self.sequence, held = self._slots.take(ids)
        return held

    def run(
        self, ids: Sequence[int], start: int, outputs: Outputs, *, hidden: bool
    ) -> Sequence[KvRow]:
        sequence = self.sequence
        assert sequence is not None
        assert sequence.length == start
        try:
            return sequence.run(ids, outputs, hidden=hidden)
        except FAILURES as error:
            raise ModelError(
                f"{self._engine} could not run {len(ids)} tokens of {self._slots.name!r} "
                f"({told(error)})",
                hint="lower the context or the number of slots if memory is short",
                setting="ctx",
            ) from error

    def checkpoint(self, position: int, *, lasting: bool) -> None:
        if self.sequence is not None and self.sequence.length == position:
            self.sequence.checkpoint(lasting=lasting)

    def forget(self, position: int) -> int:
        return 0 if self.sequence is None else self.sequence.back(position)

    def release(self, held: Sequence[int]) -> None:
        sequence, self.sequence = self.sequence, None
        self._slots.give_back(sequence, held, self._prompt)
