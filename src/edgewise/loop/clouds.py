"""The cloud models of one answer, asked in order: the next if one fails or is unsure."""

from collections.abc import Sequence

from edgewise.completion import Completion
from edgewise.errors import CloudError, CloudProtocolError, NothingUsable
from edgewise.events import Consult
from edgewise.loop.counts import CloudCounts
from edgewise.loop.one_cloud import CloudConsults, Flight, Refusal


class Clouds:
    """The cloud models of one answer and the requests to them; the decoding loop sees one cloud.

    They are asked in the order of the list: the next if one fails or is unsure of its completion.
    The first is called the nearest. Prefetches, draft tokens to verify and requests for positions
    behind draft tokens go to it alone.
    """

    def __init__(self, clouds: Sequence[CloudConsults], *, cap: int | None) -> None:
        """`clouds` are nearest first; `cap`: most tokens to ask of all together, or None."""
        nearest = clouds[0]
        self._clouds, self._cap = clouds, cap
        self.counts = [one.counts for one in clouds]
        self.latency = nearest.latency
        self._n = 0
        self._token: int | None = None
        self._over: list[tuple[CloudConsults, Flight, Completion | CloudError]] = []
        self._flying: tuple[CloudConsults, Flight] | None = None
        # Whose words are to be taken, among those that are over; then whose were.
        self._best: tuple[CloudConsults, Completion] | None = None
        self.prefetches, self.prefetch = nearest.prefetches, nearest.prefetch
        # Of the nearest alone: whether the next is asked must not depend on when replies arrive.
        self.ask_for_draft = nearest.ask_for_draft
        self.drop, self.verify = nearest.drop, nearest.verify
        self.given_up, self.alternates = nearest.given_up, nearest.alternates
        self.passages = nearest.tier.cloud.reads_passages

    def ignore_breakers(self) -> None:
        """From now on send requests even while a circuit breaker is open: the edge is lost."""
        for cloud in self._clouds:
            cloud.ignores_breaker = True

    @property
    def requested(self) -> int:
        """How many tokens were asked for in the request that finished last since `ask`."""
        return self._over[-1][1].ask

    @property
    def wasted(self) -> int:
        """Tokens in vain so far: of dropped requests and of completions overruled by another cloud.

        Requests for a whole answer do not count.
        """
        return sum(cloud.counts.unused for cloud in self._clouds)

    @property
    def waited(self) -> float:
        """Seconds that the answer has spent so far on waiting for replies."""
        return sum(cloud.waited for cloud in self._clouds)

    @property
    def writer(self) -> CloudCounts:
        """Counts of the cloud that completed the last `ask`; of the nearest before one has."""
        return (self._best[0] if self._best else self._clouds[0]).counts

    def ask(self, n: int, token: int | None) -> int | Refusal:
        """Ask the first cloud that may be asked now for `n` tokens; `completion` waits for them.

        Circuit breakers, limits on cost and tokens, and privacy rules may refuse. `token` is what
        the edge would write here: a cloud after the first, if its vocabulary is not the edge's, is
        skipped where `token` does not begin a word. None (there is no edge) skips no cloud. Returns
        how many tokens were asked for, at most `n`, or why no cloud was asked.
        """
        self._n, self._token, self._best = n, token, None
        self._over.clear()
        refused = self._ask_from(0, 1.0)
        return refused if self._flying is None else self._flying[1].ask

    def outcome(self, flight: Flight, index: int) -> tuple[Completion | CloudError, Consult]:
        """Wait for the reply to `flight`, a request to verify draft tokens, and count the request.

        `flight` is what `verify` returned: call this once for each. `index` is the place of the
        first of these tokens in the answer, from 0. Returns the verdicts, or the error (a
        `CloudProtocolError` if they do not fit the tokens), and the event that reports the request.
        """
        nearest = self._clouds[0]
        nearest.counts.wanted += 1
        outcome, refused = nearest.outcome(flight), None
        if isinstance(outcome, Completion) and not _is_verdict(outcome, flight.verify):
            refused = CloudProtocolError("The cloud verified another number of tokens than it got.")
        event = nearest.event(flight, outcome, index, refused=refused)
        outcome = refused or outcome
        if isinstance(outcome, CloudError) and not isinstance(outcome, NothingUsable):
            # An exact answer is not one any more, and a lost cloud is waited for once.
            nearest.ignores_breaker = False
        return outcome, event

    def due(self) -> bool:
        """Return whether `completion` would return at once; first wait for a reply that is due.

        `Latency.patience` says how long. If a reply is an error, or its cloud is unsure of it, the
        next cloud is asked, and its reply awaited likewise.
        """
        while self._flying is not None:
            if not self._flying[0].due(self._flying[1]):
                return False
            self._collect_outcome()
        return True

    def completion(self) -> Completion:
        """Wait for the completion that `ask` requested; return it, or a later cloud's that differs.

        Raises the last `CloudError` if all clouds that were asked failed.
        """
        while self._flying is not None:
            self._collect_outcome()
        if self._best is not None:
            return self._best[1]
        error = self._over[-1][2]
        assert isinstance(error, CloudError)
        raise error

    def events_for(
        self, index: int, *, refused: CloudError | None = None, changed: bool = False
    ) -> list[Consult]:
        """Count the requests made since the last `ask`; return the events that report them.

        `index` is the completion's place in the answer, from 0. `refused` says why the completion
        cannot be used (None: it can). `changed`: its first token is not the edge's.
        """
        if self._best is not None:
            # Only the nearest's consults are drafted beyond, whoever overrules it.
            self.latency.draft_judged(changed=changed)
        taken = self._best[0] if self._best else self._over[-1][0]
        return [
            cloud.event(flight, outcome, index, refused=refused, overruled=cloud is not taken)
            for cloud, flight, outcome in self._over
        ]

    def _collect_outcome(self) -> None:
        """Take the outcome of the request in flight; then ask the next cloud, if it is wanted."""
        assert self._flying is not None
        (cloud, flight), self._flying = self._flying, None
        outcome = cloud.outcome(flight)
        self._over.append((cloud, flight, outcome))
        if isinstance(outcome, Completion) and not self._confirms(outcome):
            self._best = cloud, outcome
        if cloud is not self._clouds[-1]:
            score = self._best[0].unsure(self._best[1]) if self._best else 1.0
            self._ask_from(self._clouds.index(cloud) + 1, score)

    def _confirms(self, completion: Completion) -> bool:
        """Whether a farther cloud's completion agrees with the best so far, if there is one."""
        if self._best is None:
            return False
        nearer, before = self._best
        agrees = all(a == b for a, b in zip(before.ids, completion.ids, strict=False))
        nearer.compared(before, agrees=agrees)
        return agrees

    def _ask_from(self, place: int, score: float) -> Refusal:
        """Ask the first cloud from `place` on that can be asked; return the first refusal."""
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
    """Whether the outcome judges each of `verify` tokens, and replaces what it rejects."""
    if outcome.stand is None:
        return len(outcome.verified) == verify
    return 0 <= outcome.stand <= verify and bool(outcome.ids) == (outcome.stand < verify)
