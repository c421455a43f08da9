"""Reading the edge model's steps, at the answer's end and ahead of it.

While a consult flies the edge goes on from its own guess, as if the completion were to confirm it.
What it computes and asks on the way is kept and used if the answer comes to the same ids; where it
does not, it is dropped. Guesses are decided on by the answer's own rules, so they change nothing.

What was guessed behind a token that the cloud changed is often right behind the cloud's own, too.
So it is a draft: one pass reads that token and the draft together, and the steps stand as far as
the answer goes on with the same ids.
"""

import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from edgewise.edge.base import EdgeSession, Step
from edgewise.edge.kv import FEW
from edgewise.errors import UsageError
from edgewise.events import Candidate, Reason
from edgewise.grammar.compiled import Allowed, Constraint
from edgewise.loop.consults import Consults, Flight
from edgewise.loop.latency import Latency
from edgewise.loop.redraft import Redraft
from edgewise.loop.state import Rules, State
from edgewise.routers.base import Router
from edgewise.sampling import Sampling

CANDIDATES = 5
"""Edge candidates reported with a token that the cloud was asked for."""


class Read(NamedTuple):
    """What the loop needs of a step, taken before the engine's next decode.

    Score, logprob and candidates are the model's own, whatever the answer's form allows.
    """

    score: float
    token: int
    logprob: float
    step: Step
    candidates: tuple[Candidate, ...] = ()
    forced: bool = False

    def detailed(self) -> "Read":
        """With the edge's candidates; before the engine's next decode."""
        return (
            self if self.candidates else self._replace(candidates=self.step.candidates(CANDIDATES))
        )


class Reader:
    """The edge's steps as the loop reads them: router's score, token drawn, logprob."""

    def __init__(
        self,
        edge: EdgeSession,
        router: Router,
        sampling: Sampling,
        *,
        candidates: bool,
        constraint: Constraint | None = None,
    ) -> None:
        """With `candidates` every read has the edge's, not only those a consult may follow.

        A `constraint` allows only some tokens.
        """
        self._edge, self._router, self._sampling = edge, router, sampling
        self._candidates, self._constraint = candidates, constraint

    def read(self, ids: Sequence[int], guesses: Sequence[int] = ()) -> Read:
        """Of the next step, behind `ids` and `guesses`. Raises `UsageError` for a router whose
        score is none, and as `Constraint.allowed`."""
        return self._read(self._edge.step(), ids, guesses)

    def read_all(self, before: Sequence[int], ids: Sequence[int]) -> list[Read]:
        """Of the steps behind each of `ids`, read in one pass; `before` stand before them."""
        return [
            self._read(step, before, ids[:count]).detailed()
            for count, step in enumerate(self._edge.steps(ids), 1)
        ]

    def fitting(self, ids: Sequence[int], draft: Sequence[int]) -> Sequence[int]:
        """The beginning of `draft` that may come behind `ids`."""
        if self._constraint is None:
            return draft
        return draft[: self._constraint.fitting(ids, draft)]

    def _read(self, step: Step, ids: Sequence[int], guesses: Sequence[int]) -> Read:
        score = self._router.score(step)
        if not _is_score(score):
            raise UsageError(
                f"The router {type(self._router).__name__!r} gave the score {score!r}, which is "
                "not a number from 0 to 1",
                hint="mend its score()",
                setting="router",
            )
        if self._constraint is None:
            token = self._sampling.choose(step)
            read = Read(score, token, step.logprob(token), step)
        else:
            read = self._constrained(step, score, self._constraint.allowed(ids, guesses))
        return read.detailed() if self._candidates else read

    def _constrained(self, step: Step, score: float, allowed: Allowed) -> Read:
        """With the token that is drawn, or the likeliest, of those that are allowed."""
        token = step.proposed
        likeliest = token < len(allowed.mask) and bool(allowed.mask[token])
        if not (self._sampling.greedy and likeliest):
            token = self._sampling.choose(step, allowed.mask)
        return Read(score, token, step.logprob(token), step, forced=allowed.forced)


class RunAhead:
    """The edge session, which holds the answer's ids and the guesses behind them."""

    def __init__(
        self,
        ids: list[int],
        edge: EdgeSession,
        reader: Reader,
        consults: Consults | None,
        *,
        rules: Rules,
        latency: Latency,
    ) -> None:
        """`ids` is the answer's own list, prompt included."""
        self._ids, self._edge, self._reader = ids, edge, reader
        self._consults, self._rules, self._latency = consults, rules, latency
        self.guesses: list[int] = []
        self._reads: dict[int, Read] = {}
        self._tip: State | None = None
        self._redraft: Redraft | None = None
        # Behind the guesses, in the session: what was drafted and may be come to yet.
        self._drafted: list[int] = []

    def read(self) -> Read:
        """The step at the answer's end: computed on the way, or now."""
        redraft, self._redraft = self._redraft, None
        if redraft is not None:
            self._read_draft(redraft)
        return self._reads.pop(len(self._ids), None) or self._reader.read(self._ids)

    def begin(self, flight: Flight, read: Read, state: State) -> None:
        """A flight is waited for from now on: the next guesses follow `read`'s own token."""
        if not self.guesses:
            self._edge.checkpoint(len(self._ids))
            self._guess(state.expecting(flight.ask, self._rules), read)

    def forward(self) -> int | None:
        """One step further; the guessed id, or None where the run-ahead ends."""
        tip = self._tip
        if tip is None or not 0 < len(self.guesses) < self._rules.policy.run_ahead:
            return None
        read = self._read_ahead(len(self._ids) + len(self.guesses))
        reason = None
        if self._rules.seams is not None:
            tip = tip.reaching(read.token, [*self._ids, *self.guesses], self._rules)
        if not tip.owed:
            tip, reason = self._decided(tip, read)
        self._guess(tip, read, waits=reason is not None and tip.waits_after(reason))
        return read.token

    def follow(self, token: int, score: float | None) -> tuple[int, int]:
        """The answer, which holds it already, goes on with `token`, where the edge's step had this
        score; None where it was not asked for.

        Returns how many guesses and how many consults that dropped.
        """
        expected = self.guesses or self._drafted
        if expected and expected[0] == token:
            del expected[0]
            # Where the answer itself asked for nothing, or for more.
            return 0, self._drop_consults(0, len(self._ids))
        dropped, redraft = len(self.guesses), self._redrafted(token, score)
        consults = self.drop(len(self._ids) - 1)
        self._edge.extend([token])
        self._redraft = redraft
        return dropped, consults

    def drop(self, position: int) -> int:
        """Forget every guess; the edge session goes back to `position`. Returns the consults."""
        self._reads.clear()
        self.guesses.clear()
        self._drafted.clear()
        self._tip = self._redraft = None
        if position < self._edge.position:
            self._edge.rewind(position)
        return self._drop_consults()

    def _read_ahead(self, position: int) -> Read:
        """The step at a guess, kept: the answer may come there."""
        if position not in self._reads:
            begun = time.monotonic()
            # In detail: the answer may ask here after all, when the step is long gone.
            self._reads[position] = self._reader.read(self._ids, self.guesses).detailed()
            self._latency.stepped(time.monotonic() - begun)
        return self._reads[position]

    def _redrafted(self, token: int, score: float | None) -> Redraft | None:
        """What to draft where the answer goes on with `token`, which was not expected."""
        if self._redraft is not None:
            # The completion goes on.
            return self._redraft.behind(token)
        draft = [*self.guesses, *self._drafted][1:] if self.guesses else []
        if not draft or score is None:
            return None
        wanted = self._rules.policy.redrafts(self._latency.redrafts, score)
        return Redraft(len(self._ids) - 1, draft, score) if wanted else None

    def _read_draft(self, redraft: Redraft) -> None:
        """Read the draft behind what the session has queued, in one pass."""
        fitting = self._reader.fitting(self._ids, redraft.draft)
        ids = [*self._ids[redraft.start :], *fitting][:FEW]
        draft = ids[len(self._ids) - redraft.start :]
        if not draft:
            return
        begun = time.monotonic()
        self._edge.rewind(redraft.start)
        reads = self._reader.read_all(self._ids[: redraft.start], ids)[-len(draft) - 1 :]
        seconds = time.monotonic() - begun
        agree = [read.token == token for read, token in zip(reads, draft, strict=False)]
        right = [*agree, False].index(False)
        step = self._latency.step or 0.0
        self._latency.redrafts.gained(redraft.score, (right + 1) * step - seconds, step)
        if self._rules.policy.redraft == "exact" and not self._latency.redrafts.proven(len(ids)):
            draft = draft[:right]
            reads = self._proven(redraft.start, len(ids), reads, draft)
        self._reads.update(enumerate(reads, len(self._ids)))
        self._drafted = draft

    def _proven(self, start: int, size: int, reads: list[Read], draft: list[int]) -> list[Read]:
        """The steps up to the end of what is right of the draft, by passes over one id each.

        Those of the pass over all, `reads`, must be the same to the bit.
        """
        told = [read.step.logits.copy() for read in reads[: len(draft) + 1]]
        self._edge.rewind(start)
        self._edge.extend(self._ids[start:])
        single = [self._reader.read(self._ids).detailed()]
        same = np.array_equal(single[0].step.logits, told[0])
        for count, (token, logits) in enumerate(zip(draft, told[1:], strict=True), 1):
            self._edge.extend([token])
            single.append(self._reader.read(self._ids, draft[:count]).detailed())
            same = same and np.array_equal(single[-1].step.logits, logits)
        if draft or not same:
            # The first step alone does not show what a pass leaves in the KV cache.
            self._latency.redrafts.compared(size, same=same)
        return single

    def _decided(self, tip: State, read: Read) -> tuple[State, Reason]:
        """The guess at a position as the answer would decide there, its consult sent if it may."""
        ids = self._ids if self._rules.seams is None else [*self._ids, *self.guesses]
        decision = tip.decide(read.score, read.token, ids, self._rules, forced=read.forced)
        if not decision.ask or self._consults is None:
            return tip, decision.reason
        self._edge.checkpoint(len(self._ids) + len(self.guesses))
        held = self._consults.ask_ahead([*self._ids, *self.guesses], decision.ask, tip)
        if held is not None:
            return tip, held
        return tip.expecting(decision.ask, self._rules), decision.reason

    def _guess(self, state: State, read: Read, *, waits: bool = False) -> None:
        """Go on with the edge's own token, unless the answer would end with it."""
        by = "cloud" if state.owed else "edge"
        after, _ = state.write(read.token, by, self._rules, waits=waits)
        self._tip = None if after.end else after
        if self._tip is None:
            return
        if self._drafted and self._drafted[0] == read.token:
            del self._drafted[0]
        else:
            self._drop_draft()
            self._edge.extend([read.token])
        self.guesses.append(read.token)

    def _drop_draft(self) -> None:
        """Behind the guesses the draft went another way."""
        if self._drafted:
            end = len(self._ids) + len(self.guesses)
            self._drafted.clear()
            self._reads = {at: read for at, read in self._reads.items() if at <= end}
            self._edge.rewind(end)

    def _drop_consults(self, start: int = 0, end: int | None = None) -> int:
        return 0 if self._consults is None else self._consults.drop(start, end)


_NUMBER = float | int | np.floating


def _is_score(score: object) -> bool:
    # Routers are anybody's code: text, None and arrays come as well as numbers.
    return isinstance(score, _NUMBER) and 0.0 <= float(score) <= 1.0
