"""What the replies of several servers have in common: token usage, finish reasons, completions."""

import math
from collections.abc import Sequence
from typing import TypeVar

import msgspec
from msgspec.structs import replace

from edgewise.completion import LEAST, Completion, Verified
from edgewise.errors import CloudRejected, CloudUnavailable
from edgewise.events import Candidate
from edgewise.servers.base import Count, Fault

THINK = "<think>"
"""The tag that opens a block of reasoning in most models."""

TOP = 5
"""How many candidates a request asks for with every token."""

_ENDED = frozenset({"stop", "eos", "eos_token", "end_turn", "stop_sequence"})
_CUT = frozenset({"length", "max_tokens", "model_length", "limit"})
_FILTERED = frozenset({"content_filter", "refusal", "safety", "sensitive"})
_TOOLS = frozenset({"tool_calls", "tool_call", "function_call", "tool_use"})
_BROKEN = frozenset({"abort", "error", "insufficient_system_resource"})

# Of an engine's own words.
_LONGEST_SAID = 200

_T = TypeVar("_T")


class _Details(msgspec.Struct):
    cached_tokens: Count | None = None


class Meter(msgspec.Struct):
    """The `usage` object of a reply: token counts, None where not reported.

    Cached tokens have three names: OpenAI's is in `prompt_tokens_details`, DeepSeek's is
    `prompt_cache_hit_tokens`, Moonshot's is `cached_tokens` at the top level.
    """

    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    total_tokens: Count | None = None
    prompt_tokens_details: _Details | None = None
    prompt_cache_hit_tokens: Count | None = None
    cached_tokens: Count | None = None

    @property
    def written(self) -> int | None:
        """Output tokens billed, those of reasoning too; None if not reported."""
        if self.completion_tokens is None or self.prompt_tokens is None:
            return self.completion_tokens
        # Gemini counts those of its reasoning in the total alone.
        return max(self.completion_tokens, (self.total_tokens or 0) - self.prompt_tokens)

    @property
    def cached(self) -> int | None:
        """Prompt tokens that came from the provider's cache; None if it does not report them."""
        details = self.prompt_tokens_details
        if details is not None and details.cached_tokens is not None:
            return details.cached_tokens
        hits = self.prompt_cache_hit_tokens
        return self.cached_tokens if hits is None else hits


def uncached(total: int | None, cached: int | None) -> int | None:
    """Return how many prompt tokens were computed; None if one of the two counts is not known."""
    return total - cached if total is not None and cached is not None else None


def only(choices: Sequence[_T]) -> _T:
    """Return the single choice of a reply. Raises `Fault` if there are none or several."""
    if len(choices) != 1:
        raise Fault(f"{len(choices)} choices for one prompt")
    return choices[0]


def has_ended(reason: str | None) -> bool:
    """Return whether a finish `reason` says that the model ended its answer by itself.

    Raises `Fault` for a reply stopped by a content filter, for a tool call, or an engine's error.
    """
    if reason in _FILTERED:
        raise Fault("a reply that its content filter stopped", CloudRejected)
    if reason in _TOOLS:
        raise Fault("a tool call", CloudRejected)
    if reason in _BROKEN:
        raise Fault("a reply that it cut short", CloudUnavailable, hint="try again shortly")
    return reason in _ENDED


def was_ended(reason: str | None) -> bool:
    """Return True if the model ended its answer, False if the text was cut at its limit.

    Raises `Fault` for any other `reason`, such as a content filter, a tool call or an error.
    """
    ended = has_ended(reason)
    if not ended and reason not in _CUT:
        raise Fault(f"the unknown finish_reason {reason!r:.50}")
    return ended


def completion_of(
    ids: Sequence[int],
    logprobs: Sequence[float | None],
    tops: Sequence[Sequence[tuple[int, float | None]]],
    *,
    stopped: bool,
    prompt: int | None,
    cached: int | None,
    seconds: float | None = None,
) -> Completion:
    """Return a `Completion` of `ids`.

    `logprobs` is empty if they are unknown. `tops` has the candidates (id, logprob) of each id, in
    any order; the 5 likeliest are kept. `stopped`: the model ended its answer; then `logprobs` and
    `tops` may have one item more, for the end token, which is dropped. `prompt` and `cached` are
    the engine's counts of prompt tokens, and of those from its cache; `seconds` is its own time.
    """

    def kept(rows: Sequence[_T]) -> Sequence[_T]:
        return rows[: len(ids)] if stopped and len(rows) == len(ids) + 1 else rows

    return Completion(
        ids=tuple(ids),
        logprobs=tuple(kept(logprobs)) or (None,) * len(ids),
        top=tuple(_candidates(top) for top in kept(tops)),
        stopped=stopped,
        cached=cached,
        computed=uncached(prompt, cached),
        prompt=prompt,
        engine_seconds=seconds,
    )


def verification_of(ids: Sequence[int], told: Completion, *, written: int) -> Completion:
    """Return a `Completion` whose `verified` has the verdict (`Verified`) on each of `ids`.

    `told` is the engine's report, a completion as if it had written `ids`. `written` is how many
    output tokens it bills. Raises `Fault` if the report is on other ids, or lacks the logprob or
    the candidates of one.
    """
    verified = tuple(
        Verified(max(logprob, LEAST), top[0].id, top[0].logprob)
        for logprob, top in zip(told.logprobs, told.top, strict=False)
        if logprob is not None and top
    )
    sizes = {len(told.logprobs), len(told.top), len(verified)}
    if told.ids != (*ids,) or sizes != {len(ids)}:
        raise Fault("no report of all tokens that it was to verify")
    return replace(
        told, ids=(), logprobs=(), top=(), stopped=False, verified=verified, written=written
    )


def logprob_of(token: int, top: Sequence[tuple[int, float | None]], most: int) -> float | None:
    """Return the logprob of `token` among the candidates `top`, which are (id, logprob).

    If it is not among them, return the lowest logprob there, an upper bound; or None if fewer than
    `most`, the number requested, have a logprob.
    """
    known = {one: value for one, value in top if value is not None}
    return known.get(token, min(known.values()) if len(known) >= most else None)


def _candidates(top: Sequence[tuple[int, float | None]]) -> tuple[Candidate, ...]:
    known = [
        Candidate(token, logprob)
        for token, logprob in top
        if logprob is not None and math.isfinite(logprob)
    ]
    return tuple(sorted(known, key=lambda candidate: -candidate.logprob)[:TOP])


class AssistantMessage(msgspec.Struct):
    """The message in a chat API's reply, with the names that several APIs give to reasoning.

    Mistral's `content` is a list if there is reasoning in it; `thinking` is Ollama's name.
    """

    content: str | list[msgspec.Raw] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    thinking: str | None = None
    refusal: str | None = None
    tool_calls: list[msgspec.Raw] | None = None
    function_call: object = None


def text_of(message: AssistantMessage) -> str:
    """Return a message's text, maybe "". Raises `Fault` for a refusal, a call or only reasoning."""
    if message.refusal:
        raise Fault("a refusal to answer", CloudRejected)
    if message.tool_calls or message.function_call:
        raise Fault("a tool call", CloudRejected)
    thoughts = message.reasoning_content or message.reasoning or message.thinking
    if isinstance(message.content, list) or (thoughts and not message.content):
        raise thinks()
    return message.content or ""


def thinks() -> Fault:
    """Return the `Fault` to raise for a reply that has reasoning where its answer should be."""
    return Fault(
        "a block of reasoning, which is not part of an answer",
        CloudRejected,
        hint="choose a model without reasoning, or one where it can be disabled",
        setting="cloud_model",
    )


def words_of(said: object) -> str:
    """Return the error message in the body of an API's reply, at most 200 characters long.

    `said` is the body as bytes, or a JSON value from it. The message is under "error", "message" or
    "detail", in an object there as well. Without these, or without JSON, it is the whole body.
    """
    if isinstance(said, bytes):
        try:
            said = msgspec.json.decode(said)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            said = said.decode("utf-8", "replace")
    for _ in range(4):
        if isinstance(said, list) and len(said) == 1:
            said = said[0]
        if not isinstance(said, dict):
            break
        parts = [said.get(name) for name in ("error", "message", "detail")]
        said = next((part for part in parts if part is not None), said)
    try:
        return " ".join(str(said).split())[:_LONGEST_SAID]
    except RecursionError:
        return "an error of too many levels to show"
