"""The decoding loop: step, score, decide, consult, write. There is one; everything streams.

All that changes from token to token lies in one immutable `State` per position, or follows from the
position (random draws). So a rollback goes back to a state.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple, TypedDict, Unpack

from msgspec.structs import replace

from edgewise.cloud.base import CloudModel
from edgewise.completion import Completion
from edgewise.costs.meter import AnswerCosts
from edgewise.edge.base import Needs
from edgewise.errors import BreaksGrammar, CloudError, Fault, NothingUsable
from edgewise.events import (
    Candidate,
    Consult,
    Event,
    Finished,
    Pending,
    Reason,
    Rewound,
    SentCounts,
    Source,
    Timing,
    Token,
    Usage,
    share_of,
)
from edgewise.grammar.compiled import Grammar
from edgewise.loop.consults import Consults, Flight
from edgewise.loop.policy import Budget
from edgewise.loop.speculate import Read, Reader, Speculation
from edgewise.loop.state import Rules, State
from edgewise.prompts import Prompt, last_turn
from edgewise.sampling import Sampling

if TYPE_CHECKING:
    from edgewise.loop.decoder import Decoder

# Reasons for which the share cannot be reached, whatever the threshold.
_REFUSED = ("cost", "blocked")


class _Known(TypedDict, total=False):
    id: int
    text: str
    source: Source
    reason: Reason | Fault
    logprob: float | None
    edge: tuple[Candidate, ...]
    cloud: tuple[Candidate, ...]


class _Awaited(NamedTuple):
    """A consult that the answer waits for, and what the edge would have written."""

    flight: Flight
    read: Read


class Generation(Iterator[Event]):
    """One answer in the making. Closed when exhausted; use `with` where it may be abandoned."""

    _closed = True

    def __init__(
        self,
        decoder: "Decoder",
        prompt: Prompt,
        rules: Rules,
        *,
        cloud: CloudModel | None,
        sampling: Sampling,
        budget: Budget,
        pending: bool,
        candidates: bool,
        grammar: Grammar | None = None,
        at_end: Callable[[Budget], None] = lambda left: None,
    ) -> None:
        """`cloud` is how this answer reaches the model of its `decoder`.

        `at_end` is called once, when the answer closes, with the budget that it leaves.
        """
        self._decoder, self._prompt, self._cloud = decoder, prompt, cloud
        self._rules, self._tokenizer = rules, rules.tokenizer
        self._ids = list(prompt.ids)
        self._states = [State(budget=budget)]
        self._events: deque[Event] = deque()
        self._awaited: _Awaited | None = None
        self._finished = False
        self._pending, self._candidates, self._at_end = pending, candidates, at_end
        self._clock = _Clock()
        self._costs = self._billed()
        self._constraint = grammar.constraint(rules.prompt) if grammar else None
        with ExitStack() as stack:
            needs = decoder.router.needs | (Needs.NOTHING if sampling.greedy else Needs.LOGITS)
            edge = decoder.edge.session(needs, top=decoder.router.top)
            stack.callback(edge.close)
            self._cached = edge.open(prompt.ids)
            if decoder.edge.abilities.rewinds == "checkpoints":
                # An edited message, or a template that rewrites the last turn, comes back to there.
                edge.checkpoint(last_turn(rules.tokenizer, prompt))
            self._consults = self._opened(sampling, stack)
            reader = Reader(
                edge, decoder.router, sampling, candidates=candidates, constraint=self._constraint
            )
            self._speculation = Speculation(
                self._ids, edge, reader, self._consults, rules=rules, latency=decoder.latency
            )
            self._closing = stack.pop_all()
        self._closed = False

    def _billed(self) -> AnswerCosts | None:
        """The answer's costs, where the cloud's tokens have a price."""
        decoder, rules = self._decoder, self._rules
        if decoder.billing is None:
            return None
        return decoder.billing.answer(
            self._prompt.ids,
            rules.tokenizer,
            self._cloud,
            cloud_alone=rules.policy.cloud_share == 1,
            whole=not rules.stop and rules.prompt + rules.max_tokens <= rules.context + 1,
        )

    def _opened(self, sampling: Sampling, stack: ExitStack) -> Consults | None:
        """A session with the cloud, where the answer may come to ask; `stack` closes it."""
        rules, decoder, cloud = self._rules, self._decoder, self._cloud
        if cloud is None or not rules.policy.asks:
            return None
        # Closed last: what leaves while the session closes is recorded, too.
        tokenizer = cloud.own_tokenizer or rules.tokenizer
        sent = decoder.record.answer(self._prompt, cloud.name, tokenizer)
        stack.callback(sent.close)
        session = cloud.open(self._prompt)
        stack.callback(session.close)
        consults = Consults(
            session,
            sent=sent,
            policy=rules.policy,
            sampling=sampling,
            boundaries=rules.boundaries,
            start=rules.prompt,
            breaker=decoder.breaker,
            latency=decoder.latency,
            meter=self._costs,
            local=cloud.here,
        )
        stack.callback(consults.drop)
        # While the edge reads the prompt the cloud can, too.
        consults.push(self._ids, self._states[0])
        return consults

    @property
    def index(self) -> int:
        """How many tokens the answer has."""
        return self._states[-1].index

    @property
    def budget(self) -> Budget:
        """What the policy remembers, to be given to the conversation's next answer."""
        wasted = self._consults.wasted if self._consults else 0
        return self._rules.policy.next_answer(self._states[-1].budget, wasted)

    def rewind(self, index: int) -> None:
        """Go back to where the answer had `index` tokens; events not yet read are dropped."""
        if self._closed or not 0 <= index <= self.index:
            raise ValueError(f"cannot rewind to token {index}")
        del self._states[index + 1 :]
        del self._ids[self._rules.prompt + index :]
        self._speculation.drop(len(self._ids))
        self._awaited = None
        self._events.clear()
        self._finished = False

    def close(self) -> None:
        """Give back the sessions; no further events come."""
        if not self._closed:
            self._closed = True
            try:
                self._closing.close()
            finally:
                # Once the consults are cancelled.
                if self._costs is not None:
                    sent, record = self._consults and self._consults.sent, self._decoder.record
                    name = sent.conversation if sent else record.conversation(self._prompt)
                    self._costs.close(self._ids, name)
                self._at_end(self.budget)

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

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        # A loop over it that was broken off must not keep the slot.
        self.close()

    def _advance(self) -> None:
        """Write one token, draft one, or finish."""
        state = self._states[-1]
        if self._awaited is not None:
            self._draft_or_take(self._awaited, state)
        elif state.end is not None:
            self._finish(state)
        elif state.queue:
            self._write_cloud(state, "span")
        else:
            read = self._speculation.read()
            decision = state.decide(
                read.score, read.token, self._ids, self._rules, forced=read.forced
            )
            outcome: Flight | Reason = decision.reason
            if decision.ask:
                consults = self._consults
                outcome = consults.ask(self._ids, decision.ask) if consults else "no_cloud"
            if isinstance(outcome, Flight):
                self._awaited = _Awaited(outcome, read.detailed())
            else:
                self._write_edge(state, read, outcome)

    def _draft_or_take(self, awaited: _Awaited, state: State) -> None:
        """While the consult flies, one draft token more; then its outcome."""
        flight, read = awaited
        assert self._consults is not None
        if self._rules.policy.speculate and not self._consults.lands(flight):
            self._speculation.begin(flight, read, state)
            draft = self._speculation.forward()
            if draft is not None:
                self._report_draft(draft)
                return
        self._awaited = None
        try:
            completion = self._consults.completion(flight, self._ids, read.token)
        except CloudError as error:
            self._report_consult(flight, error)
            insists = self._rules.policy.on_cloud_error == "raise"
            if insists and not isinstance(error, NothingUsable):
                raise
            self._write_edge(state.failed(error, flight.ask, self._rules), read, error.reason)
        else:
            self._take(completion, flight, read, state)

    def _take(self, completion: Completion, flight: Flight, read: Read, state: State) -> None:
        """Go on with a completion, as far as the grammar allows it."""
        fit = len(completion.ids)
        if self._constraint is not None:
            fit = self._constraint.fitting(self._ids, completion.ids, ends=completion.stopped)
        self._decoder.latency.judged(changed=fit > 0 and completion.ids[0] != read.token)
        answered = state.answered(completion, read.token, fit, self._rules)
        if fit:
            self._report_consult(flight, completion)
            self._write_cloud(answered, "critical", read)
        else:
            error = BreaksGrammar("The response format allows nothing that the cloud wrote here.")
            self._report_consult(flight, error)
            self._write_edge(answered, read, error.reason)

    def _write_edge(self, state: State, read: Read, reason: Reason | Fault) -> None:
        after, text = state.write(
            read.token,
            "edge",
            self._rules,
            pending=state.pending_after(reason),
            over_budget=reason in _REFUSED,
        )
        self._append(
            state,
            after,
            read,
            id=read.token,
            text=text,
            source="edge",
            reason=reason,
            logprob=read.logprob,
            edge=read.candidates if self._candidates else (),
        )

    def _write_cloud(self, state: State, reason: Reason, read: Read | None = None) -> None:
        """Write the next token of a completion; `read` is the edge's step that it was asked at."""
        first = state.queue[0]
        after, text = state.write(first.id, "cloud", self._rules, ends=first.ends)
        self._append(
            state,
            after,
            read,
            id=first.id,
            text=text,
            source="cloud",
            reason=reason,
            logprob=first.logprob,
            edge=read.candidates if read else (),
            cloud=first.top,
        )

    def _append(
        self, state: State, after: State, read: Read | None, **known: Unpack[_Known]
    ) -> None:
        """Append the answer's next token; drafts that disagree with it are rolled back.

        `read` is the step whose score decided on it.
        """
        policy = self._rules.policy
        seconds, wait = self._clock.token(self._consults.waited if self._consults else 0.0)
        token = Token(
            index=state.index,
            score=read.score if read else None,
            threshold=policy.threshold_now(state.budget) if read and policy.asks else None,
            seconds=seconds,
            wait=wait,
            **known,
        )
        self._ids.append(token.id)
        self._states.append(after)
        self._events.append(token)
        if after.end is not None:
            self._speculation.drop(len(self._ids) - 1)
            return
        dropped, consults = self._speculation.follow(token.id)
        if self._pending and dropped > 1:
            # The first draft was never reported: it stood for the awaited token.
            self._events.append(Rewound(token.index, dropped - 1, consults))
        if self._consults is not None and not self._speculation.drafts:
            self._consults.push(self._ids, after)

    def _report_draft(self, draft: int) -> None:
        if self._pending:
            index = self.index + len(self._speculation.drafts) - 1
            text = self._tokenizer.piece(draft).decode("utf-8", "replace")
            self._events.append(Pending(index, draft, text))

    def _report_consult(self, flight: Flight, outcome: Completion | CloudError) -> None:
        """Report that the consult for the next token is over."""
        assert self._consults is not None
        sent = flight.sent
        consult = Consult(
            index=self.index,
            outcome=outcome.reason if isinstance(outcome, CloudError) else "answered",
            asked=flight.ask,
            answered=0,
            sent_ids=sent.ids,
            sent_bytes=sent.bytes,
            seconds=time.monotonic() - flight.begun,
            request_id=sent.request_id,
            host=self._consults.sent.host if sent.bytes else "",
        )
        if isinstance(outcome, CloudError):
            consult = replace(consult, message=str(outcome))
        else:
            consult = replace(
                consult,
                answered=len(outcome.ids),
                cached=outcome.cached,
                computed=outcome.computed,
                engine_seconds=outcome.engine_seconds,
            )
        self._events.append(consult)

    def _finish(self, state: State) -> None:
        """Release what is held back, and sum up."""
        self._finished = True
        assert state.end is not None
        text, stopped = state.release(self._rules.stop)
        self._events.append(
            Finished(
                text=text,
                finish_reason=state.end,
                stop=stopped,
                usage=self._usage(state),
                timing=self._clock.timing(),
            )
        )

    def _usage(self, state: State) -> Usage:
        counts, consults = state.counts, self._consults
        wasted = state.wasted + (consults.wasted if consults else 0)
        return Usage(
            prompt_tokens=self._rules.prompt,
            cached_tokens=self._cached,
            edge_tokens=counts.edge,
            cloud_tokens=counts.cloud,
            wasted_tokens=wasted,
            correction_tokens=counts.corrections,
            cloud_share=share_of(counts.cloud, wasted, state.index),
            cloud_calls=counts.calls + (consults.dropped if consults else 0),
            failed_calls=counts.failed,
            cloud_prompt_cached=counts.cached,
            cloud_prompt_computed=counts.computed,
            cloud_completion_tokens=counts.billed,
            sent=consults.sent.counts() if consults else SentCounts(),
            cost=self._costs.cost(self._ids) if self._costs else None,
        )


class _Clock:
    """Seconds since the start, between tokens, and of those spent waiting for the cloud."""

    def __init__(self) -> None:
        self._started = self._last = time.monotonic()
        self._first: float | None = None
        self._waited = 0.0

    def token(self, waited: float) -> tuple[float, float]:
        """Seconds since the last token, and of those waited; `waited` is since the start."""
        now = time.monotonic()
        seconds, self._last = now - self._last, now
        wait, self._waited = waited - self._waited, waited
        if self._first is None:
            self._first = now - self._started
        return seconds, wait

    def timing(self) -> Timing:
        total = time.monotonic() - self._started
        return Timing(ttft=self._first or 0.0, total=total, wait=self._waited)
