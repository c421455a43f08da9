"""The decoding loop: step, score, decide, consult, write. There is one; everything streams.

All that changes from token to token lies in one immutable `State` per position, or follows from the
position (random draws). So a rollback goes back to a state.
"""

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack

from edgewise.completion import Completion
from edgewise.costs.meter import AnswerCosts
from edgewise.errors import BreaksGrammar, CloudError, Fault, NothingUsable
from edgewise.events import (
    Candidate,
    Event,
    Finished,
    Pending,
    Reason,
    RolledBack,
    SentCounts,
    Source,
    Timing,
    Token,
    Usage,
)
from edgewise.loop.consults import Consults, Flight
from edgewise.loop.policy import Budget
from edgewise.loop.speculate import Read, Speculation
from edgewise.loop.state import Rules, State

# Reasons for which the share cannot be reached, whatever the threshold.
_REFUSED = ("cost", "blocked")


class Generation(Iterator[Event]):
    """One answer in the making. Closed when exhausted; use `with` where it may be abandoned."""

    _closed = True

    def __init__(
        self,
        ids: list[int],
        rules: Rules,
        speculation: Speculation,
        consults: Consults | None,
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
        self._states = [State(budget=budget)]
        self._events: deque[Event] = deque()
        self._awaited: tuple[Flight, Read] | None = None
        self._finished = False
        self._clock = _Clock()
        self._closed = False

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
        state = self._states[-1]
        if self._awaited is not None:
            self._draft_or_take(*self._awaited, state)
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
                self._awaited = outcome, read.detailed()
            else:
                self._write_edge(state, read, outcome)

    def _draft_or_take(self, flight: Flight, read: Read, state: State) -> None:
        """While the consult flies, one draft token more; then its outcome."""
        assert self._consults is not None
        policy = self._rules.policy
        if policy.speculate and not self._consults.lands(flight):
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
            if policy.on_cloud_error == "raise" and not isinstance(error, NothingUsable):
                raise
            self._write_edge(state.failed(error, flight.ask, self._rules), read, error.reason)
        else:
            self._take(completion, flight, read, state)

    def _take(self, completion: Completion, flight: Flight, read: Read, state: State) -> None:
        """Go on with a completion, as far as the grammar allows it."""
        assert self._consults is not None
        fit = len(completion.ids)
        if (constraint := self._rules.constraint) is not None:
            fit = constraint.fitting(self._ids, completion.ids, ends=completion.stopped)
        self._consults.latency.judged(changed=fit > 0 and completion.ids[0] != read.token)
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
        edge = read.candidates if self._rules.candidates else ()
        self._append(after, read, read.token, text, "edge", reason, read.logprob, edge)

    def _write_cloud(self, state: State, reason: Reason, read: Read | None = None) -> None:
        """Write the next token of a completion; `read` is the edge's step that it was asked at."""
        first = state.queue[0]
        after, text = state.write(first.id, "cloud", self._rules, ends=first.ends)
        edge = read.candidates if read else ()
        self._append(after, read, first.id, text, "cloud", reason, first.logprob, edge, first.top)

    def _append(
        self,
        after: State,
        read: Read | None,
        token: int,
        text: str,
        source: Source,
        reason: Reason | Fault,
        logprob: float | None,
        edge: tuple[Candidate, ...],
        cloud: tuple[Candidate, ...] = (),
    ) -> None:
        """Append the answer's next token; drafts that disagree with it are rolled back.

        `read` is the step whose score decided on it, `after` the state behind it.
        """
        policy, before = self._rules.policy, self._states[-1]
        seconds, wait = self._clock.token(self._consults.waited if self._consults else 0.0)
        self._ids.append(token)
        self._states.append(after)
        self._events.append(
            Token(
                index=before.index,
                id=token,
                text=text,
                source=source,
                score=read.score if read else None,
                logprob=logprob,
                seconds=seconds,
                wait=wait,
                reason=reason,
                threshold=policy.threshold_now(before.budget) if read and policy.asks else None,
                edge=edge,
                cloud=cloud,
            )
        )
        if after.end is not None:
            self._speculation.drop(len(self._ids) - 1)
            return
        dropped, consults = self._speculation.follow(token)
        if self._rules.pending and dropped > 1:
            # The first draft was never reported: it stood for the awaited token.
            self._events.append(RolledBack(before.index, dropped - 1, consults))
        if self._consults is not None and not self._speculation.drafts:
            self._consults.prefetch(self._ids, after.budget)

    def _report_draft(self, draft: int) -> None:
        if self._rules.pending:
            index = self.index + len(self._speculation.drafts) - 1
            text = self._rules.tokenizer.piece(draft).decode("utf-8", "replace")
            self._events.append(Pending(index, draft, text))

    def _report_consult(self, flight: Flight, outcome: Completion | CloudError) -> None:
        assert self._consults is not None
        self._events.append(self._consults.report(flight, outcome, self.index))

    def _finish(self, state: State) -> None:
        """Release what is held back, and sum up."""
        self._finished = True
        assert state.end is not None
        text, stopped = state.release(self._rules.stop)
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
            cloud_calls=counts.calls + (consults.dropped if consults else 0),
            failed_calls=counts.failed,
            cloud_prompt_cached=counts.cached,
            cloud_prompt_computed=counts.computed,
            cloud_completion_tokens=counts.billed,
            sent=consults.sent.counts() if consults else SentCounts(),
            cost=self._costs.cost(self._ids) if self._costs else None,
        )
        timing = self._clock.timing()
        self._events.append(
            Finished(text=text, finish_reason=state.end, stop=stopped, usage=usage, timing=timing)
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
