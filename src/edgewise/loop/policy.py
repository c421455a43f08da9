"""When to ask the cloud, how much it may write and how long it may take: policy and budgets."""

import math
import threading
from collections import deque
from typing import Literal

import msgspec
import numpy as np
from msgspec.structs import replace

from edgewise.completion import Verified
from edgewise.errors import CloudError, NothingUsable, require
from edgewise.events import Reason
from edgewise.loop.health import Latency

# Of a `SharedBudget` an answer takes half: enough for several decisive tokens close together.
INITIAL_BUCKET = 16.0
"""Initial level of the token bucket: tokens that the cloud may write before any were earned."""

# Easy answers save for hard ones, but not without end.
MAX_BUCKET = 64.0
"""Size of the token bucket, in tokens."""

# A lost packet costs 0.2 s or more.
SHORTEST_DEADLINE, LONGEST_DEADLINE = 0.5, 5.0
"""Bounds, in seconds, of a deadline that follows the latency."""

LONGEST_READING = 60.0
"""The most time, in seconds, that `deadline_now` allows the cloud for reading a prompt."""

# Seconds a prompt token, before any was measured: a small model on a few processor cores.
_UNKNOWN_READING = 0.02

# Tokens per consult where the cloud writes all: a token at a time each would cost a round trip.
CLOUD_SPAN = 16

# A reply rarely takes four times the median of the last ones, and then a packet was lost.
_PATIENCE = 4.0

# Log-odds by which a token above the share raises the threshold. Ten raise the odds by e, so that
# no single consult shuts out the next one, and a whole bucket by as much as calibration may miss.
_GAIN = 0.1

RATIO, LEAST_RATIO = 0.3, 0.02
"""Values of `ratio_now`: at the bucket's initial level, and the lowest."""

# By which a token above the share lowers its logarithm: a full bucket verifies exactly, and an
# answer with fifteen corrections too many moves it by a third.
_RATIO_GAIN = -math.log(RATIO) / (MAX_BUCKET - INITIAL_BUCKET)

# `Escalation`: answers that the quantile is of, those before any is chosen, and the most that may
# be saved up: after a hundred easy answers not all of ten hard ones are chosen.
_SEEN, _FEW, _MOST = 128, 8, 4.0


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """How much the cloud may still write; changes with every token of an answer (part of `State`).

    `bucket`: level of the answer's token bucket, the tokens that the cloud may write now, or a debt
    if below 0. Each output token adds `Policy.cloud_share`. `reserve`: the other tokens in the
    bucket of all answers (`SharedBudget`); this one cannot spend them, but they move its threshold.
    `told`: the `bucket` last reported there, None without a `SharedBudget`. `charged`: tokens that
    count against the answer's cap, `Policy.max_cloud_tokens`.
    """

    bucket: float = INITIAL_BUCKET
    reserve: float = 0.0
    told: float | None = None
    charged: int = 0

    def plus(self, tokens: float) -> "Budget":
        """Return the budget with `tokens` more in the bucket, up to `MAX_BUCKET`."""
        return replace(self, bucket=min(self.bucket + tokens, MAX_BUCKET))


class Decision(msgspec.Struct, frozen=True):
    """Whether to ask the cloud at a position: for `ask` tokens, or 0 to keep the edge's token.

    `reason` says why. `threshold` is the one in force, None where the cloud can never be asked.
    """

    ask: int
    reason: Reason
    threshold: float | None = None


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """When an answer asks the cloud, and how much the cloud may write.

    The cloud is asked wherever the router's score reaches `threshold`. `cloud_share` is the share
    of output tokens that the cloud may write (None: any). With it a token bucket bounds this share
    over all answers, and the bucket's level moves the threshold in log-odds: it is `threshold` at
    the initial level, lower above that, higher below. `max_cloud_tokens` caps one answer: tokens
    that the cloud returned count, and those asked for in a request that timed out. `span`: tokens
    to ask for at a time (words, if the vocabularies differ). `deadline`: seconds per request (None:
    by the measured latency). `speculate`: most draft tokens while a request is in flight. After a
    failed request `on_cloud_error` keeps the edge's token ("edge") or raises the error. If the edge
    model's server is lost, `on_edge_error` raises ("stop") or lets the cloud write the rest.

    With `verify` "on", and a cloud that can verify, no router is asked: the cloud reads every token
    of the edge's, and replaces one that it finds too unlikely (see `ratio_now`). "exact" replaces
    every token that is not the cloud's own choice. Creating a policy raises `UsageError` for a
    value out of range.
    """

    threshold: float = 0.5
    cloud_share: float | None = None
    max_cloud_tokens: int | None = None
    span: int = 1
    deadline: float | None = None
    on_cloud_error: Literal["edge", "raise"] = "edge"
    on_edge_error: Literal["stop", "cloud"] = "stop"
    speculate: int = 0
    verify: Literal["off", "on", "exact"] = "off"

    def __post_init__(self) -> None:
        share, cap, deadline = self.cloud_share, self.max_cloud_tokens, self.deadline
        require(0 <= self.threshold <= 1, "threshold", "from 0 to 1", self.threshold)
        require(share is None or 0 <= share <= 1, "cloud_share", "from 0 to 1 (5% is 0.05)", share)
        require(cap is None or cap >= 0, "max_cloud_tokens", "0 or more", cap)
        require(self.span >= 1, "span", "1 or more", self.span)
        require(self.speculate >= 0, "speculate", "0 or more", self.speculate)
        above = deadline is None or 0 < deadline < math.inf
        require(above, "deadline", "positive, in seconds", deadline)

    @property
    def asks(self) -> bool:
        """Whether the cloud can ever be asked: `cloud_share` and `max_cloud_tokens` are not 0."""
        return self.cloud_share != 0 and self.max_cloud_tokens != 0

    @property
    def requires_cloud(self) -> bool:
        """Whether an answer needs the cloud: `on_cloud_error` is "raise", or `verify` is "exact".

        Requests then get more time, and ignore the circuit breaker until a verification fails.
        """
        return self.on_cloud_error == "raise" or self.verify == "exact"

    def raises(self, error: CloudError) -> bool:
        """Whether `error` ends the answer: True if `on_cloud_error` is "raise".

        For `NothingUsable` (a valid reply that cannot be used) `excludes_edge` must be True, too.
        """
        failed = not isinstance(error, NothingUsable) or self.excludes_edge
        return self.on_cloud_error == "raise" and failed

    @property
    def excludes_edge(self) -> bool:
        """Whether only the cloud writes: `cloud_share` is 1 and `on_cloud_error` is "raise"."""
        return self.on_cloud_error == "raise" and self.cloud_share == 1

    def may_ask(self, budget: Budget) -> bool:
        """Whether the cloud may be asked: `cloud_share` is not 0, the answer's cap not used up."""
        return self.asks and self._room(budget) > 0

    def may_ask_for_draft(self, budget: Budget, ask: int, wasted: int) -> bool:
        """Whether a request for `ask` tokens may be sent behind drafts, which may yet be rejected.

        False with `max_cloud_tokens`, or a `cloud_share` of 1. With another share the bucket must
        hold `ask` + `wasted` tokens; `wasted` are those asked for in vain in the answer so far.
        """
        # A cap is a promise about the answer: no request in vain may use it up.
        if self.max_cloud_tokens is not None or self.cloud_share == 1:
            return False
        return self.cloud_share is None or budget.bucket - wasted >= ask

    @property
    def verifies(self) -> bool:
        """Whether the cloud is to verify each token: `verify` is not "off", and both may write."""
        return self.verify != "off" and self.asks and self.cloud_share != 1

    def refuses(self, budget: Budget, *, first: bool, passages: bool = False) -> Reason | None:
        """Return why the cloud may not verify the next draft tokens; None if it may.

        "cap": `max_cloud_tokens` are used up. "budget": at the `first` token of an answer the
        bucket is so low that the ratio would be below `LEAST_RATIO` (see `ratio_now`). With
        `passages` (the cloud judges sentences) it is "budget" instead at any token where the bucket
        holds less than a token, and `cloud_share` is below 1.
        """
        if self.max_cloud_tokens is not None and self._room(budget) < 1:
            return "cap"
        if passages:
            return "budget" if self.cloud_share not in (None, 1) and budget.bucket < 1 else None
        # Later no debt refuses: an edge left alone in the cloud's style is worse than no cloud.
        indebted = self.cloud_share is not None and self._ratio(budget) < LEAST_RATIO
        return "budget" if first and indebted else None

    def ratio_now(self, budget: Budget, *, first: bool) -> float:
        """Return the ratio that an edge token must reach to be accepted, from 0 to 1.

        `Verified.ratio` is the cloud's probability of this token over that of its likeliest. The
        result is 1 with "exact", else `RATIO`. Under a cloud share it falls to `LEAST_RATIO` below
        the bucket's initial level, and rises to 1 above it. The `first` token of an answer must be
        the cloud's own choice (result 1) unless the bucket is below its initial level.
        """
        if self.verify == "exact":
            return 1.0
        ratio = RATIO if self.cloud_share is None else max(LEAST_RATIO, self._ratio(budget))
        return 1.0 if first and ratio >= RATIO else ratio

    def stands(self, token: int, verified: Verified, ratio: float) -> bool:
        """Whether the edge's `token` is accepted: it is the cloud's choice, or its ratio is enough.

        `verified` is the cloud's verdict on it. Its ratio must reach `ratio` (from `ratio_now`),
        which must be below 1. This is the rule of speculative cascades (Narasimhan et al. 2024,
        arXiv 2405.19261) for one token.
        """
        if token == verified.id:
            return True
        return ratio < 1 and verified.ratio >= ratio

    def edge_alone(self) -> "Policy":
        """Return this policy, but the cloud is never asked."""
        return replace(self, cloud_share=0.0)

    def cloud_alone(self) -> "Policy":
        """Return this policy, but the cloud writes all, `CLOUD_SPAN` tokens at a time, uncapped."""
        return replace(self, cloud_share=1.0, span=CLOUD_SPAN, max_cloud_tokens=None, verify="off")

    def without_edge(self) -> "Policy":
        """Return the policy for a lost edge: the cloud writes all the rest, under the same cap."""
        return replace(self, cloud_share=1.0, span=max(self.span, CLOUD_SPAN), speculate=0)

    def decide(self, score: float, budget: Budget) -> Decision:
        """Return whether to ask the cloud at a position with this router `score`, and why.

        `Decision.ask` is how many tokens to ask for: `span`, or less if the cap or the bucket
        leaves less; 0 keeps the edge's token.
        """
        threshold = self.threshold_now(budget)
        shown = None if 0 in (self.cloud_share, self.max_cloud_tokens) else threshold
        if score < threshold:
            return Decision(0, "below_threshold", shown)
        if (ask := min(self.span, self._room(budget))) < 1:
            return Decision(0, "cap", shown)
        if self.cloud_share is not None and self.cloud_share < 1:
            if budget.bucket < 1:
                return Decision(0, "budget", shown)
            ask = min(ask, int(budget.bucket))
        return Decision(ask, "critical", shown)

    def threshold_now(self, budget: Budget) -> float:
        """Return the threshold in force (see `Policy`); 0 for a share of 1, 2 (never met) for 0."""
        if self.cloud_share is None:
            return self.threshold
        if self.cloud_share in (0.0, 1.0):
            # A share of one is everything, and a share of nothing asks for nothing.
            return 0.0 if self.cloud_share else 2.0
        spent = INITIAL_BUCKET - budget.bucket - budget.reserve
        # Else no budget could move the log-odds of 0 or 1.
        start = min(max(self.threshold, 1e-6), 1 - 1e-6)
        return 1 / (1 + math.exp(-(math.log(start / (1 - start)) + _GAIN * spent)))

    def deadline_now(self, latency: Latency, *, first: bool, prompt: int = 0) -> float:
        """Return how many seconds a request sent now may take: `deadline` if it is set.

        Else it is four times the recent median latency, doubled for each timeout in a row, from
        `SHORTEST_DEADLINE` to `LONGEST_DEADLINE`; before latencies are known it is the latter.
        Until the `first` reply of an answer it is at least the reading time: twice what the prefill
        of `prompt` ids takes by `latency`, doubled likewise, at most `LONGEST_READING`. With
        `requires_cloud` it is always the longer of the reading time and `LONGEST_DEADLINE`.
        """
        if self.deadline is not None:
            return self.deadline
        median, back_off = latency.quantile(0.5, first=first), 2 ** min(latency.timeouts, 4)
        patience = LONGEST_DEADLINE
        if median is not None and not self.requires_cloud:
            patience = min(max(SHORTEST_DEADLINE, _PATIENCE * median) * back_off, patience)
        if not (first or self.requires_cloud):
            return patience
        # The cloud may have to read the whole prompt.
        token = _UNKNOWN_READING if latency.prefill is None else 2 * latency.prefill
        return max(patience, min(prompt * token * back_off, LONGEST_READING))

    def fit_to_cap(self, budget: Budget, tokens: int) -> int:
        """Return how many of a completion's `tokens` (a number) `max_cloud_tokens` still allows."""
        return tokens if self.max_cloud_tokens is None else min(tokens, self._room(budget))

    def charged(self, budget: Budget, tokens: int) -> Budget:
        """Return the budget with `tokens` taken from the bucket and added to its `charged`."""
        return replace(budget, bucket=budget.bucket - tokens, charged=budget.charged + tokens)

    def after_token(self, budget: Budget) -> Budget:
        """Return the budget one output token later: `cloud_share`, if set, is put in the bucket."""
        if self.cloud_share is None:
            return budget
        return replace(budget, bucket=min(budget.bucket + self.cloud_share, MAX_BUCKET))

    def next_answer(self, budget: Budget, wasted: int = 0) -> Budget:
        """Return the budget for the conversation's next answer, with nothing spent of its cap.

        With a `cloud_share`, `wasted` (`Clouds.wasted` of this answer) is taken from the bucket.
        """
        # Only here: their number depends on the link, which must decide nothing within the answer.
        wasted = 0 if self.cloud_share is None else wasted
        return replace(budget, bucket=budget.bucket - wasted, charged=0)

    def _ratio(self, budget: Budget) -> float:
        spent = INITIAL_BUCKET - budget.bucket - budget.reserve
        return RATIO * math.exp(-_RATIO_GAIN * max(spent, INITIAL_BUCKET - MAX_BUCKET))

    def _room(self, budget: Budget) -> int:
        """Return how many tokens the cap leaves; without a cap `span`, the most of one request."""
        if self.max_cloud_tokens is None:
            return self.span
        return self.max_cloud_tokens - budget.charged


class SharedBudget:
    """A token bucket that all answers with the same cloud share use; thread-safe.

    An answer takes tokens and gives back those that are left. Over all answers, but for those that
    `Escalation` chose, the cloud writes or wastes at most share x output tokens + `initial`, the
    bucket's first level. Two things may come on top: what the last answer wasted and, where the
    cloud verifies, a debt that the next answers repay. `level`: tokens in the bucket if each
    running answer gave back what it took.
    """

    def __init__(self, initial: float = INITIAL_BUCKET) -> None:
        self._free = self.level = initial
        self._running, self._taken, self._lock = 0, 0.0, threading.Lock()
        self._changed = 0.0  # by the answers at work, as far as they have told

    def take(self) -> Budget:
        """Return a new answer's budget, half of the bucket's tokens; `settle` must give it back.

        If the bucket is below 0 (answers have spent more than was earned), all this debt is taken.
        """
        with self._lock:
            # Half, so that simultaneous answers all get some.
            taken = self._free / 2 if self._free > 0 else self._free
            self._free, self._taken = self._free - taken, self._taken + taken
            self._running += 1
            now = self.level + self._changed
        return Budget(bucket=taken, reserve=min(now - taken, MAX_BUCKET), told=taken)

    def settle(self, taken: Budget, left: Budget) -> None:
        """End `taken`, a budget that `take` returned: give back what is `left` of it."""
        told = taken.bucket if left.told is None else left.told
        with self._lock:
            self._free = min(self._free + left.bucket, MAX_BUCKET)
            self._taken -= taken.bucket
            self.level = self._free + self._taken
            self._running -= 1
            # Rounding of many tokens must not add up.
            self._changed = self._changed - told + taken.bucket if self._running else 0.0

    def follow(self, budget: Budget) -> Budget:
        """Report a running answer's `budget` to the others; return it with a new `reserve`."""
        # Verification may overdraw the bucket. Unless simultaneous answers learn of that at once,
        # each spends as if it were alone, and those after them can spend nothing.
        told = budget.bucket if budget.told is None else budget.told
        with self._lock:
            self._changed += budget.bucket - told
            others = self.level + self._changed - budget.bucket
        # What they earn beyond a full bucket is lost at their ends.
        return replace(budget, reserve=min(others, MAX_BUCKET), told=budget.bucket)


class Escalation:
    """Chooses which answers the cloud writes whole: those whose beginning the edge doubts most.

    The doubt is the mean entropy, in nats, of the answer's first passage (about a paragraph). At
    most `share` of the answers are chosen: each answer weighed adds `share` to a credit of up to 4,
    and each one chosen takes 1 from it. Thread-safe.
    """

    def __init__(self, share: float) -> None:
        """`share` of all answers, from 0 to 1, may be chosen. Raises `UsageError` for another."""
        require(0 <= share <= 1, "escalate", "from 0 to 1 (10% is 0.1)", share)
        self.share = share
        self._seen = deque[float](maxlen=_SEEN)
        self._earned, self._lock = 0.0, threading.Lock()

    def wants(self, uncertainty: float) -> bool:
        """Weigh an answer: return whether the cloud is to write all of it.

        `uncertainty` is the mean entropy of its first passage, in nats, as the edge drafted it. It
        must be among the highest `share` of the last 128, and the credit at least 1 (see
        `Escalation`). None of the first 8 answers is chosen unless `share` is 1.
        """
        with self._lock:
            self._earned = min(self._earned + self.share, _MOST)
            self._seen.append(uncertainty)
            known = self.share == 1 or len(self._seen) > _FEW
            least = float(np.quantile(self._seen, 1 - self.share)) if known else np.inf
            return uncertainty >= least and self._spent()

    def rejected(self) -> bool:
        """Whether the cloud is to write all of an answer whose first passage it rejected entirely.

        True if the credit is at least 1 (see `Escalation`); 1 is then taken from it.
        """
        with self._lock:
            return self._spent()

    def _spent(self) -> bool:
        if self._earned < 1:
            return False
        self._earned -= 1
        return True
