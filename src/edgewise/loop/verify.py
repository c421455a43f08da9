"""Verification: the edge model drafts ahead of the answer, and the cloud model verifies the drafts.

Blocks of drafts are sent to the cloud while the edge drafts on. Accepted drafts become the answer;
a correction rolls back all drafts behind it. A verdict depends only on the tokens before it, and
the answer takes verdicts in order. So latency and the lengths and number of blocks in flight change
no answer, unless a request fails or simultaneous answers share a budget.
"""

import math
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from msgspec.structs import replace

from edgewise.cloud.passages import MOST, SHORTEST, ends_passage, in_code
from edgewise.completion import Completion, Verified
from edgewise.edge.base import EdgeSession
from edgewise.edge.vocabulary import bytes_of
from edgewise.errors import BreaksGrammar, CloudError, Fault
from edgewise.events import Consult, Reason
from edgewise.loop.clouds import Clouds
from edgewise.loop.one_cloud import Flight, Refusal
from edgewise.loop.policy import Budget, Escalation
from edgewise.loop.speculate import Speculation
from edgewise.loop.state import EdgeStep, Rules, State
from edgewise.routers.untrained import Constant

# Most tokens of a block, and blocks in flight: 96 tokens, two seconds at 50 tokens a second.
BLOCK, FLYING = 16, 6

# A block ends at an edge token less probable than this: a correction would waste what is behind it.
SURE = 0.8

READS_ALONG = Constant(0.0)
"""The router where the cloud verifies every token: its score, always 0, decides nothing."""

Verdict = Verified | Completion | CloudError | Reason | Fault
"""The outcome for a draft token: the cloud's judgement, or why there is none.

A `Verified` gives its probability, a `Completion` what replaces it; "verified" means accepted.
"""


class _Block(NamedTuple):
    """Draft tokens at positions `start` to before `end` of the ids, sent to be verified.

    `flight` is the request that verifies them, or the reason why none was sent. If it asks for a
    whole answer, and the cloud gives none, the earlier `verdict`, if any, holds.
    """

    start: int
    end: int
    flight: Flight | Reason
    verdict: Completion | None = None


class Verification(Speculation):
    """The draft tokens of an answer that the cloud verifies, and its verdicts on them.

    `over`: the events of finished requests, for the caller to report and remove. `escalated`: the
    last verdict is from a request for a whole answer in place of the edge's.
    """

    _consults: Clouds

    def __init__(
        self,
        ids: list[int],
        edge: EdgeSession,
        consults: Clouds,
        rules: Rules,
        budget: Budget,
        escalation: Escalation | None = None,
    ) -> None:
        """`budget`, the answer's at its start, decides whether any of its tokens are verified.

        A cloud that reads passages is asked all the same. `escalation` decides whether that cloud
        writes the whole answer (None: never); with a response format it never does.
        """
        super().__init__(ids, edge, READS_ALONG, consults, rules)
        self.over: list[Consult] = []
        self._refused: Reason | None = None
        if not consults.passages:
            self._refused = rules.policy.refuses(budget, first=True)
            # What is never asked for need not be read ahead.
            consults.prefetches &= self._refused is None
        self._blocks: deque[_Block] = deque()
        self._verdicts: dict[int, Verdict] = {}
        self._unsent = 0
        self._due, self._alone = False, False
        self._passages = consults.passages
        # The next passage is read behind what the verdict on this one leaves.
        self._flying = 1 if consults.alternates or self._passages else FLYING
        self._waits = consults.alternates and not self._passages
        self._most = MOST if self._passages else BLOCK
        self._code = False
        self.escalated = False
        self._escalation = None if rules.constraint else escalation
        self._entropy, self._weighed = 0.0, False

    def ahead(self, state: State) -> int | None:
        """Draft one more token behind the drafts so far and return its id; `state` is the answer's.

        Returns None if the drafts end the answer, or must wait for verdicts. Draft tokens are sent
        as a block once it is complete and few enough blocks are in flight.
        """
        tip = self._tip if self._tip is not None and self.drafts else state
        self._send(tip)
        full = self._unsent >= self._most and not self._divided(tip)
        if tip.end is not None or full or (self._waits and self._blocks):
            return None
        position = len(self._ids) + len(self.drafts)
        if not self._unsent:
            self._edge.checkpoint(position)
        # In detail: the cloud may correct it when the step is long gone.
        step = self._steps[position] = self._step_after(self.drafts).detailed()
        if self._escalation is not None:
            self._entropy += step.step.entropy
        self._tip, _ = tip.write(step.token, "edge", self._rules, "verified")
        self.drafts.append(step.token)
        self._unsent += 1
        if self._tip.end is None:
            self._edge.extend([step.token])
        self._due = self._due or self._ends_block(self._tip, step)
        self._send(self._tip)
        return step.token

    def _ends_block(self, tip: State, step: EdgeStep) -> bool:
        """Whether a block ends with the draft token of `step`; `tip` is the state after it."""
        if tip.end is not None or self._unsent == self._most:
            return True
        if not self._passages:
            # The first token alone: it is held to more, and somebody waits for it.
            return self._alone or tip.index == 1 or step.logprob < math.log(SURE)
        if self._alone and self._refused_at(tip):
            return True
        if self._unsent == 1:
            before = [*self._ids[self._rules.prompt :], *self.drafts[:-1]]
            self._code = in_code(self._text(before))
        if self._unsent < SHORTEST:
            # Where the cloud writes everything, nothing is waited for.
            everything = self._escalation is not None and self._escalation.share == 1
            return everything and tip.index == 1
        passage = self._text(self.drafts[-self._unsent :])
        # What has begun a character is no text yet.
        return not tip.held.pending and ends_passage(passage, self._unsent, code=self._code)

    def _text(self, ids: Sequence[int]) -> str:
        return bytes_of(self._rules.tokenizer, ids).decode("utf-8", "ignore")

    def verdict(self, *, wait: bool) -> Verdict | None:
        """Remove and return the verdict on the draft token that is next in the answer.

        Returns None if the token was not sent yet. If its verdict has not come, `wait` says whether
        to wait or to return None. After a verdict the caller must write a token and report `over`.
        """
        while (at := len(self._ids)) not in self._verdicts:
            if not self._blocks:
                return None
            _, end, flight, _ = self._blocks[0]
            if isinstance(flight, Flight) and self._consults.given_up(flight):
                self._consults.drop(end, end + 1)
                flight = "circuit_open"
            if not (wait or _is_over(flight)):
                return None
            self._settle(self._blocks.popleft()._replace(flight=flight))
        return self._verdicts.pop(at)

    def _settle(self, block: _Block) -> None:
        """Wait for the verdicts on a block and keep them, or send a second request for it."""
        start, end, outcome, verdict = block
        places, again = range(start, end), None
        self.escalated = isinstance(outcome, Flight) and outcome.ask > 0
        if isinstance(outcome, Flight):
            self.rest()
            outcome, event = self._consults.outcome(outcome, start - self._rules.prompt)
            self.over.append(event)
        ids, count = [*self._ids, *self.drafts[: len(places)]], len(places)
        raises = isinstance(outcome, CloudError) and self._rules.policy.raises(outcome)
        if isinstance(outcome, Completion):
            if self._nothing_stands(outcome):
                again, verdict = self._whole(ids, count), outcome
        elif verdict is not None and not raises:
            outcome, self.escalated = verdict, False
        elif self.escalated and not raises and count > 1:
            refused = self._tip and self._refused_at(self._tip)
            again = refused or self._consults.verify(ids, count)
        if isinstance(again, Flight):
            self._blocks.appendleft(block._replace(flight=again, verdict=verdict))
            return
        if not isinstance(outcome, Completion):
            self._verdicts.update(dict.fromkeys(places, outcome))
        elif outcome.stand is None:
            self._verdicts.update(zip(places, outcome.verified, strict=True))
        else:
            # All behind it goes, unless the grammar refuses what is in place of its beginning.
            for place in places:
                stands = place < start + outcome.stand
                self._verdicts[place] = "verified" if stands else BreaksGrammar.reason
            if outcome.ids:
                self._verdicts[start + outcome.stand] = outcome

    def charged(self, budget: Budget) -> Budget:
        """Return `budget`, its `charged` raised to at least all tokens that the cloud brought."""
        # All that a verdict brings is charged already.
        brought = self._consults.writer.brought
        return budget if budget.charged >= brought else replace(budget, charged=brought)

    def drop(self, position: int) -> int:
        """Drop all drafts, blocks and verdicts; roll the edge back to its first `position` ids.

        Returns how many requests were dropped.
        """
        self._blocks.clear()
        self._verdicts.clear()
        self._unsent, self._due = 0, False
        return super().drop(position)

    def _send(self, tip: State) -> None:
        """Send the drafts that are in no block, if one is due; `tip` is the state after them."""
        if not self._due or len(self._blocks) == self._flying or self._divided(tip):
            return
        ids, count = [*self._ids, *self.drafts], self._unsent
        flight: Flight | Reason | None = self._refused_at(tip)
        first = len(ids) - count == self._rules.prompt
        # A whole answer is not charged to the share.
        weighs = first and not self._weighed and flight in (None, "budget")
        if weighs and self._escalation is not None:
            self._weighed = True
            if self._escalation.wants(self._entropy / count):
                whole = self._whole(ids, count)
                flight = whole if isinstance(whole, Flight) or count == 1 else flight
        flight = flight or self._consults.verify(ids, count)
        grows = self._passages and flight in ("cost", "mid_word") and tip.end is None
        # Where the edge may write nothing, the refusal ends the answer.
        if grows and count < self._most and not self._rules.policy.excludes_edge:
            # A longer one costs less for each of its tokens, and may end behind a whole word.
            self._due = False
            return
        # What nobody reads is written as it comes; what costs too much, less often.
        self._alone = not isinstance(flight, Flight) and flight != "cost"
        self._blocks.append(_Block(len(ids) - count, len(ids), flight))
        self._unsent, self._due = 0, False

    def _divided(self, tip: State) -> bool:
        """Whether a passage that ended after the drafts would end inside a character."""
        # A first token is sent alone, and a character has at most four.
        begun = tip.end is None and tip.held.pending != b""
        return self._passages and begun and 1 < self._unsent < self._most + 3

    def _nothing_stands(self, verdict: Completion) -> bool:
        """Whether to ask for the whole answer, since its first passage was rejected entirely."""
        if self._escalation is None or len(self._ids) > self._rules.prompt:
            return False
        escalation, self._escalation = self._escalation, None
        return verdict.stand == 0 and escalation.rejected()

    def _whole(self, ids: Sequence[int], count: int) -> Flight | Refusal:
        """Ask for the whole answer in place of the last `count` ids, its first passage."""
        self._escalation = None
        fitting = min(self._rules.max_tokens, self._rules.context + 1 - self._rules.prompt)
        room = self._rules.policy.fit_to_cap(Budget(), fitting)
        return self._consults.verify(ids, count, room)

    def _refused_at(self, tip: State) -> Reason | None:
        refuses, passages = self._rules.policy.refuses, self._passages
        return self._refused or refuses(self.charged(tip.budget), first=False, passages=passages)


def _is_over(flight: Flight | Reason) -> bool:
    return not isinstance(flight, Flight) or flight.future.done()
