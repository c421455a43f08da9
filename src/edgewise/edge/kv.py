"""`KvSession` and `Slots`: sessions over an engine's KV caches.

An engine implements a `SequenceCache`. What is common to all engines is here: which session has
which cache, reuse of prefixes, queues of ids that are not computed yet, rollback.
"""

import threading
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from edgewise.edge.base import EdgeModel, EdgeSession, Floats, Needs, Written
from edgewise.edge.sequence import FAILURES, KvRow, Outputs, SequenceCache
from edgewise.edge.step import LogitsStep
from edgewise.edge.vocabulary import common_prefix
from edgewise.errors import ModelError, UsageError, reason_of

BATCH = 512
"""Most ids that one run (forward pass) computes."""

TURN = 64
"""Most prompt ids that a session computes before another session may decode."""

FEW = 8
"""Most queued ids that one pass computes including the last, on engines that use checkpoints.

With more ids, and on other engines, the last id has a pass of its own: it alone needs outputs.
"""

# A cached prompt is of the same conversation if so many ids stay for each id that is dropped.
_SLACK = 16


class FairLock:
    """A lock for `with` that is granted in the order of requests; not reentrant."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        # A `threading.Lock` goes mostly to the thread that just released it, which asks first: one
        # session would decode on and on while the others wait.
        self._line: deque[object] = deque()

    def __enter__(self) -> None:
        place = object()
        with self._changed:
            self._line.append(place)
            try:
                self._changed.wait_for(lambda: self._line[0] is place)
            except BaseException:
                self._line.remove(place)
                # Whoever stands behind may be first now.
                self._changed.notify_all()
                raise

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._line.popleft()
            self._changed.notify_all()


class Run(NamedTuple):
    """A session's request for one forward pass.

    `ids` follow the `start` ids that `cache` holds already. `outputs` ("none", "last" or "all")
    says for which of `ids` a `KvRow` is returned, `hidden` whether the rows have hidden states.
    """

    session: "KvSession"
    cache: SequenceCache
    start: int
    ids: Sequence[int]
    outputs: Outputs
    hidden: bool


class Slots:
    """The KV caches of a model, one per open session. `lock` is held while the engine computes."""

    shared = False
    """Whether one session may run while a step of another is read; its views are copied first."""

    def __init__(
        self,
        caches: Sequence[SequenceCache],
        *,
        name: str,
        keep_prefixes: bool = False,
        batch: int = BATCH,
        turn: int = BATCH,
    ) -> None:
        """Start with `caches`, one empty cache for each session that may be open at once.

        `name` is the model's, for errors. `batch` is the most ids of a run, `turn` the most ids of
        a prompt in one run. `keep_prefixes` is described at `EdgeOptions`.
        """
        self.lock = FairLock()
        self.closed = False
        self.batch, self.turn, self.name = batch, min(batch, turn), name
        self.sessions, self._count, self._keep = 0, len(caches), keep_prefixes
        self.order = {cache: number for number, cache in enumerate(caches)}
        # Longest unused first.
        self._free = list(caches)

    def run(self, run: Run) -> list[LogitsStep]:
        """Wait for the session's turn, then compute `run.ids` in one forward pass.

        Returns a step for none, the last or each of these ids, as `run.outputs` says. Raises
        `ModelError` if the engine fails, `UsageError` once the session or the model is closed.
        """
        with self.lock:
            run.session.before(run)
            try:
                # After `before`, which may copy the state that this run changes.
                rows = run.cache.run(run.ids, run.outputs, hidden=run.hidden)
            except BaseException as error:
                raise run.session.failure(run, error) from error
            return run.session.steps_of(run, rows)

    def rest(self, session: "KvSession") -> None:
        """Announce that the next run of `session` is some time away. Does nothing here.

        A subclass that computes several sessions in one pass then does not wait for this one.
        """

    def reserve(self) -> None:
        """Count one more open session; `take` chooses its cache, once its ids are known.

        `give_back` uncounts it. Raises `UsageError` if all slots are in use, or once closed.
        """
        with self.lock:
            self.check_open()
            if self.sessions == self._count:
                raise UsageError(
                    f"All slots of {self.name!r} are in use",
                    hint="load it with more slots or close a session",
                    setting="slots",
                )
            self.sessions += 1

    def take(self, ids: Sequence[int]) -> SequenceCache:
        """Choose a free cache for a session that begins with `ids`, and return it.

        The prefix that it shares with `ids` stays, and is not computed again. First choice is a
        cache of the same conversation: more than half of its ids stay, and at least 16 for each id
        of its last prompt that is dropped. Then come an empty cache, one of which more than half
        stays, and the least recently used one. Raises `UsageError` once closed.
        """
        with self.lock:
            self.check_open()
            kept = [free.keeps(common_prefix(free.ids, ids)) for free in self._free]
            # A few shared ids are no gain: all conversations begin alike.
            gains = [n for n, free in enumerate(self._free) if 2 * kept[n] > free.length]
            # For the next turn of a conversation, or another answer to its prompt.
            same = [n for n in gains if _SLACK * (self._free[n].prompt - kept[n]) <= kept[n]]
            # The first of them: engines compute neighbours together.
            empty = [n for n, free in enumerate(self._free) if not free.ids]
            empty.sort(key=lambda n: self.order[self._free[n]])
            return self._free.pop(max(same or empty or gains, key=kept.__getitem__, default=0))

    def give_back(self, cache: SequenceCache | None) -> None:
        """End a session and free its `cache`, if any; empty it unless `keep_prefixes` is set."""
        with self.lock:
            self.sessions -= 1
            if cache is None or self.closed:
                return
            self._free.append(cache)  # first: an engine that fails must not cost a slot
            if not self._keep:
                cache.clear()
            # A session may end before its prompt is computed.
            cache.prompt = min(cache.prompt, cache.length)

    def close(self) -> bool:
        """Wait for the run under way; refuse all later ones with `UsageError`.

        The first call returns True: its caller must then free the caches. Others return False.
        """
        with self.lock:
            before, self.closed = self.closed, True
            self._free.clear()
            return not before

    def check_open(self) -> None:
        """Raise `UsageError` if the model is closed."""
        if self.closed:
            raise UsageError(f"{self.name!r} is closed", hint="load it again")


class KvSession(EdgeSession):
    """An `EdgeSession` over a `SequenceCache`, which the first `open` takes from `Slots`."""

    def __init__(self, model: EdgeModel, slots: Slots, needs: Needs, top: int) -> None:
        """Reserve a slot. Raises `UsageError` if none is free, or without needed hidden states."""
        super().__init__(model, needs)
        slots.reserve()
        self._slots = slots
        # Taken by `open`, once the session's ids are known.
        self._cache: SequenceCache | None = None
        self._batched = model.abilities.batch_logits
        self._checkpointed = model.abilities.rewinds == "checkpoints"
        self._few = min(FEW, slots.batch) if self._checkpointed else 1
        self._needs, self._top = needs, top
        self._hidden = Needs.HIDDEN in needs
        self._tokenizer = model.tokenizer if Needs.TEXT in needs else None
        self._wanted: set[int] = set()
        self._last: LogitsStep | None = None
        self._buffer: Floats = np.empty(self._size, np.float32)

    def open(self, ids: Sequence[int]) -> int:
        self._require_room(0, ids)
        if self._cache is None:
            self._cache = self._slots.take(ids)
            # What the cache holds, so that `rewind` cuts it where the new ids part.
            self._ids = list(self._cache.ids)
        self.rewind(common_prefix(self._cache.ids, ids))
        self._ids, self._opened = list(ids), True
        self._cache.prompt = len(ids)
        if self._checkpointed and ids:
            if self.computed == len(ids) and not self._at_hand():
                # `step` would do so, and the ids that this call reports must not run again.
                self._forget(len(ids) - 1)
            # Another answer to this prompt then computes its last id alone.
            self.checkpoint(len(ids) - 1)
        return self.computed

    def prefill(self) -> bool:
        wanted = len(self._ids)
        if self.computed >= wanted - 1 or (end := self._next_end(wanted)) == wanted:
            return False
        self._run(end, "none", self._needs)
        return True

    def step(self) -> LogitsStep:
        if not self._ids:
            self._require_ids()
        wanted = len(self._ids)
        if self.computed == wanted:
            self._check_open()
            if self._last and self._at_hand():
                return self._last
            # Its outputs are gone, as after a rollback: the last id runs again.
            self._forget(wanted - 1)
        while self.prefill():
            pass
        (self._last,) = self._run(wanted, "last", self._needs)
        return self._last

    def steps(self, ids: Sequence[int]) -> list[LogitsStep]:
        if not ids:
            return []
        start = len(self._ids)
        self._require_room(start, ids)
        if self._batched and len(ids) > self._slots.batch:
            raise UsageError(f"At most {self._slots.batch} steps fit in one batch, not {len(ids)}.")
        if self.computed < start:
            self.step()
        self.extend(ids)
        if self._batched:
            made = self._run(len(self._ids), "all", self._needs)
        else:
            # Every step but the last is stale when the next one is made.
            kept = self._needs | Needs.LOGITS
            made = [self._run(start + i + 1, "last", kept)[0] for i in range(len(ids))]
        self._last = made[-1]
        return made

    def rewind(self, position: int) -> None:
        super().rewind(position)
        self._wanted = {at for at in self._wanted if at <= position}
        if position < self.computed:
            self._forget(position)

    def checkpoint(self, position: int) -> None:
        if self._checkpointed and position >= max(1, self.computed):
            self._wanted.add(position)

    def rest(self) -> None:
        self._slots.rest(self)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.rest()
            self._slots.give_back(self._cache)

    @property
    def closed(self) -> bool:
        """Whether the session was closed, so that none of its steps will be read."""
        return self._closed

    @property
    def computed(self) -> int:
        return 0 if self._cache is None else len(self._cache.ids)

    def _next_end(self, wanted: int) -> int:
        """Return at which position, `wanted` at most, the next run ends (see `FEW`)."""
        stops = self._wanted and [at for at in self._wanted if self.computed < at < wanted]
        if wanted - self.computed <= self._few and not stops:
            return wanted
        return min(wanted - 1, self.computed + self._slots.turn, *stops)

    def _at_hand(self) -> bool:
        last = self._last
        if last is None or last.position != len(self._ids):
            return False
        return last.kept or last.is_fresh()

    def _check_open(self) -> None:
        if self._closed or self._slots.closed:
            super()._check_open()
            self._slots.check_open()

    def _forget(self, position: int) -> None:
        with self._slots.lock:
            self._check_open()
            assert self._cache is not None
            self._cache.back(position)

    def _run(self, end: int, outputs: Outputs, needs: Needs) -> list[LogitsStep]:
        assert self._cache is not None
        hidden = self._hidden and outputs != "none"
        start = len(self._cache.ids)
        run = Run(self, self._cache, start, self._ids[start:end], outputs, hidden)
        made = self._slots.run(run)
        if self._wanted:
            self._wanted = {at for at in self._wanted if at >= end}
        for step in made:
            step.own(needs, self._top)
        return made

    def before(self, run: Run) -> None:
        """Save a checkpoint at `run.start` if one was announced; `UsageError` once closed."""
        self._check_open()
        if run.start in self._wanted:
            run.cache.checkpoint(lasting=run.start < run.cache.prompt)

    def steps_of(self, run: Run, rows: Sequence[KvRow]) -> list[LogitsStep]:
        """Return a step for each of `rows`, which are the outputs of the last ids of `run`."""
        cache, slots, text = run.cache, self._slots, self._tokenizer
        decode = cache.decodes
        return [
            LogitsStep(
                position,
                row.logits,
                row.hidden,
                # The engine overwrites these rows at its next decode, and frees them at its end.
                is_fresh=lambda: cache.decodes == decode and not slots.closed,
                buffer=self._buffer,
                written=Written(self._ids[:position], cache.prompt, text) if text else None,
                shared=slots.shared,
            )
            for position, row in enumerate(rows, run.start + len(run.ids) - len(rows) + 1)
        ]

    def failure(self, run: Run, error: BaseException) -> BaseException:
        """Drop what a failed run computed, and return what `Slots` is to raise for `error`.

        It is a `ModelError` for a failure of the engine, and `error` itself for any other.
        """
        # A failed pass may have written a part of the cache.
        run.cache.back(run.start)
        if not isinstance(error, FAILURES):
            return error
        return ModelError(
            f"{self._name!r} could not run {len(run.ids)} tokens ({reason_of(error)})",
            hint="lower the context or the number of slots if memory is short",
            setting="ctx",
        )
