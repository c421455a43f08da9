"""The state of an answer, in one immutable value.

The same pure functions decide for the answer and for draft tokens behind it. So the decision for a
draft is the one that the answer makes if the draft is accepted.
"""

import codecs
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from edgewise.cloud.adapter.word_boundary import WordBoundaries
from edgewise.completion import Completion
from edgewise.edge.base import Step, Tokenizer
from edgewise.errors import Fault
from edgewise.events import Candidate, FinishReason, Reason, Source
from edgewise.grammar.calls import overlap
from edgewise.grammar.compiled import Constraint
from edgewise.loop.policy import Budget, Decision, Policy
from edgewise.sampling import Sampling

# Tables, rows of zeros and a text to be written twenty times repeat too, but seldom for so long.
LONGEST_CYCLE, ENDLESS = 64, 256
"""Lengths in tokens: of the longest cycle looked for, and of the repetition that ends an answer."""

CANDIDATES = 5
"""Most candidates reported in `Token.edge`: the ids that the edge model finds likeliest."""

# Reasons for which the share cannot be reached, whatever the threshold.
_REFUSED = ("cost", "blocked")


def circles(ids: Sequence[int], start: int) -> bool:
    """Whether the answer from `ids[start]` on ends with 256 ids that repeat a cycle of up to 64."""
    for cycle in range(1, min(LONGEST_CYCLE, len(ids) - start - ENDLESS) + 1):
        if ids[-1] == ids[-1 - cycle] and ids[-ENDLESS:] == ids[-ENDLESS - cycle : -cycle]:
            return True
    return False


class EdgeStep(NamedTuple):
    """What the loop needs of an edge model's step (its prediction of the next token).

    `token` is what the edge would write. The router's `score`, the token's `logprob` (nats) and the
    `candidates` (empty before `detailed`) ignore the grammar. `forced`: the grammar allows this
    token only. `step` may be unreadable after the engine's next decode; the other fields stay.
    """

    score: float
    token: int
    logprob: float
    step: Step
    candidates: tuple[Candidate, ...] = ()
    forced: bool = False

    def detailed(self) -> "EdgeStep":
        """Return this with `candidates` filled in; call it before the engine's next decode."""
        if self.candidates:
            return self
        return self._replace(candidates=self.step.candidates(CANDIDATES))


class Rules(NamedTuple):
    """The constants of an answer. `prompt` (the prompt's length) and `context` are in token ids.

    `boundaries` finds the word boundaries, the only places where a cloud with another vocabulary is
    asked; None if the cloud can be asked anywhere. `shown`: control tokens that are text in this
    answer, with their bytes; `constraint`: its grammar. `pending`: report draft tokens as events;
    `candidates`: give each `Token` the edge's likeliest ids. `verify`: the cloud reads every token;
    with `passages` it judges whole sentences, not single tokens.
    """

    policy: Policy
    sampling: Sampling
    tokenizer: Tokenizer
    stop: Sequence[str]
    max_tokens: int
    prompt: int
    context: int
    boundaries: WordBoundaries | None = None
    shown: Mapping[int, bytes] | None = None
    constraint: Constraint | None = None
    pending: bool = False
    candidates: bool = False
    verify: bool = False
    passages: bool = False


class Unwritten(msgspec.Struct, frozen=True):
    """A token of a completion that is not in the answer yet; `top`: the cloud's likeliest ids.

    `ends`: the cloud ended the answer with this token; `last`: it is the completion's last.
    """

    token: int
    logprob: float | None
    top: tuple[Candidate, ...]
    ends: bool
    last: bool


class HeldText(NamedTuple):
    """Output that cannot be shown yet.

    `pending`: up to three bytes of an incomplete character; `text`: what may begin a stop string.
    """

    pending: bytes = b""
    text: str = ""

    def feed(self, piece: bytes, stops: Sequence[str]) -> tuple[str, "HeldText", str | None]:
        """Return the text to show after the bytes of a token, what is held now, and a stop string.

        The stop string is the first that is complete now, or None. Neither it nor what follows it
        is shown. Invalid bytes become U+FFFD. Without a stop string all texts returned, joined with
        `release`'s at the end, equal the decoding of all bytes at once (errors="replace").
        """
        if not (stops or self.text or self.pending) and piece.isascii():
            return piece.decode("ascii"), self, None
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        text = decoder.decode(self.pending + piece)
        return self._shown(text, decoder.getstate()[0], stops)

    def before(self, piece: bytes) -> "HeldText":
        """Return this, but drop `pending` if the next bytes, `piece`, do not continue it."""
        return self if piece and piece[0] >> 6 == 0b10 else self._replace(pending=b"")

    def release(self, stops: Sequence[str]) -> tuple[str, str | None]:
        """Return the text to show at an answer's end, and the stop string that cut it, or None."""
        text, held, matched = self._shown(self.pending.decode("utf-8", "replace"), b"", stops)
        return text + held.text, matched

    def _shown(
        self, text: str, pending: bytes, stops: Sequence[str]
    ) -> tuple[str, "HeldText", str | None]:
        if not stops and not self.text:
            return text, HeldText(pending), None
        whole = self.text + text
        matches = [(at, stop) for stop in stops if (at := whole.find(stop)) >= 0]
        if matches:
            at, stop = min(matches)
            return whole[:at], HeldText(), stop
        shown = len(whole) - max((overlap(whole, stop) for stop in stops), default=0)
        return whole[:shown], HeldText(pending, whole[shown:]), None


class State(msgspec.Struct, frozen=True, kw_only=True):
    """The state of an answer after `index` tokens.

    `held` is text that cannot be shown yet. `unwritten` are the tokens of a completion that are not
    in the answer yet. `expected`, 0 without drafts, is how many tokens (or words) the request in
    flight still brings after these drafts. A cloud of another vocabulary is asked for words, and
    between words. For it `deferred` says that a request was due inside this word and waits for its
    end; `divided` says that a completion ended just here, which makes this a word boundary.
    `over_budget` says that a request was refused for cost or privacy: until the cloud next writes
    or verifies a token, the answer earns no budget. `end` says how the answer ended, `stopped` by
    which stop string; both are None before.
    """

    budget: Budget
    index: int = 0
    held: HeldText = HeldText()
    unwritten: tuple[Unwritten, ...] = ()
    expected: int = 0
    deferred: bool = False
    divided: bool = False
    over_budget: bool = False
    end: FinishReason | None = None
    stopped: str | None = None

    def decide(self, step: EdgeStep, ids: Sequence[int], rules: Rules) -> Decision:
        """Return whether to ask the cloud for what follows `ids`, and for how many tokens.

        `ids` are the prompt, the answer and its drafts; `step` is the edge's step after them. For a
        cloud of another vocabulary, a request inside a word is put off to the next word boundary
        ("mid_word"). For one that cannot continue reasoning, a request inside a block of reasoning
        is not made ("reasoning"). Where the grammar allows one token only, no cloud is asked.
        """
        decision = rules.policy.decide(1.0 if self.deferred else step.score, self.budget)
        if step.forced:
            return replace(decision, ask=0, reason="forced")
        if not decision.ask:
            return decision
        if rules.boundaries is not None:
            refused = rules.boundaries.refused(ids, rules.prompt, step.token, divided=self.divided)
            if refused is not None:
                return replace(decision, ask=0, reason=refused)
        return replace(decision, ask=min(decision.ask, rules.max_tokens - self.index))

    def expecting(self, ask: int, rules: Rules) -> "State":
        """Return the state that drafts start from, while a request for `ask` tokens is in flight.

        The budget is charged for them. For a cloud of another vocabulary `ask` counts words: then
        `write` charges it for each draft token of these words.
        """
        # The cost of a word is known once it is drafted.
        charged = ask if rules.boundaries is None else 0
        return replace(self, expected=ask, budget=rules.policy.charged(self.budget, charged))

    def after_draft(self, token: int, ids: Sequence[int], rules: Rules) -> "State":
        """Return this state, with `expected` one lower if the draft `token` begins a word.

        Only for a cloud of another vocabulary, which is asked for words; for any other, and if
        `expected` is 0, the state is unchanged. `token` follows `ids`; `write` then adds it.
        """
        opens = rules.boundaries is not None and rules.boundaries.opens(ids, rules.prompt, token)
        return replace(self, expected=self.expected - 1) if self.expected and opens else self

    def answered(self, completion: Completion, fit: int, rules: Rules) -> "State":
        """Return the state with the tokens of `completion` as `unwritten`; the budget pays for all.

        Only the first `fit`, which the grammar allows, are kept, up to `Policy.max_cloud_tokens`.
        """
        ids, tops = completion.ids, completion.top
        kept, last = rules.policy.fit_to_cap(self.budget, len(ids)), len(ids) - 1
        unwritten = tuple(
            Unwritten(
                token=ids[i],
                logprob=completion.logprobs[i],
                top=tops[i] if tops else (),
                ends=completion.stopped and i == last,
                last=i == last,
            )
            for i in range(min(kept, fit))
        )
        budget = rules.policy.charged(self.budget, len(ids))
        return replace(self, unwritten=unwritten, budget=budget)

    def write(
        self, token: int, by: Source, rules: Rules, reason: Reason | Fault | None
    ) -> tuple["State", str]:
        """Return the state after one more token, and the text that can be shown for it.

        `by` is the model that wrote it, and `reason` says why that model did. A draft is written as
        if the cloud had confirmed it: `by` is "cloud" if the request in flight is expected to bring
        it (`reason` may be None then), and `reason` is "verified" where the cloud verifies.
        """
        ended = token in rules.tokenizer.eos_ids
        if self.unwritten:
            ended = ended or self.unwritten[0].ends
        piece = b"" if ended else rules.tokenizer.piece(token)
        if not piece and rules.shown and not ended:
            piece = rules.shown.get(token, b"")
        shown, held, matched = self.held.feed(piece, rules.stop)
        index = self.index + 1
        end: FinishReason | None = None
        if matched or ended:
            end = "stop"
        elif index == rules.max_tokens or rules.prompt + index > rules.context:
            end = "length"
        seen = by == "cloud" or reason == "verified"
        over_budget = (self.over_budget or reason in _REFUSED) and not seen
        budget, expected = self.budget, max(0, self.expected - 1)
        deferred = divided = False
        if rules.boundaries is not None:
            budget, expected = rules.policy.charged(budget, min(1, self.expected)), self.expected
            deferred = reason == "mid_word" or (reason == "forced" and self.deferred)
            divided = len(self.unwritten) == 1 and self.unwritten[0].last
        after = State(
            index=index,
            # What cannot be spent is not earned.
            budget=budget if over_budget else rules.policy.after_token(budget),
            held=held,
            unwritten=self.unwritten[1:],
            expected=expected,
            deferred=deferred,
            divided=divided,
            over_budget=over_budget,
            end=end,
            stopped=matched,
        )
        return after, shown
