"""Where an answer stands: everything that a rewind restores, one immutable value per position.

The same pure functions decide for the answer and for the guesses beyond it, so a guess that is
confirmed was decided on as the answer would have.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from edgewise.cloud.bridge.word_boundary import Seams
from edgewise.completion import Completion, metered
from edgewise.edge.base import Tokenizer
from edgewise.errors import CloudError, CloudTimeout, Fault
from edgewise.events import Candidate, FinishReason, Reason, Source
from edgewise.loop.policy import Budget, Decision, Policy
from edgewise.loop.text import Characters, Stops


class Rules(NamedTuple):
    """What holds for a whole answer: `prompt` and `context` in ids, `max_tokens` in tokens.

    With `seams` consults are made there alone, for words instead of tokens. Control tokens in
    `shown` are text in this answer.
    """

    policy: Policy
    tokenizer: Tokenizer
    stop: Sequence[str]
    max_tokens: int
    prompt: int
    context: int
    seams: Seams | None = None
    shown: Mapping[int, bytes] | None = None


class Counts(msgspec.Struct, frozen=True):
    """What `Usage` reports, so far; consults that were dropped are counted apart."""

    edge: int = 0
    cloud: int = 0
    wasted: int = 0
    changing: int = 0
    calls: int = 0
    failed: int = 0
    cached: int | None = 0
    computed: int | None = 0
    billed: int = 0


class Queued(msgspec.Struct, frozen=True):
    """A token that a completion holds and that is still to be written.

    `ends`: the cloud ended the answer with it; `last`: all that the cloud said ends with it.
    """

    id: int
    logprob: float | None
    top: tuple[Candidate, ...]
    ends: bool
    last: bool


class State(msgspec.Struct, frozen=True, kw_only=True):
    """Where an answer stands after `index` tokens.

    `characters` and `stops` hold text back; `queue` is what is left of a completion, `owed` how
    many tokens (or words) a completion that is only expected will still bring; `end` is set where
    the answer is over, `stopped` where a stop string did it. `waits`: a consult was wanted in the
    word so far; `divided`: a completion's words end here. `held`: the last one that was wanted
    would have cost too much, so until one goes the controller, whose share cannot be reached,
    lowers no threshold.
    """

    budget: Budget
    index: int = 0
    characters: Characters = Characters()
    stops: Stops = Stops()
    queue: tuple[Queued, ...] = ()
    owed: int = 0
    waits: bool = False
    divided: bool = False
    held: bool = False
    counts: Counts = Counts()
    end: FinishReason | None = None
    stopped: str | None = None

    def decide(
        self, score: float, token: int, ids: Sequence[int], rules: Rules, *, forced: bool = False
    ) -> Decision:
        """Whether to consult behind `ids`, where the edge would write `token`, and for how many.

        A consult that is wanted where none may be made is made at the next seam; none is where
        `token` is `forced`.
        """
        if forced:
            return Decision(0, "forced")
        decision = rules.policy.decide(1.0 if self.waits else score, self.budget)
        if not decision.ask:
            return decision
        if rules.seams is not None:
            refused = rules.seams.refused(ids, rules.prompt, token, divided=self.divided)
            if refused is not None:
                return Decision(0, refused)
        return replace(decision, ask=min(decision.ask, rules.max_tokens - self.index))

    def waits_after(self, reason: Reason | Fault) -> bool:
        """Whether a consult is still wanted behind a token of the edge's with this reason."""
        return reason == "mid_word" or (reason == "forced" and self.waits)

    def expecting(self, ask: int, rules: Rules) -> "State":
        """After a consult whose completion is assumed to bring all `ask` tokens, or words."""
        # What a word will cost shows as it is guessed.
        charged = ask if rules.seams is None else 0
        return replace(self, owed=ask, budget=rules.policy.charge(self.budget, charged))

    def reaching(self, token: int, ids: Sequence[int], rules: Rules) -> "State":
        """Behind `ids`, with one word less to come where the guess `token` opens another."""
        opens = rules.seams is not None and rules.seams.opens(ids, rules.prompt, token)
        return replace(self, owed=self.owed - 1) if self.owed and opens else self

    def answered(self, completion: Completion, token: int, fit: int, rules: Rules) -> "State":
        """After a consult, where the edge would have written `token`.

        Of the completion's ids the first `fit` are what the answer's form allows; the others, and a
        consult with none, are wasted.
        """
        tops = completion.top or ((),) * len(completion.ids)
        last = len(completion.ids) - 1
        kept = rules.policy.kept(self.budget, len(completion.ids))
        queue = tuple(
            Queued(token, logprob, top, completion.stopped and index == last, index == last)
            for index, (token, logprob, top) in enumerate(
                zip(completion.ids, completion.logprobs, tops, strict=True)
            )
        )[: min(kept, fit)]
        counts = self.counts
        return replace(
            self,
            queue=queue,
            budget=rules.policy.charge(self.budget, kept),
            counts=replace(
                counts,
                calls=counts.calls + 1,
                failed=counts.failed + (not fit),
                wasted=counts.wasted + kept - len(queue),
                changing=counts.changing + (fit > 0 and completion.ids[0] != token),
                cached=metered(counts.cached, completion.cached),
                computed=metered(counts.computed, completion.computed),
                billed=counts.billed + completion.billed,
            ),
        )

    def failed(self, error: CloudError, ask: int, rules: Rules) -> "State":
        """After a consult that brought nothing.

        After a timeout the cloud may still write what it was asked for, so that is charged and
        counts as wasted.
        """
        lost = ask if isinstance(error, CloudTimeout) else 0
        counts = self.counts
        return replace(
            self,
            budget=rules.policy.charge(self.budget, lost),
            counts=replace(
                counts,
                calls=counts.calls + 1,
                failed=counts.failed + 1,
                wasted=counts.wasted + lost,
            ),
        )

    def write(
        self,
        token: int,
        by: Source,
        rules: Rules,
        *,
        ends: bool = False,
        waits: bool = False,
        held: bool = False,
    ) -> tuple["State", str]:
        """After one more token, and what text can be shown for it.

        `ends`: it ends the answer; `waits`: a consult was wanted in its place, and still is;
        `held`: one would have cost too much.
        """
        ended = ends or token in rules.tokenizer.eos_ids
        piece = b"" if ended else rules.tokenizer.piece(token)
        if not piece and rules.shown and not ended:
            piece = rules.shown.get(token, b"")
        text, characters = self.characters.feed(piece)
        shown, stops, matched = self.stops.feed(text, rules.stop)
        counts, index = self.counts, self.index + 1
        end: FinishReason | None = None
        if matched or ended:
            end = "stop"
        elif index == rules.max_tokens or rules.prompt + index > rules.context:
            end = "length"
        by_cloud = by == "cloud"
        held = (held or self.held) and not by_cloud
        budget, owed = self.budget, max(0, self.owed - 1)
        if rules.seams is not None:
            budget, owed = rules.policy.charge(budget, min(1, self.owed)), self.owed
        after = State(
            index=index,
            budget=rules.policy.written(budget, by_cloud=by_cloud, steers=not held),
            characters=Characters() if matched else characters,
            stops=stops,
            queue=self.queue[1:],
            owed=owed,
            waits=waits,
            divided=rules.seams is not None and len(self.queue) == 1 and self.queue[0].last,
            held=held,
            counts=replace(
                counts, edge=counts.edge + (not by_cloud), cloud=counts.cloud + by_cloud
            ),
            end=end,
            stopped=matched,
        )
        return after, shown

    def release(self, stop: Sequence[str]) -> tuple[str, str | None]:
        """The text that is still held back where the answer ends; the stop string that did it."""
        tail, stops, matched = self.stops.feed(self.characters.flush(), stop)
        return tail + stops.held, matched or self.stopped

    @property
    def wasted(self) -> int:
        """Tokens the cloud returned, or may have, that the answer does not hold if it ends here."""
        return self.counts.wasted + len(self.queue)
