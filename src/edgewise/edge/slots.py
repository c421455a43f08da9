"""The slots of a model: which session has which sequence of the engine, and what free ones hold."""

from collections.abc import Callable, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from edgewise.edge.fair_lock import FairLock
from edgewise.edge.kv import KvCache, common_prefix
from edgewise.errors import UsageError

BATCH = 512
"""Most ids of one run."""

TURN = 64
"""Prompt ids that are computed before another session may decode."""

_SLACK = 16
"""A prompt that goes on with another one loses at most one id of it for so many that it keeps."""


class SequenceMemory(Protocol):
    """One sequence's cache in an engine."""

    def keeps(self, position: int) -> int:
        """How many ids would be left if those from `position` on were dropped."""
        ...


P = TypeVar("P", bound=SequenceMemory)


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
    ) -> None:
        """`new` makes an empty cache. `batch` is the longest run, `turn` that of a prompt, ids."""
        self.lock = FairLock()
        self.closed = False
        self.batch, self.turn = batch, min(batch, turn, TURN if count > 1 else BATCH)
        self._new, self._name = new, name
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
                    f"All slots of {self._name!r} are in use",
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
                self._drop(place)

    def close(self) -> bool:
        """Let nothing run any more; False where that was done before."""
        with self.lock:
            before, self.closed = self.closed, True
            self._free.clear()
            return not before

    def _drop(self, place: P) -> None:
        """A cache is no longer needed. One that is only Python's is collected."""

    def _check_open(self) -> None:
        if self.closed:
            raise UsageError(f"{self._name!r} is closed", hint="load it again")


def _goes_on(prompt: int, kept: int) -> bool:
    """Whether who keeps so many ids goes on with a conversation, or answers its prompt again."""
    return _SLACK * (prompt - kept) <= kept


class Slot(KvCache, Generic[P]):
    """A session's part of `Slots`. An engine adds `decodes`, `run` and `forget`."""

    def __init__(self, slots: Slots[P]) -> None:
        """Raises `UsageError` where all slots are in use."""
        slots.reserve()
        self.lock = slots.lock
        self.batch, self.turn = slots.batch, slots.turn
        self._slots = slots
        self._prompt = 0
        self._place: P | None = None
        """Once the session's ids are known."""

    @property
    def closed(self) -> bool:
        return self._slots.closed

    def adopt(self, ids: Sequence[int]) -> Sequence[int]:
        self._prompt = len(ids)
        self._place, held = self._slots.take(ids)
        return held

    def release(self, held: Sequence[int]) -> None:
        place, self._place = self._place, None
        self._slots.give_back(place, held, self._prompt)
