"""The decoding loop: edge step, score, decision, consult, token. There is one; everything streams.

All that changes from token to token lies in one immutable `State` per position, or follows from the
position (random draws). So rewinding means going back to a state.
"""

import time
from collections import deque
from collections.abc import Iterator, Sequence
from types import TracebackType

import msgspec
from msgspec.structs import replace

from edgewise.cloud.base import CloudModel, CloudSession, Verdict
from edgewise.cloud.breaker import Breaker
from edgewise.edge.base import EdgeModel, Needs, Step
from edgewise.errors import CloudError, CloudTimeout, Fault, UsageError
from edgewise.events import (
    Candidate,
    Consult,
    Event,
    Finished,
    FinishReason,
    Reason,
    Source,
    Timing,
    Token,
    Usage,
)
from edgewise.policy import Budget, Policy
from edgewise.routers.base import Router
from edgewise.sampling import Sampling
from edgewise.state import State
from edgewise.text import Characters

CANDIDATES = 5
"""Edge candidates reported with a token that the cloud was asked for."""

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
    ) -> None:
        self.edge = edge
        self.cloud = cloud
        self.router = router
        self.policy = policy
        self.breaker = breaker or Breaker()

    def stream(
        self,
        prompt: Sequence[int],
        *,
        max_tokens: int = 256,
        sampling: Sampling | None = None,
        stop: Sequence[str] = (),
        budget: Budget | None = None,
    ) -> "Generation":
        """Answer `prompt` (ids) event by event; the `Generation` is an iterator.

        `budget` is what an earlier answer of the conversation left. Raises `UsageError` for bad
        input and `ContextOverflow` for a prompt that does not fit.
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
        self._waited = 0.0
        needs = decoder.router.needs
        if not sampling.greedy:
            needs |= Needs.LOGITS
        self._cloud: CloudSession | None = None
        self._edge = decoder.edge.session(needs, top=decoder.router.top)
        try:
            self._edge.open(self._ids)
            if decoder.cloud is not None:
                self._cloud = decoder.cloud.open(self._ids)
        except BaseException:
            self.close()
            raise

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
        self._edge.rewind(min(self._edge.position, len(self._ids)))
        self._events.clear()
        self._finished = False

    def close(self) -> None:
        """Give back the sessions; no further events come."""
        if not self._closed:
            self._closed = True
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
        """Write one token, or finish."""
        state = self._states[-1]
        if state.end is not None:
            self._finish(state, state.end)
            return
        if state.ahead:
            self._write_cloud(state, None, "span", wait=0.0, edge=())
            return
        step = self._edge.step()
        score = self._decoder.router.score(step)
        decision = self._policy.decide(score, state.budget)
        reason: Reason | Fault = decision.reason
        wait = 0.0
        if decision.ask:
            ask = min(decision.ask, self._max_tokens - self.index)
            begun = time.monotonic()
            state, reason = self._consult(state, step, ask)
            wait = time.monotonic() - begun
            self._waited += wait
        if state.ahead:
            self._write_cloud(state, score, reason, wait=wait, edge=step.candidates(CANDIDATES))
        else:
            self._write_edge(state, step, score, reason, wait)

    def _write_edge(
        self, state: State, step: Step, score: float, reason: Reason | Fault, wait: float
    ) -> None:
        token = self._sampling.choose(step)
        counts = replace(state.counts, edge=state.counts.edge + 1)
        event = self._token(token, "edge", score, step.logprob(token), reason, wait)
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
        else:
            self._edge.extend([event.id])
        self._states.append(
            replace(
                state,
                characters=Characters() if matched else characters,
                stops=stops,
                budget=self._policy.written(state.budget, by_cloud=event.source == "cloud"),
                end=end,
            )
        )

    def _consult(self, state: State, step: Step, ask: int) -> tuple[State, Reason | Fault]:
        """Ask the cloud; the state after it holds the verdict's tokens, or none and why."""
        if self._cloud is None:
            return state, "no_cloud"
        breaker = self._decoder.breaker
        if not breaker.allow():
            return state, "circuit_open"
        new_ids = self._ids[state.known :]
        begun = time.monotonic()
        deadline = self._policy.deadline
        try:
            future = self._cloud.ask(state.known, new_ids, ask, self._sampling, deadline)
            try:
                verdict = future.result(timeout=deadline + _GRACE)
            except TimeoutError as error:
                future.cancel()
                raise CloudTimeout(f"No answer within {deadline:g} s.") from error
        except CloudError as error:
            breaker.failed()
            self._report(ask, len(new_ids), begun, error)
            if self._policy.on_cloud_error == "raise":
                raise
            return state.failed(error, ask, len(self._ids), self._policy), error.reason
        except BaseException:
            breaker.failed()
            raise
        breaker.succeeded()
        self._report(ask, len(new_ids), begun, verdict)
        after = state.answered(verdict, ask, step.proposed, len(self._ids), self._policy)
        return after, "critical"

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
                usage=state.usage(self._prompt_length),
                timing=Timing(
                    ttft=self._first or 0.0,
                    total=time.monotonic() - self._started,
                    wait=self._waited,
                ),
            )
        )
