"""Code shared by requests to engines and text APIs, and by their replies."""

import math
from collections.abc import Sequence
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec.structs import replace

from edgewise.completion import LEAST, Completion, Verified
from edgewise.engines.base import TOP
from edgewise.errors import CloudProtocolError, CloudRejected, CloudUnavailable
from edgewise.events import Candidate
from edgewise.sampling import Sampling

THINK = "<think>"
"""Opens a block of reasoning in most models."""

_ENDED = frozenset({"stop", "eos", "eos_token", "end_turn", "stop_sequence"})
_FILTERED = frozenset({"content_filter", "refusal", "safety", "sensitive"})
_TOOLS = frozenset({"tool_calls", "tool_call", "function_call", "tool_use"})
_BROKEN = frozenset({"abort", "error", "insufficient_system_resource"})

_T = TypeVar("_T")

Count = Annotated[int, msgspec.Meta(ge=0, le=1 << 24)]
"""Tokens, as a provider counts them: no context holds more."""


class _Details(msgspec.Struct):
    cached_tokens: Count | None = None


class Meter(msgspec.Struct):
    """`usage`, as an engine or API counts; what it does not report is None.

    `prompt_cache_hit_tokens` is DeepSeek's word, `cached_tokens` out here Moonshot's.
    """

    prompt_tokens: Count | None = None
    completion_tokens: Count | None = None
    prompt_tokens_details: _Details | None = None
    prompt_cache_hit_tokens: Count | None = None
    cached_tokens: Count | None = None

    @property
    def cached(self) -> int | None:
        """Prompt tokens that came from the cache."""
        details = self.prompt_tokens_details
        if details is not None and details.cached_tokens is not None:
            return details.cached_tokens
        hits = self.prompt_cache_hit_tokens
        return self.cached_tokens if hits is None else hits


class LlamaTimings(msgspec.Struct):
    """llama-server's meter: tokens, and milliseconds."""

    cache_n: Count | None = None
    prompt_n: Count | None = None
    predicted_n: Count | None = None
    prompt_ms: float = 0.0
    predicted_ms: float = 0.0


def uncached(total: int | None, cached: int | None) -> int | None:
    """Prompt tokens that were computed; None where the engine does not report it."""
    return total - cached if total is not None and cached is not None else None


def only(choices: Sequence[_T], url: str) -> _T:
    """The one choice that was asked for; raises `CloudProtocolError`."""
    if len(choices) != 1:
        raise CloudProtocolError(f"{url!r} sent {len(choices)} choices for one prompt.")
    return choices[0]


def has_ended(reason: str | None, url: str) -> bool:
    """Whether the model ended the text, by a reply's finish reason.

    Raises a `CloudError` where what came is no continuation that can be used.
    """
    if reason in _FILTERED:
        raise CloudRejected(f"The content filter at {url!r} stopped the reply.")
    if reason in _TOOLS:
        raise CloudRejected(f"The model at {url!r} answered with a tool call.")
    if reason in _BROKEN:
        raise CloudUnavailable(f"{url!r} cut its reply short", hint="try again shortly")
    return reason in _ENDED


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
    """A completion of `ids`; `tops` are candidates (id, logprob) for each, `seconds` the engine's.

    An engine that stopped may report the row of an end token whose id it leaves out.
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


def verification_of(ids: Sequence[int], told: Completion, url: str, *, written: int) -> Completion:
    """A verification of `ids`, by what the engine at `url` told of each as if it had written them.

    It bills so many tokens `written` for it.
    Raises `CloudProtocolError` where that is of other ids, or lacks a logprob or the likeliest.
    """
    verified = tuple(
        Verified(max(logprob, LEAST), top[0].id, top[0].logprob)
        for logprob, top in zip(told.logprobs, told.top, strict=False)
        if logprob is not None and top
    )
    sizes = {len(told.logprobs), len(told.top), len(verified)}
    if told.ids != (*ids,) or sizes != {len(ids)}:
        raise CloudProtocolError(f"{url!r} did not report of all tokens that it was to verify.")
    return replace(
        told, ids=(), logprobs=(), top=(), stopped=False, verified=verified, written=written
    )


def _candidates(top: Sequence[tuple[int, float | None]]) -> tuple[Candidate, ...]:
    """The candidates with a finite logprob, best first."""
    known = [
        Candidate(token, logprob)
        for token, logprob in top
        if logprob is not None and math.isfinite(logprob)
    ]
    return tuple(sorted(known, key=lambda candidate: -candidate.logprob)[:TOP])


def sampling_fields(sampling: Sampling, position: int) -> dict[str, Any]:
    """Sampling fields, with the names that llama-server and vLLM share; greedy without a draw."""
    if sampling.greedy:
        return {"temperature": 0}
    return {
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "seed": sampling.seed_at(position),
    }


def llama_sampling(sampling: Sampling, position: int) -> dict[str, Any]:
    """llama-server's, with its samplers in the order in which Edgewise applies them."""
    order = {} if sampling.greedy else {"samplers": ["temperature", "top_k", "top_p", "min_p"]}
    return {**sampling_fields(sampling, position), **order}
