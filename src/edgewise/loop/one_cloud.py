"""A cloud with its limits (`Tier`), and the requests of one answer to it (`CloudConsults`)."""

import math
import time
from collections.abc import Sequence
from concurrent import futures
from concurrent.futures import Future
from typing import Literal

import msgspec
from msgspec.structs import replace

from edgewise.cloud.base import CloudModel, CloudSession, ConsultRequest
from edgewise.cloud.record import SentAnswer
from edgewise.completion import Completion, Outgoing
from edgewise.costs.meter import UNLIMITED, AnswerCosts
from edgewise.errors import (
    Blocked,
    CloudError,
    CloudRejected,
    CloudTimeout,
    NothingUsable,
    require,
)
from edgewise.events import Consult
from edgewise.loop.counts import CloudCounts
from edgewise.loop.health import Breaker, Latency
from edgewise.loop.policy import Budget, SharedBudget
from edgewise.loop.state import Rules
from edgewise.prompts import Prompt

TIER_THRESHOLD, TIER_SHARE = 0.5, 0.01
"""Default `threshold` and `share` of a `Tier`, for the clouds after the first in the list."""

TIER_CREDIT = 4.0
"""Tokens that a cloud with its own share may write before any are earned; an answer gets half."""

# Error estimate of a cloud without logprobs before its first comparison: the next one is asked.
UNKNOWN = TIER_THRESHOLD

# Consults in flight: those of drafts are wasted where a draft is rejected.
FLIGHTS = 4

Refusal = Literal["mid_word", "blocked", "circuit_open", "cost", "budget", "cap"]
"""Reasons to send no request; after `mid_word` it can be sent once the word is whole."""

# Deadlines of a verdict on a passage and of a whole answer: a hosted model may reason first.
READING_SECONDS, WHOLE_SECONDS = 30.0, 120.0

# Seconds past the deadline for a backend to say itself why it is late.
_GRACE = 0.25


class Flight(msgspec.Struct, eq=False):
    """A request to a cloud for the `ask` tokens that follow `position` token ids, or for verdicts.

    These ids are the prompt, the answer so far and perhaps draft tokens; the cloud verifies the
    last `verify` of them. `sent` counts the ids and bytes that left; `future` brings the completion
    or a `CloudError`. `sent_at` and `landed_at` (of the reply; None before) are `time.monotonic()`
    values, `deadline` is in seconds from `sent_at`. `first`: when it was sent, the cloud had not
    completed any other request of the answer.
    """

    position: int
    ask: int
    sent_at: float
    deadline: float
    first: bool
    sent: Outgoing
    future: "Future[Completion]"
    landed_at: float | None = None
    verify: int = 0


class Tier:
    """A cloud model in a list of clouds: its limits, and its circuit breaker and latency.

    One after the first is asked if the cloud before it failed, or was unsure of its completion by
    `threshold` (0 to 1) or more. `share` (0 to 1) is the part of all output tokens that it may
    write; None: no such limit of its own. If `trusted`, it may be sent local prompts (`may_see`).
    """

    def __init__(
        self,
        cloud: CloudModel,
        *,
        threshold: float = TIER_THRESHOLD,
        share: float | None = TIER_SHARE,
        trusted: bool = False,
        breaker: Breaker | None = None,
    ) -> None:
        """Raises `UsageError` for a `threshold` or `share` out of range."""
        require(0 <= threshold <= 1, "tier_threshold", "from 0 to 1", threshold)
        require(share is None or 0 <= share <= 1, "tier_share", "from 0 to 1", share)
        self.cloud, self.threshold, self.share, self.trusted = cloud, threshold, share, trusted
        self.breaker, self.latency = breaker or Breaker(), Latency()
        self.forget()

    def forget(self) -> None:
        """Start a new budget for the cloud's `share`, as for a new conversation."""
        self.shared = SharedBudget(TIER_CREDIT)

    def may_see(self, prompt: Prompt) -> bool:
        """Whether the cloud may be sent `prompt`: it is trusted, or the prompt is not local.

        A prompt is local if it is marked so, or has a word that the setting `redact` keeps local.
        """
        return self.trusted or not (prompt.local_only or self.cloud.local_only(prompt))


class CloudConsults:
    """The requests of one answer to one cloud. Only the answer's thread may call it.

    `waited` seconds were spent waiting for replies. `charged` counts the tokens asked for (or
    brought, if more), except in requests that failed before their deadline. With `ignores_breaker`
    requests are sent even while the circuit breaker is open.
    """

    def __init__(
        self,
        tier: Tier,
        session: CloudSession,
        sent: SentAnswer,
        ids: list[int],
        rules: Rules,
        meter: AnswerCosts | None,
    ) -> None:
        """`ids` is the answer's own list of token ids, which already holds the prompt.

        `session`, and `sent`, the record of what it sends, are closed by whoever opened them.
        `meter` counts and limits costs, if the cloud has a price.
        """
        self.tier, self.sent, self.latency = tier, sent, tier.latency
        self.counts, self.charged = CloudCounts(sent), 0
        self._ids, self._earned = ids, len(ids)
        self._shared = tier.shared
        self._taken = self._budget = self._shared.take()
        self._wrong: float | None = None
        self.waited = 0.0
        self._session, self._rules, self._policy = session, rules, rules.policy
        self._breaker, self._meter = tier.breaker, meter
        self._limited = meter is not None and meter.limited
        # Where tokens have a price what is read ahead is billed, and no meter counts it.
        self.prefetches = tier.cloud.prefetches and meter is None
        # Where only the cloud will do, a pause would hide that it is gone.
        self.ignores_breaker = rules.policy.requires_cloud
        self._first, self._closed = True, False
        self._told = False  # whether the breaker knows that the cloud declines this answer
        self._declined = False  # whether it declined to write for what this answer asks
        self._flights: dict[int, Flight] = {}

    def prefetch(self, ids: Sequence[int], budget: Budget) -> None:
        """Send the cloud `ids`, prompt and answer so far, so that it prefills them early.

        Sends nothing while the circuit breaker is open, or if the policy forbids it by `budget`.
        """
        if not self._policy.may_ask(budget) or self._breaker.is_open:
            return
        if under_way := self._session.prefetch(ids, self.sent.prefetch):
            self.sent.prefetching(under_way)

    def ask(self, n: int, score: float) -> Flight | Refusal | Literal["no"]:
        """Ask the cloud for the next `n` tokens, or fewer if its share leaves fewer.

        `score` (0 to 1) says how unsure the cloud before this one was of its completion; it is 1 if
        there is none. Returns the request, to be given to `outcome`; "no" if `score` is below the
        tier's threshold; or the reason why nothing was sent.
        """
        if score < self.tier.threshold:
            return "no"
        self.counts.wanted += 1
        if self.tier.share is not None:
            self._earn()
            if self._budget.bucket < 1:
                return "budget"
            n = min(n, int(self._budget.bucket))
        flight = self._flight(self._ids, n)
        if isinstance(flight, Flight):
            self._charge(n)
        return flight

    def verify(self, ids: Sequence[int], count: int, n: int = 0) -> Flight | Refusal:
        """Ask the cloud to verify the last `count` of `ids`, which are draft tokens.

        With `n` above 0 a cloud that verifies passages writes a whole answer of up to `n` tokens in
        their place; but a probe only verifies. Returns the request, or why none was sent.
        """
        flight = self._flight(ids, n, count)
        if isinstance(flight, Flight):
            self._charge(flight.ask)
        return flight

    def given_up(self, flight: Flight) -> bool:
        """Whether to give up `flight`: no reply has come, and requests are paused by now."""
        paused = self._breaker.is_open or self._declined
        return paused and not self.ignores_breaker and not flight.future.done()

    @property
    def alternates(self) -> bool:
        """Whether the edge drafts nothing while this cloud verifies a block token by token."""
        # A model in this process needs the same processor cores. And what rejected drafts cost
        # depends on the link: under a limit on costs that would change the answer.
        return self.tier.cloud.here or self._limited

    def inside_word(self, token: int) -> bool:
        """Whether the answer is inside a word or block of reasoning, where this cloud is not asked.

        `token` is what the edge would write next. False for a cloud that may be asked anywhere (its
        `boundaries` are None).
        """
        boundaries, prompt = self.tier.cloud.boundaries, self._rules.prompt
        if boundaries is None:
            return False
        return boundaries.refused(self._ids, prompt, token, divided=False) is not None

    def ask_for_draft(self, ids: Sequence[int], n: int, budget: Budget) -> Refusal | None:
        """Ask for `n` tokens after `ids`, which end with draft tokens, if the limits permit.

        Once the drafts are accepted, `ask` returns this request. `budget` is what the answer will
        have left then. Returns why the context filter, which hides private words, forbids the
        request; else None, whether or not it was sent. Nothing is sent where costs are limited.
        """
        # What requests in vain cost depends on the link, and would leave less for the answer's own.
        paused = self._breaker.is_open or self._declined
        allowed = not self._limited and len(self._flights) < FLIGHTS and not paused
        if allowed and self._policy.may_ask_for_draft(budget, n, self.counts.unused):
            try:
                self._send(ids, n)
            except Blocked as error:
                return _refusal(error)
        return None

    def due(self, flight: Flight) -> bool:
        """Return whether the reply to `flight` is there; wait up to `Latency.patience` seconds."""
        elapsed = time.monotonic() - flight.sent_at
        patience = self.latency.patience(elapsed, first=flight.first)
        if patience and not flight.future.done():
            futures.wait((flight.future,), patience)
            self.waited += time.monotonic() - flight.sent_at - elapsed
        return flight.future.done()

    def outcome(self, flight: Flight) -> Completion | CloudError:
        """Wait for the reply to `flight`; return the completion, or the error if there is none."""
        begun = time.monotonic()
        self._flights.pop(flight.position, None)
        try:
            completion = self._result(flight)
        except CloudError as error:
            if (late := isinstance(error, CloudTimeout)) and self.ignores_breaker:
                error.hint, error.setting = "allow a consult more", "deadline"
            self._charge(0 if late else -flight.ask)
            declined = isinstance(error, CloudRejected)
            # It would decline what follows too, and each refusal is waited for.
            self._declined |= not flight.verify and _is_own(flight, error)
            if isinstance(error, NothingUsable):
                self._breaker.succeeded()
            # What is too long for the cloud is declined each time: that says little of others.
            elif not (_is_own(flight, error) or (declined and self._told)):
                self._told = declined
                # A link that could not be made for so long was as silent.
                slow = (flight.landed_at or begun) - flight.sent_at > flight.deadline / 2
                self._breaker.failed(silent=late or slow)
            return error
        finally:
            self.waited += time.monotonic() - begun
        self._breaker.succeeded()
        # Words may have more ids than were asked for.
        self._charge(max(0, len(completion.ids) - flight.ask))
        return completion

    def unsure(self, completion: Completion) -> float:
        """Return how unsure this cloud is of its `completion`, from 0 to 1.

        That is 1 less the probability of the least likely token, or the error rate (see `compared`)
        if that is higher. Without logprobs it is the error rate; 0.5 before the first comparison.
        """
        score = unsure(completion)
        if score is None:
            return UNKNOWN if self._wrong is None else self._wrong
        return max(score, self._wrong or 0.0)

    def compared(self, completion: Completion, *, agrees: bool) -> None:
        """Update this cloud's error rate in the answer; the latest comparison counts half.

        `agrees`: the next cloud, asked for the same tokens, agreed with this cloud's `completion`.
        """
        if self._wrong is None:
            self._wrong = UNKNOWN if unsure(completion) is None else 0.0
        self._wrong = (self._wrong + (not agrees)) / 2

    def event(
        self,
        flight: Flight,
        outcome: Completion | CloudError,
        index: int,
        *,
        refused: CloudError | None = None,
        overruled: bool = False,
    ) -> Consult:
        """Count a finished request for the answer's token `index`, from 0; return its event.

        `overruled`: another cloud's completion is used. Otherwise `refused` says why this cloud's
        completion cannot be used (None: it can).
        """
        sent = flight.sent
        fault = outcome if isinstance(outcome, CloudError) else None if overruled else refused
        self.counts.over(outcome, flight.ask, failed=fault is not None, overruled=overruled)
        answer = outcome if fault is None and isinstance(outcome, Completion) else None
        return Consult(
            index=index,
            outcome="answered" if fault is None else fault.reason,
            message=None if fault is None else str(fault),
            requested=flight.ask,
            answered=len(answer.ids) if answer else 0,
            sent_ids=sent.ids,
            sent_bytes=sent.bytes,
            seconds=(flight.landed_at or time.monotonic()) - flight.sent_at,
            cached=answer and answer.cached,
            computed=answer and answer.computed,
            engine_seconds=answer and answer.engine_seconds,
            request_id=sent.request_id,
            host=self.sent.host if sent.bytes else "",
            verified=flight.verify,
        )

    def drop(self, start: int = 0, end: float = math.inf) -> int:
        """Cancel requests with `start` <= `Flight.position` < `end`; return their number."""
        stale = [flight for at, flight in self._flights.items() if start <= at < end]
        self._drop(stale)
        return len(stale)

    def close(self) -> None:
        """End the answer: cancel requests in flight, give the tier what is left of the budget."""
        self._closed = True
        self.drop()
        self._earn()
        self._shared.settle(self._taken, self._budget)

    def _earn(self) -> None:
        written, self._earned = len(self._ids) - self._earned, len(self._ids)
        self._budget = self._budget.plus(written * (self.tier.share or 0.0))

    def _charge(self, tokens: int) -> None:
        self.charged += tokens
        self._budget = replace(self._budget, bucket=self._budget.bucket - tokens)

    def _flight(self, ids: Sequence[int], n: int, verify: int = 0) -> Flight | Refusal:
        """Return the request after `ids`: sent now, or already in flight since a draft."""
        ahead = self._flights.get(len(ids))
        if ahead is not None and ahead.ask != n:
            self._drop([ahead])
            ahead = None
        flight = ahead or self._ask_now(ids, n, verify)
        if not isinstance(flight, Flight) or not self.given_up(flight):
            return flight
        # A probe flies on and decides on later consults.
        if ahead is None:
            # The bill, which may be made before it lands, counts no repetition still to come.
            if self._meter is not None and flight.sent.max_requests != UNLIMITED:
                flight.sent.max_requests = self.tier.cloud.requests(flight.ask)[0]
            self._forget(flight)
            self._charge(flight.ask)
        else:
            self._drop([flight])
        return "circuit_open"

    def _ask_now(self, ids: Sequence[int], n: int, verify: int) -> Flight | Refusal:
        breaker = self._breaker
        # Asked before the meter, which books what the consult may cost.
        allowed = "yes" if self.ignores_breaker else "" if self._declined else breaker.allow()
        if not allowed:
            return "circuit_open"
        if allowed == "probe" and verify:
            # A whole answer would be paid for, and nobody waits for it.
            n = 0
        try:
            requests = None
            if self._meter is not None and not (requests := self._meter.admits(ids, n, verify)):
                if allowed == "probe":
                    breaker.probe_cancelled()
                return "cost"
            flight = self._send(ids, n, requests, verify)
        except BaseException as error:
            if allowed == "probe":
                # Else the breaker would wait for ever for one that was not sent.
                breaker.probe_cancelled()
            if isinstance(error, Blocked):
                return _refusal(error)
            raise
        if breaker.is_open and not self.ignores_breaker:
            flight.future.add_done_callback(lambda _: self._probed(flight))
        return flight

    def _send(
        self, ids: Sequence[int], n: int, requests: int | None = None, verify: int = 0
    ) -> Flight:
        begun, ids = time.monotonic(), list(ids)
        sent, deadline = self.sent.consult(requests), math.inf
        # A model in this process may be slow, but it is not gone: waiting is up to the user.
        if not self.tier.cloud.here or self._policy.deadline is not None:
            deadline = self._policy.deadline_now(self.latency, first=self._first, prompt=len(ids))
            if self.tier.cloud.reads_passages and self._policy.deadline is None:
                deadline = WHOLE_SECONDS if n else READING_SECONDS
        try:
            sampling = self._rules.sampling
            request = ConsultRequest(ids, n, deadline, sampling, sent, verify)
            future = self._session.ask(request)
        except Blocked:
            raise
        except CloudError as error:
            future = Future[Completion]()
            future.set_exception(error)
        flight = Flight(len(ids), n, begun, deadline, self._first, sent, future, verify=verify)
        self._flights[flight.position] = flight
        if self._meter is not None:
            self._meter.sent(ids, n, sent, future)
        # When it lands, not when the loop next looks.
        future.add_done_callback(lambda _: self._landed(flight))
        return flight

    def _landed(self, flight: Flight) -> None:
        """Record how long a request took, in the thread that brings the reply."""
        if flight.future.cancelled():
            return
        flight.landed_at = time.monotonic()
        error = flight.future.exception()
        if isinstance(error, CloudTimeout):
            self.latency.timed_out(flight.deadline, first=flight.first)
        elif error is None:
            seconds = flight.landed_at - flight.sent_at
            completion = flight.future.result()
            self.latency.answered(seconds, first=flight.first)
            if flight.first:
                computed = completion.computed
                tokens = flight.position if computed is None else computed
                self.latency.prefill_took(completion.engine_seconds or seconds, tokens)
            self._first = False

    def _probed(self, flight: Flight) -> None:
        cancelled = flight.future.cancelled()
        error = None if cancelled else flight.future.exception()
        # A cloud in this process ends with the answer.
        ended = self._closed and error is not None and self.tier.cloud.here
        if not cancelled and isinstance(error, NothingUsable | None):
            self._breaker.succeeded()
        elif ended or _is_own(flight, error):
            # That says nothing of the link.
            self._breaker.probe_cancelled()
        else:
            self._breaker.failed(probe=True)

    def _result(self, flight: Flight) -> Completion:
        left = max(0.0, flight.sent_at + flight.deadline + _GRACE - time.monotonic())
        try:
            return flight.future.result(left if left < math.inf else None)
        except TimeoutError as error:
            flight.future.cancel()
            self.latency.timed_out(flight.deadline, first=flight.first)
            raise CloudTimeout(f"No answer within {flight.deadline:.3g} s.") from error

    def _drop(self, stale: Sequence[Flight]) -> None:
        for flight in stale:
            self._forget(flight)
            if self._meter is not None:
                # A request must not leave after its bill was made.
                flight.sent.max_requests = 0
            flight.future.cancel()

    def _forget(self, flight: Flight) -> None:
        del self._flights[flight.position]
        self.counts.drop(flight.ask, whole=flight.verify > 0)


def unsure(completion: Completion) -> float | None:
    """Return 1 less the probability of a completion's least likely token; None without logprobs."""
    logprobs = [one for one in completion.logprobs if one is not None]
    return 1 - math.exp(min(0.0, *logprobs)) if logprobs else None


def _is_own(flight: Flight, error: BaseException | None) -> bool:
    """Whether the cloud declined a request to write for a reason that is this request's alone."""
    return isinstance(error, CloudRejected) and flight.ask > 0 and (flight.verify > 0 or error.own)


def _refusal(error: Blocked) -> Refusal:
    return "mid_word" if error.open else "blocked"
