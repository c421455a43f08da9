"""How each API that takes text replies, by its documents: for a scripted one."""

import re
from collections.abc import Callable, Mapping
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


def _turns(asked: list[Any]) -> list[Message]:
    try:
        return msgspec.convert(
            [{"role": turn["role"], "content": turn["content"]} for turn in asked], list[Message]
        )
    except (msgspec.ValidationError, KeyError) as error:
        raise Wrong(400, str(error)) from error


_QUIET = {"reasoning_effort", "thinking", "enable_thinking", "chat_template_kwargs"}


def chat(
    own: str = "reasoning_effort seed", mark: str | None = None, status: int = 400
) -> Callable[[bytes], Wish]:
    """A chat API with these fields beside those of all: others are declined with the `status`.

    A trailing answer needs the `mark`, in it or beside it, to be gone on with.
    `servers/test_text_requests.py` holds which values each API is sent.
    """
    known = {"model", "messages", "max_tokens", "stream", "temperature", "top_p", *own.split()}

    def wish(body: bytes) -> Wish:
        asked: Any = msgspec.json.decode(body)
        marks = {name for turn in asked["messages"] for name in turn} - {"role", "content"}
        if (marks | asked.keys()) - known - {mark}:
            raise Wrong(status, f"unknown fields in {asked}")
        quiet = bool(_QUIET & asked.keys())
        found = _chat(asked, asked["max_tokens"], asked.get("temperature"), quiet=quiet)
        if found.answer and mark and mark not in marks | asked.keys():
            raise Wrong(400, "Expected another last role than assistant")
        return found

    return wish


def ollama(body: bytes) -> Wish:
    asked: Any = msgspec.json.decode(body)
    options = asked["options"]
    quiet = not asked.get("think", True)
    return _chat(asked, options["num_predict"], options.get("temperature"), quiet=quiet)


def _chat(asked: Any, n: int, temperature: float | None, *, quiet: bool) -> Wish:
    # Ollama streams unless it is told not to; others, behind LiteLLM, are not told.
    if asked.get("stream", "options" in asked) or not asked["messages"]:
        raise Wrong(400, "this script does not stream")
    messages = _turns(asked["messages"])
    answer = messages.pop().content if messages[-1].role == "assistant" else ""
    return Wish(messages, answer, n, quiet, temperature)


def completions(body: bytes) -> Wish:
    asked: Any = msgspec.json.decode(body)
    n = asked["n_predict"] if "n_predict" in asked else asked["max_tokens"]
    return _of_text(asked["prompt"], n, asked.get("temperature"))


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
    asked: Any = msgspec.json.decode(body)
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


_CHAT, _GOES_ON = "/v1/chat/completions", "continue_final_message"
_ALL = "chat_template_kwargs seed top_k min_p"
_OPENAI = _openai(_details)

FORMS: Mapping[str, Form] = {
    "llama-server-text": Form("/completion", completions, _llama_reply, "llamacpp"),
    "ollama": Form("/api/chat", ollama, _ollama_reply, "library"),
    "deepseek": Form(
        "/beta/chat/completions", chat("thinking", "prefix"), _openai(_hits), "deepseek", "/models"
    ),
    "vllm-text": Form(_CHAT, chat(f"{_ALL} add_generation_prompt", _GOES_ON), _OPENAI, "vllm"),
    "sglang-text": Form(_CHAT, chat(_ALL, _GOES_ON), _OPENAI, "sglang"),
    "mistral": Form(
        _CHAT, chat("reasoning_effort random_seed", "prefix", 422), _OPENAI, "mistralai", unfit=422
    ),
    "qwen": Form(_CHAT, chat("enable_thinking top_k seed", "partial"), _OPENAI, "system"),
    "moonshot": Form(_CHAT, chat("thinking", "partial"), _openai(_at_once), "moonshot"),
    "lm-studio": Form(_CHAT, chat("reasoning_effort seed top_k"), _OPENAI, "organization_owner"),
    "chat": Form(_CHAT, chat(), _OPENAI, "someone"),
    "edgewise": Form(_CHAT, chat("reasoning_effort seed top_k min_p"), _OPENAI, "edgewise"),
    "completions": Form("/v1/completions", completions, _completion_reply, "someone"),
}
"""By their names (`BY_TEXT`)."""
