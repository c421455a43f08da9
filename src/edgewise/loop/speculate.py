"""Speculation: the edge model drafts tokens while a request to the cloud is in flight.

It goes on as if the cloud were to write the edge's own token. If so, the drafts' steps
(predictions) and requests are used; if not, they are dropped: speculation changes no answer.
"""

import time
from collections.abc import Sequence

from edgewise.edge.base import EdgeSession
from edgewise.events import Reason
from edgewise.loop.clouds import Clouds
from edgewise.loop.state import EdgeStep, Rules, State
from edgewise.routers.base import Router, checked_score


class Speculation:
    """Computes the edge's steps (predictions), also after draft ids (`drafts`) not yet kept."""

    def __init__(
        self,
        ids: list[int],
        edge: EdgeSession,
        router: Router,
        consults: Clouds | None,
        rules: Rules,
    ) -> None:
        """`ids` is the answer's own list of token ids, prompt included, which the loop extends."""
        self._ids, self._edge, self._router, self._consults = ids, edge, router, consults
        self._rules, self._greedy = rules, rules.sampling.greedy
        self.drafts: list[int] = []
        self._steps: dict[int, EdgeStep] = {}
        self._tip: State | None = None

    @property
    def computed(self) -> int:
        """How many token ids are in the edge's KV cache; 0 if its engine does not report it."""
        return self._edge.computed

    def next_step(self) -> EdgeStep:
        """Return the step at the answer's next position: the one made for a draft, or a new one.

        Raises `EdgeError`, and `UsageError` for an invalid score or a grammar beyond its limits.
        """
        return self._steps.pop(len(self._ids), None) or self._step_after(())

    def rest(self) -> None:
        """Tell the edge's engine that no step will be wanted until the cloud has answered."""
        self._edge.rest()

    def begin(self, ask: int, edge_step: EdgeStep, state: State) -> None:
        """Make the first draft while a request for `ask` tokens is in flight, if there is none yet.

        It is the edge's own token at `edge_step`, the answer's next step; `state` is the answer's.
        """
        if not self.drafts:
            # Where rejected drafts are dropped, some engines go back to checkpoints alone.
            self._edge.checkpoint(len(self._ids))
            self._draft(state.expecting(ask, self._rules), edge_step, None)

    def forward(self) -> int | None:
        """Draft one more token and return its id; perhaps ask the cloud for this position, too.

        Returns None if there are no drafts yet, or already `Policy.speculate`, or if the answer
        would end with this token. Raises what `next_step` raises.
        """
        tip, ids = self._tip, [*self._ids, *self.drafts]
        if tip is None or not 0 < len(self.drafts) < self._rules.policy.speculate:
            return None
        begun = time.monotonic()
        # In detail: the answer may consult here after all, when the step is long gone.
        edge_step = self._steps[len(ids)] = self._step_after(self.drafts).detailed()
        if self._consults is not None:
            self._consults.latency.step_took(time.monotonic() - begun)
        tip, reason = tip.after_draft(edge_step.token, ids, self._rules), None
        if not tip.expected:
            tip, reason = self._decided(tip, edge_step, ids)
        self._draft(tip, edge_step, reason)
        return edge_step.token if self._tip is not None else None

    def follow(self, token: int, *, corrected: bool = False) -> tuple[int, int]:
        """Take `token`, which the caller has appended to the answer's ids, as the answer's next.

        If it is the first draft, the other drafts stay; if not, or if it was `corrected` by the
        cloud, all are dropped. Returns how many drafts and how many requests were dropped.
        """
        # A correction may be a whole sentence that begins like the edge's.
        if self.drafts and self.drafts[0] == token and not corrected:
            del self.drafts[0]
            # Within a completion nobody read it.
            self._steps.pop(len(self._ids) - 1, None)
            # At this position the answer asked for nothing, or for more.
            return 0, self._consults.drop(0, len(self._ids)) if self._consults else 0
        dropped = len(self.drafts)
        # All that is ahead of the answer lies behind a draft.
        consults = self.drop(len(self._ids) - 1) if dropped else 0
        self._edge.extend([token])
        return dropped, consults

    def drop(self, position: int) -> int:
        """Drop all drafts; the edge keeps `position` ids. Return how many requests were dropped."""
        self._steps.clear()
        self.drafts.clear()
        self._tip = None
        if position < self._edge.position:
            self._edge.rewind(position)
        return self._consults.drop() if self._consults else 0

    def _step_after(self, drafts: Sequence[int]) -> EdgeStep:
        """Read the step after the answer and `drafts`."""
        step, sampling = self._edge.step(), self._rules.sampling
        score, forced = checked_score(self._router, step), False
        if (constraint := self._rules.constraint) is None:
            token = step.proposed if self._greedy else sampling.choose(step)
        else:
            allowed = constraint.allowed(self._ids, drafts)
            token, forced = step.proposed, allowed.forced
            likeliest = token < len(allowed.mask) and bool(allowed.mask[token])
            if not (self._greedy and likeliest):
                token = sampling.choose(step, allowed.mask)
        edge_step = EdgeStep(score, token, step.logprob(token), step, forced=forced)
        return edge_step.detailed() if self._rules.candidates else edge_step

    def _decided(self, tip: State, edge_step: EdgeStep, ids: Sequence[int]) -> tuple[State, Reason]:
        """Decide as the answer would here, and send the request if it may be sent ahead."""
        decision = tip.decide(edge_step, ids, self._rules)
        if not decision.ask or self._consults is None:
            return tip, decision.reason
        self._edge.checkpoint(len(ids))
        refused = self._consults.ask_for_draft(ids, decision.ask, tip.budget)
        if refused is not None:
            return tip, refused
        return tip.expecting(decision.ask, self._rules), decision.reason

    def _draft(self, state: State, edge_step: EdgeStep, reason: Reason | None) -> None:
        """Add the edge's own token to the drafts, unless the answer would end with it."""
        by = "cloud" if state.expected else "edge"
        after, _ = state.write(edge_step.token, by, self._rules, reason)
        self._tip = None if after.end else after
        if self._tip is not None:
            self._edge.extend([edge_step.token])
            self.drafts.append(edge_step.token)
