"""`SharedSlots`: waiting llama.cpp sessions share a forward pass; one thread runs all passes."""

import os
import threading
import time
from collections import deque
from collections.abc import Sequence
from functools import cache
from typing import Any, cast

from edgewise.edge.kv import KvSession, Run, Slots
from edgewise.edge.llamacpp.cache import LlamaSequence
from edgewise.edge.step import LogitsStep

# They ask for their next steps within a hundredth of it, unless a client or the machine is slow.
PATIENCE = 0.25
"""Longest wait of a pass for the sessions of the one before, as a fraction of its duration."""


class _Queued:
    """A run that waits for its pass, and the lock by which its session's thread waits for it."""

    __slots__ = ("_done", "arrived", "error", "over", "run", "steps")

    def __init__(self, run: Run) -> None:
        self.run, self.arrived, self.over = run, time.monotonic(), False
        self.steps: list[LogitsStep] = []
        self.error: BaseException | None = None
        # Held until the run is over: nothing wakes a thread sooner.
        self._done = threading.Lock()
        self._done.acquire()

    def wait(self) -> None:
        self._done.acquire()
        self._done.release()

    def end(self, steps: list[LogitsStep], error: BaseException | None = None) -> None:
        self.steps, self.error, self.over = steps, error, True
        self._done.release()


class SharedSlots(Slots):
    """`Slots` of a llama.cpp context: one forward pass serves all sessions that wait for a step."""

    def __init__(self, caches: Sequence[LlamaSequence], **options: Any) -> None:
        super().__init__(caches, **options)
        self.shared = len(caches) > 1
        self.line: deque[_Queued] = deque()
        self.coming: set[KvSession] = set()
        self.until = 0.0
        self._prompt_next = False
        # Steps that are views into the engine's memory.
        self._live: dict[KvSession, list[LogitsStep]] = {}

    def run(self, run: Run) -> list[LogitsStep]:
        queued, passes = _Queued(run), _passes()
        passes.put(self, queued)
        try:
            queued.wait()
        except BaseException:
            # A Ctrl-C: what has begun is waited for. It may come just as that ends, too.
            if not passes.withdraw(self, queued) and not queued.over:
                queued.wait()
            raise
        if queued.error is not None:
            raise queued.error
        return queued.steps

    def rest(self, session: KvSession) -> None:
        _passes().rest(self, session)

    def share(self) -> list[_Queued]:
        """Remove the runs of the next pass from the queue `line`; return them sorted by sequence.

        They are all the runs that wait for steps (as many as fit), or a single run over ids of a
        prompt. If both kinds wait, passes alternate between them.
        """
        # Not mixed: a prompt's ids need no logits, and llama.cpp computes those of all ids in a
        # pass that returns any hidden state.
        prompts, others = list[_Queued](), list[_Queued]()
        for one in self.line:
            step = one.run.outputs == "all" or len(one.run.ids) == 1
            (others if step else prompts).append(one)
        self._prompt_next = bool(others) and not (prompts and self._prompt_next)
        if others and self._prompt_next:
            taken, room = list[_Queued](), self.batch
            for one in others:
                room -= len(one.run.ids)
                # The first always goes, or a run larger than a batch would wait for ever.
                if taken and room < 0:
                    break
                taken.append(one)
        else:
            taken = prompts[:1]
        for one in taken:
            self.line.remove(one)
        # llama.cpp computes neighbouring sequences together, in order.
        return sorted(taken, key=lambda one: self.order[one.run.cache])

    def compute(self, taken: Sequence[_Queued]) -> None:
        """Run one pass over `taken` (from `share`); wake the waiting threads with the outcome."""
        begun = time.monotonic()
        with self.lock:
            self._pass([one for one in taken if self._started(one)])
        self.until = time.monotonic() + PATIENCE * (time.monotonic() - begun)

    def _started(self, one: _Queued) -> bool:
        try:
            one.run.session.before(one.run)
        except BaseException as error:
            one.end([], error)
            return False
        return True

    def _pass(self, taken: Sequence[_Queued]) -> None:
        """Compute the runs together; if that fails, each is tried again alone."""
        if not taken:
            return
        runs = [one.run for one in taken]
        # Who runs again is done with its last steps; the views of others end with this pass.
        here = {run.session for run in runs}
        for session, steps in self._live.items():
            for step in () if session in here or session.closed else steps:
                step.keep()
        self._live.clear()
        try:
            rows = LlamaSequence.run_together(
                [(cast(LlamaSequence, run.cache), run.ids, run.outputs) for run in runs],
                hidden=any(run.hidden for run in runs),
            )
        except BaseException as error:
            if len(taken) > 1:
                # One run may have failed all: the others must not pay for it.
                for one in taken:
                    self._pass([one])
                return
            failure = runs[0].session.failure(runs[0], error)
            failure.__cause__ = None if failure is error else error
            taken[0].end([], failure)
            return
        # Before they wake: a session that has asked already would be waited for in vain.
        _passes().expect(self, {run.session for run in runs if run.outputs == "last"})
        for one, made in zip(taken, rows, strict=True):
            steps = self._live[one.run.session] = one.run.session.steps_of(one.run, made)
            one.end(steps)

    def close(self) -> bool:
        closed = super().close()
        with self.lock:
            for steps in self._live.values() if self.shared else ():
                for step in steps:
                    # Another thread may be reading it, and the engine's memory is freed next.
                    step.keep()
            self._live.clear()
        return closed


class _Passes(threading.Thread):
    """The thread that runs the passes of all models, one at a time, first come, first served."""

    def __init__(self) -> None:
        # A daemon: it never ends by itself, and must not keep the process alive.
        super().__init__(name="llama.cpp", daemon=True)
        self._changed = threading.Condition()
        self._slots: set[SharedSlots] = set()

    def put(self, slots: SharedSlots, queued: _Queued) -> None:
        with self._changed:
            slots.line.append(queued)
            slots.coming.discard(queued.run.session)
            self._slots.add(slots)
            # While a session is expected, waking up would only mean to wait on.
            if not slots.coming:
                self._changed.notify()

    def withdraw(self, slots: SharedSlots, queued: _Queued) -> bool:
        """Take a run out of the line; return False if its pass has begun."""
        with self._changed:
            if waiting := queued in slots.line:
                slots.line.remove(queued)
            return waiting

    def rest(self, slots: SharedSlots, session: KvSession) -> None:
        """Let passes begin without waiting for the session."""
        with self._changed:
            slots.coming.discard(session)
            if slots.line and not slots.coming:
                self._changed.notify()

    def expect(self, slots: SharedSlots, sessions: set[KvSession]) -> None:
        """Let the next pass wait for these sessions, which are about to step again."""
        with self._changed:
            slots.coming |= sessions

    def run(self) -> None:
        while True:
            slots, taken = self._next()
            try:
                slots.compute(taken)
            except BaseException as error:
                # Whoever waits is told: the thread runs the passes of all models.
                for one in taken:
                    if not one.over:
                        one.end([], error)

    def _next(self) -> tuple[SharedSlots, list[_Queued]]:
        with self._changed:
            while True:
                now = time.monotonic()
                for slots in self._slots:
                    if now >= slots.until:
                        slots.coming.clear()
                self._slots = {slots for slots in self._slots if slots.line or slots.coming}
                ready = [slots for slots in self._slots if not slots.coming]
                if ready:
                    first = min(ready, key=lambda slots: slots.line[0].arrived)
                    return first, first.share()
                until = min((slots.until for slots in self._slots), default=None)
                self._changed.wait(until and until - now)


# One for all models: OpenMP keeps a team of threads for every thread that calls it. With two teams
# some threads sleep in the middle of a pass: a step of a small model takes 1.5 times as long.
@cache
def _passes() -> _Passes:
    thread = _Passes()
    thread.start()
    return thread


if hasattr(os, "register_at_fork"):
    # A process has none of its parent's threads.
    os.register_at_fork(after_in_child=_passes.cache_clear)
