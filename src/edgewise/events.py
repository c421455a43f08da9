"""What a decoder says while it decodes: a closed union of small frozen values.

The terminal, traces, evaluation and servers consume the same events. Concatenating `text` over
all `Token`s and the closing `Finished` gives the whole answer.
"""

from typing import Literal

import msgspec

from edgewise.errors import Fault

Source = Literal["edge", "cloud"]

Reason = Literal[
    "below_threshold",  # the router saw no need
    "critical",  # the router asked, the cloud answered
    "span",  # a further token of the same consult
    "forced",  # the answer's form allows this token alone, so nobody was asked
    "mid_word",  # the router asked, but a bridge's cloud is asked between words
    "reasoning",  # the router asked, but the cloud cannot go on inside of a block of reasoning
    "withheld",  # the router asked, but what would be sent may not leave the device
    "no_cloud",  # above the threshold, but there is no cloud model
    "budget",  # above the threshold, but the cloud share is spent for now
    "cap",  # above the threshold, but the answer's cap is spent
    "circuit_open",  # above the threshold, but consults are paused after failures
    "cost",  # above the threshold, but another would cost more than the cloud alone, or a limit
]
"""Why a token was written by whom, where no consult failed."""

FinishReason = Literal["stop", "length"]
"""`stop`: an end-of-sequence token or a stop string; `length`: max tokens or a full context."""


class Candidate(msgspec.Struct, frozen=True):
    """One of a model's likeliest tokens at a position; `logprob` in nats."""

    id: int
    logprob: float


class Token(msgspec.Struct, frozen=True, tag="token", kw_only=True):
    """A token of the answer. It is final.

    `text` is what can be shown now: empty while a character is incomplete or a stop string may
    be forming. `score` is the router's (None where it was not asked: later tokens of a consult),
    `threshold` what it was held against (None too where the answer can never ask the cloud).
    `logprob` (nats) is that of the model which wrote the token, None where it did not say.
    `seconds` since the token before (the first: since the start), `wait` of those spent waiting
    for the cloud. `edge` and `cloud` hold both models' candidates where they are known.
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


class Consult(msgspec.Struct, frozen=True, tag="consult", kw_only=True):
    """One consult of the cloud model, said when it is over.

    `index` is the answer's token it asked for, `asked` how many tokens it asked for (words, of a
    cloud with another vocabulary), `answered` how many came back. `sent_ids` token ids travelled
    for it to `host`, in messages of `sent_bytes` bytes (bodies alone); nothing does to a model in
    this process. `cached` and `computed` are prompt tokens by the engine's own meter (None where it
    has none), `engine_seconds` its own time. `request_id` names it in the logs of gateway and
    engine; None where none was asked.
    """

    index: int
    outcome: Literal["answered"] | Fault
    asked: int
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


class Pending(msgspec.Struct, frozen=True, tag="pending"):
    """A guess of the edge's while a consult flies; only for those who ask. It may not stand.

    `index` is the place in the answer, `text` that of the token alone.
    """

    index: int
    id: int
    text: str


class Rewound(msgspec.Struct, frozen=True, tag="rewound"):
    """The answer went another way at `index`: `tokens` guesses after it are gone.

    `consults` that had been sent on the way are not waited for.
    """

    index: int
    tokens: int
    consults: int


def share_of(used: int, wasted: int, output: int) -> float:
    """The cloud share: cloud tokens, used and wasted, over output tokens, at most 1.

    Wasted are all that were asked for and that no answer holds: dropped, guessed in vain, timed
    out. Nothing else is called a cloud share anywhere.
    """
    return min(1.0, (used + wasted) / output)


class SentCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What an answer sent to `host`, None where it sent nothing.

    Messages' bodies of `bytes` bytes with `tokens` ids, for consults and for what was pushed ahead
    of them.
    """

    host: str | None = None
    consults: int = 0
    pushes: int = 0
    bytes: int = 0
    tokens: int = 0


class AnswerCost(msgspec.Struct, frozen=True, kw_only=True):
    """What consults cost by a price list, and what the cloud alone would have.

    `paid` is for `input_tokens` of prompts at the full price, `cached_tokens` at that of cached
    ones and `output_tokens`, by the provider's own meter, those of consults in vain among them.
    `saved` is `alone` less `paid`: negative where it was lost. `estimated` where the provider left
    something of it out.
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

    `cached_tokens` of the prompt were in the edge's KV cache already.
    `edge_tokens + cloud_tokens` is the number of `Token`s. `wasted_tokens` were returned by the
    cloud and dropped, or asked for in vain; `correction_tokens` are first tokens of consults that
    differ from what the edge would have written. `cloud_share` is `share_of` them. Prompt tokens
    the cloud had cached and computed are those of answered consults, by its engine's own meter;
    None where there were consults and it has none. `cloud_completion_tokens` is what it wrote in
    these, dropped or not, in tokens of its own vocabulary. `sent` is what had left when the answer
    ended, `cost` what that came to where a price is known.
    """

    prompt_tokens: int
    cached_tokens: int = 0
    edge_tokens: int
    cloud_tokens: int
    wasted_tokens: int
    correction_tokens: int
    cloud_share: float
    cloud_calls: int
    failed_calls: int
    cloud_prompt_cached: int | None
    cloud_prompt_computed: int | None
    cloud_completion_tokens: int = 0
    sent: SentCounts = SentCounts()
    cost: AnswerCost | None = None

    @property
    def alone(self) -> bool:
        """Whether consults were made and none brought a token: the edge model wrote all of it."""
        return self.failed_calls > 0 and self.cloud_tokens == 0


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds from the start to the first token and to the end, and those spent waiting."""

    ttft: float
    total: float
    wait: float


class Finished(msgspec.Struct, frozen=True, tag="finished", kw_only=True):
    """The end of an answer. `text` is what was still held back; usually empty.

    `stop` is the stop string that ended it, None where none did.
    """

    text: str
    finish_reason: FinishReason
    stop: str | None = None
    usage: Usage
    timing: Timing


Event = Token | Consult | Finished | Pending | Rewound
