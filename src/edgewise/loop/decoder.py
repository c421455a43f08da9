"""The decoding loop: edge step, score, decision, consult, token. There is one; everything streams.

All that changes from token to token lies in one immutable `State` per position, or follows from the
position (random draws). So rewinding means going back to a state.
"""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent import futures
from concurrent.futures import Future
from types import TracebackType
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from edgewise.cloud.base import CloudModel, CloudSession
from edgewise.edge.base import EdgeModel, Needs
from edgewise.errors import CloudError, CloudTimeout, Fault, UsageError
from edgewise.events import (
    Candidate,
    Consult,
    Event,
    Finished,
    FinishReason,
    Pending,
    Reason,
    Rewound,
    Source,
    Timing,
    Token,
    Usage,
)
from edgewise.loop.ahead import PUSHED, Flight, Read, RunAhead
from edgewise.loop.breaker import Breaker
from edgewise.loop.latency import Latency
from edgewise.loop.policy import Budget, Policy
from edgewise.loop.state import State
from edgewise.loop.text import Characters
from edgewise.prompts import Prompt
from edgewise.routers.base import Router
from edgewise.sampling import Sampling
from edgewise.verdict import Verdict

_GRACE = 0.25
"""Seconds past the deadline before a backend that breaks its promise is given up."""


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer, collected from its events."""

    text: str
    finish_reason: FinishReason
    tokens: tuple[Token, ...]
    usage: Usage
    timing: Timing


class Decoder:
    """An edge model, a router, a policy and perhaps a cloud model, ready to answer."""

    def __init__(
        self,
        edge: EdgeModel,
        *,
        router: Router,
        policy: Policy,
        cloud: CloudModel | None = None,
        breaker: Breaker | None = None,
        latency: Latency | None = None,
    ) -> None:
        self.edge = edge
        self.cloud = cloud
        self.router = router
        self.policy = policy
        self.breaker = breaker or Breaker()
        self.latency = latency or Latency()

    def stream(
        self,
        prompt: Sequence[int],
        *,
        max_tokens: int = 256,
        sampling: Sampling | None = None,
        stop: Sequence[str] = (),
        budget: Budget | None = None,
        pending: bool = False,
        candidates: bool = False,
    ) -> "Generation":
        """Answer `prompt` (ids) event by event; the `Generation` is an iterator.

        `budget` is what an earlier answer of the conversation left. With `pending` the run-ahead is
        told too, as `Pending` and `Rewound`; with `candidates` every `Token` of the edge's has its
        candidates, not only those that a consult was made for. Raises `UsageError` for bad input
        and `ContextOverflow` for a prompt that does not fit.
        """
        if not prompt:
            raise UsageError("The prompt is empty; give at least one character.")
        if max_tokens < 1:
            raise UsageError(f"max-tokens must be 1 or more, not {max_tokens}.")
        if any(not text for text in stop):
            raise UsageError("A stop string is empty; leave it out.")
        return Generation(
            self,
            prompt,
            max_tokens=max_tokens,
            sampling=sampling or Sampling(),
            stop=tuple(stop),
            budget=budget or Budget(),
            pending=pending,
            candidates=candidates,
        )

    def generate(
        self,
        prompt: Sequence[int],
        *,
        max_tokens: int = 256,
        sampling: Sampling | None = None,
        stop: Sequence[str] = (),
        budget: Budget | None = None,
    ) -> Answer:
        """`stream`, collected."""
        with self.stream(
            prompt, max_tokens=max_tokens, sampling=sampling, stop=stop, budget=budget
        ) as events:
            return collect(events)


def collect(events: Iterator[Event]) -> Answer:
    """The answer that a stream of events tells."""
    tokens: list[Token] = []
    for event in events:
        if isinstance(event, Token):
            tokens.append(event)
        elif isinstance(event, Finished):
            return Answer(
                text="".join(token.text for token in tokens) + event.text,
                finish_reason=event.finish_reason,
                tokens=tuple(tokens),
                usage=event.usage,
                timing=event.timing,
            )
    raise ValueError("the events end without Finished")


class _Awaited(NamedTuple):
    """A consult that the answer waits for, and where the answer stood."""

    flight: Flight
    state: State
    read: Read


class Generation(Iterator[Event]):
    """One answer in the making. Closed when exhausted; use `with` where it may be abandoned."""

    def __init__(
        self,
        decoder: Decoder,
        prompt: Sequence[int],
        *,
        max_tokens: int,
        sampling: Sampling,
        stop: tuple[str, ...],
        budget: Budget,
        pending: bool,
        candidates: bool,
    ) -> None:
        self._decoder = decoder
        self._policy = decoder.policy
        self._tokenizer = decoder.edge.tokenizer
        self._sampling = sampling
        self._stop = stop
        self._max_tokens = max_tokens
        self._ids = list(prompt)
        self._prompt_length = len(prompt)
        self._states = [State(budget=budget)]
        self._events: deque[Event] = deque()
        self._finished = self._closed = False
        self._started = self._last = time.monotonic()
        self._first: float | None = None
        self._waited = self._patience = 0.0
        self._awaited: _Awaited | None = None
        self._pending, self._candidates = pending, candidates
        needs = decoder.router.needs
        if not sampling.greedy:
            needs |= Needs.LOGITS
        self._cloud: CloudSession | None = None
        self._edge = decoder.edge.session(needs, top=decoder.router.top)
        try:
            self._cached = self._edge.open(self._ids)
            if decoder.cloud is not None:
                self._cloud = decoder.cloud.open(Prompt(tuple(self._ids)))
        except BaseException:
            self._edge.close()
            raise
        self._run = RunAhead(
            self._ids,
            self._edge,
            self._cloud,
            router=decoder.router,
            policy=decoder.policy,
            latency=decoder.latency,
            sampling=sampling,
            tokenizer=self._tokenizer,
            longest=len(prompt) + max_tokens,
            context=decoder.edge.context,
            candidates=candidates,
        )
        # While the edge reads the prompt the cloud can, too.
        self._states[0] = replace(self._states[0], known=self._run.push(0))

    @property
    def index(self) -> int:
        """How many tokens the answer has."""
        return len(self._states) - 1

    @property
    def budget(self) -> Budget:
        """What the policy remembers, to be given to the conversation's next answer."""
        return self._policy.next_answer(self._states[-1].budget)

    def rewind(self, index: int) -> None:
        """Go back to where the answer had `index` tokens; events not yet read are dropped."""
        if self._closed or not 0 <= index <= self.index:
            raise ValueError(f"cannot rewind to token {index}")
        del self._states[index + 1 :]
        del self._ids[self._prompt_length + index :]
        self._run.drop(min(self._edge.position, len(self._ids)))
        self._awaited = None
        self._events.clear()
        self._finished = False

    def close(self) -> None:
        """Give back the sessions; no further events come."""
        if not self._closed:
            self._closed = True
            self._run.drop(None)
            if self._awaited is not None:
                self._awaited.flight.future.cancel()
            self._edge.close()
            if self._cloud is not None:
                self._cloud.close()

    def __next__(self) -> Event:
        while not self._events:
            if self._closed:
                raise StopIteration
            if self._finished:
                self.close()
                raise StopIteration
            try:
                self._advance()
            except BaseException:
                self.close()
                raise
        return self._events.popleft()

    def __enter__(self) -> "Generation":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _advance(self) -> None:
        """Write one token, run one token ahead, or finish."""
        if self._awaited is not None:
            self._run_or_wait(self._awaited)
            return
        state = self._states[-1]
        if state.end is not None:
            self._finish(state, state.end)
            return
        if state.ahead:
            self._write_cloud(state, None, "span", wait=0.0, edge=())
            return
        read = self._run.read()
        decision = self._policy.decide(read.score, state.budget)
        reason: Reason | Fault = decision.reason
        if decision.ask:
            ask = min(decision.ask, self._max_tokens - self.index)
            begun = time.monotonic()
            try:
                state, asked = self._ask(state, ask)
            except CloudError as error:
                state, reason = self._failed(state, ask, len(self._ids) - state.known, begun, error)
            else:
                if isinstance(asked, Flight):
                    self._awaited = _Awaited(asked, state, read.detailed())
                    return
                reason = asked
        self._write_edge(state, read, reason, 0.0)

    def _ask(self, state: State, ask: int) -> "tuple[State, Flight | Reason]":
        """The consult for the next token, sent now or on the way; or why there is none."""
        if self._cloud is None:
            return state, "no_cloud"
        breaker = self._decoder.breaker
        # Where only the cloud will do, a pause would hide that it is gone.
        insists = self._policy.on_cloud_error == "raise"
        flight = self._run.flight(ask)
        sent_before = flight is not None
        if flight is None:
            if not insists and not breaker.allow():
                return state, "circuit_open"
            flight = self._run.launch(state.known, ask)
            if breaker.is_open and not insists:
                flight.future.add_done_callback(self._probed)
        if insists or not breaker.is_open or flight.future.done():
            return state, flight
        # Nobody waits for a cloud that went silent: a probe's outcome is for the consults to come.
        if sent_before:
            flight.future.cancel()
        return state.lost([flight.ask], self._policy), "circuit_open"

    def _probed(self, future: "Future[Verdict]") -> None:
        if future.cancelled() or future.exception():
            self._decoder.breaker.failed()
        else:
            self._decoder.breaker.succeeded()

    def _run_or_wait(self, awaited: "_Awaited") -> None:
        """Another step ahead while the consult flies, or its outcome."""
        flight = awaited.flight
        if self._policy.run_ahead and not self._lands(flight):
            self._run.begin(flight, awaited.read, awaited.state.budget)
            breaker = self._decoder.breaker
            guess = self._run.forward(may_ask=not breaker.is_open)
            if guess is not None:
                if self._pending:
                    index = self.index + len(self._run.guesses) - 1
                    piece = self._tokenizer.piece(guess)
                    self._events.append(Pending(index, guess, piece.decode("utf-8", "replace")))
                return
        self._awaited = None
        begun = time.monotonic()
        state, reason = self._outcome(awaited)
        wait = time.monotonic() - begun + self._patience
        self._patience = 0.0
        self._waited += wait
        if state.ahead:
            read = awaited.read
            self._write_cloud(state, read.score, reason, wait=wait, edge=read.candidates)
        else:
            self._write_edge(state, awaited.read, reason, wait)

    def _lands(self, flight: Flight) -> bool:
        """Whether a consult is over, or is so before a step ahead would pay."""
        elapsed = time.monotonic() - flight.begun
        patience = self._policy.patience(self._decoder.latency, elapsed, first=flight.first)
        if patience and not flight.future.done():
            futures.wait((flight.future,), patience)
            self._patience += time.monotonic() - flight.begun - elapsed
        return flight.future.done()

    def _write_edge(self, state: State, read: Read, reason: Reason | Fault, wait: float) -> None:
        counts = replace(state.counts, edge=state.counts.edge + 1)
        event = self._token(read.token, "edge", read.score, read.logprob, reason, wait)
        if self._candidates:
            event = replace(event, edge=read.candidates)
        self._append(replace(state, counts=counts), event, ends=False)

    def _write_cloud(
        self,
        state: State,
        score: float | None,
        reason: Reason | Fault,
        *,
        wait: float,
        edge: tuple[Candidate, ...],
    ) -> None:
        first, *rest = state.ahead
        counts = replace(state.counts, cloud=state.counts.cloud + 1)
        event = self._token(first.id, "cloud", score, first.logprob, reason, wait)
        self._append(
            replace(state, counts=counts, ahead=tuple(rest)),
            replace(event, edge=edge, cloud=first.top),
            ends=first.ends,
        )

    def _token(
        self,
        token: int,
        source: Source,
        score: float | None,
        logprob: float | None,
        reason: Reason | Fault,
        wait: float,
    ) -> Token:
        now = time.monotonic()
        seconds, self._last = now - self._last, now
        if self._first is None:
            self._first = now - self._started
        return Token(
            index=self.index,
            id=token,
            text="",
            source=source,
            score=score,
            logprob=logprob,
            seconds=seconds,
            wait=wait,
            reason=reason,
        )

    def _append(self, state: State, event: Token, *, ends: bool) -> None:
        """Make `event` the answer's next token: text, stop check, the state after it."""
        ended = ends or event.id in self._tokenizer.eos_ids
        piece = b"" if ended else self._tokenizer.piece(event.id)
        text, characters = state.characters.feed(piece)
        shown, stops, matched = state.stops.feed(text, self._stop)
        self._ids.append(event.id)
        self._events.append(replace(event, text=shown) if shown else event)
        end: FinishReason | None = None
        if matched or ended:
            end = "stop"
        elif event.index + 1 == self._max_tokens or len(self._ids) > self._decoder.edge.context:
            end = "length"
        guessed = len(self._run.guesses)
        if end is None:
            dropped = self._run.follow(event.id)
        else:
            dropped = self._run.drop(min(self._edge.position, len(self._ids) - 1))
        lost = guessed - len(self._run.guesses)
        if self._pending and lost > 1:
            self._events.append(Rewound(event.index, lost - 1, len(dropped)))
        state = state.lost([flight.ask for flight in dropped], self._policy)
        self._states.append(
            replace(
                state,
                characters=Characters() if matched else characters,
                stops=stops,
                budget=self._policy.written(state.budget, by_cloud=event.source == "cloud"),
                known=state.known if end else self._run.push(state.known, PUSHED),
                end=end,
            )
        )

    def _outcome(self, awaited: "_Awaited") -> tuple[State, Reason | Fault]:
        """The state after a consult: it holds the verdict's tokens, or none and why."""
        flight, state, read = awaited.flight, awaited.state, awaited.read
        breaker = self._decoder.breaker
        left = max(0.0, flight.begun + flight.deadline - time.monotonic())
        try:
            try:
                verdict = flight.future.result(timeout=left + _GRACE)
            except TimeoutError as error:
                flight.future.cancel()
                self._decoder.latency.timed_out(flight.deadline, first=flight.first)
                raise CloudTimeout(f"No answer within {flight.deadline:.3g} s.") from error
        except CloudError as error:
            return self._failed(state, flight.ask, flight.new_ids, flight.begun, error)
        except BaseException:
            breaker.failed()
            raise
        breaker.succeeded()
        self._decoder.latency.judged(changed=verdict.ids[0] != read.proposed)
        self._report(flight.ask, flight.new_ids, flight.begun, verdict)
        known = flight.position
        return state.answered(verdict, flight.ask, read.proposed, known, self._policy), "critical"

    def _failed(
        self, state: State, ask: int, new_ids: int, begun: float, error: CloudError
    ) -> tuple[State, Fault]:
        """After a consult that brought nothing; raises `error` where that was asked for."""
        self._decoder.breaker.failed(silent=isinstance(error, CloudTimeout))
        self._report(ask, new_ids, begun, error)
        if self._policy.on_cloud_error == "raise":
            raise error
        return state.failed(error, ask, len(self._ids), self._policy), error.reason

    def _report(self, ask: int, new_ids: int, begun: float, outcome: Verdict | CloudError) -> None:
        verdict = outcome if isinstance(outcome, Verdict) else None
        error = outcome if isinstance(outcome, CloudError) else None
        self._events.append(
            Consult(
                index=self.index,
                outcome=error.reason if error else "answered",
                asked=ask,
                answered=len(verdict.ids) if verdict else 0,
                new_ids=new_ids,
                seconds=time.monotonic() - begun,
                cached=verdict.cached if verdict else None,
                computed=verdict.computed if verdict else None,
                engine_seconds=verdict.engine_seconds if verdict else None,
                message=str(error) if error else None,
            )
        )

    def _finish(self, state: State, reason: FinishReason) -> None:
        """Release what is held back. A state after a stop string holds nothing."""
        tail, stops, matched = state.stops.feed(state.characters.flush(), self._stop)
        tail += "" if matched else stops.held
        self._finished = True
        self._events.append(
            Finished(
                text=tail,
                finish_reason=reason,
                usage=state.usage(self._prompt_length, self._cached),
                timing=Timing(
                    ttft=self._first or 0.0,
                    total=time.monotonic() - self._started,
                    wait=self._waited,
                ),
            )
        )
