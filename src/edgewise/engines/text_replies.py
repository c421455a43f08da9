"""What an API that takes text answers: checked whole where it enters."""

from typing import NamedTuple, NoReturn, TypeVar

import msgspec

from edgewise.engines.http import decoded
from edgewise.errors import CloudProtocolError, CloudRejected, CloudUnavailable

THINK = "<think>"
"""How most models open a block of reasoning."""

LONGEST_TOKEN = 64
"""More bytes than a token has on an average of several."""

MOST_TOKENS = 1 << 24
"""More than any context holds."""

_ENDED = frozenset({"stop", "eos", "eos_token", "end_turn", "stop_sequence"})
_CUT = frozenset({"length", "max_tokens", "model_length", "limit"})
_FILTERED = frozenset({"content_filter", "refusal", "safety", "sensitive"})
_TOOLS = frozenset({"tool_calls", "function_call", "tool_use"})
_BUSY = frozenset({"insufficient_system_resource"})

# Of an API's own words.
_LONGEST_SAID = 200
# An echo may have other blanks.
_SLACK = 256

_T = TypeVar("_T")


class ApiReply(msgspec.Struct, frozen=True, kw_only=True):
    """What an API wrote, as it came: it may begin with what it was sent.

    `ended` where it ended the answer there, and was not cut. `prompt`, `cached` and `written` are
    tokens by the provider's own usage, `cached` those of the `prompt` that it had; None where it
    does not tell.
    """

    text: str
    ended: bool
    prompt: int | None = None
    cached: int | None = None
    written: int | None = None


class AskedText(NamedTuple):
    """What a reply answers: at most `n` tokens behind `answer`, from the API at `url`."""

    url: str
    dialect: str
    answer: str
    n: int


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    """`prompt_cache_hit_tokens` is DeepSeek's word, `cached_tokens` out here Moonshot's."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    prompt_cache_hit_tokens: int | None = None
    cached_tokens: int | None = None

    @property
    def cached(self) -> int | None:
        told = self.prompt_tokens_details
        counts = (
            told.cached_tokens if told else None,
            self.prompt_cache_hit_tokens,
            self.cached_tokens,
        )
        return next((count for count in counts if count is not None), None)


class _Said(msgspec.Struct):
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
    message: _Said | None = None
    text: str | None = None


class _Completion(msgspec.Struct):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: object = None


class _Chatted(msgspec.Struct):
    message: _Said
    done: bool
    done_reason: str | None = None
    prompt_eval_count: int | None = None
    eval_count: int | None = None


class _Timings(msgspec.Struct):
    cache_n: int | None = None
    prompt_n: int | None = None
    predicted_n: int | None = None


class _Continued(msgspec.Struct):
    content: str
    stop_type: str
    timings: _Timings = msgspec.field(default_factory=_Timings)


class _Told(msgspec.Struct):
    """How APIs tell what is wrong: any of these, text or more of the same."""

    error: object = None
    message: object = None
    detail: object = None


def of_completion(body: bytes, asked: AskedText) -> ApiReply:
    """A reply in OpenAI's form, to a chat or to a prompt; raises a `CloudError`."""
    reply = read(body, _Completion, asked.url, asked.dialect)
    if reply.error is not None:
        raise CloudRejected(f"{asked.url!r} declined the request ({words_of(reply.error)!r})")
    choices = reply.choices or []
    if len(choices) != 1:
        raise CloudProtocolError(f"{asked.url!r} sent {len(choices)} choices where one was asked.")
    choice = choices[0]
    if choice.message is None and choice.text is None:
        raise CloudProtocolError(f"{asked.url!r} sent a choice without any text.")
    usage = reply.usage or _Usage()
    return _checked(
        asked,
        _text_of(choice.message, asked.url) if choice.message else choice.text or "",
        ended=_has_ended(choice.finish_reason, asked.url),
        counts=(usage.prompt_tokens, usage.cached, usage.completion_tokens),
    )


def of_ollama(body: bytes, asked: AskedText) -> ApiReply:
    """A reply of Ollama's `/api/chat`; raises a `CloudError`."""
    reply = read(body, _Chatted, asked.url, asked.dialect)
    if not reply.done:
        _raise_streamed(asked.url)
    return _checked(
        asked,
        _text_of(reply.message, asked.url),
        ended=_has_ended(reply.done_reason, asked.url),
        counts=(reply.prompt_eval_count, None, reply.eval_count),
    )


def of_llama_server(body: bytes, asked: AskedText) -> ApiReply:
    """A reply of llama-server's `/completion`; raises a `CloudError`."""
    reply = read(body, _Continued, asked.url, asked.dialect)
    timings = reply.timings
    cached, computed = timings.cache_n, timings.prompt_n
    prompt = None if cached is None or computed is None else cached + computed
    return _checked(
        asked,
        reply.content,
        ended=_has_ended(reply.stop_type, asked.url),
        counts=(prompt, cached, timings.predicted_n),
    )


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
        _raise_streamed(url)
    return decoded(body, kind, dialect)


def words_of(told: object) -> str:
    """What an API says is wrong, however it says it."""
    if isinstance(told, bytes):
        try:
            told = msgspec.to_builtins(msgspec.json.decode(told, type=_Told))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            told = told.decode("utf-8", "replace")
    for _ in range(4):
        if not isinstance(told, dict):
            break
        found = [told.get(name) for name in ("error", "message", "detail")]
        told = next((one for one in found if one is not None), str(told))
    return " ".join(str(told).split())[:_LONGEST_SAID]


def _text_of(message: _Said, url: str) -> str:
    """Raises `CloudRejected` for what is no going on: a refusal, a tool call, thoughts."""
    if message.refusal:
        raise CloudRejected(f"The model at {url!r} refused to answer.")
    if message.tool_calls or message.function_call:
        raise CloudRejected(_tool_call(url))
    if isinstance(message.content, list):
        _raise_thoughts(url)
    text = message.content or ""
    if not text and (message.reasoning_content or message.reasoning or message.thinking):
        _raise_thoughts(url)
    return text


def _has_ended(reason: str | None, url: str) -> bool:
    """Whether the answer ends there; raises a `CloudError` for what is no end and no cut."""
    if reason in _FILTERED:
        raise CloudRejected(f"The content filter at {url!r} stopped the reply.")
    if reason in _TOOLS:
        raise CloudRejected(_tool_call(url))
    if reason in _BUSY:
        raise CloudUnavailable(f"{url!r} has no room for the request", hint="try again shortly")
    if reason not in _ENDED and reason not in _CUT:
        raise CloudProtocolError(f"{url!r} ended its reply for an unknown reason ({reason!r:.50}).")
    return reason in _ENDED


def _checked(
    asked: AskedText, text: str, *, ended: bool, counts: tuple[int | None, int | None, int | None]
) -> ApiReply:
    """`counts` are tokens of the prompt, those of them that were cached, and those written."""
    size = len(text.encode())
    if size > LONGEST_TOKEN * asked.n + 2 * len(asked.answer.encode()) + _SLACK:
        raise CloudProtocolError(f"{asked.url!r} sent {size} bytes for {asked.n} tokens.")
    if "\0" in text:
        raise CloudProtocolError(f"{asked.url!r} sent a text with U+0000 in it.")
    if text.lstrip().startswith(THINK) and not asked.answer.lstrip().startswith(THINK):
        _raise_thoughts(asked.url)
    prompt, cached, written = counts
    for count in counts:
        if count is not None and not 0 <= count <= MOST_TOKENS:
            raise CloudProtocolError(f"{asked.url!r} counts {count!r:.50} tokens.")
    if cached is not None and prompt is not None and cached > prompt:
        raise CloudProtocolError(f"{asked.url!r} counts {cached} of {prompt} tokens as cached.")
    return ApiReply(text=text, ended=ended, prompt=prompt, cached=cached, written=written)


def _raise_streamed(url: str) -> NoReturn:
    raise CloudProtocolError(f"{url!r} answered with a stream where none was asked.")


def _raise_thoughts(url: str) -> NoReturn:
    raise CloudRejected(
        f"The model at {url!r} thinks before it answers, and thoughts are no part of an answer",
        hint="choose a model without thinking, or one whose thinking can be switched off",
        setting="cloud_model",
    )


def _tool_call(url: str) -> str:
    return f"The model at {url!r} answered with a tool call."
