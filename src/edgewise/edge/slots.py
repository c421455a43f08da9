"""The slots of a model: which session has which sequence of the engine, and what free ones hold."""

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, NamedTuple, TypeVar

from edgewise.edge.hub.folder import reason_of
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
    """`with lock:`, first come, first served; not reentrant.

    A `threading.Lock` goes to whoever asks first after its release, which is mostly the thread that
    just released it: one session would decode on and on while the others wait.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._line: deque[object] = deque()

    def __enter__(self) -> None:
        place = object()
        with self._changed:
            self._line.append(place)
            try:
                self._changed.wait_for(lambda: self._line[0] is place)
            except BaseException:
                self._line.remove(place)
                self._changed.notify_all()
                raise

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._line.popleft()
            self._changed.notify_all()


P = TypeVar("P", bound=SequenceCache)


class _Free(NamedTuple, Generic[P]):
    """A cache that no session has: its ids, of which the first `prompt` were a session's prompt."""

    cache: P
    held: list[int]
    prompt: int


class Slots(Generic[P]):
    """At most `count` sessions, each with a cache of its own. One runs at a time (`lock`)."""

    def __init__(
        self,
        new: Callable[[], P],
        *,
        name: str,
        engine: str,
        count: int,
        keep_prefixes: bool,
        batch: int,
        turn: int,
        drop: Callable[[P], None] | None = None,
    ) -> None:
        """`new` makes an empty cache, `drop` frees one where Python's collector does not.

        `batch` is the longest run, `turn` the longest of a prompt, ids. Errors name the model by
        `name`, its library by `engine`.
        """
        self.lock = FairLock()
        self.closed = False
        self.batch, self.turn = batch, min(batch, turn, TURN if count > 1 else BATCH)
        self.name, self.engine = name, engine
        self._new, self._drop = new, drop
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

        That of the same conversation; else an empty one. If all hold something, one that keeps more
        than it loses, or the least recently used. Conversations begin alike (a BOS, a template's
        head, a system prompt), so a few common ids are no reason to drop another one's.
        """
        with self.lock:
            self._check_open()
            kept = [free.cache.keeps(common_prefix(free.held, ids)) for free in self._free]
            gains = [n for n, free in enumerate(self._free) if 2 * kept[n] > len(free.held)]
            # The next turn of a conversation, or another answer to its prompt.
            same = [n for n in gains if _SLACK * (self._free[n].prompt - kept[n]) <= kept[n]]
            if not same and self._made < self._count:
                self._made += 1
                return self._new(), []
            chosen = max(same or gains, key=kept.__getitem__, default=0)
            cache, held, _ = self._free.pop(chosen)
            return cache, held

    def give_back(self, cache: P | None, held: Sequence[int], prompt: int) -> None:
        """A session is over. Its cache, if it took one, holds `held`."""
        with self.lock:
            self._sessions -= 1
            if cache is None or self.closed:
                return
            if self._keep and held:
                self._free.append(_Free(cache, list(held), min(prompt, len(held))))
            else:
                self._made -= 1
                if self._drop is not None:
                    self._drop(cache)

    def close(self) -> bool:
        """Let nothing run any more; False where that was done before."""
        with self.lock:
            before, self.closed = self.closed, True
            self._free.clear()
            return not before

    def _check_open(self) -> None:
        if self.closed:
            raise UsageError(f"{self.name!r} is closed", hint="load it again")


class Slot(KvCache):
    """A session's part of `Slots`. Raises `UsageError` where all are in use."""

    def __init__(self, slots: Slots[Any]) -> None:
        slots.reserve()
        self.lock, self.batch, self.turn = slots.lock, slots.batch, slots.turn
        self._slots = slots
        self._prompt = 0
        # Once the session's ids are known.
        self._sequence: SequenceCache | None = None

    @property
    def decodes(self) -> int:
        return (self._sequence.decodes if self._sequence else 0) + self._slots.closed

    @property
    def closed(self) -> bool:
        return self._slots.closed

    def adopt(self, ids: Sequence[int]) -> Sequence[int]:
        self._prompt = len(ids)
        self._sequence, held = self._slots.take(ids)
        return held

    def run(
        self, ids: Sequence[int], start: int, outputs: Outputs, *, hidden: bool
    ) -> Sequence[KvRow]:
        sequence = self._sequence
        assert sequence is not None
        assert sequence.length == start
        try:
            return sequence.run(ids, outputs, hidden=hidden)
        except FAILURES as error:
            raise ModelError(
                f"{self._slots.engine} could not run {len(ids)} tokens of {self._slots.name!r} "
                f"({reason_of(error)})",
                hint="lower the context or the number of slots if memory is short",
                setting="ctx",
            ) from error

    def checkpoint(self, position: int, *, lasting: bool) -> None:
        if self._sequence is not None and self._sequence.length == position:
            self._sequence.checkpoint(lasting=lasting)

    def forget(self, position: int) -> int:
        return 0 if self._sequence is None else self._sequence.back(position)

    def release(self, held: Sequence[int]) -> None:
        sequence, self._sequence = self._sequence, None
        self._slots.give_back(sequence, held, self._prompt)
