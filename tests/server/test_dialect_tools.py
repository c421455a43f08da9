"""Tools and JSON in `/v1/responses` and `/v1/messages`, read with the types of the real clients."""

import json
from collections.abc import Iterator
from typing import Any

import anthropic
import pytest
from anthropic.types import Message, RawMessageStreamEvent
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter
from starlette.testclient import TestClient

from edgewise.testing.scripted_edge import ScriptedEdge
from tests.server.in_process import app
from tests.tool_models import HERMES, ToolTokenizer, saying

pytest.importorskip("llguidance")

CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Prague"]}},
    "required": ["city"],
    "additionalProperties": False,
}
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
SAID = f'One moment.{CALL}\n<tool_call>\n{{"name": "get_time", "arguments": {{}}}}\n</tool_call>'
OPENAI_TOOLS: list[Any] = [
    {"type": "function", "name": "get_weather", "parameters": CITY, "strict": False},
    {"type": "function", "name": "get_time", "description": "The time.", "parameters": {}},
]
ANTHROPIC_TOOLS: list[Any] = [
    {"name": "get_weather", "input_schema": CITY, "cache_control": {"type": "ephemeral"}},
    {"name": "get_time", "description": "The time.", "input_schema": {"type": "object"}},
]
RESPONSE: dict[str, Any] = {"model": "edgewise:edge", "input": "hi", "tools": OPENAI_TOOLS}
MESSAGE: dict[str, Any] = {
    "model": "edgewise:edge",
    "max_tokens": 400,
    "messages": [{"role": "user", "content": "hi"}],
    "tools": ANTHROPIC_TOOLS,
}


def served(*texts: str, template: str | None = HERMES) -> Any:
    return app(edge=ScriptedEdge(saying(*texts), tokenizer=ToolTokenizer(template)))


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with served(SAID, "It is sunny.") as found:
        yield found


def post(client: TestClient, path: str, body: dict[str, Any], **more: Any) -> dict[str, Any]:
    response = client.post(f"/v1/{path}", json=body | more)
    assert response.status_code == 200, response.text
    return response.json()


def streamed(client: TestClient, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    text = client.post(f"/v1/{path}", json=body | {"stream": True}).text
    return [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]


EMAIL = r"^(?!\.)[a-z.]+@[a-z.]+$"
LOOSE = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Paris", "Prague"]},
        "labels": {
            "type": "object",
            "propertyNames": {"type": "string"},
            "additionalProperties": {},
        },
        "to": {"type": "array", "items": {"type": "string", "pattern": EMAIL}, "uniqueItems": True},
        "day": {"type": "string", "format": "weekday"},
        "warm": {"oneOf": [{"type": "boolean"}, {"const": True}]},
    },
    "required": ["city"],
    "additionalProperties": False,
}
UNHELD = {"propertyNames", "uniqueItems", "format", "oneOf", "pattern"}


@pytest.mark.parametrize("path", ["responses", "messages", "chat/completions"])
def test_what_no_call_can_be_held_to_is_said_unless_the_tool_is_strict(
    path: str, client: TestClient
) -> None:
    """Agents send schemas as their languages make them; one keyword must not end all work."""
    body: dict[str, Any]
    tool: dict[str, Any]
    if path == "messages":
        body, tool = MESSAGE, {"name": "get_weather", "input_schema": LOOSE}
    else:
        body, tool = RESPONSE, {"type": "function", "name": "get_weather", "parameters": LOOSE}
    within = tool
    if path == "chat/completions":
        body = {"model": "edgewise:edge", "messages": MESSAGE["messages"]}
        within = {"name": "get_weather", "parameters": LOOSE}
        tool = {"type": "function", "function": within}
    response = client.post(f"/v1/{path}", json={**body, "tools": [tool]})
    assert response.status_code == 200, response.text
    assert "Paris" in response.text
    told = response.headers["X-Edgewise-Ignored"].split(", ")
    assert {f"tools.{key}" for key in UNHELD} == set(told)
    within["strict"] = True
    refused = client.post(f"/v1/{path}", json={**body, "tools": [tool]})
    assert refused.status_code == 400, refused.text
    assert "propertyNames" in refused.json()["error"]["message"]


def test_a_response_calls_tools(client: TestClient) -> None:
    found = post(client, "responses", RESPONSE)
    text, weather, time = Response.model_validate(found).output
    assert (text.type, found["output"][0]["content"][0]["text"]) == ("message", "One moment.")
    assert (weather.type, weather.name) == ("function_call", "get_weather")
    assert json.loads(weather.arguments) == {"city": "Paris"}
    assert (time.type, time.name, time.arguments) == ("function_call", "get_time", "{}")
    assert [tool["name"] for tool in found["tools"]] == ["get_weather", "get_time"]
    # What was called goes back as it came, with what it came to.
    outcomes = [
        {"type": "function_call_output", "call_id": call["call_id"], "output": "sunny"}
        for call in found["output"][1:]
    ]
    user = {"role": "user", "content": "hi"}
    again = post(client, "responses", RESPONSE, input=[user, *found["output"], *outcomes])
    assert again["output"][0]["content"][0]["text"] == "It is sunny."


def test_a_response_streams_its_calls(client: TestClient) -> None:
    events = streamed(client, "responses", RESPONSE)
    for event in events:
        TypeAdapter(ResponseStreamEvent).validate_python(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    whole = events[-1]["response"]
    assert events[-1]["type"] == "response.completed"
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == whole["output"]
    assert [item["type"] for item in done] == ["message", "function_call", "function_call"]
    arguments = ["" for _ in done]
    for event in events:
        if event["type"] == "response.function_call_arguments.delta":
            arguments[event["output_index"]] += event["delta"]
    assert [json.loads(one) for one in arguments[1:]] == [{"city": "Paris"}, {}]


def test_a_message_calls_tools(client: TestClient) -> None:
    found = post(client, "messages", MESSAGE)
    read = Message.model_validate(found)
    assert read.stop_reason == "tool_use"
    text, weather, time = read.content
    assert (text.type, found["content"][0]["text"]) == ("text", "One moment.")
    assert weather.type == time.type == "tool_use"
    assert (weather.name, weather.input) == ("get_weather", {"city": "Paris"})
    assert (time.name, time.input) == ("get_time", {})
    outcomes = [
        {"type": "tool_result", "tool_use_id": weather.id, "content": "sunny"},
        {"type": "tool_result", "tool_use_id": time.id, "content": [], "is_error": True},
        {"type": "text", "text": "go on"},
    ]
    turns = [
        *MESSAGE["messages"],
        {"role": "assistant", "content": found["content"]},
        {"role": "user", "content": outcomes},
    ]
    again = post(client, "messages", MESSAGE, messages=turns)
    assert again["content"][0]["text"] == "It is sunny."
    counted = post(
        client,
        "messages/count_tokens",
        {name: MESSAGE[name] for name in ("model", "messages", "tools")},
    )
    usage = found["usage"]
    whole = usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert counted["input_tokens"] == whole


def test_a_message_streams_its_calls(client: TestClient) -> None:
    events = streamed(client, "messages", MESSAGE)
    for event in events:
        TypeAdapter(RawMessageStreamEvent).validate_python(event)
    begun = [event for event in events if event["type"] == "content_block_start"]
    assert [event["content_block"]["type"] for event in begun] == ["text", "tool_use", "tool_use"]
    assert [event["index"] for event in begun] == [0, 1, 2]
    ends = [event["index"] for event in events if event["type"] == "content_block_stop"]
    assert ends == [0, 1, 2]
    arguments = ["", "", ""]
    for event in events:
        if event.get("delta", {}).get("type") == "input_json_delta":
            arguments[event["index"]] += event["delta"]["partial_json"]
    assert [json.loads(one) for one in arguments[1:]] == [{"city": "Paris"}, {}]
    assert events[-2]["delta"]["stop_reason"] == "tool_use"


def test_the_sdks_tool_runner_goes_on_without_a_thread() -> None:
    """Unless told otherwise it wants the conversation kept; where none is, it sends it whole."""

    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """The weather of a city."""
        return f"sunny in {city}"

    with served(CALL, "It is sunny.") as client:
        asks = anthropic.Anthropic(base_url=str(client.base_url), api_key="-", http_client=client)
        runner = asks.beta.messages.tool_runner(
            model="edgewise:edge",
            max_tokens=400,
            messages=MESSAGE["messages"],
            tools=[get_weather],
        )
        call, said = list(runner)
        refused = client.post("/v1/messages", json=MESSAGE | {"thread": {"type": "create"}})
    assert (call.stop_reason, said.stop_reason) == ("tool_use", "end_turn")
    assert said.content[0].text == "It is sunny."  # type: ignore[union-attr]
    assert refused.status_code == 400
    assert "thread" in refused.json()["error"]["message"]


def test_a_stop_sequence_behind_a_call_is_not_why_it_ended() -> None:
    stop = {"stop_sequences": ["</tool_call>"]}
    with served(CALL) as client:
        found = post(client, "messages", MESSAGE | stop)
        events = streamed(client, "messages", MESSAGE | stop)
    assert (found["stop_reason"], found["stop_sequence"]) == ("tool_use", None)
    assert events[-2]["delta"] == {"stop_reason": "tool_use", "stop_sequence": None}


@pytest.mark.parametrize(("path", "body"), [("responses", RESPONSE), ("messages", MESSAGE)])
def test_provenance_adds_nothing_to_an_answer_of_calls(path: str, body: dict[str, Any]) -> None:
    """What is told of tokens between calls stands beside what is there, and makes no text."""
    told = body | {"edgewise": {"provenance": True}}
    with served(SAID.removeprefix("One moment.")) as client:
        whole = post(client, path, told)
        events = streamed(client, path, told)
    said = [event["edgewise"] for event in events if "edgewise" in event]
    tokens = [one["token"]["id"] for one in said if "token" in one]
    assert tokens == [one["id"] for one in whole["edgewise"]["tokens"]]
    assert [list(one) for one in (said[0], said[-1])] == [["prompt_token_ids"], ["timing"]]
    if path == "responses":
        kinds = [item["type"] for item in events[-1]["response"]["output"]]
        assert kinds == [item["type"] for item in whole["output"]] == ["function_call"] * 2
    else:
        begun = [one["content_block"] for one in events if one["type"] == "content_block_start"]
        assert [one["type"] for one in begun] == ["tool_use"] * 2


def test_choices_are_honoured(client: TestClient) -> None:
    none = post(client, "responses", RESPONSE, tool_choice="none")
    assert [item["type"] for item in none["output"]] == ["message"]
    none = post(client, "messages", MESSAGE, tool_choice={"type": "none"})
    assert none["stop_reason"] == "end_turn"
    with served(CALL) as calling:
        one = {"type": "function", "name": "get_weather"}
        found = post(calling, "responses", RESPONSE, tool_choice=one, parallel_tool_calls=False)
        assert [item["type"] for item in found["output"]] == ["function_call"]
        assert (found["tool_choice"], found["parallel_tool_calls"]) == (one, False)
        for choice in ({"type": "tool", "name": "get_weather"}, {"type": "any"}):
            said = post(calling, "messages", MESSAGE, tool_choice=choice)
            assert [block["type"] for block in said["content"]] == ["tool_use"]


def test_a_call_that_is_cut_is_told_as_far_as_it_can_be(client: TestClient) -> None:
    most = len("One moment.") + 65
    found = post(client, "responses", RESPONSE, max_output_tokens=most)
    assert found["status"] == found["output"][-1]["status"] == "incomplete"
    cut = post(client, "messages", MESSAGE, max_tokens=most)
    assert (cut["stop_reason"], len(cut["content"])) == ("max_tokens", 1)


def test_answers_are_json_of_a_schema() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    form = {"type": "json_schema", "schema": schema}
    with served('{"n": 3}') as client:
        asked: dict[str, Any] = {"model": "edgewise:edge", "input": "hi"}
        found = post(client, "responses", asked, text={"format": form | {"name": "it"}})
        assert json.loads(found["output"][0]["content"][0]["text"]) == {"n": 3}
        assert found["text"]["format"]["schema"] == schema
        message = MESSAGE | {"tools": []}
        said = post(client, "messages", message, output_config={"format": form})
        assert json.loads(said["content"][0]["text"]) == {"n": 3}


def test_tools_that_are_not_ours_are_left_out_and_said(client: TestClient) -> None:
    searches = [*OPENAI_TOOLS, {"type": "web_search", "external_web_access": False}]
    response = client.post("/v1/responses", json=RESPONSE | {"tools": searches})
    assert response.headers["x-edgewise-ignored"] == "tools.web_search"
    assert len(response.json()["output"]) == 3
    searches = [*ANTHROPIC_TOOLS, {"type": "web_search_20250305", "name": "web_search"}]
    response = client.post("/v1/messages", json=MESSAGE | {"tools": searches})
    said = "tools.cache_control, tools.web_search_20250305"
    assert response.headers["x-edgewise-ignored"] == said


@pytest.mark.parametrize(
    ("path", "body", "told"),
    [
        ("responses", RESPONSE | {"top_logprobs": 1}, "Logprobs"),
        ("responses", RESPONSE | {"tools": [], "tool_choice": "required"}, "tool_choice"),
        ("responses", RESPONSE | {"tools": [{"type": "function", "name": "a b"}]}, "name"),
        ("messages", MESSAGE | {"tool_choice": {"type": "tool"}}, "needs a name"),
        ("messages", MESSAGE | {"tools": [{"name": "a"}]}, "input_schema"),
        (
            "messages",
            MESSAGE | {"tools": [{"name": "a", "input_schema": {"$ref": "#"}}]},
            "",
        ),
    ],
)
def test_what_is_no_tool_is_refused(
    client: TestClient, path: str, body: dict[str, Any], told: str
) -> None:
    response = client.post(f"/v1/{path}", json=body)
    assert response.status_code == 400, response.text
    assert told in response.json()["error"]["message"]


def test_a_model_without_tools_says_so_in_every_dialect() -> None:
    with served("x", template=None) as client:
        for path, body in (("responses", RESPONSE), ("messages", MESSAGE)):
            response = client.post(f"/v1/{path}", json=body)
            assert response.status_code == 400
            assert "has no tools" in response.json()["error"]["message"]
