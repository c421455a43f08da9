"""The events of an answer: a closed union of small frozen values.

Terminal, evaluation and servers consume the same events. The `text` of all `Token`s and of
the closing `Finished`, concatenated, is the whole answer.
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
"""Reasons why this model wrote the token, if no consult failed."""

FinishReason = Literal["stop", "length"]
"""`stop`: an end-of-sequence token or a stop string; `length`: max tokens, a full context, or an
answer that repeats itself (`Usage.repeats`)."""


class Candidate(msgspec.Struct, frozen=True):
    """A model's candidate token at a position; `logprob` in nats."""

    id: int
    logprob: float


class Token(msgspec.Struct, frozen=True, tag="token", kw_only=True):
    """A token of the answer. It is final.

    `text` can be shown now; it is empty while a character is incomplete or a stop string may be
    forming. `score` is the router's, None for later tokens of a consult; `threshold` is what it was
    compared with, None if the answer can never ask the cloud. `logprob` (nats) is from the model
    that wrote the token, None if that does not report it. `seconds` since the last token (the
    first: since the start), `wait` of them spent waiting for the cloud. `edge` and `cloud` are both
    models' candidates, if known; `draft` is the edge's own token at a consult, None elsewhere. With
    a temperature it need not be the likeliest. `ratio` is the probability that the cloud gives the
    edge's token, over that of its own likeliest; None where the token was not verified. Where it
    was, `score` is None and `threshold` what the ratio must reach.
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
    """A consult of the cloud model, reported when it is over.

    `index` is the token it asked for, `requested` how many tokens (words, if the vocabularies
    differ), `answered` how many came back. `sent_ids` token ids were sent to `host` for it, in
    bodies of `sent_bytes` bytes; to a model in this process nothing is sent. `cached` and
    `computed` are prompt tokens by the engine's meter, None without one; `engine_seconds` is its
    own time. `request_id` names the consult in the logs of gateway and engine. `verified` is how
    many tokens from `index` on it was to verify.
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
    """A draft token while a consult is in flight; only if asked for. It may be rejected.

    `index` is its place in the answer, `text` that of the token alone.
    """

    index: int
    id: int
    text: str


class RolledBack(msgspec.Struct, frozen=True, tag="rolled_back"):
    """The drafts from `index` on were rejected: `tokens` of them are rolled back.

    The `consults` that were sent from them are dropped.
    """

    index: int
    tokens: int
    consults: int


class SentCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What an answer sent to `host`; None if it sent nothing.

    Bodies of `bytes` bytes with `tokens` ids, for consults and prefetches.
    """

    host: str | None = None
    consults: int = 0
    prefetches: int = 0
    bytes: int = 0
    tokens: int = 0


class TierUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of one of several clouds in an answer; `cloud` is its host, or its name.

    It was `wanted` for so many critical tokens, there were `calls` where its budget and its link
    allowed them, some of which `failed`; it `wrote` so many tokens of the answer.
    """

    cloud: str
    wanted: int = 0
    calls: int = 0
    failed: int = 0
    wrote: int = 0
    sent: SentCounts = SentCounts()


class AnswerCost(msgspec.Struct, frozen=True, kw_only=True):
    """Cost of consults by a price list, and cost of the cloud alone.

    `paid` is for `input_tokens` and `cached_tokens` of prompts and `output_tokens`, by the
    provider's meter, failed consults included. `saved` is `alone` less `paid` and may be negative.
    `estimated`: the provider's meter left something out.
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
    vain; `correction_tokens` are first tokens of consults that differ from what the edge would have
    written, and all of sentences written anew. `cloud_prompt_cached` and `cloud_prompt_computed`
    are of all completions, by the engine's meter, None if it left one out;
    `cloud_completion_tokens` is what the cloud wrote in them, in its own vocabulary. `edge_error`
    says why the cloud went on without the edge, None if it did not. `verified_tokens` are those of
    the edge's that the cloud read and let stand; `lowest_ratio` is the lowest `Token.ratio` among
    them, at token `lowest_at`. `review` says by what the cloud read the answer, None where it did
    not; `escalated` that it was asked for all of it. `repeats`: the answer was cut since it went
    round in circles. `sent` had left when the answer ended, `cost` is what that came to, if a price
    is known. `tiers` are the clouds, nearest first, where there are several.
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
        """Whether all consults failed, so that the edge model wrote all of the answer."""
        return self.failed_calls > 0 and self.cloud_tokens == 0


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds from the start to the first token and to the end, and those spent waiting."""

    ttft: float = 0.0
    total: float = 0.0
    wait: float = 0.0


class Finished(msgspec.Struct, frozen=True, tag="finished", kw_only=True):
    """The end of an answer. `text` was still held back; it is usually empty.

    `stop` is the stop string that ended it, if one did.
    """

    text: str
    finish_reason: FinishReason
    stop: str | None = None
    usage: Usage
    timing: Timing


Event = Token | Consult | Finished | Pending | RolledBack
