"""Replies of engines and text APIs: what they share, and the checks of a reply in text.

A reply in text is checked here, where it arrives; one in ids by `Completion.check`.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from edgewise.completion import Completion, metered
from edgewise.engines.base import TOP, decoded
from edgewise.errors import CloudProtocolError, CloudRejected, CloudUnavailable
from edgewise.events import Candidate
from edgewise.prompts import Message
from edgewise.sampling import Sampling

THINK = "<think>"
"""How most models open a block of reasoning."""

LONGEST_TOKEN = 64
"""More bytes than a token has on an average of several."""

MOST_TOKENS = 1 << 24
"""More than any context holds."""

_ENDED = frozenset({"stop", "eos", "eos_token", "end_turn", "stop_sequence"})
_CUT = frozenset({"length", "max_tokens", "model_length", "limit"})
_FILTERED = frozenset({"content_filter", "refusal", "safety", "sensitive"})
_TOOLS = frozenset({"tool_calls", "tool_call", "function_call", "tool_use"})
_BROKEN = frozenset({"abort", "error", "insufficient_system_resource"})

# Of an API's own words.
_LONGEST_SAID = 200
# An echo may have other blanks.
_SLACK = 256

_T = TypeVar("_T")


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class Meter(msgspec.Struct):
    """`usage`, as an engine or API counts; what it does not report is None.

    `prompt_cache_hit_tokens` is DeepSeek's word, `cached_tokens` out here Moonshot's.
    """

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    prompt_cache_hit_tokens: int | None = None
    cached_tokens: int | None = None

    @property
    def cached(self) -> int | None:
        """Prompt tokens that came from the cache."""
        details = self.prompt_tokens_details
        if details is not None and details.cached_tokens is not None:
            return details.cached_tokens
        hits = self.prompt_cache_hit_tokens
        return self.cached_tokens if hits is None else hits


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
        raise CloudUnavailable(f"{url!r} broke the reply off", hint="try again shortly")
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


def _candidates(top: Sequence[tuple[int, float | None]]) -> tuple[Candidate, ...]:
    """Those with a logprob that is a number, best first."""
    known = [
        Candidate(token, logprob)
        for token, logprob in top
        if logprob is not None and math.isfinite(logprob)
    ]
    return tuple(sorted(known, key=lambda candidate: -candidate.logprob)[:TOP])


def sampling_fields(sampling: Sampling, position: int) -> dict[str, Any]:
    """Under the names that llama-server and vLLM share; greedy where nothing is drawn."""
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


class TextRequest(NamedTuple):
    """At most `n` tokens behind `answer`, the beginning of a reply to `messages`; may be empty."""

    messages: Sequence[Message]
    answer: str
    n: int
    sampling: Sampling = Sampling()


class TextContinuation(msgspec.Struct, frozen=True, kw_only=True):
    """What an API wrote, as it came: it may begin with what it was sent.

    `ended` where it ended the answer there, and was not cut. `prompt`, `cached` and `written` are
    tokens by the provider's own usage, `cached` those of the `prompt` that it had; None where it
    does not report them.
    """

    text: str
    ended: bool
    prompt: int | None = None
    cached: int | None = None
    written: int | None = None


class _Message(msgspec.Struct):
    """Mistral has a list for a content with thoughts, and Ollama its own word for these."""

    content: str | list[msgspec.Raw] | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None
    thinking: str | None = None
    refusal: str | None = None
    tool_calls: list[msgspec.Raw] | None = None
    function_call: object = None


class _Choice(msgspec.Struct):
    finish_reason: str | None = None
    message: _Message | None = None
    text: str | None = None


class _Completion(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: Meter | None = None
    error: object = None


class _OllamaChat(msgspec.Struct):
    message: _Message
    done: bool
    done_reason: str | None = None
    prompt_eval_count: int | None = None
    eval_count: int | None = None


class _Timings(msgspec.Struct):
    cache_n: int | None = None
    prompt_n: int | None = None
    predicted_n: int | None = None


class _LlamaCompletion(msgspec.Struct):
    content: str
    stop_type: str
    timings: _Timings = msgspec.field(default_factory=_Timings)


class _Error(msgspec.Struct):
    """How APIs say what is wrong: any of these, text or more of the same."""

    error: object = None
    message: object = None
    detail: object = None


class TextReader(NamedTuple):
    """Reads replies of the API at `url` to one request; raises a `CloudError` for a bad one."""

    url: str
    dialect: str
    request: TextRequest

    def completion(self, body: bytes) -> TextContinuation:
        """A reply in OpenAI's form, to a chat or to a prompt."""
        reply = read(body, _Completion, self.url, self.dialect)
        if reply.error is not None:
            raise CloudRejected(f"{self.url!r} declined the request ({words_of(reply.error)!r})")
        choice, usage = only(reply.choices or [], self.url), reply.usage or Meter()
        if choice.message is None and choice.text is None:
            raise CloudProtocolError(f"{self.url!r} sent a choice without any text.")
        return self._checked(
            choice.message or choice.text or "",
            choice.finish_reason,
            (usage.prompt_tokens, usage.cached, usage.completion_tokens),
        )

    def ollama(self, body: bytes) -> TextContinuation:
        """A reply of Ollama's `/api/chat`."""
        reply = read(body, _OllamaChat, self.url, self.dialect)
        if not reply.done:
            raise _streamed(self.url)
        counts = (reply.prompt_eval_count, None, reply.eval_count)
        return self._checked(reply.message, reply.done_reason, counts)

    def llama_server(self, body: bytes) -> TextContinuation:
        """A reply of llama-server's `/completion`."""
        reply = read(body, _LlamaCompletion, self.url, self.dialect)
        timings = reply.timings
        prompt = metered(timings.cache_n, timings.prompt_n)
        counts = (prompt, timings.cache_n, timings.predicted_n)
        return self._checked(reply.content, reply.stop_type, counts)

    def _checked(
        self,
        written: str | _Message,
        reason: str | None,
        counts: tuple[int | None, int | None, int | None],
    ) -> TextContinuation:
        """`counts` are tokens of the prompt, those of them that were cached, and those written."""
        url, asked = self.url, self.request
        ended = has_ended(reason, url)
        if not ended and reason not in _CUT:
            raise CloudProtocolError(f"{url!r} ended its reply for the reason {reason!r:.50}.")
        text = written if isinstance(written, str) else _text_of(written, url)
        size = len(text.encode())
        if size > LONGEST_TOKEN * asked.n + 2 * len(asked.answer.encode()) + _SLACK:
            raise CloudProtocolError(f"{url!r} sent {size} bytes for {asked.n} tokens.")
        if "\0" in text:
            raise CloudProtocolError(f"{url!r} sent a text with U+0000 in it.")
        if text.lstrip().startswith(THINK) and not asked.answer.lstrip().startswith(THINK):
            raise _thinks(url)
        prompt, cached, new = counts
        for count in counts:
            if count is not None and not 0 <= count <= MOST_TOKENS:
                raise CloudProtocolError(f"{url!r} counts {count!r:.50} tokens.")
        if cached is not None and prompt is not None and cached > prompt:
            raise CloudProtocolError(f"{url!r} counts {cached} of {prompt} tokens as cached.")
        return TextContinuation(text=text, ended=ended, prompt=prompt, cached=cached, written=new)


def read(body: bytes, kind: type[_T], url: str, dialect: str) -> _T:
    """A reply of that form; raises `CloudProtocolError`."""
    begin = body[:16].lstrip()
    if begin.startswith(b"<"):
        raise CloudProtocolError(
            f"{url!r} answered with a web page",
            hint="check the address, its path too",
            setting="cloud",
        )
    if begin.startswith((b"data:", b"event:", b":")):
        raise _streamed(url)
    return decoded(body, kind, dialect)


def words_of(said: object) -> str:
    """What an API says is wrong, however it says it."""
    if isinstance(said, bytes):
        try:
            said = msgspec.to_builtins(msgspec.json.decode(said, type=_Error))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            said = said.decode("utf-8", "replace")
    for _ in range(4):
        if not isinstance(said, dict):
            break
        parts = [said.get(name) for name in ("error", "message", "detail")]
        said = next((part for part in parts if part is not None), str(said))
    return " ".join(str(said).split())[:_LONGEST_SAID]


def _text_of(message: _Message, url: str) -> str:
    """Raises `CloudRejected` for what is no continuation: a refusal, a tool call, thoughts."""
    if message.refusal:
        raise CloudRejected(f"The model at {url!r} refused to answer.")
    if message.tool_calls or message.function_call:
        raise CloudRejected(f"The model at {url!r} answered with a tool call.")
    thoughts = message.reasoning_content or message.reasoning or message.thinking
    if isinstance(message.content, list) or (thoughts and not message.content):
        raise _thinks(url)
    return message.content or ""


def _streamed(url: str) -> CloudProtocolError:
    return CloudProtocolError(f"{url!r} answered with a stream where none was asked.")


def _thinks(url: str) -> CloudRejected:
    return CloudRejected(
        f"The model at {url!r} thinks before it answers, and thoughts are no part of an answer",
        hint="choose a model without thinking, or one whose thinking can be switched off",
        setting="cloud_model",
    )
