"""The decoding loop: step, score, decide, consult, write. There is one; everything streams.

All that changes from token to token lies in one immutable `State`, or follows from the position
(random draws).
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack

from edgewise.completion import Completion
from edgewise.costs.meter import AnswerCosts
from edgewise.errors import BreaksGrammar, CloudError, EdgeError, Fault, NothingUsable
from edgewise.events import (
    Candidate,
    Event,
    Finished,
    Pending,
    Reason,
    RolledBack,
    Source,
    Timing,
    Token,
    Usage,
)
from edgewise.loop.consults import Flight
from edgewise.loop.policy import Budget
from edgewise.loop.speculate import Speculation
from edgewise.loop.state import Read, Rules, State
from edgewise.loop.tiers import AnyConsults

_log = logging.getLogger(__name__)


class Generation(Iterator[Event]):
    """One answer in the making. Closed when exhausted; use `with` where it may be abandoned."""

    _closed = True

    def __init__(
        self,
        ids: list[int],
        rules: Rules,
        speculation: Speculation,
        consults: AnyConsults | None,
        *,
        budget: Budget,
        costs: AnswerCosts | None,
        cached: int,
        closing: ExitStack,
        at_end: Callable[[Budget], None],
    ) -> None:
        """`ids` are the prompt's, of which `cached` were in the KV cache; the answer is appended.

        `closing` gives back the sessions; then `at_end` is called, once.
        """
        self._ids, self._rules = ids, rules
        self._speculation, self._consults = speculation, consults
        self._costs, self._cached = costs, cached
        self._closing, self._at_end = closing, at_end
        self._state = State(budget=budget)
        self._events: deque[Event] = deque()
        self._awaited: tuple[Flight, Read] | None = None
        self._lost: EdgeError | None = None
        self._finished = False
        self._started = self._last = time.monotonic()
        self._ttft = self._waited = 0.0
        self._closed = False

    @property
    def budget(self) -> Budget:
        """What the policy remembers, to be given to the conversation's next answer."""
        wasted = self._consults.wasted if self._consults else 0
        return self._rules.policy.next_answer(self._state.budget, wasted)

    def close(self) -> None:
        """Give back the sessions; no further events come."""
        if self._closed:
            return
        self._closed = True
        try:
            self._closing.close()
        finally:
            # Once the consults are cancelled.
            self._at_end(self.budget)

    def __next__(self) -> Event:
        while not self._events:
            if self._finished:
                self.close()
            if self._closed:
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
        try:
            self._go_on(self._state)
        except EdgeError as error:
            self._lose_edge(error)

    def _go_on(self, state: State) -> None:
        if self._awaited is not None:
            self._draft_or_take(*self._awaited)
        elif state.end is not None:
            self._finish(state)
        elif state.queue:
            self._write_cloud(state, "span")
        elif self._lost is not None:
            self._ask_without_edge(state, self._lost)
        else:
            read = self._speculation.read()
            decision = state.decide(read, self._ids, self._rules)
            outcome: Flight | Reason = decision.reason
            if decision.ask:
                consults = self._consults
                outcome = "no_cloud"
                if consults is not None:
                    outcome = consults.ask(self._ids, decision.ask, read.token)
            if isinstance(outcome, Flight):
                self._awaited = outcome, read.detailed()
            else:
                self._write_edge(state, read, outcome)

    def _lose_edge(self, error: EdgeError) -> None:
        """Go on with the cloud alone, where that was chosen; else raises the error."""
        rules, consults = self._rules, self._consults
        if self._lost is not None or consults is None or rules.policy.on_edge_error != "cloud":
            raise error
        _log.warning("the cloud goes on alone: %s", error)
        self._lost = error
        # Where a word begins only the edge's next token would tell.
        self._rules = rules._replace(policy=rules.policy.without_edge(), boundaries=None)

    def _ask_without_edge(self, state: State, lost: EdgeError) -> None:
        """Write what the cloud writes next; raises `lost` where it writes nothing."""
        assert self._consults is not None
        rules = self._rules
        ask = min(rules.policy.decide(1.0, state.budget).ask, rules.max_tokens - state.index)
        flight = self._consults.ask(self._ids, ask, 0) if ask else "cap"
        if not isinstance(flight, Flight):
            raise lost
        try:
            completion = self._consults.completion(flight)
        except CloudError as error:
            raise lost from error
        self._take(completion, flight, None)

    def _draft_or_take(self, flight: Flight, read: Read) -> None:
        """While the consult flies, one draft token more; then its outcome."""
        assert self._consults is not None
        policy, state = self._rules.policy, self._state
        if policy.speculate and not self._consults.lands(flight):
            self._speculation.begin(flight.ask, read, state)
            draft = self._speculation.forward()
            if draft is not None:
                if self._rules.pending:
                    index = state.index + len(self._speculation.drafts) - 1
                    text = self._rules.tokenizer.piece(draft).decode("utf-8", "replace")
                    self._events.append(Pending(index, draft, text))
                return
        self._awaited = None
        try:
            completion = self._consults.completion(flight)
        except CloudError as error:
            self._events.extend(self._consults.report(flight, error, state.index))
            if policy.on_cloud_error == "raise" and not isinstance(error, NothingUsable):
                raise
            self._write_edge(state.failed(error, flight.ask, self._rules), read, error.reason)
        else:
            self._take(completion, flight, read)

    def _take(self, completion: Completion, flight: Flight, read: Read | None) -> None:
        """Go on with a completion, as far as the grammar allows it; `read` is the edge's step."""
        assert self._consults is not None
        fit = len(completion.ids)
        outcome: Completion | CloudError = completion
        if (constraint := self._rules.constraint) is not None:
            fit = constraint.fitting(self._ids, completion.ids, ends=completion.stopped)
        token = read.token if read is not None else next(iter(completion.ids), 0)
        state = self._state.answered(completion, token, fit, self._rules)
        changed = fit > 0 and completion.ids[0] != token
        self._consults.judged(changed=changed, kept=len(state.queue))
        if not fit:
            outcome = BreaksGrammar("The response format allows nothing that the cloud wrote here.")
        self._events.extend(self._consults.report(flight, outcome, state.index))
        if fit:
            self._write_cloud(state, "critical" if read else "edge_lost", read)
        elif read is not None:
            self._write_edge(state, read, BreaksGrammar.reason)
        elif self._lost is not None:
            raise self._lost

    def _write_edge(self, state: State, read: Read, reason: Reason | Fault) -> None:
        edge = read.candidates if self._rules.candidates else ()
        self._write(state, read.token, "edge", reason, read, logprob=read.logprob, edge=edge)

    def _write_cloud(self, state: State, reason: Reason, read: Read | None = None) -> None:
        """Write the next token of a completion; `read` is the edge's step that it was asked at."""
        token, edge = state.queue[0], read.candidates if read else ()
        self._write(
            state,
            token.id,
            "cloud",
            reason,
            read,
            logprob=token.logprob,
            edge=edge,
            cloud=token.top,
        )

    def _write(
        self,
        state: State,
        token: int,
        source: Source,
        reason: Reason | Fault,
        read: Read | None,
        *,
        logprob: float | None,
        edge: tuple[Candidate, ...],
        cloud: tuple[Candidate, ...] = (),
    ) -> None:
        """Append the answer's next token; drafts that disagree with it are rolled back.

        `read` is the step whose score decided on it, `state` the one after its consult.
        """
        rules, before, consults = self._rules, self._state, self._consults
        after, text = state.write(token, source, rules, reason)
        now, waited = time.monotonic(), consults.waited if consults else 0.0
        self._ttft = self._ttft or now - self._started
        self._ids.append(token)
        self._state = after
        self._events.append(
            Token(
                index=before.index,
                id=token,
                text=text,
                source=source,
                score=read.score if read else None,
                logprob=logprob,
                seconds=now - self._last,
                wait=waited - self._waited,
                reason=reason,
                threshold=rules.policy.threshold_now(before.budget)
                if read and rules.policy.asks
                else None,
                edge=edge,
                cloud=cloud,
            )
        )
        self._last, self._waited = now, waited
        if after.end is not None:
            self._speculation.drop(len(self._ids) - 1)
            return
        dropped, cancelled = self._speculation.follow(token)
        if rules.pending and dropped > 1:
            # The first draft was never reported: it stood for the awaited token.
            self._events.append(RolledBack(before.index, dropped - 1, cancelled))
        if consults is not None and not self._speculation.drafts:
            consults.prefetch(self._ids, after.budget)

    def _finish(self, state: State) -> None:
        """Release what is held back, and sum up."""
        self._finished = True
        assert state.end is not None
        text, stopped = state.held.release(self._rules.stop)
        counts, consults = state.counts, self._consults
        wasted = counts.wasted + len(state.queue) + (consults.wasted if consults else 0)
        usage = Usage(
            prompt_tokens=self._rules.prompt,
            cached_tokens=self._cached,
            edge_tokens=counts.edge,
            cloud_tokens=counts.cloud,
            wasted_tokens=wasted,
            correction_tokens=counts.corrections,
            cloud_share=min(1.0, (counts.cloud + wasted) / state.index),
            cloud_calls=counts.calls,
            failed_calls=counts.failed,
            cloud_prompt_cached=counts.cached,
            cloud_prompt_computed=counts.computed,
            cloud_completion_tokens=counts.billed,
            edge_error=None if self._lost is None else str(self._lost),
            cost=self._costs.cost(self._ids) if self._costs else None,
        )
        total = time.monotonic() - self._started
        self._events.append(
            Finished(
                text=text,
                finish_reason=state.end,
                stop=stopped or state.stopped,
                usage=consults.summed(usage, len(state.queue)) if consults else usage,
                timing=Timing(ttft=self._ttft, total=total, wait=self._waited),
            )
        )
