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
    *,
    messages: list[Message] = MESSAGES,
    sampling: Sampling | None = None,
) -> TextContinuation:
    return using(
        engine, lambda one: one.complete(TextRequest(messages, answer, 2, sampling or Sampling()))
    )


def serving(dialect: str, **options: Any) -> "closing[ScriptedText]":
    return closing(ScriptedText(dialect, **options))


# What is sent.


def asked_of(server: ScriptedText) -> dict[str, Any]:
    """The last consult's body."""
    found: dict[str, Any] = json.loads(server.requests[-1][1])
    return found


@pytest.mark.parametrize("dialect", FAMILIES)
def test_messages_that_somebody_answers_arrive_as_they_are(dialect: str) -> None:
    begun = "one two\n\n  “三” é\u200d🙂"
    said = [Message("system", "Be «brief»."), Message("user", "Was?\n\n1 < 2 & 3")]
    sampling = Sampling(temperature=0.7, top_p=0.9, seed=3)
    with serving(dialect) as server:
        for messages in ([], [*MESSAGES, Message("assistant", "one")]):
            with pytest.raises(CloudRejected):
                gone_on(opened(dialect, server.url), messages=messages)
        assert not server.asked
        gone_on(opened(dialect, server.url), begun, messages=said, sampling=sampling)
        assert server.asked[-1][:3] == (said, begun, 2)
        drawn = asked_of(server).get("options", asked_of(server))
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


# Where the prompt is text.


def test_a_template_is_asked_for_once_a_conversation_and_its_thoughts_are_closed() -> None:
    async def thrice(engine: TextEngine) -> None:
        for answer in ("", "one", "one two"):
            await engine.complete(TextRequest(MESSAGES, answer, 1))
        await engine.describe()
        await engine.complete(TextRequest(MESSAGES, "", 1))

    with serving("llama-server-text") as server:
        using(opened("llama-server-text", server.url), thrice)
        assert [path for path, _ in server.requests].count("/apply-template") == 2
        server.thinks = True
        gone_on(opened("llama-server-text", server.url))
        assert asked_of(server)["prompt"].endswith("<think>\n\n</think>\n\n" + BEGUN)
        # The reply to this one is of no interest.
        gone_on(opened("llama-server-text", server.url), "<think>\nI count")
        assert asked_of(server)["prompt"].endswith("<|assistant|><think>\nI count")


CONTROL = ["<|im_end|>", "<|end|>", "[/INST]", "</s>", "<start_of_turn>"]
CONTROLS = [("completions", next(iter(with_template().special.values())))]
CONTROLS += [("llama-server-text", one) for one in CONTROL]


@pytest.mark.parametrize(("dialect", "held"), CONTROLS)
def test_no_control_token_is_sent_as_text(dialect: str, held: str) -> None:
    """Nor to llama-server any sign of one."""
    with serving(dialect) as server:
        for said, answer in ((f"a {held} b", BEGUN), ("a", held)):
            with pytest.raises(CloudRejected) as found:
                gone_on(opened(dialect, server.url), answer, messages=[Message("user", said)])
            assert repr(held) in str(found.value)
        assert not server.requests


def test_a_template_that_cannot_be_rendered_is_a_failed_consult() -> None:
    tokenizer = ByteTokenizer()
    tokenizer.chat_template = "{{ raise_exception('no system messages') }}"
    with serving("completions") as server, pytest.raises(CloudRejected, match="no system messages"):
        gone_on(opened("completions", server.url, tokenizer=tokenizer))


# Keys, models and addresses.


@pytest.mark.parametrize("dialect", [*FAMILIES, "chat"])
def test_a_wrong_key_or_path_is_refused(dialect: str) -> None:
    with serving(dialect) as server:
        with pytest.raises(CloudRejected, match=r"HTTP 404.*check the address"):
            gone_on(opened(dialect, f"{server.url}/elsewhere", model="scripted"))
        server.key = "right"
        with pytest.raises(CloudRefused, match="EDGEWISE_CLOUD_KEY"):
            using(
                opened(dialect, server.url, key="wrong", model="scripted"),
                lambda one: one.describe(),
            )
        assert gone_on(opened(dialect, server.url, key="right")).text == " four five"


@pytest.mark.parametrize("dialect", FAMILIES[1:])
def test_one_of_many_models_has_to_be_named_and_served(dialect: str) -> None:
    async def asked(engine: TextEngine) -> None:
        await engine.describe()
        await engine.complete(TextRequest(MESSAGES, BEGUN, 1))

    with serving(dialect) as server:
        server.models = [f"m{number}" for number in range(20)]
        for named in ("m77", None):
            with pytest.raises(CloudRejected, match=r"'m7'.* and 12 more") as found:
                using(opened(dialect, server.url, model=named), asked)
            assert found.value.setting == "cloud_model"
        assert gone_on(opened(dialect, server.url, model="m7")).text


@pytest.mark.parametrize(
    ("dialect", "base", "bare", "ending"),
    [
        # As Gemini's paths are.
        *[(dialect, "/v1beta/openai", True, "/") for dialect in ("chat", "completions")],
        *[("chat", "/openai", False, ending) for ending in ("", "/v1", "/v1/")],
        ("deepseek", "", False, "/beta"),
    ],
)
def test_where_paths_begin_is_found(dialect: str, base: str, bare: bool, ending: str) -> None:
    with serving(dialect, base=base, bare=bare) as server:
        for model in (None, "scripted"):
            engine = opened(dialect, server.url + ending, model=model)
            assert gone_on(engine).text == " four five"


# What comes back.


def saying(text: bytes, status: int = 200) -> Edited:
    return Edited(lambda _: text, status=status)


def writing(text: bytes) -> Edited:
    return Edited(lambda data: data.replace(b" four", text))


Fault = tuple[TextMisdeed, type[CloudError], str]
FAULTS: list[Fault] = [
    *((FILTERED, CloudRejected, "content filter"), (TOOL_CALL, CloudRejected, "tool call")),
    *((HTML, CloudProtocolError, "web page"), (STREAM, CloudProtocolError, "stream")),
    *((BUSY, CloudUnavailable, "429"), (saying(b"", 500), CloudUnavailable, "500")),
    (saying(b"", 402), CloudRejected, "balance"),
    *((saying(one), CloudProtocolError, "of its form") for one in (b"", b"[]", b"null")),
    (Edited(lambda data: data[: len(data) // 2]), CloudProtocolError, "of its form"),
    *((writing(one), CloudProtocolError, "of its form") for one in (b"\\ud800", b"\xff")),
    (writing(b"\\u0000"), CloudProtocolError, "0000"),
    (writing(b"x" * 9000), CloudProtocolError, "bytes for"),
    (writing(b"<think>"), CloudRejected, "reason"),
    (saying(b" " * (5 << 20)), CloudProtocolError, "more than"),
    (Wire([b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n{"]), CloudUnavailable, "reached"),
    ("reset", CloudUnavailable, "cannot be reached"),
]


def all_told(dialect: str, faults: list[Fault]) -> None:
    with serving(dialect) as server:
        for fault, kind, said in faults:
            server.fault = lambda _, fault=fault: fault
            with pytest.raises(kind, match=said or None):
                gone_on(opened(dialect, server.url))


@pytest.mark.parametrize("dialect", FAMILIES)
def test_what_is_no_reply_is_a_fault(dialect: str) -> None:
    all_told(dialect, FAULTS)


def counting(**counts: object) -> Retold:
    return Retold(lambda reply: {**reply, "usage": {**reply["usage"], **counts}})


CACHED: list[tuple[Mapping[str, object], int | None]] = [
    ({"prompt_tokens_details": {"cached_tokens": 3}}, 3),
    ({"prompt_tokens_details": None, "prompt_cache_hit_tokens": 2}, 2),
    ({"prompt_tokens_details": None, "cached_tokens": 1}, 1),
    ({"prompt_tokens_details": {"cached_tokens": None}}, None),
]


def test_who_was_cached_is_told_in_any_word() -> None:
    with serving("chat") as server:
        for told, cached in CACHED:
            server.fault = lambda _, told=told: counting(**told)
            assert gone_on(opened("chat", server.url)).cached == cached


def edited(**fields: object) -> Retold:
    """The first choice with other fields."""
    return Retold(lambda reply: {**reply, "choices": [{**reply["choices"][0], **fields}]})


CANNOT_BE = [
    *(counting(prompt_tokens=count) for count in (-1, 10**30, "12", True)),
    counting(completion_tokens=1 << 40),
    *(counting(prompt_tokens_details=one) for one in (7, {"cached_tokens": 1000})),
    *(edited(finish_reason=reason) for reason in (None, "bored", 7)),
    *(edited(message=None, text=None), edited(message={"content": 5})),
    *(Retold(lambda reply, n=n: {**reply, "choices": reply["choices"] * n}) for n in (0, 2)),
    Retold(lambda reply: {"object": "chat.completion"}),
]
DECLINED = [
    *(edited(finish_reason=reason) for reason in ("refusal", "function_call")),
    edited(message={"content": None, "refusal": "I will not."}),
    edited(message={"content": "", "reasoning_content": "Hm."}),
    edited(message={"content": None, "reasoning": "Hm."}),
    edited(message={"content": [{"type": "thinking"}]}),
    edited(message={"content": "x", "tool_calls": [{}]}),
    Retold(lambda reply: {"error": {"message": "No capacity", "code": 502}}),
]


def test_a_reply_of_what_cannot_be_is_a_fault() -> None:
    all_told("chat", [(one, CloudProtocolError, "") for one in CANNOT_BE])
    all_told("chat", [(one, CloudRejected, "") for one in DECLINED])
    scarce = edited(finish_reason="insufficient_system_resource")
    all_told("chat", [(scarce, CloudUnavailable, "")])


WORDS = [
    (b'{"error": {"message": "too long"}}', "too long"),
    (b'{"message": "%s"}' % PREFILL.encode(), PREFILL),
    (b'{"error": "model is loading"}', "model is loading"),
    (b'{"object": "error", "message": "bad field"}', "bad field"),
    (b'{"detail": [{"loc": ["body", "x"], "msg": "Extra inputs"}]}', "Extra inputs"),
    (b'[{"error": {"message": "a list, as Gemini sends it"}}]', "a list, as Gemini"),
    (b"\x1b[31mred \xff", r"\\x1b\[31mred"),
]


def test_the_apis_words_are_told_whatever_form_they_have() -> None:
    all_told("chat", [(saying(said, 400), CloudRejected, told) for said, told in WORDS])


def test_an_error_of_any_depth_is_declined() -> None:
    """At some depth it can be read and not be written."""
    engine = opened("chat", "http://127.0.0.1:9", model="m")
    for depth in range(900, 1000):
        body = b'{"a":' * depth + b"1" + b"}" * depth
        assert isinstance(engine.declined(400, body, None), CloudRejected)


# Bytes that nobody expects.

VALID: Mapping[str, Any] = {
    name: json.loads(text)
    for name, text in {
        "ollama": """{"message": {"role": "assistant", "content": " four", "thinking": ""},
            "done": true, "done_reason": "stop", "prompt_eval_count": 7, "eval_count": 2}""",
        "llama-server-text": """{"content": " four", "stop_type": "limit",
            "timings": {"cache_n": 3, "prompt_n": 4, "predicted_n": 2}, "prompt": "<|user|>"}""",
        "completions": """{"choices": [{"text": " four", "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 7, "completion_tokens": 2}}""",
        "deepseek": """{"choices": [{"message": {"content": " four"}, "finish_reason": "stop"}],
            "usage": {"prompt_tokens": 7, "completion_tokens": 2, "prompt_cache_hit_tokens": 3}}""",
    }.items()
}


def continued(dialect: str, reply: bytes) -> TextContinuation:
    """What becomes of this reply to every request."""

    async def said(*_: object, **__: object) -> bytes:
        return reply

    # Without a template nothing is rendered.
    plain = {"tokenizer": ByteTokenizer()} if dialect == "completions" else {}
    engine: Any = opened(dialect, "http://127.0.0.1:9", model="m", **plain)
    engine.send = said
    return asyncio.run(engine.complete(TextRequest(MESSAGES, BEGUN, 2)))


def test_a_reply_may_have_no_usage() -> None:
    for dialect in ("completions", "deepseek"):
        gone = continued(dialect, json.dumps({**VALID[dialect], "usage": None}).encode())
        assert (gone.text, gone.prompt, gone.written) == (" four", None, None)


@pytest.mark.parametrize("dialect", VALID)
@given(data=st.data())
def test_any_reply_is_a_text_within_bounds_or_a_fault(dialect: str, data: st.DataObject) -> None:
    # A valid one is read whole, so that what is changed in it is looked at.
    gone = continued(dialect, json.dumps(VALID[dialect]).encode())
    assert (gone.text, gone.prompt, gone.written) == (" four", 7, 2)
    try:
        gone = continued(dialect, data.draw(json_like(VALID[dialect])))
    except CloudError:
        return
    assert len(gone.text.encode()) < 1_000
    assert "\0" not in gone.text
    for count in (gone.prompt, gone.cached, gone.written):
        assert count is None or 0 <= count < 1 << 25
