"""What the server says of an answer's tokens: counts, what was sent, what it cost."""

from typing import Literal

from pydantic import BaseModel


class SentUsage(BaseModel):
    """What an answer sent to `host`, null where it sent nothing: the bodies of its messages.

    `new_tokens` and `new_characters` of the conversation were not known to the host before.
    """

    host: str | None
    consults: int
    pushes: int
    bytes: int
    tokens: int
    new_tokens: int
    new_characters: int


class CostUsage(BaseModel):
    """What consults cost by the price list, and what the cloud alone would have.

    `saved` is negative where it was lost; `estimated` where the provider's meter left some out.
    """

    paid: float
    alone: float
    saved: float
    currency: str
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    estimated: bool


class CloudUsage(BaseModel):
    """What of an answer the cloud wrote, and what that took.

    Its prompt tokens are by its engine's own meter, null where it has none; its completion tokens
    are those of its own vocabulary. `correction_tokens` differ from what the edge would have
    written there. `cost` is null where no price is known.
    """

    cloud_tokens: int
    edge_tokens: int
    wasted_tokens: int
    correction_tokens: int
    cloud_share: float
    cloud_calls: int
    failed_calls: int
    cloud_prompt_cached: int | None
    cloud_prompt_computed: int | None
    cloud_completion_tokens: int
    sent: SentUsage
    cost: CostUsage | None


class PromptDetails(BaseModel):
    """`cached_tokens` of the prompt were in the edge model's KV cache already."""

    cached_tokens: int


class UsageReply(BaseModel):
    """Token counts of an answer."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    edgewise: CloudUsage


class SentEntry(SentUsage):
    """An answer's part of the record; `at` is when it began to send, in seconds since 1970."""

    model: str
    at: float
    conversation: str
    answer: str


class SentList(BaseModel):
    """The last answers that sent something, the newest first."""

    object: Literal["list"] = "list"
    data: list[SentEntry]


class SavingsEntry(CostUsage):
    """What the answers of a conversation cost together."""

    model: str
    conversation: str
    answers: int


class ModelSavings(BaseModel):
    """What all answers of one model cost; `total` is null where no price is known."""

    model: str
    answers: int
    total: CostUsage | None


class SavingsReply(BaseModel):
    """What all answers since the server began cost, and those of the last conversations.

    `total` is null where no price is known, or some of the models have another currency.
    """

    object: Literal["savings"] = "savings"
    answers: int
    total: CostUsage | None
    models: list[ModelSavings]
    conversations: list[SavingsEntry]
