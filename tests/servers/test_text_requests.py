"""What each API that takes text is asked, as its documents have it: no paid one was ever asked."""

from typing import Any

import pytest

from edgewise.cloud.registry import BY_TEXT, entry_of
from edgewise.servers.base import WantedText

TURNS = [{"role": "user", "content": "Count."}]
DRAWN = {"temperature": 0.7, "top_k": 0, "top_p": 0.9, "min_p": 0.0, "seed": 3}
ALL = {**DRAWN, "top_k": 40, "min_p": 0.1}
TEMPERED = {"temperature": 0.7, "top_p": 0.9}
NO_EFFORT = {"reasoning_effort": "none"}
BY_TEMPLATE = {"chat_template_kwargs": {"enable_thinking": False}}
BY_TYPE = {"thinking": {"type": "disabled"}}
GOES_ON = {"continue_final_message": True}

LAST = {name: {"prefix": True} for name in ("deepseek", "mistral")}
LAST |= {name: {"partial": True} for name in ("qwen", "moonshot")}

FIELDS: dict[str, dict[str, Any]] = {
    "deepseek": {**BY_TYPE, **TEMPERED},
    "vllm-text": {**GOES_ON, "add_generation_prompt": False, **BY_TEMPLATE, **ALL},
    "sglang-text": {**GOES_ON, **BY_TEMPLATE, **ALL},
    "mistral": {**NO_EFFORT, **TEMPERED, "random_seed": 3},
    "qwen": {"enable_thinking": False, **TEMPERED, "top_k": 40, "seed": 3},
    "moonshot": {**BY_TYPE, **TEMPERED},
    "lm-studio": {**NO_EFFORT, **TEMPERED, "top_k": 40, "seed": 3},
    "chat": {**NO_EFFORT, **TEMPERED, "seed": 3},
    "edgewise": {**NO_EFFORT, **ALL},
}


def body_of(name: str, asked: WantedText) -> dict[str, Any]:
    """With the first form of every field that an API may decline."""
    server = entry_of(name)
    path, body, _ = server.complete(asked)
    assert path == "/v1/chat/completions"
    for form in server.forms(asked):
        body = {**body, **next(iter(form), {})}
    return dict(body)


@pytest.mark.parametrize("name", FIELDS)
def test_a_chat_api_is_asked_in_its_own_words(name: str) -> None:
    last = {"role": "assistant", "content": "one", **LAST.get(name, {})}
    plain = {"model": "m", "messages": [*TURNS, last], "max_tokens": 2, "stream": False}
    asked = WantedText("m", TURNS, "one", 2, ALL)
    assert body_of(name, asked) == {**plain, **FIELDS[name]}
    assert entry_of(name).base == ("/beta" if name == "deepseek" else "")
    body = body_of(name, WantedText("m", TURNS, "", 2))
    assert body["messages"] == TURNS
    assert body["temperature"] == 0
    assert not GOES_ON.keys() & body.keys()


def test_what_does_not_filter_is_sent_where_the_server_has_a_default_of_its_own() -> None:
    for name, sent in {"vllm-text": {"top_k": -1, "min_p": 0.0}, "edgewise": {}}.items():
        body = body_of(name, WantedText("m", TURNS, "", 2, DRAWN))
        assert {key: value for key, value in body.items() if key in ("top_k", "min_p")} == sent


BRIEF = {"model": "m", "stream": False}
ANSWERED = [*TURNS, {"role": "assistant", "content": "one"}]
OF_OLLAMA = {**BRIEF, "messages": ANSWERED, "think": False, "truncate": False}
PLAIN = {"prompt": "one", "n_predict": 2, "cache_prompt": True}
PARTS = {"response_fields": ["content", "stop_type", "timings"]}
SAMPLERS = {"samplers": ["temperature", "top_k", "top_p", "min_p"]}
OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "ollama": (
        "/api/chat",
        {**OF_OLLAMA, "options": {"num_predict": 2, "repeat_penalty": 1.0, **ALL}},
    ),
    "llama-server-text": ("/completion", {**PLAIN, **PARTS, **SAMPLERS, **ALL}),
    "completions": ("/v1/completions", {**BRIEF, "prompt": "one", "max_tokens": 2, **ALL}),
}


@pytest.mark.parametrize("name", OTHERS)
def test_an_api_of_its_own_form_is_asked_in_it(name: str) -> None:
    server = entry_of(name)
    assert server.complete(WantedText("m", TURNS, "one", 2, ALL))[:2] == OTHERS[name]
    assert server.prompts == (name != "ollama")
    assert FIELDS.keys() | OTHERS.keys() == set(BY_TEXT)
