"""An answer's consults: its session with the cloud, what is in flight, what was dropped."""

import math
import time
from collections.abc import Sequence
from concurrent import futures
from concurrent.futures import Future
from typing import Literal, NamedTuple

from edgewise.cloud.base import CloudSession
from edgewise.cloud.bridge.word_boundary import WordBoundaries
from edgewise.cloud.record import SentAnswer
from edgewise.completion import Completion, Sent
from edgewise.costs.meter import AnswerCosts
from edgewise.errors import Blocked, CloudError, CloudTimeout, NothingUsable
from edgewise.loop.health import Breaker, Latency
from edgewise.loop.policy import Policy
from edgewise.loop.state import State
from edgewise.sampling import Sampling

FLIGHTS = 4
"""Consults in flight at once."""

Held = Literal["mid_word", "blocked"]
"""Why nothing was sent, though a consult may be made: for now, or for good."""

_GRACE = 0.25
"""Seconds past the deadline before a backend that does not keep it is given up."""


class Flight(NamedTuple):
    """A consult in flight: `ask` tokens at `position`.

    `deadline` in seconds from `begun`; `first` if the answer had no completion before.
    """

    position: int
    ask: int
    begun: float
    deadline: float
    first: bool
    sent: Sent
    future: "Future[Completion]"


class Consults:
    """Owned by the answer's thread; completions arrive in any thread.

    `dropped` counts consults of an answer that then went another way, `wasted` the tokens they
    asked for, whether or not these still come. `waited` seconds were spent on completions.
    """

    def __init__(
        self,
        session: CloudSession,
        *,
        sent: SentAnswer,
        policy: Policy,
        sampling: Sampling,
        boundaries: WordBoundaries | None,
        start: int,
        breaker: Breaker,
        latency: Latency,
        meter: AnswerCosts | None = None,
        local: bool = False,
    ) -> None:
        """`session`, and `sent`, the record of what it sends, are closed by whoever opened them.

        `boundaries` is None for a cloud with the edge's vocabulary. The answer begins at id
        `start`. A `local` cloud, in this process, has no deadline but the policy's.
        """
        self.sent = sent
        self.dropped = self.wasted = 0
        self.waited = 0.0
        self._session, self._boundaries, self._start = session, boundaries, start
        self._policy, self._sampling = policy, sampling
        self._breaker, self._latency, self._meter = breaker, latency, meter
        self._local = local
        # Where only the cloud will do, a pause would hide that it is gone.
        self._insists = policy.on_cloud_error == "raise"
        self._first = True
        self._flights: dict[int, Flight] = {}

    def push(self, ids: Sequence[int], state: State) -> None:
        """Prefetch: tell a session that can of the answer so far, ahead of consults.

        Not where tokens have a price: what is read ahead is billed, and no meter counts it.
        """
        if self._meter is None and self._policy.may_ask(state.budget):
            self._session.push(ids, self.sent.push(ids))

    def ask(self, ids: Sequence[int], n: int) -> Flight | Held | Literal["circuit_open", "cost"]:
        """The consult for the token after `ids`: sent now, or in flight since a draft."""
        flight = self._flights.get(len(ids))
        if flight is not None and flight.ask != n:
            self._drop([flight])
            flight = None
        ahead = flight is not None
        if flight is None:
            refused = self._ask_now(ids, n)
            if not isinstance(refused, Flight):
                return refused
            flight = refused
        if self._insists or not self._breaker.is_open or flight.future.done():
            return flight
        # Do not wait for a silent cloud. A probe flies on and decides on later consults.
        if ahead:
            self._drop([flight])
        else:
            self._forget(flight)
        return "circuit_open"

    def ask_ahead(self, ids: Sequence[int], n: int, state: State) -> Held | None:
        """Send a consult from a draft, if it may fly; returns why nothing may be sent there.

        Never where costs are limited: what drafts in vain cost would decide on the answer's own
        consults, and with it the link's timing.
        """
        if self._meter is not None and self._meter.limited:
            return None
        allowed = len(self._flights) < FLIGHTS and not self._breaker.is_open
        if allowed and self._policy.may_ask_ahead(state.budget, n, self.wasted):
            try:
                self._send(ids, n)
            except Blocked as error:
                return _held(error)
        return None

    def lands(self, flight: Flight) -> bool:
        """Whether a consult is over, or will be before another draft token would pay."""
        elapsed = time.monotonic() - flight.begun
        patience = self._policy.patience(self._latency, elapsed, first=flight.first)
        if patience and not flight.future.done():
            futures.wait((flight.future,), patience)
            self.waited += time.monotonic() - flight.begun - elapsed
        return flight.future.done()

    def completion(self, flight: Flight, ids: Sequence[int], token: int) -> Completion:
        """Wait for the outcome; raises the `CloudError` that it is.

        Behind `ids` the edge would have written `token`.
        """
        begun = time.monotonic()
        self._flights.pop(flight.position, None)
        try:
            completion = self._result(flight)
            if self._boundaries is not None:
                completion = self._boundaries.joined(completion, ids, self._start, token)
        except NothingUsable:
            self._breaker.succeeded()
            raise
        except CloudError as error:
            self._breaker.failed(silent=isinstance(error, CloudTimeout))
            raise
        except BaseException:
            self._breaker.failed()
            raise
        finally:
            self.waited += time.monotonic() - begun
        self._breaker.succeeded()
        return completion

    def drop(self, start: int = 0, end: int | None = None) -> int:
        """Cancel what was sent for positions from `start` on, before `end`; returns how many."""
        if not self._flights:
            return 0
        stale = [
            flight
            for at, flight in self._flights.items()
            if at >= start and (end is None or at < end)
        ]
        self._drop(stale)
        return len(stale)

    def _ask_now(
        self, ids: Sequence[int], n: int
    ) -> Flight | Held | Literal["circuit_open", "cost"]:
        breaker = self._breaker
        # Asked before the meter, which books what the consult may cost.
        if not self._insists and not breaker.allow():
            return "circuit_open"
        try:
            requests = None
            if self._meter is not None and not (requests := self._meter.admits(ids, n)):
                breaker.forgone()
                return "cost"
            flight = self._send(ids, n, requests)
        except Blocked as error:
            breaker.forgone()
            return _held(error)
        except BaseException:
            # Else the breaker would wait for ever for a probe that was not sent.
            breaker.forgone()
            raise
        if breaker.is_open and not self._insists:
            flight.future.add_done_callback(self._probed)
        return flight

    def _send(self, ids: Sequence[int], n: int, requests: int | None = None) -> Flight:
        begun, sent = time.monotonic(), self.sent.consult(ids)
        sent.most = requests
        deadline = math.inf
        # A local model may be slow, but it is not gone: waiting is up to the user.
        if not self._local or self._policy.deadline is not None:
            deadline = self._policy.deadline_now(self._latency, first=self._first, prompt=len(ids))
        try:
            future = self._session.ask(ids, n, self._sampling, deadline, sent)
        except Blocked:
            raise
        except CloudError as error:
            future = Future[Completion]()
            future.set_exception(error)
        flight = Flight(len(ids), n, begun, deadline, self._first, sent, future)
        self._flights[flight.position] = flight
        if self._meter is not None:
            self._meter.sent(ids, n, sent, future)
        # When it lands, not when the loop next looks.
        future.add_done_callback(lambda _: self._landed(flight))
        return flight

    def _landed(self, flight: Flight) -> None:
        """Learn how long it took, in the thread that brings it."""
        if flight.future.cancelled():
            return
        error = flight.future.exception()
        if isinstance(error, CloudTimeout):
            self._latency.timed_out(flight.deadline, first=flight.first)
        elif error is None:
            seconds = time.monotonic() - flight.begun
            completion = flight.future.result()
            self._latency.answered(seconds, completion.engine_seconds, first=flight.first)
            if flight.first:
                computed = completion.computed
                tokens = flight.position if computed is None else computed
                self._latency.read(completion.engine_seconds or seconds, tokens)
            self._first = False

    def _probed(self, future: "Future[Completion]") -> None:
        error = None if future.cancelled() else future.exception()
        if future.cancelled() or not (error is None or isinstance(error, NothingUsable)):
            self._breaker.failed()
        else:
            self._breaker.succeeded()

    def _result(self, flight: Flight) -> Completion:
        left = max(0.0, flight.begun + flight.deadline - time.monotonic())
        try:
            return flight.future.result(left + _GRACE if left < math.inf else None)
        except TimeoutError as error:
            flight.future.cancel()
            self._latency.timed_out(flight.deadline, first=flight.first)
            raise CloudTimeout(f"No answer within {flight.deadline:.3g} s.") from error

    def _drop(self, stale: Sequence[Flight]) -> None:
        for flight in stale:
            self._forget(flight)
            if self._meter is not None:
                # A request must not leave after its bill was made.
                flight.sent.most = 0
            flight.future.cancel()

    def _forget(self, flight: Flight) -> None:
        del self._flights[flight.position]
        self.dropped += 1
        self.wasted += flight.ask


def _held(error: Blocked) -> Held:
    return "mid_word" if error.open else "blocked"
