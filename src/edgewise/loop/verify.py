"""Verification: the edge writes ahead of the answer, and the cloud reads along.

Blocks of drafts are sent to the cloud while the edge goes on behind them. What it lets stand
becomes the answer; where it corrects a token, that is written and all drafts are rolled back. The
cloud judges each token by what is before it, and the answer decides in its own order: so no answer
depends on the link, on how drafts were cut into blocks, or on how many flew at a time.
"""

import math
from collections import deque
from typing import NamedTuple

from edgewise.completion import Completion, Verified
from edgewise.edge.base import EdgeSession
from edgewise.errors import CloudError
from edgewise.events import Consult, Reason
from edgewise.loop.clouds import Clouds
from edgewise.loop.one_cloud import Flight
from edgewise.loop.policy import Budget
from edgewise.loop.speculate import Speculation
from edgewise.loop.state import Rules, State
from edgewise.routers.untrained import Constant

BLOCK, FLYING = 16, 6
"""Most tokens of a block, and blocks in flight: the edge waits with one more."""

SURE = 0.8
"""Where the edge's own token is less probable, a block ends: a correction would waste the rest."""

READS_ALONG = Constant(0.0)
"""No router is asked where the cloud reads every token."""

Verdict = Verified | CloudError | Reason
"""What the cloud says of a token, or why it says nothing."""


class _Block(NamedTuple):
    """Drafts from `start` to before `end`, positions in the ids; they were sent in `flight`, or why
    they were not."""

    start: int
    end: int
    flight: Flight | Reason


class Verification(Speculation):
    """The drafts of an answer, and what the cloud says of them.

    `over` are the outcomes of blocks that nobody has reported yet.
    """

    _consults: Clouds

    def __init__(
        self,
        ids: list[int],
        edge: EdgeSession,
        consults: Clouds,
        rules: Rules,
        budget: Budget,
    ) -> None:
        """`budget` is the answer's at its start, which decides whether it is verified at all."""
        super().__init__(ids, edge, READS_ALONG, consults, rules)
        self.over: list[tuple[Completion | CloudError, Consult]] = []
        self._refused: Reason | None = rules.policy.refuses(budget, first=True)
        self._blocks: deque[_Block] = deque()
        self._verdicts: dict[int, Verdict] = {}
        self._unsent = 0
        self._due, self._alone = False, False
        self._flying = 1 if consults.alternates else FLYING

    def ahead(self, state: State) -> int | None:
        """Draft one token more, after `state` and the drafts, and return it; None if it must wait.

        The drafts that no block holds are sent where a block is due and one more may fly.
        """
        tip = self._tip if self._tip is not None and self.drafts else state
        self._send(tip)
        alternates = self._flying == 1
        if tip.end is not None or self._unsent == BLOCK or (alternates and self._blocks):
            return None
        position = len(self._ids) + len(self.drafts)
        if not self._unsent:
            self._edge.checkpoint(position)
        # In detail: the cloud may correct it when the step is long gone.
        step = self._steps[position] = self._step_after(self.drafts).detailed()
        self._tip, _ = tip.write(step.token, "edge", self._rules, "verified")
        self.drafts.append(step.token)
        self._unsent += 1
        if self._tip.end is None:
            self._edge.extend([step.token])
        doubtful = step.logprob < math.log(SURE)
        # The first token alone: it is held to more, and somebody waits for it.
        ends = self._tip.end is not None or not tip.index or self._unsent == BLOCK
        self._due = self._due or ends or doubtful or self._alone
        self._send(self._tip)
        return step.token

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
            self.over.append((outcome, event))
            if isinstance(outcome, CloudError):
                self._verdicts.update(dict.fromkeys(places, outcome))
            else:
                self._verdicts.update(zip(places, outcome.verified, strict=True))
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
        refused = self._refused or self._rules.policy.refuses(tip.budget, first=False)
        flight = refused or self._consults.verify(ids, count)
        # What nobody reads is written as it comes; what costs too much, less often.
        self._alone = not isinstance(flight, Flight) and flight != "cost"
        self._blocks.append(_Block(len(ids) - count, len(ids), flight))
        self._unsent, self._due = 0, False


def _is_over(flight: Flight | Reason) -> bool:
    return not isinstance(flight, Flight) or flight.future.done()
