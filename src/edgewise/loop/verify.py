"""Verification: the edge writes ahead of the answer, and the cloud reads along.

Blocks of drafts are sent to the cloud while the edge goes on behind them. What it lets stand
becomes the answer; where it corrects a token, that is written and all drafts are rolled back. The
cloud judges each token by what is before it, and the answer decides in its own order: so no answer
depends on the link, on how drafts were cut into blocks, or on how many flew at a time.
"""

import math
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

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

SURE = 0.8
"""Where the edge's own token is less probable, a block ends: a correction would waste the rest."""

READS_ALONG = Constant(0.0)
"""No router is asked where the cloud reads every token."""

Verdict = Verified | Completion | CloudError | Reason | Fault
"""What the cloud says of a token, or writes in its place; or why it says nothing."""


class _Block(NamedTuple):
    """Drafts from `start` to before `end`, positions in the ids; they were sent in `flight`, or why
    they were not."""

    start: int
    end: int
    flight: Flight | Reason


class Verification(Speculation):
    """The drafts of an answer, and what the cloud says of them.

    `over` tells of the verifications that are over and that nobody has reported yet.
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
        """`budget` is the answer's at its start, which decides whether it is verified at all.

        `escalation` decides whether the cloud writes all of it. A response format is the edge's.
        """
        super().__init__(ids, edge, READS_ALONG, consults, rules)
        self.over: list[Consult] = []
        self._refused: Reason | None = None
        if not consults.passages:
            self._refused = rules.policy.refuses(budget, first=True)
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
        """Draft one token more, after `state` and the drafts, and return it; None if it must wait.

        The drafts that no block holds are sent where a block is due and one more may fly.
        """
        tip = self._tip if self._tip is not None and self.drafts else state
        self._send(tip)
        if tip.end is not None or self._unsent == self._most or (self._waits and self._blocks):
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
        """Whether a block ends with the draft of `step`, after which the state is `tip`."""
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
        return ends_passage(passage, self._unsent, code=self._code)

    def _text(self, ids: Sequence[int]) -> str:
        return bytes_of(self._rules.tokenizer, ids).decode("utf-8", "ignore")

    def verdict(self, *, wait: bool) -> Verdict | None:
        """What the cloud says of the first draft; None if that has not come, or was not asked."""
        while (at := len(self._ids)) not in self._verdicts:
            if not self._blocks:
                return None
            start, end, flight = self._blocks[0]
            if isinstance(flight, Flight) and self._consults.given_up(flight):
                self._consults.drop(end, end + 1)
                flight = "circuit_open"
            if not (wait or _is_over(flight)):
                return None
            self._blocks.popleft()
            places = range(start, end)
            if not isinstance(flight, Flight):
                self._verdicts.update(dict.fromkeys(places, flight))
                continue
            self.rest()
            outcome, event = self._consults.outcome(flight, start - self._rules.prompt)
            self.over.append(event)
            if start == self._rules.prompt and self._nothing_stands(outcome):
                whole = self._whole([*self._ids, *self.drafts[: len(places)]], len(places))
                self._blocks.appendleft(_Block(start, end, whole))
                continue
            if isinstance(outcome, CloudError):
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
        return self._verdicts.pop(at)

    def drop(self, position: int) -> int:
        self._blocks.clear()
        self._verdicts.clear()
        self._unsent, self._due = 0, False
        return super().drop(position)

    def _send(self, tip: State) -> None:
        """Send what no block holds, if it is due: `tip` is the state after it."""
        if not self._due or len(self._blocks) == self._flying:
            return
        ids, count = [*self._ids, *self.drafts], self._unsent
        flight: Flight | Reason | None = self._refused_at(tip)
        first = len(ids) - count == self._rules.prompt
        if flight is None and first and self._escalation is not None and not self._weighed:
            self._weighed = True
            if self._escalation.wants(self._entropy / count):
                flight = self._whole(ids, count)
        flight = flight or self._consults.verify(ids, count)
        if self._passages and flight == "cost" and tip.end is None and count < self._most:
            # A longer one costs less for each of its tokens.
            self._due = False
            return
        # What nobody reads is written as it comes; what costs too much, less often.
        self._alone = not isinstance(flight, Flight) and flight != "cost"
        self._blocks.append(_Block(len(ids) - count, len(ids), flight))
        self._unsent, self._due = 0, False

    def _nothing_stands(self, outcome: Completion | CloudError) -> bool:
        """Whether the whole answer is asked for, since the first passage does not stand at all."""
        if self._escalation is None or isinstance(outcome, CloudError):
            return False
        escalation, self._escalation = self._escalation, None
        return outcome.stand == 0 and escalation.rejected()

    def _whole(self, ids: Sequence[int], count: int) -> Flight | Refusal:
        """Ask for the whole answer in place of the last `count` ids, its first passage."""
        self._escalation = None
        room = self._rules.policy.fit_to_cap(Budget(), self._rules.max_tokens)
        flight = self._consults.verify(ids, count, room)
        self.escalated = isinstance(flight, Flight)
        return flight

    def _refused_at(self, tip: State) -> Reason | None:
        refuses, passages = self._rules.policy.refuses, self._passages
        return self._refused or refuses(tip.budget, first=False, passages=passages)


def _is_over(flight: Flight | Reason) -> bool:
    return not isinstance(flight, Flight) or flight.future.done()
