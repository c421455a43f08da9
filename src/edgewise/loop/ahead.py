"""Running ahead: while a consult flies, the edge goes on from its own guess.

What it computes and asks on the way is kept here and used if the answer comes to the same ids;
where it does not, it is dropped. The loop decides as it would without, so the answer is the same.
"""

import time
from collections.abc import Sequence
from concurrent.futures import Future
from typing import NamedTuple

from edgewise.cloud.base import CloudSession
from edgewise.edge.base import EdgeSession, Step, Tokenizer
from edgewise.errors import CloudError, CloudTimeout
from edgewise.events import Candidate
from edgewise.loop.latency import Latency
from edgewise.loop.policy import Budget, Policy
from edgewise.routers.base import Router
from edgewise.sampling import Sampling
from edgewise.verdict import Verdict

CANDIDATES = 5
"""Edge candidates reported with a token that the cloud was asked for."""

PUSHED = 16
"""New ids that are pushed together: an engine's cache block, and one prefill instead of many."""

FLIGHTS = 4
"""Consults in flight at once."""


class Read(NamedTuple):
    """What the loop needs of a step, taken before the engine's next decode."""

    score: float
    proposed: int
    token: int
    logprob: float
    step: Step
    candidates: tuple[Candidate, ...] = ()

    def detailed(self) -> "Read":
        """With the edge's candidates; before the engine's next decode."""
        return (
            self if self.candidates else self._replace(candidates=self.step.candidates(CANDIDATES))
        )


class Flight(NamedTuple):
    """A consult on its way: `ask` tokens at `position`, after `new_ids` that the cloud lacked.

    `deadline` in seconds from `begun`; `first` where the answer had no verdict before.
    """

    position: int
    ask: int
    new_ids: int
    begun: float
    deadline: float
    first: bool
    future: "Future[Verdict]"


class RunAhead:
    """Guesses beyond an answer's ids: steps read, consults sent, the edge session holding them."""

    def __init__(
        self,
        ids: Sequence[int],
        edge: EdgeSession,
        cloud: CloudSession | None,
        *,
        router: Router,
        policy: Policy,
        latency: Latency,
        sampling: Sampling,
        tokenizer: Tokenizer,
        longest: int,
        context: int,
        candidates: bool = False,
    ) -> None:
        """`ids` is the answer's own list, prompt included; it has at most `longest` ids.

        `context` is the longest sequence of the edge session. With `candidates` every read has
        the edge's, not only those that a consult may follow.
        """
        self._detailed = candidates
        self._ids = ids
        self._edge, self._cloud = edge, cloud
        self._router, self._policy, self._sampling = router, policy, sampling
        self._latency = latency
        self._first = True
        self._eos_ids = tokenizer.eos_ids
        self._longest, self._context = longest, context
        self.guesses: list[int] = []
        self._reads: dict[int, Read] = {}
        self._flights: dict[int, Flight] = {}
        self._budget = Budget()
        self._known = self._span = self._sent = 0

    def push(self, known: int, least: int = 1) -> int:
        """Tell a cloud that takes pushes what it does not know; returns how many ids it knows.

        Fewer than `least` new ids wait for more.
        """
        if self._cloud is not None and not self.guesses:
            self._cloud.push(self._ids)
        return known

    def read(self) -> Read:
        """The step at the answer's end: computed on the way, or now."""
        kept = self._reads.pop(len(self._ids), None)
        return kept or self._take(self._edge.step())

    def flight(self, ask: int) -> Flight | None:
        """The consult that was sent for the answer's end on the way, if it fits."""
        flight = self._flights.pop(len(self._ids), None)
        if flight is not None and flight.ask != ask:
            self._flights[flight.position] = flight
            return None
        return flight

    def launch(self, known: int, ask: int) -> Flight:
        """Send a consult for the answer's end; raises a `CloudError`."""
        return self._send(self._ids, known, ask)

    def _send(self, ids: Sequence[int], known: int, ask: int) -> Flight:
        assert self._cloud is not None
        # A later consult may have been sent before: what the cloud holds ends at the last one.
        known = min(known, self._sent)
        new_ids = ids[known:]
        self._sent = len(ids)
        begun = time.monotonic()
        deadline = self._policy.deadline_now(self._latency, first=self._first)
        future = self._cloud.ask(ids, ask, self._sampling, deadline)
        flight = Flight(len(ids), ask, len(new_ids), begun, deadline, self._first, future)
        # When it lands, not when the loop next looks.
        future.add_done_callback(lambda _: self._landed(flight))
        return flight

    def _landed(self, flight: Flight) -> None:
        """In whichever thread answers: how long it took."""
        if flight.future.cancelled():
            return
        error = flight.future.exception()
        if error is None:
            seconds = time.monotonic() - flight.begun
            engine = flight.future.result().engine_seconds
            self._latency.answered(seconds, engine, first=flight.first)
            self._first = False
        elif isinstance(error, CloudTimeout):
            self._latency.timed_out(flight.deadline, first=flight.first)

    def begin(self, flight: Flight, read: Read, budget: Budget) -> None:
        """A flight is waited for from now on: the next guesses follow `read`'s own token."""
        if not self.guesses and flight.position < self._context:
            self._known = flight.position
            self._span = flight.ask - 1
            self._budget = self._policy.charge(budget, flight.ask)
            self._budget = self._policy.written(self._budget, by_cloud=True)
            self._guess(read.token)

    def forward(self, *, may_ask: bool) -> int | None:
        """One step further; the guessed id, or None where the run-ahead ends."""
        if not 0 < len(self.guesses) < self._policy.run_ahead:
            return None
        position = len(self._ids) + len(self.guesses)
        if position >= min(self._longest, self._context) or self.guesses[-1] in self._eos_ids:
            return None
        # In detail: the loop may ask here after all, when the step is long gone.
        begun = time.monotonic()
        read = self._take(self._edge.step()).detailed()
        self._latency.stepped(time.monotonic() - begun)
        by_cloud = self._span > 0
        if by_cloud:
            self._span -= 1
        elif may_ask and len(self._flights) + 1 < FLIGHTS:
            by_cloud = self._maybe_ask(read, position)
        self._reads[position] = read
        self._budget = self._policy.written(self._budget, by_cloud=by_cloud)
        self._guess(read.token)
        return read.token

    def follow(self, token: int) -> list[Flight]:
        """The answer, which holds it already, goes on with `token`; returns what that drops."""
        if self.guesses:
            if self.guesses[0] == token:
                del self.guesses[0]
                return self._stale()
            dropped = self.drop(len(self._ids) - 1)
        else:
            dropped = self.drop(None)
        self._edge.extend([token])
        return dropped

    def drop(self, position: int | None) -> list[Flight]:
        """Forget every guess; the edge session goes back to `position`. Returns the flights."""
        dropped = list(self._flights.values())
        for flight in dropped:
            flight.future.cancel()
        self._flights.clear()
        self._reads.clear()
        self.guesses.clear()
        if position is not None:
            self._edge.rewind(position)
        return dropped

    def _stale(self) -> list[Flight]:
        """Consults sent on the way where the loop itself then asked for nothing, or for more."""
        passed = [at for at in self._flights if at < len(self._ids)]
        dropped = [self._flights.pop(at) for at in passed]
        for flight in dropped:
            flight.future.cancel()
        return dropped

    def _maybe_ask(self, read: Read, position: int) -> bool:
        decision = self._policy.decide(read.score, self._budget)
        ask = min(decision.ask, self._longest - position)
        if not ask:
            return False
        try:
            ids = [*self._ids, *self.guesses]
            self._flights[position] = self._send(ids, self._known, ask)
        except CloudError:
            # The loop will ask here itself, and report what it meets.
            return False
        self._known = position
        self._span = ask - 1
        self._budget = self._policy.charge(self._budget, ask)
        return True

    def _guess(self, token: int) -> None:
        self._edge.extend([token])
        self.guesses.append(token)

    def _take(self, step: Step) -> Read:
        token = self._sampling.choose(step)
        read = Read(
            self._router.score(step),
            step.proposed,
            token,
            step.logprob(token),
            step,
        )
        return read.detailed() if self._detailed else read
