"""How each API that takes text is asked and replies, by its documents: for a scripted one.

A request with a field that its documents do not have is declined, also where the real API would
overlook it. No paid API was ever asked.
"""

import re
from collections.abc import Callable, Mapping, Set
from typing import Any, NamedTuple

import msgspec

from edgewise.prompts import Message
from edgewise.testing.scripted_edge import ByteTokenizer

THINK = "<think>"
UNTHOUGHT = "<think>\n\n</think>\n\n"
"""A block of thoughts that was closed at once."""

OPEN, CLOSE = "<|{role}|>", "<|end|>"
"""How a conversation is written as text: `TEMPLATE` says so to who renders it."""

TEMPLATE = (
    "{% for message in messages %}<|{{ message.role }}|>{{ message.content }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def with_template() -> ByteTokenizer:
    """The tokenizer that goes with an API by completions, where the prompt is rendered here."""
    tokenizer = ByteTokenizer()
    tokenizer.chat_template = TEMPLATE
    return tokenizer


RANGES: Mapping[str, tuple[float, float]] = {
    "max_tokens": (1, 100_000),
    "n_predict": (1, 100_000),
    "num_predict": (1, 100_000),
    "temperature": (0, 2),
    "top_p": (1e-9, 1),
    "min_p": (0, 1),
    "top_k": (-1, 1 << 30),
    "seed": (0, 1 << 64),
    "random_seed": (0, 1 << 64),
}


class Wish(NamedTuple):
    """What a request asks for: `n` tokens behind `answer`.

    `quiet` where thinking is switched off; `temperature` as it came.
    """

    messages: list[Message]
    answer: str
    n: int
    quiet: bool = True
    temperature: float | None = None


class Wrong(Exception):
    """A request that is declined with an HTTP `status`, for a reason."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


def _fields(asked: Any, known: Set[str], status: int = 400) -> dict[str, Any]:
    """An object of these fields. Raises `Wrong`."""
    if not isinstance(asked, dict) or asked.keys() - known:
        raise Wrong(status, f"unknown fields in {asked}")
    for name, (least, most) in RANGES.items():
        if name in asked and not least <= asked[name] <= most:
            raise Wrong(status, f"{name} is out of range")
    return asked


def _turns(asked: list[Any], status: int = 400) -> list[Message]:
    try:
        return msgspec.convert(
            [{"role": turn["role"], "content": turn["content"]} for turn in asked], list[Message]
        )
    except (msgspec.ValidationError, KeyError) as error:
        raise Wrong(status, str(error)) from error


class Rule(NamedTuple):
    """How a chat API is told to continue: by `field` of its last message, or of the request.

    `more` are its fields beside those of all, `quiet` is what switches thinking off. `field` is
    None where a trailing message is enough; `must`: a trailing message needs it; `apart`: it cannot
    continue while it thinks.
    """

    quiet: Mapping[str, Any]
    more: str = ""
    field: str | None = None
    of_request: bool = False
    must: bool = False
    apart: bool = False
    status: int = 400

    def __call__(self, body: bytes) -> Wish:
        """What a request asks for. Raises `Wrong`."""
        asked: Any = msgspec.json.decode(body)
        known = {"model", "messages", "max_tokens", "stream", "temperature", "top_p"}
        own = {self.field} if self.field and self.of_request else set[str]()
        _fields(asked, known | own | self.quiet.keys() | set(self.more.split()), self.status)
        marks = {"role", "content"} | ({self.field} if self.field and not own else set[str]())
        turns = [_fields(turn, marks, self.status) for turn in asked["messages"]]
        messages = _turns(turns, self.status)
        if asked.get("stream") or not turns:
            raise Wrong(self.status, "this script does not stream")
        begun = messages[-1].role == "assistant"
        goes_on = begun if self.field is None else (asked if own else turns[-1]).get(self.field)
        if any(self.field in turn for turn in turns[:-1]):
            raise Wrong(400, f"{self.field} is for the last message")
        if (goes_on and not begun) or (self.must and begun and not goes_on):
            raise Wrong(400, f"Expected another last role than {messages[-1].role}")
        if goes_on and asked.get("add_generation_prompt", "add_generation_prompt" in self.more):
            raise Wrong(400, "Cannot set both `continue_final_message` and the other to True.")
        quiet = all(asked.get(name) == value for name, value in self.quiet.items())
        if goes_on and self.apart and not quiet:
            raise Wrong(400, "partial mode is not supported when thinking is enabled")
        answer = messages.pop().content if goes_on else ""
        return Wish(messages, answer, asked["max_tokens"], quiet, asked.get("temperature"))


_BY_TEMPLATE = {"chat_template_kwargs": {"enable_thinking": False}}
_BY_TYPE = {"thinking": {"type": "disabled"}}
_BY_EFFORT = {"reasoning_effort": "none"}
_GOES_ON = "continue_final_message"

vllm = Rule(_BY_TEMPLATE, "top_k min_p seed add_generation_prompt", _GOES_ON, of_request=True)
sglang = Rule(_BY_TEMPLATE, "top_k min_p seed", _GOES_ON, of_request=True)
deepseek = Rule(_BY_TYPE, field="prefix", must=True)
mistral = Rule(_BY_EFFORT, "random_seed", "prefix", must=True, status=422)
qwen = Rule({"enable_thinking": False}, "top_k seed", "partial", apart=True)
moonshot = Rule(_BY_TYPE, field="partial", apart=True)
trailing = Rule(_BY_EFFORT, "seed")
lm_studio = Rule(_BY_EFFORT, "seed top_k")
edgewise = Rule(_BY_EFFORT, "seed top_k min_p")


def ollama(body: bytes) -> Wish:
    asked = _fields(
        msgspec.json.decode(body), {"model", "messages", "options", "stream", "think", "truncate"}
    )
    if asked.get("stream", True) or asked.get("truncate", True):
        raise Wrong(400, "this script does not stream, and cuts no prompt")
    known = {"num_predict", "repeat_penalty", *_DRAWING}
    options = _fields(asked["options"], known)
    messages = _turns(asked["messages"])
    answer = messages.pop().content if messages[-1].role == "assistant" else ""
    quiet = not asked.get("think", True)
    return Wish(messages, answer, options["num_predict"], quiet, options.get("temperature"))


_DRAWING = {"temperature", "top_k", "top_p", "min_p", "seed"}


def completions(body: bytes) -> Wish:
    known = {"model", "prompt", "max_tokens", "stream", *_DRAWING}
    asked = _fields(msgspec.json.decode(body), known)
    return _of_text(asked["prompt"], asked["max_tokens"], asked.get("temperature"))


def llama_server(body: bytes) -> Wish:
    known = {"prompt", "n_predict", "cache_prompt", "response_fields", "samplers", *_DRAWING}
    asked = _fields(msgspec.json.decode(body), known)
    return _of_text(asked["prompt"], asked["n_predict"], asked.get("temperature"))


def _of_text(prompt: str, n: int, temperature: float | None) -> Wish:
    """What a prompt in the form of `TEMPLATE` asks for."""
    pieces = re.split(r"<\|(system|user|assistant)\|>", prompt)[1:]
    turns = [(role, text) for role, text in zip(pieces[::2], pieces[1::2], strict=True)]
    if not turns or turns[-1][0] != "assistant" or CLOSE in turns[-1][1]:
        raise Wrong(400, "the prompt does not open the assistant's turn")
    messages = _turns(
        [{"role": role, "content": text.removesuffix(CLOSE)} for role, text in turns[:-1]]
    )
    answer = turns[-1][1].removeprefix(UNTHOUGHT)
    quiet = not answer.rstrip().endswith(THINK)
    return Wish(messages, answer, n, quiet=quiet, temperature=temperature)


def templated(body: bytes, opens: str) -> dict[str, str]:
    """What llama-server's `/apply-template` says; `opens` stands where an answer begins."""
    asked = _fields(msgspec.json.decode(body), {"messages", "chat_template_kwargs"})
    text = "".join(f"<|{turn.role}|>{turn.content}{CLOSE}" for turn in _turns(asked["messages"]))
    return {"prompt": f"{text}<|assistant|>{opens}"}


class Written(NamedTuple):
    """What was written: tokens of the prompt, of these cached (None: it does not tell), written."""

    text: str
    ended: bool
    prompt: int
    cached: int | None
    written: int
    thoughts: str = ""


class Form(NamedTuple):
    """A dialect: where it is asked, what it wants and how it replies; `unfit` declines a field."""

    path: str
    wish: Callable[[bytes], Wish]
    reply: Callable[[Written], dict[str, Any]]
    owner: str = "someone"
    models: str = "/v1/models"
    unfit: int = 400


def _details(written: Written) -> Mapping[str, object]:
    cached = None if written.cached is None else {"cached_tokens": written.cached}
    return {"prompt_tokens_details": cached}


def _hits(written: Written) -> Mapping[str, object]:
    if written.cached is None:
        return {}
    missed = written.prompt - written.cached
    return {"prompt_cache_hit_tokens": written.cached, "prompt_cache_miss_tokens": missed}


def _at_once(written: Written) -> Mapping[str, object]:
    return {} if written.cached is None else {"cached_tokens": written.cached}


def _usage(written: Written, cached: Mapping[str, object]) -> dict[str, object]:
    return {
        "prompt_tokens": written.prompt,
        "completion_tokens": written.written,
        "total_tokens": written.prompt + written.written,
        **cached,
    }


def _openai(cached: Callable[[Written], Mapping[str, object]]) -> Callable[[Written], Any]:
    """A reply to a chat, with the usage of a provider."""

    def reply(written: Written) -> dict[str, Any]:
        message: dict[str, object] = {"role": "assistant", "content": written.text}
        if written.thoughts:
            message["reasoning_content"] = written.thoughts
        finish = "stop" if written.ended else "length"
        return {
            "id": "chatcmpl-scripted",
            "object": "chat.completion",
            "model": "scripted",
            "choices": [{"index": 0, "message": message, "finish_reason": finish}],
            "usage": _usage(written, cached(written)),
        }

    return reply


def _completion_reply(written: Written) -> dict[str, Any]:
    finish = "stop" if written.ended else "length"
    return {
        "id": "cmpl-scripted",
        "object": "text_completion",
        "choices": [{"index": 0, "text": written.text, "finish_reason": finish}],
        "usage": _usage(written, _details(written)),
    }


def _ollama_reply(written: Written) -> dict[str, Any]:
    message = {"role": "assistant", "content": written.text}
    if written.thoughts:
        message["thinking"] = written.thoughts
    return {
        "model": "scripted",
        "message": message,
        "done": True,
        "done_reason": "stop" if written.ended else "length",
        "prompt_eval_count": written.prompt,
        "eval_count": written.written,
    }


def _llama_reply(written: Written) -> dict[str, Any]:
    meter = {"predicted_n": written.written}
    if written.cached is not None:
        meter |= {"cache_n": written.cached, "prompt_n": written.prompt - written.cached}
    stop = "eos" if written.ended else "limit"
    return {"content": written.text, "stop_type": stop, "timings": meter}


_CHAT = "/v1/chat/completions"
_OPENAI = _openai(_details)

FORMS: Mapping[str, Form] = {
    "llama-server-text": Form("/completion", llama_server, _llama_reply, "llamacpp"),
    "ollama": Form("/api/chat", ollama, _ollama_reply, "library"),
    "deepseek": Form("/beta/chat/completions", deepseek, _openai(_hits), "deepseek", "/models"),
    "vllm-text": Form(_CHAT, vllm, _OPENAI, "vllm"),
    "sglang-text": Form(_CHAT, sglang, _OPENAI, "sglang"),
    "mistral": Form(_CHAT, mistral, _OPENAI, "mistralai", unfit=422),
    "qwen": Form(_CHAT, qwen, _OPENAI, "system"),
    "moonshot": Form(_CHAT, moonshot, _openai(_at_once), "moonshot"),
    "lm-studio": Form(_CHAT, lm_studio, _OPENAI, "organization_owner"),
    "chat": Form(_CHAT, trailing, _OPENAI, "someone"),
    "edgewise": Form(_CHAT, edgewise, _OPENAI, "edgewise"),
    "completions": Form("/v1/completions", completions, _completion_reply, "someone"),
}
"""By their names (`BY_TEXT`)."""
