"""Reading the edge model's steps, at the answer's end and ahead of it.

While a consult flies the edge goes on from its own guess, as if the verdict were to confirm it.
What it computes and asks on the way is kept and used if the answer comes to the same ids; where it
does not, it is dropped. Guesses are decided on by the answer's own rules, so they change nothing.
"""

import time
from typing import NamedTuple

import numpy as np

from edgewise.edge.base import EdgeSession, Step
from edgewise.errors import UsageError
from edgewise.events import Candidate, Reason
from edgewise.loop.consults import Consults, Flight
from edgewise.loop.latency import Latency
from edgewise.loop.state import Rules, State
from edgewise.routers.base import Router
from edgewise.sampling import Sampling

CANDIDATES = 5
"""Edge candidates reported with a token that the cloud was asked for."""


class Read(NamedTuple):
    """What the loop needs of a step, taken before the engine's next decode."""

    score: float
    proposed: int
    token: int
    logprob: float
    step: Step
    candidates: tuple[Candidate, ...] = ()

    def detailed(self) -> "Read":
        """With the edge's candidates; before the engine's next decode."""
        return (
            self if self.candidates else self._replace(candidates=self.step.candidates(CANDIDATES))
        )


class Reader:
    """The edge's steps as the loop reads them: router's score, token drawn, logprob."""

    def __init__(
        self, edge: EdgeSession, router: Router, sampling: Sampling, *, candidates: bool
    ) -> None:
        """With `candidates` every read has the edge's, not only those a consult may follow."""
        self._edge, self._router, self._sampling = edge, router, sampling
        self._candidates = candidates

    def read(self) -> Read:
        """Of the next step. Raises `UsageError` for a router whose score is none."""
        step = self._edge.step()
        score = self._router.score(step)
        if not _is_score(score):
            raise UsageError(
                f"The router {type(self._router).__name__!r} gave the score {score!r}, which is "
                "not a number from 0 to 1",
                hint="mend its score()",
                setting="router",
            )
        token = self._sampling.choose(step)
        read = Read(score, step.proposed, token, step.logprob(token), step)
        return read.detailed() if self._candidates else read


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

    def read(self) -> Read:
        """The step at the answer's end: computed on the way, or now."""
        return self._reads.pop(len(self._ids), None) or self._reader.read()

    def begin(self, flight: Flight, read: Read, state: State) -> None:
        """A flight is waited for from now on: the next guesses follow `read`'s own token."""
        if not self.guesses:
            self._edge.mark(len(self._ids))
            self._guess(state.expecting(flight.ask, self._rules), read)

    def forward(self) -> int | None:
        """One step further; the guessed id, or None where the run-ahead ends."""
        tip = self._tip
        if tip is None or not 0 < len(self.guesses) < self._rules.policy.run_ahead:
            return None
        begun = time.monotonic()
        # In detail: the answer may ask here after all, when the step is long gone.
        read = self._reader.read().detailed()
        self._latency.stepped(time.monotonic() - begun)
        self._reads[len(self._ids) + len(self.guesses)] = read
        reason = None
        if self._rules.seams is not None:
            tip = tip.reaching(read.token, [*self._ids, *self.guesses], self._rules)
        if not tip.owed:
            tip, reason = self._decided(tip, read)
        self._guess(tip, read, waits=reason == "mid_word")
        return read.token

    def follow(self, token: int) -> tuple[int, int]:
        """The answer, which holds it already, goes on with `token`.

        Returns how many guesses and how many consults that dropped.
        """
        if self.guesses and self.guesses[0] == token:
            del self.guesses[0]
            # Where the answer itself asked for nothing, or for more.
            return 0, self._drop_consults(0, len(self._ids))
        dropped = len(self.guesses)
        consults = self.drop(len(self._ids) - 1)
        self._edge.extend([token])
        return dropped, consults

    def drop(self, position: int) -> int:
        """Forget every guess; the edge session goes back to `position`. Returns the consults."""
        self._reads.clear()
        self.guesses.clear()
        self._tip = None
        if position < self._edge.position:
            self._edge.rewind(position)
        return self._drop_consults()

    def _decided(self, tip: State, read: Read) -> tuple[State, Reason]:
        """The guess at a position as the answer would decide there, its consult sent if it may."""
        ids = self._ids if self._rules.seams is None else [*self._ids, *self.guesses]
        decision = tip.decide(read.score, read.token, ids, self._rules)
        if not decision.ask or self._consults is None:
            return tip, decision.reason
        self._edge.mark(self._edge.position)
        held = self._consults.ask_ahead([*self._ids, *self.guesses], decision.ask, tip)
        if held is not None:
            return tip, held
        return tip.expecting(decision.ask, self._rules), decision.reason

    def _guess(self, state: State, read: Read, *, waits: bool = False) -> None:
        """Go on with the edge's own token, unless the answer would end with it."""
        by = "cloud" if state.owed else "edge"
        after, _ = state.write(read.token, by, self._rules, waits=waits)
        self._tip = None if after.end else after
        if self._tip is not None:
            self._edge.extend([read.token])
            self.guesses.append(read.token)

    def _drop_consults(self, start: int = 0, end: int | None = None) -> int:
        return 0 if self._consults is None else self._consults.drop(start, end)


_NUMBER = float | int | np.floating


def _is_score(score: object) -> bool:
    # Routers are anybody's code: text, None and arrays come as well as numbers.
    return isinstance(score, _NUMBER) and 0.0 <= float(score) <= 1.0
