"""Several clouds, nearest first: where one is unsure, was wrong, or fails, the next is asked.

All of it is decided where an outcome is taken, in the answer's own order, never for drafts: so
which clouds are asked does not depend on the link. Each has a threshold, a share of the output
tokens, a circuit breaker and a record of what it was sent.
"""

import math
from collections.abc import Sequence
from typing import Literal

from msgspec.structs import replace

from edgewise.cloud.base import CloudModel
from edgewise.completion import Completion
from edgewise.errors import CloudError, CloudTimeout, UsageError
from edgewise.events import Consult, SentCounts, TierUsage, Usage
from edgewise.loop.consults import Consults, Flight, Refusal
from edgewise.loop.health import Breaker, Latency
from edgewise.loop.policy import Budget, SharedBudget
from edgewise.prompts import Prompt

THRESHOLD, SHARE = 0.5, 0.01
"""Of a further cloud, where none is set."""

_UNKNOWN = 0.5
"""How unsure a cloud is taken to be that reports no logprobs, before it was compared."""


class Tier:
    """A cloud of a pair, for the pair's life."""

    def __init__(
        self,
        cloud: CloudModel,
        *,
        threshold: float = THRESHOLD,
        share: float | None = SHARE,
        trusted: bool = False,
        breaker: Breaker | None = None,
        latency: Latency | None = None,
    ) -> None:
        """It is asked where the cloud before it is unsure by `threshold`, for so large a `share` of
        the output tokens; None leaves that to the policy, as for the nearest. A `trusted` one may
        see what is local. Raises `UsageError`.
        """
        for name, value in (("tier_threshold", threshold), ("tier_share", share)):
            if value is not None and not 0 <= value <= 1:
                said = name.replace("_", "-")
                raise UsageError(f"{said} must be from 0 to 1, not {value}", setting=name)
        self.cloud, self.threshold, self.share, self.trusted = cloud, threshold, share, trusted
        self.breaker, self.latency = breaker or Breaker(), latency or Latency()
        self.shared = SharedBudget()

    def may_see(self, prompt: Prompt) -> bool:
        """Whether an answer to it may be sent there."""
        return self.trusted or not (prompt.local_only or self.cloud.local_only(prompt))


class TierLink:
    """A tier in one answer: its consults, its budget, its counts."""

    def __init__(self, tier: Tier, consults: Consults, ids: list[int]) -> None:
        """`ids` is the answer's own list; it holds the prompt."""
        self.tier, self.consults = tier, consults
        self.wanted = self.asked = self.failed = self.wrote = self.charged = 0
        self._ids, self._prompt, self._earned = ids, len(ids), len(ids)
        self._taken = self._budget = Budget() if tier.share is None else tier.shared.take()
        self._wrong: float | None = None

    def ask(self, n: int, token: int, score: float) -> Flight | Refusal | Literal["no"]:
        """Ask for `n` tokens, or as many as the budget has, where the cloud before it scores so."""
        self._earn()
        if score < self.tier.threshold:
            return "no"
        self.wanted += 1
        if self.tier.share is not None:
            if self._budget.credit < 1:
                return "budget"
            n = min(n, int(self._budget.credit))
        flight = self.consults.ask(self._ids, n, token)
        if isinstance(flight, Flight):
            self.asked += 1
            self._charge(n)
        return flight

    def inside_word(self, token: int) -> bool:
        """Whether the answer stands where this cloud, of another vocabulary, cannot be asked."""
        boundaries = self.tier.cloud.boundaries
        if boundaries is None:
            return False
        return boundaries.refused(self._ids, self._prompt, token, divided=False) is not None

    def outcome(self, flight: Flight) -> Completion | CloudError:
        """Wait for it. What failed before its deadline is not charged."""
        try:
            completion = self.consults.completion(flight)
        except CloudError as error:
            self.failed += 1
            if not isinstance(error, CloudTimeout):
                self._charge(-flight.ask)
            return error
        # Words may have more ids than were asked for.
        self._charge(max(0, len(completion.ids) - flight.ask))
        return completion

    def unsure(self, completion: Completion) -> float:
        """1 less the probability of its least likely token; more if its words were wrong lately."""
        logprobs = [one for one in completion.logprobs if one is not None]
        if not logprobs:
            return _UNKNOWN if self._wrong is None else self._wrong
        return max(1 - math.exp(min(0.0, *logprobs)), self._wrong or 0.0)

    def compared(self, *, agrees: bool, known: bool) -> None:
        """The next cloud agrees with its words, or rejects them."""
        before = (0.0 if known else _UNKNOWN) if self._wrong is None else self._wrong
        self._wrong = (before + (not agrees)) / 2

    def settle(self) -> None:
        """The answer is over: give back what is left of the budget."""
        self._earn()
        if self.tier.share is not None:
            self.tier.shared.settle(self._taken, self._budget)

    def usage(self) -> TierUsage:
        sent = self.consults.sent
        return TierUsage(
            cloud=sent.host,
            wanted=self.wanted,
            asked=self.asked,
            failed=self.failed,
            wrote=self.wrote,
            sent=sent.counts(),
        )

    def _earn(self) -> None:
        written, self._earned = len(self._ids) - self._earned, len(self._ids)
        self._budget = self._budget.plus(written * (self.tier.share or 0.0), 0.0)

    def _charge(self, tokens: int) -> None:
        self.charged += tokens
        self._budget = replace(self._budget, credit=self._budget.credit - tokens)


class TieredConsults:
    """The consults of an answer with several clouds, as `Consults` is with one.

    Drafts send consults to the nearest only; nothing is prefetched to the others.
    """

    def __init__(self, links: Sequence[TierLink], cap: int | None = None) -> None:
        """No more than `cap` tokens are asked for, of all together."""
        self._links, self._nearest, self._cap = links, links[0].consults, cap
        self.latency = self._nearest.latency
        self._n = self._token = 0
        self._over: list[tuple[TierLink, Flight, Completion | CloudError]] = []
        self._flying: tuple[TierLink, Flight] | None = None
        # Whose words are to be taken, among those that are over; then whose were.
        self._best: tuple[TierLink, Flight, Completion] | None = None
        self._calls = self._failed = self._unused = 0
        self.prefetch, self.ask_ahead = self._nearest.prefetch, self._nearest.ask_ahead

    @property
    def dropped(self) -> int:
        """Consults of an answer that then went another way."""
        return sum(link.consults.dropped for link in self._links)

    @property
    def wasted(self) -> int:
        """Tokens that were asked for and not used, also those of a cloud that was overruled."""
        return self._unused + sum(link.consults.wasted for link in self._links)

    @property
    def waited(self) -> float:
        """Seconds that were spent on completions."""
        return sum(link.consults.waited for link in self._links)

    def ask(self, ids: Sequence[int], n: int, token: int) -> Flight | Refusal:
        """As `Consults.ask`: of the nearest that can be asked. `ids` is the answer's own list."""
        self._n, self._token, self._best = n, token, None
        self._over.clear()
        refused = self._ask_from(0, 1.0)
        return refused if self._flying is None else self._flying[1]

    def lands(self, flight: Flight) -> bool:
        """As `Consults.lands`; where the outcome calls for the next cloud, that is asked."""
        while self._flying is not None:
            if not self._flying[0].consults.lands(self._flying[1]):
                return False
            self._take()
        return True

    def completion(self, flight: Flight) -> Completion:
        """The words that stand. Raises the last `CloudError` where no cloud answered."""
        while self._flying is not None:
            self._take()
        if self._best is not None:
            return self._best[2]
        error = self._over[-1][2]
        assert isinstance(error, CloudError)
        raise error

    def judged(self, *, changed: bool, kept: int) -> None:
        """As `Consults.judged`."""
        assert self._best is not None
        link = self._best[0]
        link.consults.judged(changed=changed, kept=kept)
        link.wrote += kept

    def report(self, flight: Flight, outcome: Completion | CloudError, index: int) -> list[Consult]:
        """The events of all consults for token `index`; `outcome` is that of the loop."""
        events: list[Consult] = []
        for link, asked, own in self._over:
            used = own is (self._best[2] if self._best else self._over[-1][2])
            events += link.consults.report(asked, outcome if used else own, index)
            if not used:
                self._calls += 1
                self._failed += isinstance(own, CloudError)
                late = asked.ask if isinstance(own, CloudTimeout) else 0
                self._unused += len(own.ids) if isinstance(own, Completion) else late
        return events

    def summed(self, usage: Usage, left: int) -> Usage:
        """As `Consults.summed`, and for each cloud."""
        if self._best is not None:
            self._best[0].wrote -= left
        tiers = tuple(link.usage() for link in self._links)
        return replace(
            usage,
            cloud_calls=usage.cloud_calls + self.dropped + self._calls,
            failed_calls=usage.failed_calls + self._failed,
            sent=_summed([tier.sent for tier in tiers]),
            tiers=tiers,
        )

    def drop(self, start: int = 0, end: float = math.inf) -> int:
        """As `Consults.drop`."""
        return sum(link.consults.drop(start, end) for link in self._links)

    def _take(self) -> None:
        """The outcome of what flies; then the next cloud, where it is wanted."""
        assert self._flying is not None
        (link, flight), self._flying = self._flying, None
        outcome = link.outcome(flight)
        self._over.append((link, flight, outcome))
        if isinstance(outcome, Completion):
            self._compare(link, flight, outcome)
        best = self._best
        score = best[0].unsure(best[2]) if best else 1.0
        self._ask_from(self._links.index(link) + 1, score)

    def _compare(self, link: TierLink, flight: Flight, completion: Completion) -> None:
        """Words that a farther cloud agrees with stand; others it overrules."""
        agrees = False
        if self._best is not None:
            nearer, _, before = self._best
            agrees = all(a == b for a, b in zip(before.ids, completion.ids, strict=False))
            nearer.compared(agrees=agrees, known=any(one is not None for one in before.logprobs))
        if not agrees:
            self._best = link, flight, completion

    def _ask_from(self, place: int, score: float) -> Refusal:
        """The first that can be asked, from `place` on; the first refusal where none can."""
        refused: Refusal | None = None
        n = self._n
        if self._cap is not None:
            n = min(n, self._cap - sum(link.charged for link in self._links))
        if n < 1:
            return "cap"
        for link in self._links[place:]:
            first = link is self._links[0]  # of which the state knows the word boundaries
            if not first and link.inside_word(self._token):
                continue
            outcome = link.ask(n, self._token, score)
            if isinstance(outcome, Flight):
                self._flying = link, outcome
                break
            if first and outcome == "mid_word":
                # It can be asked in a moment.
                return outcome
            if outcome != "no":
                refused = refused or outcome
        return refused or "budget"


AnyConsults = Consults | TieredConsults


def _summed(counts: Sequence[SentCounts]) -> SentCounts:
    return SentCounts(
        host=", ".join(dict.fromkeys(one.host for one in counts if one.host)) or None,
        consults=sum(one.consults for one in counts),
        prefetches=sum(one.prefetches for one in counts),
        bytes=sum(one.bytes for one in counts),
        tokens=sum(one.tokens for one in counts),
    )
