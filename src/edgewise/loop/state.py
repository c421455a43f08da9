"""The decoder's state: everything that a rewind restores, one immutable value per position."""

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from edgewise.errors import CloudError, CloudTimeout
from edgewise.events import Candidate, FinishReason, Usage
from edgewise.loop.policy import Budget, Policy
from edgewise.loop.text import Characters, Stops
from edgewise.verdict import Verdict


class Counts(msgspec.Struct, frozen=True):
    """What `Usage` reports, so far."""

    edge: int = 0
    cloud: int = 0
    wasted: int = 0
    changing: int = 0
    calls: int = 0
    failed: int = 0
    cached: int = 0
    computed: int = 0


class Ahead(msgspec.Struct, frozen=True):
    """A token that a verdict holds and that is still to be written."""

    id: int
    logprob: float | None
    top: tuple[Candidate, ...]
    ends: bool


class State(msgspec.Struct, frozen=True, kw_only=True):
    """Where an answer stands after some tokens.

    `known` is how many ids the cloud session holds; `characters` and `stops` hold text back;
    `ahead` is what is left of a verdict; `end` is set where the answer is over.
    """

    budget: Budget
    known: int = 0
    characters: Characters = Characters()
    stops: Stops = Stops()
    ahead: tuple[Ahead, ...] = ()
    counts: Counts = Counts()
    end: FinishReason | None = None

    def answered(
        self, verdict: Verdict, ask: int, proposed: int, known: int, policy: Policy
    ) -> "State":
        """After a consult for `ask` tokens, where the edge proposed `proposed`."""
        kept = verdict.ids[:ask]
        tops = verdict.top or ((),) * len(kept)
        last = len(kept) - 1
        ahead = tuple(
            Ahead(token, logprob, top, verdict.stopped and index == last)
            for index, (token, logprob, top) in enumerate(
                zip(kept, verdict.logprobs, tops, strict=False)
            )
        )
        counts = self.counts
        return replace(
            self,
            known=known,
            budget=policy.charge(self.budget, len(kept)),
            ahead=ahead,
            counts=replace(
                counts,
                calls=counts.calls + 1,
                changing=counts.changing + (kept[0] != proposed),
                wasted=counts.wasted + len(verdict.ids) - len(kept),
                cached=counts.cached + (verdict.cached or 0),
                computed=counts.computed + (verdict.computed or 0),
            ),
        )

    def failed(self, error: CloudError, ask: int, known: int, policy: Policy) -> "State":
        """After a consult that brought nothing.

        After a timeout the cloud may still write what it was asked for, so that is charged.
        """
        charged = ask if isinstance(error, CloudTimeout) else 0
        counts = self.counts
        return replace(
            self,
            known=known,
            budget=policy.charge(self.budget, charged),
            counts=replace(counts, calls=counts.calls + 1, failed=counts.failed + 1),
        )

    def lost(self, asks: Sequence[int], policy: Policy) -> "State":
        """After consults that were sent ahead of an answer which then went another way.

        What they asked for counts as wasted, whether or not it still comes.
        """
        if not asks:
            return self
        counts = self.counts
        return replace(
            self,
            budget=policy.charge(self.budget, sum(asks)),
            counts=replace(
                counts, calls=counts.calls + len(asks), wasted=counts.wasted + sum(asks)
            ),
        )

    def usage(self, prompt_tokens: int, cached_tokens: int) -> Usage:
        """The counts of an answer that ends here; what is left of a verdict is wasted."""
        counts = self.counts
        wasted = counts.wasted + len(self.ahead)
        return Usage(
            prompt_tokens=prompt_tokens,
            cached_tokens=cached_tokens,
            edge_tokens=counts.edge,
            cloud_tokens=counts.cloud,
            wasted_tokens=wasted,
            changing_tokens=counts.changing,
            cloud_share=(counts.cloud + wasted) / (counts.edge + counts.cloud),
            cloud_calls=counts.calls,
            failed_calls=counts.failed,
            cloud_prompt_cached=counts.cached,
            cloud_prompt_computed=counts.computed,
        )
