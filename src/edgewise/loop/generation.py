"""The decoding loop of an answer: edge step, router score, decision, perhaps a request, next token.

What changes with each token is in one immutable `State`. Random draws depend on seed and position.
"""

import gc
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack

from msgspec.structs import replace

from edgewise.completion import Completion, Verified
from edgewise.costs.meter import AnswerCosts
from edgewise.errors import Blocked, BreaksGrammar, CloudError, CloudTimeout, EdgeError, Fault
from edgewise.events import (
    AnswerCost,
    Candidate,
    Event,
    Finished,
    FinishReason,
    Pending,
    Reason,
    RolledBack,
    Source,
    Timing,
    Token,
)
from edgewise.loop.clouds import Clouds
from edgewise.loop.counts import AnswerCounts
from edgewise.loop.policy import Budget
from edgewise.loop.speculate import Speculation
from edgewise.loop.state import EdgeStep, Rules, State, Unwritten, circles
from edgewise.loop.verify import Verification

_log = logging.getLogger(__name__)

# Abandoned answers that the garbage collector found: it runs in the middle of anything, perhaps
# where the thread holds a lock that closing them takes.
_found: deque["Generation"] = deque()


class _Collector(threading.local):
    """Whether this thread is collecting garbage."""

    runs = False

    def __call__(self, phase: str, _: object) -> None:
        self.runs = phase == "start"


_collector = _Collector()
gc.callbacks.append(_collector)


def close_abandoned() -> None:
    """Close the `Generation`s that the garbage collector found. Call it without holding a lock."""
    while _found:
        try:
            _found.popleft().close()
        except IndexError:  # Another thread took the last one.
            return
        except Exception:
            # Not a fault of the answer that begins here.
            _log.exception("An abandoned answer could not be closed")


class Generation(Iterator[Event]):
    """An answer while it is written: an iterator over its events, of which `Finished` is the last.

    It closes itself once it is exhausted or raises. Use `with` if the iteration may stop earlier.
    """

    # Until the end of `__init__` there is nothing that `__del__` could close.
    _closed = True

    def __init__(
        self,
        ids: list[int],
        rules: Rules,
        speculation: Speculation,
        consults: Clouds | None,
        *,
        state: State,
        counts: AnswerCounts,
        costs: AnswerCosts | None,
        closing: ExitStack,
        follow: Callable[[Budget], Budget],
        at_end: Callable[[Budget], None],
    ) -> None:
        """`ids` holds the prompt's ids; the answer, which begins at `state`, is appended to it.

        `closing` closes the sessions; after that `costs` is closed and `at_end` called, once.
        `follow` is as in `Decoder.stream`.
        """
        self._ids, self._rules, self._state = ids, rules, state
        self._speculation, self._consults, self._counts = speculation, consults, counts
        self._costs, self._closing = costs, closing
        self._follow, self._at_end = follow, at_end
        self._events: deque[Event] = deque()
        # Tokens asked for, where, and the threshold in force there.
        self._awaited: tuple[int, EdgeStep | None, float | None] | None = None
        self._lost: EdgeError | None = None
        self._finished = False
        self._pending = 0  # drafts that were reported
        self._started = self._last = time.monotonic()
        self._ttft = self._waited = 0.0
        self._closed = False

    @property
    def budget(self) -> Budget:
        """What the cloud may write in the conversation's next answer; final once this is closed."""
        wasted = self._consults.wasted if self._consults else 0
        return self._rules.policy.next_answer(self._state.budget, wasted)

    @property
    def cost(self) -> AnswerCost | None:
        """What the answer cost so far, None without a price list; final once this is closed."""
        return self._costs.cost(self._ids) if self._costs else None

    @property
    def reading(self) -> tuple[Source, int, int]:
        """Prefill progress: (model that reads the prompt, ids that the edge computed, ids in all).

        Valid before the first token, in any thread. 0 ids computed may also mean: not reported.
        """
        by: Source = "edge" if self._awaited is None else "cloud"
        return by, self._speculation.computed, self._rules.prompt

    def close(self) -> None:
        """End the answer, and its sessions with the models; only events already made still come."""
        if self._closed:
            return
        self._closed = True
        try:
            self._closing.close()
        finally:
            # Once the consults are cancelled.
            if self._costs is not None:
                self._costs.close(self._ids)
            self._at_end(self.budget)

    def __next__(self) -> Event:
        while not self._events:
            if self._finished:
                self.close()
            if self._closed:
                raise StopIteration
            try:
                self._advance(self._state)
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
        if _collector.runs:
            _found.append(self)
        else:
            self.close()

    def _advance(self, state: State) -> None:
        """Write one token, draft one, ask for one, or finish."""
        try:
            if self._awaited is not None:
                self._draft_or_take(*self._awaited)
            elif state.end is not None:
                self._finish(state, state.end)
            elif state.unwritten:
                self._write(state, state.unwritten[0], "span", None)
            elif self._lost is not None:
                self._ask_without_edge(state, self._lost)
            elif isinstance(self._speculation, Verification):
                self._verify(self._speculation)
            else:
                self._keep_or_ask(state)
        except EdgeError as error:
            self._lose_edge(error)

    def _keep_or_ask(self, state: State) -> None:
        step = self._speculation.next_step()
        decision = state.decide(step, self._ids, self._rules)
        outcome: int | Reason = decision.reason
        if decision.ask:
            outcome = "no_cloud"
            if (consults := self._consults) is not None:
                wasted = consults.wasted
                outcome = consults.ask(decision.ask, step.token)
                # A probe, which no answer waits for, counts against the cap.
                probed = state.budget.charged + consults.wasted - wasted
                self._state = state = replace(state, budget=replace(state.budget, charged=probed))
        if isinstance(outcome, int):
            self._awaited = outcome, step.detailed(), decision.threshold
        else:
            self._require_sent(outcome)
            self._write(state, step, outcome, step, decision.threshold)

    def _require_sent(self, outcome: Reason | Fault) -> None:
        """Raise `CloudError` for "cost" or "blocked", if the policy `excludes_edge`."""
        if self._rules.policy.excludes_edge and outcome == "cost":
            raise CloudError("The limits on costs allow no further request to the cloud.")
        # Not "mid_word": answers often end like the beginning of a private word, as "in" is that of
        # "info@...". Only the edge can write on there, until the cloud may be asked again.
        if self._rules.policy.excludes_edge and outcome == "blocked":
            raise Blocked("The context filter allows no further request to the cloud.")

    def _verify(self, drafts: Verification) -> None:
        """Draft a token, or write the first draft or its correction once it has a verdict."""
        # First: what comes of a verdict before a whole answer is still within the cap.
        self._state = replace(self._state, budget=drafts.charged(self._state.budget))
        verdict = drafts.verdict(wait=False)
        if verdict is None:
            if (draft := drafts.ahead(self._state)) is not None:
                self._tell(draft)
                return
            verdict = drafts.verdict(wait=True)
        assert verdict is not None
        self._events += drafts.over
        drafts.over.clear()
        state, rules, step = self._state, self._rules, drafts.next_step()
        if isinstance(verdict, CloudError):
            if rules.policy.raises(verdict):
                raise verdict
            verdict = verdict.reason
        if isinstance(verdict, Completion):
            self._correct(step, verdict, whole=drafts.escalated)
        elif not isinstance(verdict, Verified):
            self._require_sent(verdict)
            self._write(state, step, verdict, step)
        elif step.forced:
            self._write(state, step, "forced", step)
        else:
            self._judge(step, verdict)

    def _judge(self, step: EdgeStep, by: Verified) -> None:
        """Write the edge's token if the cloud accepts it, else the cloud's own choice."""
        rules, state = self._rules, self._state
        self._state = state = replace(state, budget=self._follow(state.budget))
        least = rules.policy.ratio_now(state.budget, first=not state.index)
        if rules.policy.stands(step.token, by, least):
            self._write(state, step, "verified", step, least, by.ratio)
            return
        # What is drawn need not be the likeliest, whose logprob alone is known.
        known = by.best if rules.sampling.greedy else None
        top = () if known is None else ((Candidate(by.id, known),),)
        self._correct(step, Completion(ids=(by.id,), logprobs=(known,), top=top), least, by.ratio)

    def _correct(
        self,
        step: EdgeStep,
        by: Completion,
        threshold: float | None = None,
        ratio: float | None = None,
        *,
        whole: bool = False,
    ) -> None:
        """Write the cloud's tokens `by`; if the grammar refuses the first, the edge's token."""
        state = self._at_hand(by)
        # Whole answers have a share of their own, in `Escalation`.
        if whole:
            state = replace(state, budget=replace(state.budget, bucket=self._state.budget.bucket))
        self._counts.escalated |= whole
        if whole and state.unwritten and self._rules.policy.cloud_share == 1:
            # Where it is cut, the edge's words would pass for the cloud's.
            self._rules = self._rules._replace(max_tokens=state.index + len(state.unwritten))
        chosen = state.unwritten[0] if state.unwritten else step
        reason = "corrected" if state.unwritten else BreaksGrammar.reason
        self._write(state, chosen, reason, step, threshold, ratio)

    def _at_hand(self, by: Completion) -> State:
        """Return the state with those tokens of `by` to be written that the grammar allows."""
        assert self._consults is not None
        fit = len(by.ids)
        if (constraint := self._rules.constraint) is not None:
            fit = constraint.fitting(self._ids, by.ids, ends=by.stopped)
        self._consults.writer.brought += len(by.ids)
        return self._state.answered(by, fit, self._rules)

    def _tell(self, draft: int) -> None:
        """Report `draft`, the last draft token, as `Pending` if such events were asked for."""
        if self._rules.pending:
            self._pending += 1
            index = self._state.index + len(self._speculation.drafts) - 1
            text = self._rules.tokenizer.piece(draft).decode("utf-8", "replace")
            self._events.append(Pending(index, draft, text))

    def _lose_edge(self, error: EdgeError) -> None:
        """Go on with the cloud alone, if the policy says so; else raise the error."""
        rules, consults = self._rules, self._consults
        if self._lost is not None or consults is None or rules.policy.on_edge_error != "cloud":
            raise error
        _log.warning("the edge server is lost, so the cloud continues alone: %s", error)
        self._lost = error
        # A pause would end the answer, since nobody else can write it.
        consults.ignore_breakers()
        if self._costs is not None:
            self._costs.without_edge()
        # Where a word begins only the edge's next token would tell.
        self._rules = rules._replace(policy=rules.policy.without_edge(), boundaries=None)

    def _ask_without_edge(self, state: State, lost: EdgeError) -> None:
        """Ask the cloud for what comes next; raise `lost` where it cannot be asked."""
        assert self._consults is not None
        rules = self._rules
        ask = min(rules.policy.decide(1.0, state.budget).ask, rules.max_tokens - state.index)
        requested = self._consults.ask(ask, None) if ask else "cap"
        if not isinstance(requested, int):
            raise lost
        self._awaited = requested, None, None

    def _draft_or_take(
        self, requested: int, step: EdgeStep | None, threshold: float | None
    ) -> None:
        """Draft one more token while a request is in flight, or take the request's outcome."""
        assert self._consults is not None
        policy, state = self._rules.policy, self._state
        if step is not None and policy.speculate and not self._consults.due():
            self._speculation.begin(requested, step, state)
            if (draft := self._speculation.forward()) is not None:
                self._tell(draft)
                return
        # Passes of other answers need not wait for this one's next step.
        self._speculation.rest()
        try:
            completion = self._consults.completion()
        except CloudError as error:
            self._awaited = None
            if step is None:
                assert self._lost is not None
                raise self._lost from error
            self._events += self._consults.events_for(state.index)
            if policy.raises(error):
                raise
            # After a timeout the cloud may still write what it was asked for.
            lost = self._consults.requested if isinstance(error, CloudTimeout) else 0
            state = replace(state, budget=policy.charged(state.budget, lost))
            self._write(state, step, error.reason, step, threshold)
        else:
            self._awaited = None
            self._take(completion, step, threshold)

    def _take(self, completion: Completion, step: EdgeStep | None, threshold: float | None) -> None:
        """Go on with a completion, as far as the grammar allows it; `step` is the edge's step."""
        assert self._consults is not None
        state = self._at_hand(completion)
        first, refused = next(iter(state.unwritten), None), None
        if first is None:
            refused = BreaksGrammar("The response format allows nothing that the cloud wrote here.")
        changed = first is not None and step is not None and first.token != step.token
        self._events += self._consults.events_for(state.index, refused=refused, changed=changed)
        if step is not None:
            # Of the cloud alone too: it cannot be held to the format, so only the edge keeps it.
            chosen, reason = (first, "critical") if first else (step, BreaksGrammar.reason)
            self._write(state, chosen, reason, step, threshold)
        elif first is not None:
            held = state.held.before(self._rules.tokenizer.piece(first.token))
            self._write(replace(state, held=held), first, "edge_lost", None)
        elif self._lost is not None:
            raise self._lost

    def _write(
        self,
        state: State,
        chosen: EdgeStep | Unwritten,
        reason: Reason | Fault,
        step: EdgeStep | None,
        threshold: float | None = None,
        ratio: float | None = None,
    ) -> None:
        """Append the answer's next token; drafts that disagree with it are rolled back.

        `chosen` is the edge's step or the first of `state.unwritten`. `step` is that whose score
        decided (None within a completion), `threshold` what the score or `ratio` had to reach.
        """
        rules, before, consults = self._rules, self._state, self._consults
        token, queued = chosen.token, chosen if isinstance(chosen, Unwritten) else None
        source: Source = "cloud" if queued else "edge"
        after, text = state.write(token, source, rules, reason)
        now, waited = time.monotonic(), consults.waited if consults else 0.0
        self._ttft = self._ttft or now - self._started
        self._ids.append(token)
        if after.end is None and circles(self._ids, rules.prompt):
            after, self._counts.repeats = replace(after, end="length"), True
        self._state = after
        if queued and consults:
            consults.writer.wrote += 1
        written = Token(
            index=before.index,
            id=token,
            text=text,
            source=source,
            score=step.score if step and not rules.verify else None,
            logprob=chosen.logprob,
            seconds=now - self._last,
            wait=waited - self._waited,
            reason=reason,
            threshold=threshold,
            ratio=ratio,
            edge=step.candidates if step and (queued or rules.candidates) else (),
            cloud=queued.top if queued else (),
            draft=step.token if step and queued else None,
        )
        self._counts.wrote(written)
        self._events.append(written)
        self._last, self._waited = now, waited
        drafts = self._speculation.drafts
        if after.end is not None:
            # This draft became the answer's last token: it is not rolled back.
            if drafts[:1] == [token]:
                del drafts[0]
                self._pending = min(self._pending, len(drafts))
            dropped, cancelled = len(drafts), self._speculation.drop(len(self._ids) - 1)
        else:
            dropped, cancelled = self._speculation.follow(token, corrected=reason == "corrected")
        if dropped and self._pending:
            self._events.append(RolledBack(before.index, self._pending, cancelled))
        # The first draft is not reported: it stands for the awaited token.
        self._pending = min(self._pending, len(drafts))
        if consults and consults.prefetches and after.end is None and not drafts:
            consults.prefetch(self._ids, after.budget)

    def _finish(self, state: State, reason: FinishReason) -> None:
        """Emit `Finished` with the text that is still held back and the counts."""
        self._finished = True
        text, stopped = state.held.release(self._rules.stop)
        usage = replace(
            self._counts.usage(),
            edge_error=None if self._lost is None else str(self._lost),
            cost=self.cost,
        )
        total = time.monotonic() - self._started
        self._events.append(
            Finished(
                text=text,
                finish_reason=reason,
                stop=stopped or state.stopped,
                usage=usage,
                timing=Timing(ttft=self._ttft, total=total, wait=self._waited),
            )
        )
