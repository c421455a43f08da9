"""The decoding loop: step, score, decide, consult, write. There is one; everything streams.

All that changes from token to token lies in one immutable `State` per position, or follows from the
position (random draws). So rewinding means going back to a state.
"""

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from edgewise.cloud.base import CloudModel
from edgewise.completion import Completion
from edgewise.edge.base import Needs
from edgewise.errors import BreaksGrammar, CloudError, Fault, NothingUsable
from edgewise.events import (
    Event,
    Finished,
    Pending,
    Reason,
    Rewound,
    SentCounts,
    Source,
    Token,
    Usage,
    share_of,
)
from edgewise.grammar.compiled import Grammar
from edgewise.loop.ahead import Read, Reader, RunAhead
from edgewise.loop.billing import AnswerBill
from edgewise.loop.consults import Consults, Flight
from edgewise.loop.policy import Budget
from edgewise.loop.state import Rules, State
from edgewise.loop.telling import Clock, consult_over
from edgewise.prompts import Prompt, last_turn
from edgewise.sampling import Sampling

if TYPE_CHECKING:
    from edgewise.loop.decoder import Decoder


class _Awaited(NamedTuple):
    """A consult that the answer waits for, and what the edge would have written."""

    flight: Flight
    read: Read


class Generation(Iterator[Event]):
    """One answer in the making. Closed when exhausted; use `with` where it may be abandoned."""

    _closed = True

    def __init__(
        self,
        parts: "Decoder",
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
        """`cloud` is how this answer reaches the model of its `parts`.

        `at_end` is told once, as the answer is closed, the budget that it leaves.
        """
        self._parts, self._prompt, self._cloud = parts, prompt, cloud
        self._rules, self._tokenizer = rules, rules.tokenizer
        self._ids = list(prompt.ids)
        self._states = [State(budget=budget)]
        self._events: deque[Event] = deque()
        self._awaited: _Awaited | None = None
        self._finished = False
        self._pending, self._candidates, self._at_end = pending, candidates, at_end
        self._clock = Clock()
        self._bill = self._billed()
        self._constraint = grammar.constraint(rules.prompt) if grammar else None
        with ExitStack() as stack:
            needs = parts.router.needs | (Needs.NOTHING if sampling.greedy else Needs.LOGITS)
            edge = parts.edge.session(needs, top=parts.router.top)
            stack.callback(edge.close)
            self._cached = edge.open(prompt.ids)
            if parts.edge.abilities.rewinds == "checkpoints":
                # An edited message, or a template that rewrites the last turn, comes back to there.
                edge.checkpoint(last_turn(rules.tokenizer, prompt))
            self._consults = self._opened(sampling, stack)
            reader = Reader(
                edge, parts.router, sampling, candidates=candidates, constraint=self._constraint
            )
            self._ahead = RunAhead(
                self._ids, edge, reader, self._consults, rules=rules, latency=parts.latency
            )
            self._closing = stack.pop_all()
        self._closed = False

    def _billed(self) -> AnswerBill | None:
        """The answer's bill, where the cloud's tokens have a price."""
        parts, rules = self._parts, self._rules
        if parts.billing is None:
            return None
        return parts.billing.answer(
            self._prompt.ids,
            rules.tokenizer,
            self._cloud,
            cloud_alone=rules.policy.cloud_share == 1,
            whole=not rules.stop and rules.prompt + rules.max_tokens <= rules.context + 1,
        )

    def _opened(self, sampling: Sampling, stack: ExitStack) -> Consults | None:
        """A session with the cloud, where the answer may come to ask; `stack` closes it."""
        rules, parts, cloud = self._rules, self._parts, self._cloud
        if cloud is None or not rules.policy.asks:
            return None
        # Closed last: what leaves while the session closes is recorded, too.
        tokenizer = cloud.own_tokenizer or rules.tokenizer
        sent = parts.record.answer(self._prompt, cloud.name, tokenizer)
        stack.callback(sent.close)
        session = cloud.open(self._prompt)
        stack.callback(session.close)
        consults = Consults(
            session,
            sent=sent,
            policy=rules.policy,
            sampling=sampling,
            size=rules.tokenizer.size,
            seams=rules.seams,
            start=rules.prompt,
            breaker=parts.breaker,
            latency=parts.latency,
            meter=self._bill.meter if self._bill else None,
            here=cloud.here,
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
        self._ahead.drop(len(self._ids))
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
                self._close_bill()
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
        """Write one token, guess one ahead, or finish."""
        state = self._states[-1]
        if self._awaited is not None:
            self._guess_or_take(self._awaited, state)
        elif state.end is not None:
            self._finish(state)
        elif state.queue:
            self._write_cloud(state, "span")
        else:
            read = self._ahead.read()
            decision = state.decide(
                read.score, read.token, self._ids, self._rules, forced=read.forced
            )
            outcome = self._consulted(decision.ask) if decision.ask else decision.reason
            if isinstance(outcome, Flight):
                self._awaited = _Awaited(outcome, read.detailed())
            else:
                self._write_edge(state, read, outcome)

    def _consulted(self, ask: int) -> Flight | Reason:
        """The consult for the next token, or why there is none."""
        return "no_cloud" if self._consults is None else self._consults.ask(self._ids, ask)

    def _guess_or_take(self, awaited: _Awaited, state: State) -> None:
        """Another step ahead while the consult flies, or its outcome."""
        flight, read = awaited
        assert self._consults is not None
        if self._rules.policy.run_ahead and not self._consults.lands(flight):
            self._ahead.begin(flight, read, state)
            guess = self._ahead.forward()
            if guess is not None:
                self._tell_pending(guess)
                return
        self._awaited = None
        try:
            completion = self._consults.completion(flight, self._ids, read.token)
        except CloudError as error:
            self._tell_over(flight, error)
            insists = self._rules.policy.on_cloud_error == "raise"
            if insists and not isinstance(error, NothingUsable):
                raise
            self._write_edge(state.failed(error, flight.ask, self._rules), read, error.reason)
        else:
            self._take(completion, flight, read, state)

    def _take(self, completion: Completion, flight: Flight, read: Read, state: State) -> None:
        """Go on with a completion, as far as the answer's form allows it."""
        fit = len(completion.ids)
        if self._constraint is not None:
            fit = self._constraint.fitting(self._ids, completion.ids, ends=completion.stopped)
        self._parts.latency.judged(changed=fit > 0 and completion.ids[0] != read.token)
        answered = state.answered(completion, read.token, fit, self._rules)
        if fit:
            self._tell_over(flight, completion)
            self._write_cloud(answered, "critical", read)
        else:
            said = "What the cloud wrote is nothing that the answer's form allows here."
            self._tell_over(flight, BreaksGrammar(said))
            self._write_edge(answered, read, BreaksGrammar.reason)

    def _tell_over(self, flight: Flight, outcome: Completion | CloudError) -> None:
        assert self._consults is not None
        about = self._consults.sent.about(flight.sent)
        self._events.append(consult_over(self.index, flight, outcome, about))

    def _tell_pending(self, guess: int) -> None:
        if self._pending:
            index = self.index + len(self._ahead.guesses) - 1
            text = self._tokenizer.piece(guess).decode("utf-8", "replace")
            self._events.append(Pending(index, guess, text))

    def _write_edge(self, state: State, read: Read, reason: Reason | Fault) -> None:
        known = read.candidates if self._candidates else ()
        after, text = state.write(
            read.token,
            "edge",
            self._rules,
            waits=state.waits_after(reason),
            held=reason in ("cost", "withheld"),
        )
        token = self._token(after, read.token, text, "edge", reason, read.logprob, read.score)
        self._append(after, replace(token, threshold=self._held(state, read), edge=known))

    def _write_cloud(self, state: State, reason: Reason, read: Read | None = None) -> None:
        """The next token of a completion; `read` is the edge's step where it was asked for."""
        first = state.queue[0]
        after, text = state.write(first.id, "cloud", self._rules, ends=first.ends)
        score, known = (read.score, read.candidates) if read else (None, ())
        token = self._token(after, first.id, text, "cloud", reason, first.logprob, score)
        held = self._held(state, read)
        self._append(after, replace(token, threshold=held, edge=known, cloud=first.top))

    def _held(self, state: State, read: Read | None) -> float | None:
        """The threshold that the score of a step was held against."""
        policy = self._rules.policy
        return policy.threshold_now(state.budget) if read and policy.asks else None

    def _token(
        self,
        after: State,
        token: int,
        text: str,
        source: Source,
        reason: Reason | Fault,
        logprob: float | None,
        score: float | None,
    ) -> Token:
        seconds, wait = self._clock.token(self._consults.waited if self._consults else 0.0)
        return Token(
            index=after.index - 1,
            id=token,
            text=text,
            source=source,
            score=score,
            logprob=logprob,
            seconds=seconds,
            wait=wait,
            reason=reason,
        )

    def _append(self, after: State, token: Token) -> None:
        """Make `token` the answer's next: what was guessed stands, or goes."""
        self._ids.append(token.id)
        self._states.append(after)
        self._events.append(token)
        if after.end is None:
            guesses, consults = self._ahead.follow(token.id, token.score)
            if self._pending and guesses > 1:
                # The first of them was never told: it stood beside the awaited token.
                self._events.append(Rewound(token.index, guesses - 1, consults))
            if self._consults is not None and not self._ahead.guesses:
                self._consults.push(self._ids, after)
        else:
            self._ahead.drop(len(self._ids) - 1)

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
            changing_tokens=counts.changing,
            cloud_share=share_of(counts.cloud, wasted, state.index),
            cloud_calls=counts.calls + (consults.dropped if consults else 0),
            failed_calls=counts.failed,
            cloud_prompt_cached=counts.cached,
            cloud_prompt_computed=counts.computed,
            cloud_completion_tokens=counts.billed,
            sent=consults.sent.counts() if consults else SentCounts(),
            cost=self._bill.cost(self._ids) if self._bill else None,
        )

    def _close_bill(self) -> None:
        if self._bill is not None:
            sent = self._consults.sent if self._consults else None
            name = sent.conversation if sent else self._parts.record.conversation(self._prompt)
            self._bill.close(self._ids, name)
