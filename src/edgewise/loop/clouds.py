"""The clouds of an answer, nearest first: where one is unsure, was wrong, or fails, ask the next.

All of it is decided where an outcome is taken, in the answer's own order, never for drafts: so
which clouds are asked does not depend on the link. Each has a threshold, a share of the output
tokens, a circuit breaker and a record of what it was sent.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from edgewise.completion import Completion
from edgewise.errors import CloudError, CloudProtocolError, CloudTimeout
from edgewise.events import Consult, SentCounts, Usage
from edgewise.loop.one_cloud import CloudConsults, Flight, Refusal


class Clouds:
    """All consults of an answer. To the loop a token's are one, of whichever clouds they are.

    Drafts send consults to the nearest only; nothing is prefetched to the others. `waited` seconds
    were spent on completions.
    """

    def __init__(self, clouds: Sequence[CloudConsults], *, cap: int | None, several: bool) -> None:
        """`cap` limits the tokens asked of `several` clouds together."""
        nearest = clouds[0]
        self._clouds, self._several, self._cap = clouds, several, cap if several else None
        self.latency = nearest.latency
        self._n = 0
        self._token: int | None = None
        self._over: list[tuple[CloudConsults, Flight, Completion | CloudError]] = []
        self._flying: tuple[CloudConsults, Flight] | None = None
        # Whose words are to be taken, among those that are over; then whose were.
        self._best: tuple[CloudConsults, Completion] | None = None
        self._calls = self._failed = self._unused = 0
        self.waited = 0.0
        self.prefetches, self.prefetch = nearest.prefetches, nearest.prefetch
        self.ask_for_draft = nearest.ask_for_draft
        self.drop, self.verify = nearest.drop, nearest.verify
        self.given_up = nearest.given_up

    def ignore_breakers(self) -> None:
        """From here on nobody but a cloud can write: no consult is refused for earlier failures."""
        for cloud in self._clouds:
            cloud.ignores_breaker = True

    @property
    def requested(self) -> int:
        """Tokens that the last consult asked for."""
        return self._over[-1][1].ask

    @property
    def wasted(self) -> int:
        """Tokens that were asked for and not used, also those of a cloud that was overruled."""
        return self._unused + sum(cloud.wasted for cloud in self._clouds)

    def ask(self, n: int, token: int | None) -> int | Refusal:
        """Ask the nearest cloud that can be asked for `n` tokens; the edge would write `token`.

        None: there is no edge, and no word boundary is waited for. Returns how many were requested,
        or why none were.
        """
        self._n, self._token, self._best = n, token, None
        self._over.clear()
        refused = self._ask_from(0, 1.0)
        return refused if self._flying is None else self._flying[1].ask

    @property
    def alternates(self) -> bool:
        """`CloudConsults.alternates` of the nearest, the only one that verifies."""
        return self._clouds[0].alternates

    def outcome(self, flight: Flight, index: int) -> tuple[Completion | CloudError, Consult]:
        """Wait for a verification by the nearest cloud, of a block that begins at token `index`."""
        nearest = self._clouds[0]
        nearest.wanted += 1
        nearest.calls += 1
        outcome = nearest.outcome(flight)
        if isinstance(outcome, Completion) and not _is_verdict(outcome, flight.verify):
            outcome = CloudProtocolError("The cloud verified another number of tokens than it got.")
        if isinstance(outcome, CloudError):
            # An exact answer is not one any more, and a lost cloud is waited for once.
            nearest.ignores_breaker = False
        self.waited = sum(one.waited for one in self._clouds)
        return outcome, nearest.event(flight, outcome, index)

    @property
    def passages(self) -> bool:
        """Whether the nearest verifies by passages."""
        return self._clouds[0].tier.cloud.reads_passages

    def corrected(self, tokens: int = 1) -> None:
        """The nearest cloud wrote so many tokens of the answer."""
        self._clouds[0].wrote += tokens

    def due(self) -> bool:
        """`CloudConsults.due`; if the outcome calls for the next cloud, asks that."""
        while self._flying is not None:
            if not self._flying[0].due(self._flying[1]):
                return False
            self._collect_outcome()
        return True

    def completion(self) -> Completion:
        """The words that stand. Raises the last `CloudError` where no cloud answered."""
        while self._flying is not None:
            self._collect_outcome()
        if self._best is not None:
            return self._best[1]
        error = self._over[-1][2]
        assert isinstance(error, CloudError)
        raise error

    def events_for(
        self, outcome: Completion | CloudError, index: int, *, kept: int = 0, changed: bool = False
    ) -> list[Consult]:
        """The events of all consults for token `index`; `outcome` is that of the loop.

        So many tokens of the completion are `kept`; `changed`: the first is not the edge's.
        """
        if self._best is not None:
            # Only the nearest's consults are drafted beyond, whoever overrules it.
            self.latency.draft_judged(changed=changed)
            self._best[0].wrote += kept
        events: list[Consult] = []
        for cloud, asked, own in self._over:
            used = own is (self._best[1] if self._best else self._over[-1][2])
            events.append(cloud.event(asked, outcome if used else own, index))
            if not used:
                self._calls += 1
                self._failed += isinstance(own, CloudError)
                late = asked.ask if isinstance(own, CloudTimeout) else 0
                self._unused += len(own.ids) if isinstance(own, Completion) else late
        return events

    def with_totals(self, usage: Usage, left: int) -> Usage:
        """The counts of an answer, of which `left` tokens of the last completion are not used."""
        if self._best is not None:
            self._best[0].wrote -= left
        tiers = tuple(cloud.usage() for cloud in self._clouds)
        dropped = sum(cloud.dropped for cloud in self._clouds)
        return replace(
            usage,
            cloud_calls=usage.cloud_calls + dropped + self._calls,
            failed_calls=usage.failed_calls + self._failed,
            sent=_summed([tier.sent for tier in tiers]),
            tiers=tiers if self._several else (),
        )

    def _collect_outcome(self) -> None:
        """The outcome of what flies; then the next cloud, where it is wanted."""
        assert self._flying is not None
        (cloud, flight), self._flying = self._flying, None
        outcome = cloud.outcome(flight)
        self._over.append((cloud, flight, outcome))
        if isinstance(outcome, Completion) and not self._confirms(outcome):
            self._best = cloud, outcome
        self.waited = sum(one.waited for one in self._clouds)
        if cloud is not self._clouds[-1]:
            score = self._best[0].unsure(self._best[1]) if self._best else 1.0
            self._ask_from(self._clouds.index(cloud) + 1, score)

    def _confirms(self, completion: Completion) -> bool:
        """Whether a farther cloud agrees with the words so far; else it overrules them."""
        if self._best is None:
            return False
        nearer, before = self._best
        agrees = all(a == b for a, b in zip(before.ids, completion.ids, strict=False))
        nearer.compared(before, agrees=agrees)
        return agrees

    def _ask_from(self, place: int, score: float) -> Refusal:
        """The first that can be asked, from `place` on; the first refusal where none can."""
        refused: Refusal | None = None
        n = self._n
        if self._cap is not None:
            n = min(n, self._cap - sum(cloud.charged for cloud in self._clouds))
        if n < 1:
            return "cap"
        for cloud in self._clouds[place:]:
            first = cloud is self._clouds[0]  # of which the state knows the word boundaries
            if not first and self._token is not None and cloud.inside_word(self._token):
                continue
            outcome = cloud.ask(n, score)
            if isinstance(outcome, Flight):
                self._flying = cloud, outcome
                break
            if first and outcome == "mid_word":
                # It can be asked in a moment.
                return outcome
            if outcome != "no":
                refused = refused or outcome
        return refused or "budget"


def _is_verdict(outcome: Completion, verify: int) -> bool:
    """Whether it says of each of so many tokens whether it stands, and what is in its place."""
    if outcome.stand is None:
        return len(outcome.verified) == verify
    return 0 <= outcome.stand <= verify and bool(outcome.ids) == (outcome.stand < verify)


def _summed(counts: Sequence[SentCounts]) -> SentCounts:
    return SentCounts(
        host=", ".join(dict.fromkeys(one.host for one in counts if one.host)) or None,
        consults=sum(one.consults for one in counts),
        prefetches=sum(one.prefetches for one in counts),
        bytes=sum(one.bytes for one in counts),
        tokens=sum(one.tokens for one in counts),
    )
