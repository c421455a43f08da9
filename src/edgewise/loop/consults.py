"""An answer's consults: the session with the cloud, what flies, what was dropped."""

import math
import time
from collections.abc import Sequence
from concurrent import futures
from concurrent.futures import Future
from typing import Literal, NamedTuple

from edgewise.cloud.base import CloudSession
from edgewise.cloud.bridge.word_boundary import Seams
from edgewise.cloud.record.record import RecordedSent, SentAnswer
from edgewise.completion import MOST_IDS, Completion
from edgewise.errors import CloudError, CloudTimeout, NothingUsable, Withheld
from edgewise.loop.breaker import Breaker
from edgewise.loop.cost import CostMeter
from edgewise.loop.latency import Latency
from edgewise.loop.policy import Policy
from edgewise.loop.state import State
from edgewise.sampling import Sampling

FLIGHTS = 4
"""Consults in flight at once."""

Held = Literal["mid_word", "withheld"]
"""Why nothing was sent, though a consult may be made: for now, or for good."""

_GRACE = 0.25
"""Seconds past the deadline before a backend that breaks its promise is given up."""


class Flight(NamedTuple):
    """A consult on its way: `ask` tokens at `position`.

    `deadline` in seconds from `begun`; `first` where the answer had no completion before.
    """

    position: int
    ask: int
    begun: float
    deadline: float
    first: bool
    sent: RecordedSent
    future: "Future[Completion]"


class Consults:
    """Owned by the answer's thread; completions land in whichever thread brings them.

    `dropped` consults were sent for an answer that then went another way; `wasted` tokens were
    asked for with them, whether or not they still come. `waited` seconds were spent on completions.
    """

    def __init__(
        self,
        session: CloudSession,
        *,
        sent: SentAnswer,
        policy: Policy,
        sampling: Sampling,
        size: int,
        seams: Seams | None,
        start: int,
        breaker: Breaker,
        latency: Latency,
        meter: CostMeter | None = None,
        here: bool = False,
    ) -> None:
        """`session` and `sent`, the record of what it sends, are closed by whoever opened them.

        It answers in a vocabulary of `size` ids. With `seams` it is asked there, for words, and it
        alone knows what it was sent for them; the answer has its first id at `start`. What consults
        cost is told to `meter`, where that is known. With `here` the cloud is in this process, and
        has no deadline but the policy's.
        """
        self._size, self._seams, self._start = size, seams, start
        self._session, self.sent = session, sent
        self._policy, self._sampling = policy, sampling
        self._breaker, self._latency, self._meter = breaker, latency, meter
        # Where only the cloud will do, a pause would hide that it is gone.
        self._insists = policy.on_cloud_error == "raise"
        self._first = True
        self._here = here
        self._flights: dict[int, Flight] = {}
        self.dropped = self.wasted = 0
        self.waited = 0.0

    def push(self, ids: Sequence[int], state: State) -> None:
        """Tell a session that sends ahead of consults of the answer so far.

        Not where tokens have a price: what is read ahead is billed, and no meter tells of it.
        """
        ahead = self._policy.push == "auto" and self._meter is None
        if ahead and self._policy.may_ask(state.budget):
            self._session.push(ids, self.sent.push(ids))

    def ask(self, ids: Sequence[int], n: int) -> Flight | Held | Literal["circuit_open", "cost"]:
        """The consult for the token after `ids`: sent now, or on the way since a guess."""
        breaker = self._breaker
        flight = self._flights.get(len(ids))
        if flight is not None and flight.ask != n:
            self._drop([flight])
            flight = None
        sent_ahead = flight is not None
        if flight is None:
            # Asked before the meter: that books what the consult may cost.
            if not self._insists and not breaker.allow():
                return "circuit_open"
            try:
                if self._meter is not None and not self._meter.admits(ids, n):
                    breaker.forgone()
                    return "cost"
                flight = self._send(ids, n)
            except Withheld as error:
                breaker.forgone()
                return _held(error)
            except BaseException:
                # Else it would wait for ever for a probe that was not sent.
                breaker.forgone()
                raise
            if breaker.is_open and not self._insists:
                probe = flight
                flight.future.add_done_callback(lambda _: self._probed(probe))
        if self._insists or not breaker.is_open or flight.future.done():
            return flight
        # Nobody waits for a cloud that went silent; a probe flies on and decides on later consults.
        if sent_ahead:
            self._drop([flight])
        else:
            self._forget(flight)
        return "circuit_open"

    def ask_ahead(self, ids: Sequence[int], n: int, state: State) -> Held | None:
        """Send a consult from a guess, if it may fly; why not, where nothing may be sent there.

        As under a cap, none is where costs are limited: what a guess in vain cost would decide on
        the answer's own consults, and with it the link's timing.
        """
        if self._meter is not None and self._meter.limits.any:
            return None
        allowed = len(self._flights) < FLIGHTS and not self._breaker.is_open
        if allowed and self._policy.may_ask_ahead(state.budget, n, self.wasted):
            try:
                self._send(ids, n)
            except Withheld as error:
                return _held(error)
        return None

    def lands(self, flight: Flight) -> bool:
        """Whether a consult is over, or is so before a step ahead would pay."""
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
            if self._seams is not None:
                completion = self._seams.joined(completion, ids, self._start, token)
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
        stale = [
            flight
            for at, flight in self._flights.items()
            if at >= start and (end is None or at < end)
        ]
        self._drop(stale)
        return len(stale)

    def _drop(self, stale: Sequence[Flight]) -> None:
        for flight in stale:
            self._forget(flight)
            if self._meter is not None:
                # What was given up may not leave after its bill was made.
                flight.sent.most = 0
            flight.future.cancel()

    def _forget(self, flight: Flight) -> None:
        del self._flights[flight.position]
        self.dropped += 1
        self.wasted += flight.ask

    def _send(self, ids: Sequence[int], n: int) -> Flight:
        begun, sent = time.monotonic(), self.sent.consult(ids)
        if self._meter is not None:
            self._meter.allow(sent)
        deadline = self._deadline(len(ids))
        try:
            future = self._session.ask(ids, n, self._sampling, deadline, sent)
        except Withheld:
            raise
        except CloudError as error:
            future = Future[Completion]()
            future.set_exception(error)
        flight = Flight(len(ids), n, begun, deadline, self._first, sent, future)
        self._flights[flight.position] = flight
        if self._meter is not None:
            self._meter.sent(ids, n, sent, future, lambda found: self._is_one(found, flight))
        # When it lands, not when the loop next looks.
        future.add_done_callback(lambda _: self._landed(flight))
        return flight

    def _deadline(self, position: int) -> float:
        """A model in this process may be slow; it is not gone, so waiting is up to the user."""
        if self._here and self._policy.deadline is None:
            return math.inf
        return self._policy.deadline_now(self._latency, first=self._first, prompt=position)

    def _landed(self, flight: Flight) -> None:
        """In whichever thread answers: how long it took."""
        if flight.future.cancelled():
            return
        error = flight.future.exception()
        if error is None:
            seconds = time.monotonic() - flight.begun
            completion = flight.future.result()
            if self._is_one(completion, flight):
                self._latency.answered(seconds, completion.engine_seconds, first=flight.first)
                if flight.first:
                    computed = completion.computed
                    tokens = flight.position if computed is None else computed
                    self._latency.read(completion.engine_seconds or seconds, tokens)
                self._first = False
        elif isinstance(error, CloudTimeout):
            self._latency.timed_out(flight.deadline, first=flight.first)

    def _is_one(self, completion: Completion, flight: Flight) -> bool:
        try:
            self._check(completion, flight)
        except CloudError:
            # Who waits for it is told.
            return False
        return True

    def _check(self, completion: Completion, flight: Flight) -> None:
        words = self._seams is not None
        asked, prompt = (MOST_IDS, MOST_IDS) if words else (flight.ask, flight.position)
        completion.check(asked=asked, prompt=prompt, size=self._size)

    def _probed(self, flight: Flight) -> None:
        future = flight.future
        error = None if future.cancelled() else future.exception()
        answered = not future.cancelled() and not error and self._is_one(future.result(), flight)
        if answered or isinstance(error, NothingUsable):
            self._breaker.succeeded()
        else:
            self._breaker.failed()

    def _result(self, flight: Flight) -> Completion:
        left = max(0.0, flight.begun + flight.deadline - time.monotonic())
        try:
            timeout = left + _GRACE if left < math.inf else None
            completion = flight.future.result(timeout)
        except TimeoutError as error:
            flight.future.cancel()
            self._latency.timed_out(flight.deadline, first=flight.first)
            raise CloudTimeout(f"No answer within {flight.deadline:.3g} s.") from error
        self._check(completion, flight)
        return completion


def _held(error: Withheld) -> Held:
    return "mid_word" if error.open else "withheld"
