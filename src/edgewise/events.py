"""The events of a streamed answer: `Token`, `Consult`, `Pending`, `RolledBack`; last `Finished`.

The command line, evaluation and servers read the same events. The `text` of all `Token`s, followed
by that of `Finished`, is the whole answer.
"""

from typing import Literal

import msgspec

from edgewise.errors import Fault

Source = Literal["edge", "cloud"]

Reason = Literal[
    "below_threshold",  # the router saw no need
    "critical",  # the router asked, the cloud answered
    "span",  # a further token of the same consult
    "verified",  # the cloud read it and lets it stand
    "corrected",  # the cloud read the edge's token and would hardly have written it
    "edge_lost",  # the edge model's server is gone, and the cloud goes on
    "forced",  # the grammar allows this token only, so the cloud was not asked
    "mid_word",  # deferred: a cloud with another tokenizer is asked at word boundaries
    "reasoning",  # the router asked, but the cloud cannot go on inside of a block of reasoning
    "blocked",  # the router asked, but privacy rules forbid sending this context
    "no_cloud",  # above the threshold, but there is no cloud model
    "budget",  # above the threshold, but the cloud share is spent for now
    "cap",  # above the threshold, but the answer's cap is spent
    "circuit_open",  # above the threshold, but consults are paused after failures
    "cost",  # above the threshold, but it would cost more than the cloud alone, or than a limit
]
"""Why the model that wrote a token did so, where no request to the cloud failed."""

FinishReason = Literal["stop", "length"]
"""Why an answer ended: `stop` is an end-of-sequence token or a stop string; `length` is
`max_tokens`, a full context, or an answer that repeats itself (`Usage.repeats`)."""


class Candidate(msgspec.Struct, frozen=True):
    """An id that a model finds likely as the next token, and its `logprob` in nats."""

    id: int
    logprob: float


class Token(msgspec.Struct, frozen=True, tag="token", kw_only=True):
    """A token of the answer. It is final: nothing streamed as a `Token` is ever taken back.

    `index` counts tokens of the answer from 0; `source` is the model that wrote this one. `reason`
    says why that model (see `Reason`), or names the failure of a request to the cloud (`Fault`).
    `text` can be shown now: an incomplete character or a possible stop string is held back.

    Where a router decides, the cloud is asked if `score`, the router's score of this position,
    reaches `threshold`; `score` is None for later tokens of a consult (one question to the cloud
    model). Where the cloud verifies, `score` is None, and the edge's token is accepted if it is the
    cloud's own choice, or if `ratio` reaches a `threshold` below 1. `ratio` is the cloud's
    probability of the edge's token over that of its likeliest; None without a verdict on the token
    itself. `threshold` is None where none applied, such as where the cloud can never be asked.

    `logprob` (nats) is by the model that wrote the token, None if that model does not report it.
    `seconds` passed since the last token (for the first: since the start), of which `wait` were
    spent waiting for the cloud. `edge` and `cloud` are each model's likeliest ids: `edge` where the
    cloud was asked and wrote (with `Decoder.stream(candidates=True)` always), `cloud` if reported.
    `draft` is the edge's own choice (perhaps the same id) where the cloud was asked and wrote.
    """

    index: int
    id: int
    text: str
    source: Source
    score: float | None
    logprob: float | None
    seconds: float
    wait: float
    reason: Reason | Fault
    threshold: float | None = None
    edge: tuple[Candidate, ...] = ()
    cloud: tuple[Candidate, ...] = ()
    draft: int | None = None
    ratio: float | None = None


class Consult(msgspec.Struct, frozen=True, tag="consult", kw_only=True):
    """A finished consult: one question to the cloud model in the middle of an answer.

    `index` is the answer's token for which the cloud was asked. `outcome` is "answered" or the name
    of the failure, such as "timeout"; `message` then says why. `requested` is the number of tokens
    asked for (words, if the vocabularies differ), `answered` the number that came back, 0 after a
    failure. `verified` is how many draft tokens, from `index` on, the cloud was to verify. In all,
    `sent_ids` token ids went to `host`, in bodies of `sent_bytes` bytes; to a model in this process
    nothing is sent. `seconds` passed until the reply. `cached` and `computed` count prompt tokens
    by the engine's usage report, None without one; `engine_seconds` is the time that the engine
    reports. `request_id` names the consult in the logs of gateway and engine.
    """

    index: int
    outcome: Literal["answered"] | Fault
    requested: int
    answered: int
    sent_ids: int
    sent_bytes: int
    seconds: float
    cached: int | None = None
    computed: int | None = None
    engine_seconds: float | None = None
    message: str | None = None
    request_id: str | None = None
    host: str = ""
    verified: int = 0


class Pending(msgspec.Struct, frozen=True, tag="pending"):
    """A draft token, reported while a request to the cloud is in flight; it may yet be rejected.

    Reported only if `Decoder.stream` was asked for `pending` events. `index` is its place in the
    answer, from 0, `text` the text of this token alone.
    """

    index: int
    id: int
    text: str


class RolledBack(msgspec.Struct, frozen=True, tag="rolled_back"):
    """A report that `Pending` drafts were dropped: the answer went on differently, or has ended.

    `index` is that of the last `Token` before this event. `tokens` is how many of the reported
    drafts were dropped; their indices are `index` or higher. `consults` is how many requests to the
    cloud about drafts were given up with them.
    """

    index: int
    tokens: int
    consults: int


class SentCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What an answer sent over the network to the cloud at `host` (several are joined by commas).

    `consults` counts requests for tokens or for a verification. `prefetches` counts messages sent
    ahead of these, so that the cloud reads the text of the answer early. In all, their bodies had
    `bytes` bytes with `tokens` token ids. `host` is None if nothing was sent.
    """

    host: str | None = None
    consults: int = 0
    prefetches: int = 0
    bytes: int = 0
    tokens: int = 0


class TierUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of one of several clouds in an answer; `cloud` is the cloud's host, else its name.

    `wanted` counts requests meant for this cloud, for tokens or a verification; `calls` those sent
    and not dropped (its budget, costs, privacy or a lost link can forbid one); `failed` the `calls`
    that failed; `wrote` its tokens in the answer. `sent` is what was sent to it.
    """

    cloud: str
    wanted: int = 0
    calls: int = 0
    failed: int = 0
    wrote: int = 0
    sent: SentCounts = SentCounts()


class AnswerCost(msgspec.Struct, frozen=True, kw_only=True):
    """What the cloud cost by a price list, and what the cloud model alone would have cost.

    Costs are in `currency`. `paid` is for the `input_tokens` (not cached) and `cached_tokens` of
    prompts and for `output_tokens`, by the provider's usage reports, failed consults included.
    `alone` is the cost of the answer had the cloud written all of it; `saved` is `alone` less
    `paid` and may be negative. `estimated`: some figures are estimates, as a report was missing.
    """

    paid: float
    alone: float
    saved: float
    currency: str
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    estimated: bool


class Usage(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of one answer.

    `cached_tokens` of the prompt were in the edge's KV cache. `edge_tokens + cloud_tokens` is the
    number of `Token`s. `wasted_tokens` were returned by the cloud and dropped, or asked for in
    vain; in `cloud_share` they count as the cloud's. `correction_tokens` counts the tokens that the
    cloud wrote in place of a different one of the edge's, and all tokens of sentences that it wrote
    anew. `cloud_calls` counts consults (questions to the cloud), `failed_calls` those that failed.

    `cloud_prompt_cached` and `cloud_prompt_computed` count the prompt tokens of all answered
    consults by the engine's usage reports, None if a report left them out;
    `cloud_completion_tokens` is what the cloud wrote in reply, in its own vocabulary. `sent` is
    what had left the device when the answer ended; `cost` is what it cost, None without a price.
    `tiers` has each cloud's counts, in the order of the setting `cloud`; empty unless several.

    `verified_tokens` counts the edge's tokens that the cloud verified and accepted. `lowest_ratio`
    is the lowest `Token.ratio` among them, or None, and `lowest_at` that token's index. `review` is
    "tokens" if the cloud was to judge each token, "passages" if whole passages, else None.
    `escalated` says that the cloud wrote the answer whole, in place of the edge's; `repeats` that
    the answer was cut because it repeated itself; and `edge_error` why the cloud went on without
    the edge model, None if it did not.
    """

    prompt_tokens: int
    cached_tokens: int = 0
    edge_tokens: int = 0
    cloud_tokens: int = 0
    wasted_tokens: int = 0
    correction_tokens: int = 0
    cloud_share: float = 0.0
    cloud_calls: int = 0
    failed_calls: int = 0
    cloud_prompt_cached: int | None = 0
    cloud_prompt_computed: int | None = 0
    cloud_completion_tokens: int = 0
    edge_error: str | None = None
    verified_tokens: int = 0
    lowest_ratio: float | None = None
    lowest_at: int | None = None
    review: Literal["tokens", "passages"] | None = None
    escalated: bool = False
    repeats: bool = False
    sent: SentCounts = SentCounts()
    cost: AnswerCost | None = None
    tiers: tuple[TierUsage, ...] = ()

    @property
    def alone(self) -> bool:
        """Whether requests to the cloud failed, and none wrote or accepted a token of the text."""
        return self.failed_calls > 0 and not self.cloud_tokens and not self.verified_tokens


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds of an answer: to the first token (TTFT), in `total`, and in waiting for the cloud."""

    ttft: float = 0.0
    total: float = 0.0
    wait: float = 0.0


class Finished(msgspec.Struct, frozen=True, tag="finished", kw_only=True):
    """The last event of an answer. `text` is what was still held back; it is usually empty.

    `finish_reason` is "stop" after an end token or a stop string (`stop`, else None), and "length"
    if `max_tokens` or the context was reached or the answer repeated itself.
    """

    text: str
    finish_reason: FinishReason
    stop: str | None = None
    usage: Usage
    timing: Timing


Event = Token | Consult | Finished | Pending | RolledBack
"""Everything that a streamed answer may yield; `Finished` comes last."""
