"""APIs that take text and do not behave: each fault is a `CloudError` with a sentence."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from contextlib import closing
from typing import Any, TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgewise.cloud import registry
from edgewise.engines.text import TextContinuation, TextEngine, TextRequest
from edgewise.errors import (
    CloudError,
    CloudProtocolError,
    CloudRefused,
    CloudRejected,
    CloudUnavailable,
)
from edgewise.prompts import Message
from edgewise.sampling import Sampling
from edgewise.testing.scripted_edge import ByteTokenizer
from tests.doubles.scripted_engine import Edited, Wire
from tests.doubles.scripted_text import (
    BUSY,
    FILTERED,
    HTML,
    PREFILL,
    STREAM,
    TOOL_CALL,
    Retold,
    ScriptedText,
    TextMisdeed,
)
from tests.doubles.text_forms import with_template
from tests.outside_bytes import json_like

MESSAGES = [Message("user", "Count in words from one to ten.")]
BEGUN = "one two three"
FAMILIES = ["llama-server-text", "ollama", "deepseek", "completions"]
"""One of each form of reply."""

_T = TypeVar("_T")


def opened(dialect: str, url: str, **options: Any) -> TextEngine:
    if dialect == "completions":
        options = {"tokenizer": with_template(), **options}
    engine: TextEngine = registry.opened(dialect, url, **options)
    return engine


def using(engine: TextEngine, work: Callable[[TextEngine], Awaitable[_T]]) -> _T:
    """The outcome of `work`, in a loop of its own."""

    async def done() -> _T:
        try:
            return await work(engine)
        finally:
            await engine.close()

    return asyncio.run(done())


def gone_on(
    engine: TextEngine,
    answer: str = BEGUN,
    n: int = 2,
    *,
    messages: list[Message] = MESSAGES,
    sampling: Sampling | None = None,
) -> TextContinuation:
    return using(
        engine, lambda one: one.complete(TextRequest(messages, answer, n, sampling or Sampling()))
    )


def serving(dialect: str, **options: Any) -> "closing[ScriptedText]":
    return closing(ScriptedText(dialect, **options))


def answered(
    dialect: str, fault: TextMisdeed, answer: str = BEGUN, sampling: Sampling | None = None
) -> TextContinuation:
    """What becomes of a consult at a server with that fault."""
    with serving(dialect, fault=lambda number: fault) as server:
        return gone_on(opened(dialect, server.url), answer, sampling=sampling)


# What is sent.


def asked_of(server: ScriptedText) -> dict[str, Any]:
    """The last consult's body."""
    found: dict[str, Any] = json.loads(server.requests[-1][1])
    return found


@pytest.mark.parametrize("dialect", FAMILIES)
def test_messages_answer_and_sampling_arrive_as_they_are(dialect: str) -> None:
    begun = "one two\n\n  “三” é\u200d🙂"
    messages = [Message("system", "Be «brief»."), Message("user", "Was?\n\n1 < 2 & 3")]
    sampling = Sampling(temperature=0.7, top_p=0.9, seed=3)
    with serving(dialect) as server:
        gone_on(opened(dialect, server.url), begun, messages=messages, sampling=sampling)
        wish, asked = server.asked[-1], asked_of(server)
    assert (wish.messages, wish.answer, wish.n) == (messages, begun, 2)
    drawn = asked.get("options", asked)
    assert (drawn["temperature"], drawn["top_p"]) == (0.7, 0.9)


@pytest.mark.parametrize("dialect", ["deepseek", "mistral"])
def test_a_filter_that_an_api_has_no_word_for_is_refused(dialect: str) -> None:
    with serving(dialect) as server, pytest.raises(CloudRejected, match="top-k") as found:
        gone_on(opened(dialect, server.url), sampling=Sampling(temperature=1.0, top_k=5))
    assert found.value.setting == "top_k"
    assert not server.requests or "completions" not in server.requests[-1][0]


@pytest.mark.parametrize("dialect", ["chat", "mistral", "vllm-text"])
def test_a_field_that_an_api_declines_is_left_out_from_then_on(dialect: str) -> None:
    async def twice(one: TextEngine) -> TextContinuation:
        await one.complete(TextRequest(MESSAGES, BEGUN, 2))
        return await one.complete(TextRequest(MESSAGES, BEGUN, 2))

    with serving(dialect) as server:
        server.declines = frozenset({"reasoning_effort", "chat_template_kwargs"})
        assert using(opened(dialect, server.url), twice).text == " four five"
        assert len(server.requests) == 3


def test_a_temperature_of_its_own_is_left_to_it_for_greedy_answers_alone() -> None:
    with serving("moonshot") as server:
        server.only = 1.0
        assert gone_on(opened("moonshot", server.url)).text == " four five"
        with pytest.raises(CloudRejected, match="only 1 is allowed"):
            gone_on(opened("moonshot", server.url), sampling=Sampling(temperature=0.5))


@pytest.mark.parametrize("dialect", FAMILIES)
@pytest.mark.parametrize("messages", [[], [*MESSAGES, Message("assistant", "one")]])
def test_messages_that_nobody_answers_are_refused(dialect: str, messages: list[Message]) -> None:
    with serving(dialect) as server, pytest.raises(CloudRejected):
        gone_on(opened(dialect, server.url), messages=messages)
    assert not server.asked


# Where the prompt is text.


def test_a_block_of_thoughts_that_the_template_opens_is_closed() -> None:
    with serving("llama-server-text") as server:
        server.thinks = True
        gone_on(opened("llama-server-text", server.url))
        assert asked_of(server)["prompt"].endswith("<think>\n\n</think>\n\n" + BEGUN)
        # The reply to this one is of no interest.
        gone_on(opened("llama-server-text", server.url), "<think>\nI count")
        assert asked_of(server)["prompt"].endswith("<|assistant|><think>\nI count")


def test_a_template_is_asked_for_once_a_conversation() -> None:
    with serving("llama-server-text") as server:

        async def thrice(engine: TextEngine) -> None:
            for answer in ("", "one", "one two"):
                await engine.complete(TextRequest(MESSAGES, answer, 1))
            await engine.describe()
            await engine.complete(TextRequest(MESSAGES, "", 1))

        using(opened("llama-server-text", server.url), thrice)
        paths = [path for path, _ in server.requests]
    assert paths.count("/apply-template") == 2


@pytest.mark.parametrize("where", ["message", "answer"])
def test_completions_take_no_control_token_in_a_message(where: str) -> None:
    tokenizer = with_template()
    held = next(iter(tokenizer.special.values()))
    messages = [Message("user", f"a {held} b")] if where == "message" else MESSAGES
    answer = held if where == "answer" else BEGUN
    with serving("completions") as server, pytest.raises(CloudRejected) as found:
        gone_on(opened("completions", server.url, tokenizer=tokenizer), answer, messages=messages)
    assert repr(held) in str(found.value)
    assert not server.requests


@pytest.mark.parametrize("held", ["<|im_end|>", "<|end|>", "[/INST]", "</s>", "<start_of_turn>"])
@pytest.mark.parametrize("where", ["message", "answer"])
def test_llama_server_is_sent_no_sign_of_a_control_token(where: str, held: str) -> None:
    messages = [Message("user", f"a {held} b")] if where == "message" else MESSAGES
    answer = held if where == "answer" else BEGUN
    with serving("llama-server-text") as server, pytest.raises(CloudRejected) as found:
        gone_on(opened("llama-server-text", server.url), answer, messages=messages)
    assert repr(held) in str(found.value)
    assert not server.requests


def test_a_template_that_cannot_be_rendered_is_a_failed_consult() -> None:
    tokenizer = ByteTokenizer()
    tokenizer.chat_template = "{{ raise_exception('no system messages') }}"
    with serving("completions") as server, pytest.raises(CloudRejected, match="no system messages"):
        gone_on(opened("completions", server.url, tokenizer=tokenizer))


# Keys, models and addresses.


@pytest.mark.parametrize("dialect", FAMILIES)
def test_a_wrong_key_is_refused(dialect: str) -> None:
    with serving(dialect) as server:
        server.key = "right"
        engine = opened(dialect, server.url, key="wrong", model="scripted")
        with pytest.raises(CloudRefused, match="EDGEWISE_CLOUD_KEY"):
            using(engine, lambda one: one.describe())
        assert gone_on(opened(dialect, server.url, key="right")).text == " four five"


@pytest.mark.parametrize("dialect", FAMILIES[1:])
@pytest.mark.parametrize("named", ["m77", None])
def test_one_of_many_models_has_to_be_named_and_served(dialect: str, named: str | None) -> None:
    async def asked(engine: TextEngine) -> None:
        await engine.describe()
        await engine.complete(TextRequest(MESSAGES, BEGUN, 1))

    with serving(dialect) as server:
        server.models = [f"m{number}" for number in range(20)]
        with pytest.raises(CloudRejected, match=r"'m7'.* and 12 more") as found:
            using(opened(dialect, server.url, model=named), asked)
        assert found.value.setting == "cloud_model"
        assert gone_on(opened(dialect, server.url, model="m7")).text


@pytest.mark.parametrize("dialect", [*FAMILIES, "chat"])
def test_a_path_where_nothing_is(dialect: str) -> None:
    with serving(dialect) as server:
        engine = opened(dialect, f"{server.url}/elsewhere", model="scripted")
        with pytest.raises(CloudRejected, match=r"HTTP 404.*check the address"):
            gone_on(engine)


@pytest.mark.parametrize(
    ("dialect", "base", "bare", "ending"),
    [
        # As Gemini's paths are.
        *[(dialect, "/v1beta/openai", True, "/") for dialect in ("chat", "completions")],
        *[("chat", "/openai", False, ending) for ending in ("", "/v1", "/v1/")],
        ("deepseek", "", False, "/beta"),
    ],
)
@pytest.mark.parametrize("model", [None, "scripted"])
def test_where_paths_begin_is_found(
    dialect: str, base: str, bare: bool, ending: str, model: str | None
) -> None:
    with serving(dialect, base=base, bare=bare) as server:
        engine = opened(dialect, server.url + ending, model=model)
        assert gone_on(engine).text == " four five"


# What comes back.


@pytest.mark.parametrize("dialect", FAMILIES)
@pytest.mark.parametrize(
    ("fault", "kind", "said"),
    [
        (FILTERED, CloudRejected, "content filter"),
        (TOOL_CALL, CloudRejected, "tool call"),
        (HTML, CloudProtocolError, "web page"),
        (STREAM, CloudProtocolError, "stream"),
        (BUSY, CloudUnavailable, "429"),
        (Edited(lambda _: b"", status=500), CloudUnavailable, "500"),
        (Edited(lambda _: b"", status=402), CloudRejected, "balance"),
        (Edited(lambda _: b""), CloudProtocolError, "of its form"),
        (Edited(lambda _: b"[]"), CloudProtocolError, "of its form"),
        (Edited(lambda _: b"null"), CloudProtocolError, "of its form"),
        (Edited(lambda data: data[: len(data) // 2]), CloudProtocolError, "of its form"),
        (Edited(lambda data: data.replace(b" four", b"\\u0000")), CloudProtocolError, "0000"),
        (
            Edited(lambda data: data.replace(b" four", b"\\ud800")),
            CloudProtocolError,
            "of its form",
        ),
        (Edited(lambda data: data.replace(b" four", b"\xff")), CloudProtocolError, "of its form"),
        (Edited(lambda data: data.replace(b" four", b"x" * 9000)), CloudProtocolError, "bytes for"),
        (Edited(lambda data: data.replace(b" four", b"<think>")), CloudRejected, "reason"),
        (Edited(lambda data: b" " * (5 << 20)), CloudProtocolError, "more than"),
        (Wire([b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n{"]), CloudUnavailable, "reached"),
        ("reset", CloudUnavailable, "cannot be reached"),
    ],
)
def test_what_is_no_reply_is_a_fault(
    dialect: str, fault: TextMisdeed, kind: type[CloudError], said: str
) -> None:
    with pytest.raises(kind, match=said):
        answered(dialect, fault)


def counting(**counts: object) -> Retold:
    return Retold(lambda reply: {**reply, "usage": {**reply["usage"], **counts}})


@pytest.mark.parametrize(
    ("told", "cached"),
    [
        ({"prompt_tokens_details": {"cached_tokens": 3}}, 3),
        ({"prompt_tokens_details": None, "prompt_cache_hit_tokens": 2}, 2),
        ({"prompt_tokens_details": None, "cached_tokens": 1}, 1),
        ({"prompt_tokens_details": {"cached_tokens": None}}, None),
    ],
)
def test_who_was_cached_is_told_in_any_word(told: Mapping[str, object], cached: object) -> None:
    assert answered("chat", counting(**told)).cached == cached


def edited(**fields: object) -> Retold:
    """The first choice with other fields."""
    return Retold(lambda reply: {**reply, "choices": [{**reply["choices"][0], **fields}]})


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        (counting(prompt_tokens=-1), CloudProtocolError),
        (counting(prompt_tokens=10**30), CloudProtocolError),
        (counting(prompt_tokens="12"), CloudProtocolError),
        (counting(prompt_tokens=True), CloudProtocolError),
        (counting(completion_tokens=1 << 40), CloudProtocolError),
        (counting(prompt_tokens_details={"cached_tokens": 1000}), CloudProtocolError),
        (counting(prompt_tokens_details=7), CloudProtocolError),
        (edited(finish_reason=None), CloudProtocolError),
        (edited(finish_reason="bored"), CloudProtocolError),
        (edited(finish_reason=7), CloudProtocolError),
        (edited(finish_reason="refusal"), CloudRejected),
        (edited(finish_reason="function_call"), CloudRejected),
        (edited(finish_reason="insufficient_system_resource"), CloudUnavailable),
        (edited(message=None, text=None), CloudProtocolError),
        (edited(message={"content": 5}), CloudProtocolError),
        (edited(message={"content": None, "refusal": "I will not."}), CloudRejected),
        (edited(message={"content": "", "reasoning_content": "Hm."}), CloudRejected),
        (edited(message={"content": None, "reasoning": "Hm."}), CloudRejected),
        (edited(message={"content": [{"type": "thinking"}]}), CloudRejected),
        (edited(message={"content": "x", "tool_calls": [{}]}), CloudRejected),
        (Retold(lambda reply: {**reply, "choices": reply["choices"] * 2}), CloudProtocolError),
        (Retold(lambda reply: {**reply, "choices": []}), CloudProtocolError),
        (Retold(lambda reply: {"object": "chat.completion"}), CloudProtocolError),
        (Retold(lambda reply: {"error": {"message": "No capacity", "code": 502}}), CloudRejected),
    ],
)
def test_a_reply_that_says_what_cannot_be_is_a_fault(fault: Retold, kind: type[CloudError]) -> None:
    with pytest.raises(kind):
        answered("chat", fault)


@pytest.mark.parametrize(
    ("said", "told"),
    [
        (b'{"error": {"message": "too long"}}', "too long"),
        (b'{"message": "%s"}' % PREFILL.encode(), PREFILL),
        (b'{"error": "model is loading"}', "model is loading"),
        (b'{"object": "error", "message": "bad field"}', "bad field"),
        (b'{"detail": [{"loc": ["body", "x"], "msg": "Extra inputs"}]}', "Extra inputs"),
        (b'[{"error": {"message": "a list, as Gemini sends it"}}]', "a list, as Gemini"),
        (b"\x1b[31mred \xff", r"\\x1b\[31mred"),
    ],
)
def test_the_apis_words_are_told_whatever_form_they_have(said: bytes, told: str) -> None:
    with pytest.raises(CloudRejected, match=told):
        answered("chat", Edited(lambda _: said, status=400))


# Bytes that nobody expects.

VALID: Mapping[str, object] = {
    "ollama": {
        "message": {"role": "assistant", "content": " four", "thinking": ""},
        "done": True,
        "done_reason": "stop",
        "prompt_eval_count": 7,
        "eval_count": 2,
    },
    "llama-server-text": {
        "content": " four",
        "stop_type": "limit",
        "timings": {"cache_n": 3, "prompt_n": 4, "predicted_n": 2},
        "prompt": "<|assistant|>",
    },
    "completions": {
        "choices": [{"text": " four", "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 2},
    },
    "deepseek": {
        "choices": [{"message": {"content": " four"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 7, "completion_tokens": 2, "prompt_cache_hit_tokens": 3},
    },
}


def answering(dialect: str, reply: bytes) -> TextEngine:
    """An engine of this dialect whose every reply this is."""

    async def said(*_: object, **__: object) -> bytes:
        return reply

    url = "http://127.0.0.1:9"
    # Without a template nothing is rendered.
    plain = {"tokenizer": ByteTokenizer()} if dialect == "completions" else {}
    engine: Any = opened(dialect, url, model="m", **plain)
    engine.send = said
    return engine  # type: ignore[no-any-return]


@pytest.mark.parametrize("dialect", VALID)
@given(data=st.data())
def test_any_reply_is_a_text_within_bounds_or_a_fault(dialect: str, data: st.DataObject) -> None:
    engine = answering(dialect, data.draw(json_like(VALID[dialect])))
    try:
        gone = asyncio.run(engine.complete(TextRequest(MESSAGES, BEGUN, 2)))
    except CloudError:
        return
    assert len(gone.text.encode()) < 1_000
    assert "\0" not in gone.text
    for count in (gone.prompt, gone.cached, gone.written):
        assert count is None or 0 <= count < 1 << 25


@pytest.mark.parametrize("dialect", VALID)
def test_a_valid_reply_is_read_whole(dialect: str) -> None:
    """So that what is changed in them is looked at."""
    engine = answering(dialect, json.dumps(VALID[dialect]).encode())
    gone = asyncio.run(engine.complete(TextRequest(MESSAGES, BEGUN, 2)))
    assert gone.text == " four"
    assert (gone.prompt, gone.written) == (7, 2)
