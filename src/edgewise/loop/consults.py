"""An answer's consults: its session with the cloud, what is in flight, what was dropped."""

import math
import time
from collections.abc import Sequence
from concurrent import futures
from concurrent.futures import Future
from typing import Literal, NamedTuple

from msgspec.structs import replace

from edgewise.cloud.base import CloudSession
from edgewise.cloud.record import SentAnswer
from edgewise.completion import Completion, Sent
from edgewise.costs.meter import AnswerCosts
from edgewise.errors import Blocked, CloudError, CloudTimeout, NothingUsable
from edgewise.events import Consult, Usage
from edgewise.loop.health import Breaker, Latency
from edgewise.loop.policy import Budget
from edgewise.loop.state import Rules

FLIGHTS = 4
"""Consults in flight at once."""

Refusal = Literal["mid_word", "blocked", "circuit_open", "cost", "budget", "cap"]
"""Why nothing was sent; `mid_word` for now only."""

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
        sent: SentAnswer,
        rules: Rules,
        *,
        breaker: Breaker,
        latency: Latency,
        meter: AnswerCosts | None = None,
        local: bool = False,
    ) -> None:
        """`session`, and `sent`, the record of what it sends, are closed by whoever opened them.

        A `local` cloud, in this process, has no deadline but the policy's.
        """
        self.sent, self.latency = sent, latency
        self.dropped = self.wasted = 0
        self.waited = 0.0
        self._session, self._rules, self._policy = session, rules, rules.policy
        self._breaker, self._meter, self._local = breaker, meter, local
        # Where only the cloud will do, a pause would hide that it is gone.
        self._insists = rules.policy.on_cloud_error == "raise"
        self._first = True
        self._flights: dict[int, Flight] = {}

    def prefetch(self, ids: Sequence[int], budget: Budget) -> None:
        """Give the session the answer so far, ahead of consults; it sends that on if it can.

        Not where tokens have a price: what is read ahead is billed, and no meter counts it.
        """
        if self._meter is None and self._policy.may_ask(budget):
            self._session.prefetch(ids, self.sent.prefetch(ids))

    def ask(self, ids: Sequence[int], n: int, token: int) -> Flight | Refusal:
        """The consult for the token after `ids`: sent now, or in flight since a draft.

        That the edge would write `token` there matters to `TieredConsults` alone.
        """
        ahead = self._flights.get(len(ids))
        if ahead is not None and ahead.ask != n:
            self._drop([ahead])
            ahead = None
        flight = ahead or self._ask_now(ids, n)
        if not isinstance(flight, Flight) or self._insists:
            return flight
        if not self._breaker.is_open or flight.future.done():
            return flight
        # Do not wait for a silent cloud. A probe flies on and decides on later consults.
        if ahead is None:
            self._forget(flight)
        else:
            self._drop([flight])
        return "circuit_open"

    def ask_ahead(self, ids: Sequence[int], n: int, budget: Budget) -> Refusal | None:
        """Send a consult from a draft, if it may fly; returns why nothing may be sent there.

        Never where costs are limited: what drafts in vain cost would decide on the answer's own
        consults, and with it the link's timing.
        """
        if self._meter is not None and self._meter.limited:
            return None
        allowed = len(self._flights) < FLIGHTS and not self._breaker.is_open
        if allowed and self._policy.may_ask_ahead(budget, n, self.wasted):
            try:
                self._send(ids, n)
            except Blocked as error:
                return _refusal(error)
        return None

    def lands(self, flight: Flight) -> bool:
        """Whether a consult is over, or will be before another draft token would pay."""
        elapsed = time.monotonic() - flight.begun
        patience = self.latency.patience(elapsed, first=flight.first)
        if patience and not flight.future.done():
            futures.wait((flight.future,), patience)
            self.waited += time.monotonic() - flight.begun - elapsed
        return flight.future.done()

    def completion(self, flight: Flight) -> Completion:
        """Wait for the outcome; raises the `CloudError` that it is."""
        begun = time.monotonic()
        self._flights.pop(flight.position, None)
        try:
            completion = self._result(flight)
        except BaseException as error:
            if isinstance(error, NothingUsable):
                self._breaker.succeeded()
            else:
                self._breaker.failed(silent=isinstance(error, CloudTimeout))
            raise
        finally:
            self.waited += time.monotonic() - begun
        self._breaker.succeeded()
        return completion

    def judged(self, *, changed: bool, kept: int) -> None:
        """Of the last completion so many tokens are kept; the first may differ from the edge's."""
        self.latency.judged(changed=changed)

    def report(self, flight: Flight, outcome: Completion | CloudError, index: int) -> list[Consult]:
        """The event that the consult for token `index` is over."""
        sent = flight.sent
        event = Consult(
            index=index,
            outcome="answered",
            asked=flight.ask,
            answered=0,
            sent_ids=sent.ids,
            sent_bytes=sent.bytes,
            seconds=time.monotonic() - flight.begun,
            request_id=sent.request_id,
            host=self.sent.host if sent.bytes else "",
        )
        if isinstance(outcome, CloudError):
            return [replace(event, outcome=outcome.reason, message=str(outcome))]
        answered = replace(
            event,
            answered=len(outcome.ids),
            cached=outcome.cached,
            computed=outcome.computed,
            engine_seconds=outcome.engine_seconds,
        )
        return [answered]

    def summed(self, usage: Usage, left: int) -> Usage:
        """The counts of an answer, of which `left` tokens of the last completion are not used."""
        return replace(usage, cloud_calls=usage.cloud_calls + self.dropped, sent=self.sent.counts())

    def drop(self, start: int = 0, end: float = math.inf) -> int:
        """Cancel what was sent for positions from `start` on, before `end`; returns how many."""
        if not self._flights:
            return 0
        stale = [flight for at, flight in self._flights.items() if start <= at < end]
        self._drop(stale)
        return len(stale)

    def _ask_now(self, ids: Sequence[int], n: int) -> Flight | Refusal:
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
        except BaseException as error:
            # Else the breaker would wait for ever for a probe that was not sent.
            breaker.forgone()
            if isinstance(error, Blocked):
                return _refusal(error)
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
            deadline = self._policy.deadline_now(self.latency, first=self._first, prompt=len(ids))
        try:
            future = self._session.ask(ids, n, self._rules.sampling, deadline, sent)
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
            self.latency.timed_out(flight.deadline, first=flight.first)
        elif error is None:
            seconds = time.monotonic() - flight.begun
            completion = flight.future.result()
            self.latency.answered(seconds, completion.engine_seconds, first=flight.first)
            if flight.first:
                computed = completion.computed
                tokens = flight.position if computed is None else computed
                self.latency.read(completion.engine_seconds or seconds, tokens)
            self._first = False

    def _probed(self, future: "Future[Completion]") -> None:
        cancelled = future.cancelled()
        error = None if cancelled else future.exception()
        if cancelled or not isinstance(error, NothingUsable | None):
            self._breaker.failed()
        else:
            self._breaker.succeeded()

    def _result(self, flight: Flight) -> Completion:
        left = max(0.0, flight.begun + flight.deadline - time.monotonic())
        try:
            return flight.future.result(left + _GRACE if left < math.inf else None)
        except TimeoutError as error:
            flight.future.cancel()
            self.latency.timed_out(flight.deadline, first=flight.first)
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


def _refusal(error: Blocked) -> Refusal:
    return "mid_word" if error.open else "blocked"
