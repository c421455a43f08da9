"""`response_format` and tools over `/v1/chat/completions`: what is asked for is what comes."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from edgewise.grammar import compiled
from edgewise.testing.scripted_cloud import ScriptedCloud
from edgewise.testing.scripted_edge import ScriptedEdge
from tests.server.in_process import CHAT, app
from tests.tool_models import HERMES, ToolTokenizer, saying

pytest.importorskip("llguidance")

TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather of a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Prague"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}
TIME = {"type": "function", "function": {"name": "get_time"}}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
BOTH = f'One moment.{CALL}\n<tool_call>\n{{"name": "get_time", "arguments": {{}}}}\n</tool_call>'
SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def of(schema: Any, **more: Any) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "it", "schema": schema, **more}}


def served(*texts: str, template: str | None = HERMES, **options: Any) -> Any:
    """A server whose edge model says these, turn by turn."""
    edge = ScriptedEdge(saying(*texts), tokenizer=ToolTokenizer(template))
    return app(edge=edge, **options)


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with served(BOTH, "It is sunny.") as found:
        yield found


def asked(client: TestClient, **fields: Any) -> dict[str, Any]:
    response = client.post("/v1/chat/completions", json=CHAT | fields)
    assert response.status_code == 200, response.text
    (choice,) = response.json()["choices"]
    return choice


def streamed(client: TestClient, **fields: Any) -> list[dict[str, Any]]:
    response = client.post("/v1/chat/completions", json=CHAT | {"stream": True} | fields)
    lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    return [choice for line in lines for choice in json.loads(line)["choices"]]


def test_json_is_json() -> None:
    with served('{"n": 3}') as client:
        for form in ({"type": "json_object"}, of(SCHEMA), of(SCHEMA, strict=True)):
            choice = asked(client, response_format=form)
            assert choice["message"]["content"] == '{"n": 3}'
            assert choice["message"].get("tool_calls") is None
            assert choice["finish_reason"] == "stop"
        text = asked(client, response_format=of({"enum": ["yes", "no"]}))["message"]["content"]
        assert json.loads(text) in ("yes", "no")
        choice = asked(client, response_format=of(SCHEMA), max_tokens=3)
        assert choice["finish_reason"] == "length"
        assert asked(client, response_format={"type": "text"})["message"]["content"] == '{"n": 3}'


def test_an_answer_calls_tools(client: TestClient) -> None:
    choice = asked(client, tools=[TOOL, TIME])
    assert choice["finish_reason"] == "tool_calls"
    message = choice["message"]
    assert message["content"] == "One moment."
    first, second = message["tool_calls"]
    assert first["function"] == {"name": "get_weather", "arguments": '{"city": "Paris"}'}
    assert second["function"] == {"name": "get_time", "arguments": "{}"}
    assert first["type"] == "function"
    assert first["id"] != second["id"]

    # What a call came to goes back, and the answer goes on.
    results = [
        {"role": "tool", "tool_call_id": call["id"], "content": "sunny"}
        for call in message["tool_calls"]
    ]
    turns = [*CHAT["messages"], message, *results]
    choice = asked(client, tools=[TOOL, TIME], messages=turns)
    assert choice["message"]["content"] == "It is sunny."
    assert choice["finish_reason"] == "stop"
    # The calls are part of the conversation without the tools, too.
    assert asked(client, messages=turns)["message"]["content"] == "It is sunny."


def test_a_stream_tells_calls_as_they_come(client: TestClient) -> None:
    choices = streamed(client, tools=[TOOL, TIME])
    assert choices[-1]["finish_reason"] == "tool_calls"
    said = "".join(choice["delta"].get("content") or "" for choice in choices)
    assert said == "One moment."
    calls: list[dict[str, Any]] = []
    for choice in choices:
        for delta in choice["delta"].get("tool_calls", ()):
            if delta["index"] == len(calls):
                assert delta["type"] == "function"
                assert delta["function"]["arguments"] == ""
                calls.append({"id": delta["id"], **delta["function"]})
            else:
                assert set(delta) == {"index", "function"}
                calls[delta["index"]]["arguments"] += delta["function"]["arguments"]
    assert [(one["name"], one["arguments"]) for one in calls] == [
        ("get_weather", '{"city": "Paris"}'),
        ("get_time", "{}"),
    ]
    pieces = [one for choice in choices for one in choice["delta"].get("tool_calls", ())]
    assert len(pieces) > 10


def test_the_choice_of_a_tool_is_honoured(client: TestClient) -> None:
    def calls(**fields: Any) -> list[str]:
        found = asked(client, tools=[TOOL, TIME], **fields)["message"].get("tool_calls") or []
        return [call["function"]["name"] for call in found]

    assert calls(parallel_tool_calls=False) == ["get_weather"]
    named = {"type": "function", "function": {"name": "get_time"}}
    assert calls(tool_choice=named, parallel_tool_calls=False) == ["get_time"]
    (must,) = calls(tool_choice="required", parallel_tool_calls=False)
    assert must in ("get_weather", "get_time")
    choice = asked(client, tools=[TOOL], tool_choice="none")
    # The same text, and nobody reads calls in it.
    assert choice["message"]["content"] == BOTH
    assert choice["finish_reason"] == "stop"


def test_a_call_that_is_cut_says_so(client: TestClient) -> None:
    choice = asked(client, tools=[TOOL, TIME], max_tokens=len("One moment.") + 65)
    assert choice["finish_reason"] == "length"
    (call,) = choice["message"]["tool_calls"]
    assert '{"city": "Paris"}'.startswith(call["function"]["arguments"])


def test_a_stop_string_in_a_call_cuts_it(client: TestClient) -> None:
    """As it would cut a text; so nobody is told to make that call."""
    choice = asked(client, tools=[TOOL, TIME], stop=['"city'])
    assert choice["finish_reason"] == "stop"
    assert streamed(client, tools=[TOOL, TIME], stop=['"city'])[-1]["finish_reason"] == "stop"


def test_a_cloud_that_breaks_the_form_is_refused() -> None:
    cloud = ScriptedCloud(saying("No."), tokenizer=ToolTokenizer())
    with served('{"n": 3}', cloud=cloud) as client:
        choice = asked(client, response_format=of(SCHEMA))
        assert json.loads(choice["message"]["content"]) == {"n": 3}
        body = CHAT | {"response_format": of(SCHEMA), "edgewise": {"provenance": True}}
        reply = client.post("/v1/chat/completions", json=body).json()
        reasons = {token["reason"] for token in reply["edgewise"]["tokens"]}
        assert {"forced", "grammar"} <= reasons
        assert reply["usage"]["edgewise"]["failed_calls"] > 0
        assert 'outcome="grammar"' in client.get("/metrics").text


def function(**fields: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": {"name": "a", **fields}}]}


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no schema": ({"response_format": {"type": "json_schema"}}, "response_format"),
    "a grammar": ({"response_format": {"type": "grammar"}}, "response_format"),
    "a schema's name": (
        {"response_format": of({}) | {"json_schema": {"name": "a b", "schema": {}}}},
        "response_format",
    ),
    "what is not supported": ({"response_format": of({"not": {}})}, "response_format"),
    "what nothing fits": ({"response_format": of({"$ref": "#"})}, "response_format"),
    "a choice without tools": ({"tool_choice": "required"}, "tool_choice"),
    "a choice of none of them": (
        {"tools": [TIME], "tool_choice": {"type": "function", "function": {"name": "b"}}},
        "tool_choice",
    ),
    "a word for a choice": ({"tools": [TIME], "tool_choice": "any"}, "tool_choice"),
    "a tool that is no function": ({"tools": [{"type": "web_search"}]}, "tools"),
    "a name": (function(name="a b"), "tools"),
    "an unknown field": (function(kind="x"), "tools"),
    "parameters that are none": (function(parameters={"type": "array"}), "tools"),
    "parameters that nothing fits": (function(parameters={"$ref": "#"}), "tools"),
    "two of one name": ({"tools": [TIME, TIME]}, "tools"),
    "a thousand tools": ({"tools": [TIME] * 1000}, "tools"),
    "a result of no call": (
        {"messages": [{"role": "tool", "tool_call_id": "x", "content": "x"}]},
        "messages",
    ),
    "a message of nothing": ({"messages": [{"role": "assistant"}]}, "messages"),
}


@pytest.mark.parametrize("which", REFUSED)
def test_what_cannot_be_honoured_is_refused(client: TestClient, which: str) -> None:
    fields, param = REFUSED[which]
    response = client.post("/v1/chat/completions", json=CHAT | fields)
    assert response.status_code == 400
    error = response.json()["error"]
    assert "\n" not in error["message"]
    assert str(error["param"]).startswith(param)


def test_a_model_without_tools_says_so() -> None:
    with served("x", template="{{ messages[-1].content }}<assistant>") as client:
        response = client.post("/v1/chat/completions", json=CHAT | {"tools": [TIME]})
        assert response.status_code == 400
        error = response.json()["error"]
        assert error["param"] == "tools"
        assert "has no tools" in error["message"]
        assert asked(client, tools=[], tool_choice="none")["message"]["content"] == "x"


def test_a_schema_that_takes_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with served('{"n": 3}') as client:
        asked(client, response_format=of(SCHEMA))
        monkeypatch.setattr(compiled, "SECONDS", 0.0)
        heavy = {"anyOf": [{"pattern": f"^.*a.{{{n}}}b.{{{n}}}$"} for n in range(200)]}
        response = client.post("/v1/chat/completions", json=CHAT | {"response_format": of(heavy)})
        assert response.status_code == 400
        assert " 0 s" in response.json()["error"]["message"]
        monkeypatch.undo()
        # Whoever comes next is served as ever.
        assert asked(client, response_format=of(SCHEMA))["message"]["content"] == '{"n": 3}'
