"""How each API that takes text is spoken to and replies, by its documents: for a scripted one."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from tests.doubles import text_wishes as wishes
from tests.doubles.text_wishes import Wish


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
    "llama-server-text": Form("/completion", wishes.llama_server, _llama_reply, "llamacpp"),
    "ollama": Form("/api/chat", wishes.ollama, _ollama_reply, "library"),
    "deepseek": Form(
        "/beta/chat/completions", wishes.deepseek, _openai(_hits), "deepseek", "/models"
    ),
    "vllm-text": Form(_CHAT, wishes.vllm, _OPENAI, "vllm"),
    "sglang-text": Form(_CHAT, wishes.sglang, _OPENAI, "sglang"),
    "mistral": Form(_CHAT, wishes.mistral, _OPENAI, "mistralai", unfit=422),
    "qwen": Form(_CHAT, wishes.qwen, _OPENAI, "system"),
    "moonshot": Form(_CHAT, wishes.moonshot, _openai(_at_once), "moonshot"),
    "lm-studio": Form(_CHAT, wishes.lm_studio, _OPENAI, "organization_owner"),
    "chat": Form(_CHAT, wishes.trailing, _OPENAI, "someone"),
    "edgewise": Form(_CHAT, wishes.edgewise, _OPENAI, "edgewise"),
    "completions": Form("/v1/completions", wishes.completions, _completion_reply, "someone"),
}
"""By the names of `edgewise.engines.text_dialects`."""
