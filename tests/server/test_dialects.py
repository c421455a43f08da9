"""One question in every dialect: the same text, streamed and whole, by the clients people have."""

import json
from functools import cache
from typing import Any, Literal

import httpx2
import pytest
from pydantic import BaseModel

from edgewise.cloud.engine import LlamaServer
from edgewise.server.requests import IGNORED_HEADER
from edgewise.testing.scripted_edge import ScriptedEdge, replying
from tests.doubles.scripted_engine import Misbehaviour, ScriptedEngine
from tests.server.in_process import BODIES, CHAT, app, data_of
from tests.server.serving import post
from tests.tool_models import ToolTokenizer, saying

QUESTION = "Tell me about copper."
MODEL = "edgewise:edge"  # it says the same every time
ANSWERED = f"<|user|>{QUESTION}<|end|><|assistant|>"


@cache
def asks(url: str) -> Any:
    import openai

    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


@cache
def asks_messages(url: str) -> Any:
    import anthropic

    return anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)


@pytest.fixture(scope="module")
def text(url: str) -> str:
    """What the question is answered with."""
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    answer = asks(url).chat.completions.create(model=MODEL, messages=messages)
    found = answer.choices[0].message.content
    assert found
    assert "copper" in found.lower()
    return found


def test_a_response_says_and_streams_the_same(url: str, text: str) -> None:
    client = asks(url)
    whole = client.responses.create(model=MODEL, input=QUESTION)
    assert whole.output_text == text
    assert (whole.status, whole.store) == ("completed", False)
    assert whole.usage is not None
    assert whole.usage.total_tokens == whole.usage.input_tokens + whole.usage.output_tokens
    turn: Any = {"role": "user", "content": [{"type": "input_text", "text": QUESTION}]}
    assert client.responses.create(model=MODEL, input=[turn]).output_text == text
    # An answer goes back as it came.
    history: list[Any] = [turn, *whole.output, {"role": "user", "content": "And iron?"}]
    assert client.responses.create(model=MODEL, input=history).output_text
    with client.responses.stream(model=MODEL, input=QUESTION) as stream:
        events = list(stream)
        assert stream.get_final_response().output_text == text
    assert [event.sequence_number for event in events] == list(range(len(events)))
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert "".join(deltas) == text
    kinds = [event.type for event in events if event.type != "response.output_text.delta"]
    part = ["output_item.added", "content_part.added", "output_text.done", "content_part.done"]
    wanted = ["created", "in_progress", *part, "output_item.done", "completed"]
    assert kinds == [f"response.{kind}" for kind in wanted]
    # One that is cut says so.
    cut = client.responses.create(model=MODEL, input=QUESTION, max_output_tokens=2)
    assert cut.status == "incomplete"
    assert cut.incomplete_details is not None
    assert cut.incomplete_details.reason == "max_output_tokens"
    stream = client.responses.create(model=MODEL, input=QUESTION, max_output_tokens=2, stream=True)
    assert [event.type for event in stream][-1] == "response.incomplete"


USER = {"role": "user", "content": "sky: "}
SAID: dict[str, Any] = {"role": "assistant", "content": "Hello."}
CALL: dict[str, Any] = {"type": "function", "function": {"name": "a", "arguments": "{}"}}
THINKING = {"type": "thinking", "thinking": "hm"}
PARSED = {"parsed_output": {"a": 1}}
TURNS: dict[str, list[dict[str, Any]]] = {
    "chat/completions": [
        {"role": "assistant", "reasoning_content": "hm"},
        SAID | {"reasoning_content": "hm"},
        SAID | {"reasoning": "hm"},
        SAID | {"reasoning_details": [{"type": "reasoning.text", "text": "hm"}]},
        SAID | {"thinking_blocks": [THINKING]},
        SAID | {"provider_specific_fields": {"a": 1}},
        SAID | {"parsed": {"a": 1}, "id": "msg_1"},
        SAID | {"audio": None, "function_call": None, "annotations": [{"type": "url_citation"}]},
        SAID | {"content": None},
        SAID | {"content": None, "tool_calls": []},
        SAID | {"content": [THINKING, {"type": "text", "text": "a"}]},
    ],
    "responses": [
        {"type": "reasoning", "id": "rs_1", "summary": []},
        SAID | {"type": "message", "phase": "final_answer", "parsed": {"a": 1}},
        CALL["function"] | {"type": "function_call", "call_id": "c", "parsed_arguments": {}},
    ],
    "messages": [
        SAID | {"content": [{"type": "redacted_thinking", "data": "x"}]},
        SAID | {"content": [{"type": "text", "text": "a", "citations": None} | PARSED]},
        SAID | {"id": "msg_1", "model": "claude", "stop_reason": "end_turn", "usage": {}},
    ],
}


@pytest.mark.parametrize(
    ("path", "said"), [(path, one) for path, ones in TURNS.items() for one in ones]
)
def test_what_any_server_answered_is_a_turn(path: str, said: dict[str, Any]) -> None:
    """With the fields that it and its clients add; those that say something are in the prompt."""
    edge = ScriptedEdge(saying("Yes."), tokenizer=ToolTokenizer())
    field = "input" if path == "responses" else "messages"
    with app(edge=edge) as client:
        body = BODIES[path] | {field: [USER, said, USER]}
        found = client.post(f"/v1/{path}", json=body)
    assert found.status_code == 200, found.text
    reasons = "reasoning" in {*said, said.get("type")}
    assert ("reasoning" in found.headers.get(IGNORED_HEADER, "").split(".")) == reasons


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("path", ["chat/completions", "responses", "messages"])
def test_ignored_fields_of_any_name_are_said_in_a_header(path: str, stream: bool) -> None:
    said = {"role": "assistant", "content": "x", "思考\r\n": "y", "z" * 10_000: "y"}
    field = "input" if path == "responses" else "messages"
    with app() as client:
        body = BODIES[path] | {field: [USER, said, USER], "stream": stream}
        found = client.post(f"/v1/{path}", json=body)
    assert found.status_code == 200, found.text
    names = ["z" * 60, "????"]
    assert found.headers[IGNORED_HEADER] == ", ".join(f"{field}.{name}" for name in names)


REFUSAL = {"type": "refusal", "refusal": "Never."}
NEVER = ({"content": None, "refusal": "Never."}, {"content": "Ne", "refusal": "ver."})


@pytest.mark.parametrize("said", [*NEVER, {"content": [REFUSAL]}])
def test_a_refusal_was_said(said: dict[str, Any]) -> None:
    told = {"edgewise": {"provenance": True}, "model": MODEL}
    with app(edge=ScriptedEdge(saying("Yes."), tokenizer=ToolTokenizer())) as client:
        turns = [USER, {"role": "assistant", **said}, USER]
        found = client.post("/v1/chat/completions", json=CHAT | told | {"messages": turns})
    assert b"<assistant>Never." in bytes(found.json()["edgewise"]["prompt_token_ids"])


@pytest.mark.deep
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")  # the client's own
def test_a_clients_own_objects_go_back(tool_url: str) -> None:
    """As its documentation shows, whole and dumped."""

    class City(BaseModel):
        city: Literal["Paris", "Rome"]

    chats = asks(tool_url).chat.completions
    asked: dict[str, Any] = {"model": "edgewise", "messages": [USER]}
    message = chats.parse(**asked, response_format=City).choices[0].message
    assert isinstance(message.parsed, City)
    for one in (message, message.model_dump()):
        assert chats.create(**asked | {"messages": [USER, one, USER], "max_tokens": 2})


def test_a_message_says_and_streams_the_same(url: str, text: str) -> None:
    client = asks_messages(url)
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    asked: dict[str, Any] = {"model": MODEL, "max_tokens": 200}
    whole = client.messages.create(**asked, messages=messages)
    assert [block.text for block in whole.content if block.type == "text"] == [text]
    assert (whole.stop_reason, whole.stop_sequence) == ("end_turn", None)
    blocks: list[Any] = [{"role": "user", "content": [{"type": "text", "text": QUESTION}]}]
    again = client.messages.create(**asked, messages=blocks)
    assert again.content[0].text == text  # type: ignore[union-attr]
    history: list[Any] = [*messages, whole.to_param(), {"role": "user", "content": "And iron?"}]
    assert client.messages.create(**asked, messages=history).content
    counted = client.messages.count_tokens(model=MODEL, messages=messages).input_tokens
    cached = again.usage.cache_read_input_tokens or 0
    assert counted == again.usage.input_tokens + cached
    # Turns of one role are one, the longest conversation of them too.
    said = [str(number) for number in range(80)]
    many: list[Any] = [{"role": "user", "content": one} for one in said]
    one: list[Any] = [{"role": "user", "content": "\n\n".join(said)}]
    counts = [client.messages.count_tokens(model=MODEL, messages=turns) for turns in (many, one)]
    assert counts[0].input_tokens == counts[1].input_tokens
    with client.messages.stream(**asked, messages=messages) as stream:
        events = list(stream)
        put_together = stream.get_final_message()
    assert put_together.content[0].text == text  # type: ignore[union-attr]
    assert put_together.stop_reason == "end_turn"
    assert put_together.usage.output_tokens > 0
    kinds = [event.type for event in events if event.type not in ("text", "content_block_delta")]
    block = ["content_block_start", "content_block_stop"]
    assert kinds == ["message_start", *block, "message_delta", "message_stop"]


def test_a_stop_sequence_is_named(url: str, text: str) -> None:
    client = asks_messages(url)
    word = text.split()[2]
    asked: dict[str, Any] = {
        "model": MODEL,
        "max_tokens": 200,
        "stop_sequences": ["never written", word],
        "messages": [{"role": "user", "content": QUESTION}],
    }
    whole = client.messages.create(**asked)
    assert (whole.stop_reason, whole.stop_sequence) == ("stop_sequence", word)
    assert whole.content[0].text == text.partition(word)[0]  # type: ignore[union-attr]
    with client.messages.stream(**asked) as stream:
        assert stream.get_final_message().stop_sequence == word
    chat = post(
        url, "v1/chat/completions", model=MODEL, stop=[word], messages=asked["messages"]
    ).json()
    assert chat["choices"][0]["stop_reason"] == word
    asked |= {"max_tokens": 2}
    assert client.messages.create(**asked).stop_reason == "max_tokens"


def test_system_text_is_read_wherever_it_stands(url: str) -> None:
    said = "Say little."
    blocks = [{"type": "text", "text": said, "cache_control": {"type": "ephemeral"}}]
    turn = {"role": "user", "content": QUESTION}
    chat = [{"role": "system", "content": said}, turn]
    wanted = post(url, "v1/chat/completions", model=MODEL, messages=chat, max_tokens=8).json()
    for system in (said, blocks):
        found = post(url, "v1/messages", model=MODEL, system=system, messages=[turn], max_tokens=8)
        usage = found.json()["usage"]
        whole = usage["input_tokens"] + usage["cache_read_input_tokens"]
        assert whole == wanted["usage"]["prompt_tokens"]
    for asked in ({"instructions": said, "input": QUESTION}, {"input": chat}):
        found = post(url, "v1/responses", model=MODEL, max_output_tokens=8, **asked).json()
        assert found["usage"]["input_tokens"] == wanted["usage"]["prompt_tokens"]


def test_a_line_about_the_bill_is_not_in_the_prompt(url: str) -> None:
    """Claude Code begins its system prompt with one; it differs in each request."""

    def asked(system: Any) -> list[int]:
        turn = {"role": "user", "content": QUESTION}
        more: dict[str, Any] = {"messages": [turn], "max_tokens": 4, "system": system}
        found = post(url, "v1/messages", model=MODEL, **more)
        assert found.status_code == 200, found.text
        return [found.json()["usage"][of] for of in ("input_tokens", "cache_read_input_tokens")]

    def texts(line: str) -> list[str]:
        return [f"x-anthropic-billing-header: cc_version=2; cch={line};", "Say little."]

    asked("\n".join(texts("aaaaa")))
    plain = asked("Say little.")
    assert plain[0] <= 1
    assert asked("\n".join(texts("bbbbb"))) == plain
    assert asked([{"type": "text", "text": one} for one in texts("ccccc")]) == plain


# What today's agents send beside what is answered: Codex, Claude Code, the SDKs.
CODEX: dict[str, Any] = json.loads("""{
"model": "edgewise:edge", "instructions": "You are a coding agent.", "input": [
  {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "a"}]},
  {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "b"}]},
  {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "copper?"}]},
  {"type": "reasoning", "summary": [], "encrypted_content": "x"}],
"tools": [], "tool_choice": "auto", "parallel_tool_calls": true,
"reasoning": {"effort": "medium", "summary": "auto"}, "store": true, "stream": true,
"include": ["reasoning.encrypted_content"], "prompt_cache_key": "0", "service_tier": null,
"text": {"verbosity": "low"}, "max_output_tokens": 8}""")
CLAUDE: dict[str, Any] = json.loads("""{
"model": "edgewise:edge", "max_tokens": 8,
"system": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}], "messages": [
  {"role": "user", "content": [{"type": "text", "text": "b"}]},
  {"role": "assistant", "content": [{"type": "thinking", "thinking": "", "signature": ""}]},
  {"role": "user", "content": [{"type": "text", "text": "copper?"}]}],
"metadata": {"user_id": "x"}, "thinking": {"type": "adaptive"},
"context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
"output_config": {"effort": "high"}, "temperature": 1, "stream": true}""")


IGNORED = {
    "responses": (CODEX, "store prompt_cache_key reasoning text.verbosity include input.reasoning"),
    "messages": (
        CLAUDE,
        "thinking output_config.effort context_management.edits.clear_thinking_20251015"
        " metadata system.cache_control messages.content.thinking",
    ),
    "chat/completions": (
        CHAT | {"store": True, "metadata": {"a": "b"}, "service_tier": "flex", "user": "me"},
        "metadata service_tier store user",
    ),
}


@pytest.mark.parametrize("path", IGNORED)
def test_harmless_fields_are_taken_and_said(url: str, path: str) -> None:
    asked, ignored = IGNORED[path]
    headers = {"anthropic-version": "2023-06-01", "anthropic-beta": "one,two"}
    with httpx2.Client(base_url=f"{url}/v1/", headers=headers, trust_env=False) as client:
        response = client.post(f"{path}?beta=true", json=asked, timeout=60)
        plain = client.post("responses", json=BODIES["responses"] | {"store": False}, timeout=60)
    assert response.status_code == 200, response.text
    assert set(response.headers[IGNORED_HEADER].split(", ")) == set(ignored.split())
    if path != "chat/completions":
        end = "response.completed" if path == "responses" else "message_stop"
        assert f"event: {end}" in response.text
    assert IGNORED_HEADER not in plain.headers


@pytest.mark.parametrize(
    ("fault", "code"),
    [("error", "cloud_unavailable"), ("busy", "cloud_unavailable"), ("declined", "cloud_rejected")],
)
def test_a_fault_in_the_middle_is_an_event_of_the_dialect(
    engine: ScriptedEngine, cloud: LlamaServer, fault: Misbehaviour, code: str
) -> None:
    begun = engine.asked
    engine.fault = lambda asked: fault if asked > begun else None
    with app(cloud, on_cloud_error="raise") as client:
        ends = {
            path: client.post(f"/v1/{path}", json=BODIES[path] | {"stream": True}).text
            for path in ("completions", "chat/completions", "responses", "messages")
        }
        whole = client.post("/v1/messages", json=BODIES["messages"])
    for path in ("completions", "chat/completions"):
        assert ends[path].strip().endswith("data: [DONE]")
        error = data_of(ends[path])[-1]["error"]
        assert error["code"] == code
        # So that an operator finds it in the engine's log.
        assert "(request scripted-" in error["message"]
    assert "event: response.failed" in ends["responses"]
    response = data_of(ends["responses"])[-1]["response"]
    assert (response["status"], response["error"]["code"]) == ("failed", code)
    assert "event: error" in ends["messages"]
    assert data_of(ends["messages"])[-1]["error"]["type"] == "api_error"
    assert (whole.status_code, whole.json()["error"]["type"]) == (502, "api_error")


def test_an_answer_that_fills_the_context_says_so() -> None:
    with app(context=12) as client:
        asked = {"model": "edgewise:edge", "max_tokens": 32, "messages": CHAT["messages"]}
        found = client.post("/v1/messages", json=asked).json()
    assert found["stop_reason"] == "model_context_window_exceeded"


def test_an_answer_that_goes_round_in_circles_ends_in_every_dialects_words() -> None:
    edge = ScriptedEdge(replying("round and " * 200, prompt="sky: "))
    with app(edge=edge) as client:

        def said(path: str, **limit: int) -> Any:
            body = {key: one for key, one in BODIES[path].items() if key != "max_tokens"}
            return client.post(f"/v1/{path}", json={**body, **limit}).json()

        for reply in (said("completions"), said("chat/completions")):
            assert reply["choices"][0]["finish_reason"] == "length"
            assert reply["usage"]["edgewise"]["repeats"] is True
        assert said("responses")["status"] == "incomplete"
        assert said("messages", max_tokens=2000)["stop_reason"] == "max_tokens"
