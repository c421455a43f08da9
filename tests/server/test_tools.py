"""Tools and JSON by every chat API: what is asked for comes, and the real clients read it."""

import json
from collections.abc import Iterator
from pkgutil import resolve_name
from typing import Any

import pytest
from pydantic import TypeAdapter
from starlette.testclient import TestClient

from edgewise.grammar import compiled
from edgewise.testing.scripted_cloud import ScriptedCloud
from edgewise.testing.scripted_edge import ScriptedEdge
from tests.server.in_process import BODIES, NUMBER, app, data_of, form_of
from tests.tool_models import HERMES, ToolTokenizer, saying

pytest.importorskip("llguidance")

CHAT, RESPONSES, MESSAGES = APIS = ("chat/completions", "responses", "messages")
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Prague"]}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
TIME = '<tool_call>\n{"name": "get_time", "arguments": {}}\n</tool_call>'
CALLS: list[tuple[str, Any]] = [("get_weather", {"city": "Paris"}), ("get_time", {})]
SAID: list[tuple[str, Any]] = [("text", "One moment."), *CALLS]


def served(*texts: str, template: str | None = HERMES, **options: Any) -> Any:
    """A server whose edge model says these, turn by turn."""
    edge = ScriptedEdge(saying(*texts), tokenizer=ToolTokenizer(template))
    return app(edge=edge, **options)


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with served(f"One moment.{WEATHER}\n{TIME}", "It is sunny.") as found:
        yield found


def tool(path: str, name: str, schema: dict[str, Any], **more: Any) -> dict[str, Any]:
    if path == MESSAGES:
        return {"name": name, "input_schema": schema, **more}
    function = {"name": name, "parameters": schema, **more}
    return {"type": "function", **({"function": function} if path == CHAT else function)}


def tools(path: str) -> list[dict[str, Any]]:
    return [tool(path, "get_weather", CITY), tool(path, "get_time", {"type": "object"})]


def body(path: str, **more: Any) -> dict[str, Any]:
    """A request with both tools."""
    most = {"max_output_tokens" if path == RESPONSES else "max_tokens": more.pop("most", 400)}
    return BODIES[path] | {"model": "edgewise:edge", "tools": tools(path)} | most | more


def post(client: TestClient, path: str, **more: Any) -> dict[str, Any]:
    response = client.post(f"/v1/{path}", json=body(path, **more))
    assert response.status_code == 200, response.text
    return response.json()


def streamed(client: TestClient, path: str, **more: Any) -> list[dict[str, Any]]:
    return data_of(client.post(f"/v1/{path}", json=body(path, stream=True, **more)).text)


def read(path: str, reply: dict[str, Any]) -> list[tuple[str, Any]]:
    """The texts and the calls of a reply."""
    if path == MESSAGES:
        blocks = reply["content"]
        return [(one.get("name", "text"), one.get("text") or one.get("input")) for one in blocks]
    if path == RESPONSES:
        said, called = "message", reply["output"]
        texts = [("text", one["content"][0]["text"]) for one in called if one["type"] == said]
        calls = [one for one in called if one["type"] != said]
    else:
        message = reply["choices"][0]["message"]
        texts = [("text", message["content"])] if message["content"] else []
        calls = [call["function"] for call in message.get("tool_calls") or ()]
    return texts + [(one["name"], json.loads(one["arguments"])) for one in calls]


def put_together(client: TestClient, path: str) -> dict[str, Any]:
    """The reply that its own SDK makes of a stream."""
    import anthropic
    import openai

    url, options = str(client.base_url), {"api_key": "-", "http_client": client}
    asked = body(path)
    if path == MESSAGES:
        with anthropic.Anthropic(base_url=url, **options).messages.stream(**asked) as stream:
            return stream.get_final_message().model_dump()
    made = openai.OpenAI(base_url=f"{url}/v1", **options)
    if path == RESPONSES:
        with made.responses.stream(**asked) as stream:
            return stream.get_final_response().model_dump()
    with made.chat.completions.stream(**asked) as stream:
        return stream.get_final_completion().model_dump()


TYPES = {
    CHAT: "openai.types.chat:ChatCompletion",
    RESPONSES: "openai.types.responses:Response",
    MESSAGES: "anthropic.types:Message",
}
PIECES = {
    CHAT: "openai.types.chat:ChatCompletionChunk",
    RESPONSES: "openai.types.responses:ResponseStreamEvent",
    MESSAGES: "anthropic.types:RawMessageStreamEvent",
}


def outcomes(path: str, reply: dict[str, Any]) -> dict[str, Any]:
    """What was called goes back as it came, with what it came to."""
    user = {"role": "user", "content": "sky: "}
    if path == CHAT:
        message = reply["choices"][0]["message"]
        ids = [call["id"] for call in message["tool_calls"]]
        results = [{"role": "tool", "tool_call_id": id, "content": "sunny"} for id in ids]
        return {"messages": [user, message, *results]}
    if path == RESPONSES:
        ids = [item["call_id"] for item in reply["output"][1:]]
        results = [{"type": "function_call_output", "call_id": id, "output": "sunny"} for id in ids]
        return {"input": [user, *reply["output"], *results]}
    ids = [block["id"] for block in reply["content"][1:]]
    results = [
        {"type": "tool_result", "tool_use_id": ids[0], "content": "sunny"},
        {"type": "tool_result", "tool_use_id": ids[1], "content": [], "is_error": True},
        {"type": "text", "text": "go on"},
    ]
    assistant = {"role": "assistant", "content": reply["content"]}
    return {"messages": [user, assistant, {"role": "user", "content": results}]}


@pytest.mark.parametrize("path", APIS)
def test_an_answer_calls_tools_and_goes_on_with_what_they_came_to(
    client: TestClient, path: str
) -> None:
    reply = post(client, path)
    resolve_name(TYPES[path]).model_validate(reply)
    assert read(path, reply) == SAID
    # The calls are part of the conversation without the tools, too.
    for more in (outcomes(path, reply), outcomes(path, reply) | {"tools": []}):
        assert read(path, post(client, path, **more)) == [("text", "It is sunny.")]
    if path == CHAT:
        assert reply["choices"][0]["finish_reason"] == "tool_calls"
        first, second = reply["choices"][0]["message"]["tool_calls"]
        assert first["id"] != second["id"]
    elif path == MESSAGES:
        assert reply["stop_reason"] == "tool_use"
        asked = {name: body(path)[name] for name in ("model", "messages", "tools")}
        counted = client.post("/v1/messages/count_tokens", json=asked).json()["input_tokens"]
        usage = reply["usage"]
        assert counted == usage["input_tokens"] + usage["cache_read_input_tokens"]


@pytest.mark.deep
@pytest.mark.parametrize("path", APIS)
def test_a_stream_tells_calls_as_they_come(client: TestClient, path: str) -> None:
    events = streamed(client, path)
    pieces = TypeAdapter[Any](resolve_name(PIECES[path]))
    for event in events:
        pieces.validate_python(event)
    assert len(events) > 30
    assert read(path, put_together(client, path)) == SAID
    if path == CHAT:
        assert events[-1]["choices"][0]["finish_reason"] == "tool_calls"
    elif path == RESPONSES:
        assert [event["sequence_number"] for event in events] == list(range(len(events)))
        done = [one["item"] for one in events if one["type"] == "response.output_item.done"]
        assert events[-1]["type"] == "response.completed"
        assert events[-1]["response"]["output"] == done
    else:
        ends = [one["index"] for one in events if one["type"] == "content_block_stop"]
        assert ends == [0, 1, 2]
        assert events[-2]["delta"]["stop_reason"] == "tool_use"


@pytest.mark.parametrize("path", APIS)
def test_a_call_is_a_call_though_the_models_form_is_left_out(path: str) -> None:
    call = '{\n  "name": "get_weather",\n  "arguments": {\n    "city": "Paris"\n  }\n}'
    other = call.replace("get_weather", "get_money")
    for bare in (call, f"```json\n{call}\n```"):
        with served(bare, "It is sunny.") as client:
            for reply in (post(client, path), put_together(client, path)):
                assert read(path, reply) == [("get_weather", {"city": "Paris"})]
            if path == CHAT:
                assert streamed(client, path)[-1]["choices"][0]["finish_reason"] == "tool_calls"
    with served(other) as client:
        assert read(path, post(client, path)) == [("text", other)]
        assert read(path, put_together(client, path)) == [("text", other)]


def choices(path: str) -> tuple[Any, Any, Any, dict[str, Any]]:
    """No call, any one, the time's; and no two at once."""
    if path == MESSAGES:
        alone = {"disable_parallel_tool_use": True}
        time = {"type": "tool", "name": "get_time", **alone}
        return {"type": "none"}, {"type": "any", **alone}, time, {}
    named = {"name": "get_time"}
    time = {"type": "function", **({"function": named} if path == CHAT else named)}
    return "none", "required", time, {"parallel_tool_calls": False}


@pytest.mark.parametrize("path", APIS)
def test_the_choice_of_a_tool_is_honoured(client: TestClient, path: str) -> None:
    none, required, time, alone = choices(path)
    ((kind, text),) = read(path, post(client, path, tool_choice=none))
    # The same text, and nobody reads calls in it.
    assert (kind, WEATHER in text) == ("text", True)
    (call,) = read(path, post(client, path, tool_choice=required, **alone))
    assert call[0] in ("get_weather", "get_time")
    reply = post(client, path, tool_choice=time, **alone)
    assert [name for name, _ in read(path, reply)] == ["get_time"]
    if path == RESPONSES:
        assert (reply["tool_choice"], reply["parallel_tool_calls"]) == (time, False)


@pytest.mark.parametrize("most", [55, 65, 75])
@pytest.mark.parametrize("path", APIS)
def test_a_call_that_is_cut_is_told_and_sent_back(client: TestClient, path: str, most: int) -> None:
    """As far as it can be; else no later turn of the conversation would be answered."""
    reply = post(client, path, most=len("One moment.") + most)
    user = {"role": "user", "content": "sky: "}
    if path == CHAT:
        assert reply["choices"][0]["finish_reason"] == "length"
        said = [reply["choices"][0]["message"]]
        calls = said[0].get("tool_calls") or ()
        assert len(calls) == 1 or most < 65
        assert all('{"city": "Paris"}'.startswith(one["function"]["arguments"]) for one in calls)
    elif path == RESPONSES:
        said = reply["output"]
        assert reply["status"] == said[-1]["status"] == "incomplete"
    else:
        # What is no whole call is not told; at 75 its arguments are whole.
        assert reply["stop_reason"] == "max_tokens"
        assert len(reply["content"]) == 1 or most > 65
        return
    more = {"input" if path == RESPONSES else "messages": [user, *said, user]}
    assert read(path, post(client, path, **more)) == [("text", "It is sunny.")]


def test_a_stop_string_cuts_a_call_and_behind_one_is_not_why_it_ended(client: TestClient) -> None:
    """Nobody is told to make the call that was cut, as a text would have been."""
    cut = {"stop": ['"city']}
    assert post(client, CHAT, **cut)["choices"][0]["finish_reason"] == "stop"
    assert streamed(client, CHAT, **cut)[-1]["choices"][0]["finish_reason"] == "stop"
    behind = {"stop_sequences": ["</tool_call>"]}
    reply = post(client, MESSAGES, **behind)
    assert (reply["stop_reason"], reply["stop_sequence"]) == ("tool_use", None)
    delta = streamed(client, MESSAGES, **behind)[-2]["delta"]
    assert delta == {"stop_reason": "tool_use", "stop_sequence": None}


@pytest.mark.parametrize("path", APIS)
def test_answers_are_json_of_a_schema(path: str) -> None:
    def form(schema: Any, **more: Any) -> dict[str, Any]:
        named = {"type": "json_schema", "schema": schema}
        if path == RESPONSES:
            return {"text": {"format": named | {"name": "it"} | more}}
        if path == MESSAGES:
            return {"output_config": {"format": named}}
        return {"response_format": form_of(schema, **more)}

    with served('{"n": 3}') as client:
        forms = [form(NUMBER), form(NUMBER, strict=True)]
        if path == CHAT:
            forms += [{"response_format": {"type": kind}} for kind in ("json_object", "text")]
        for one in forms:
            assert read(path, post(client, path, tools=[], **one)) == [("text", '{"n": 3}')]
        # The model would have said something else.
        ((_, text),) = read(path, post(client, path, tools=[], **form({"enum": ["yes", "no"]})))
        assert json.loads(text) in ("yes", "no")


OBJECT = {"type": "object"}
ADDRESS = {"type": "string", "pattern": r"^(?!\.)[a-z.]+@[a-z.]+$"}
LOOSE = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Paris", "Prague"]},
        "labels": {"propertyNames": {"type": "string"}, "additionalProperties": {}, **OBJECT},
        "to": {"type": "array", "items": ADDRESS, "uniqueItems": True},
        "day": {"type": "string", "format": "weekday"},
        "warm": {"oneOf": [{"type": "boolean"}, {"const": True}]},
    },
    "required": ["city"],
    "additionalProperties": False,
}
UNHELD = {"propertyNames", "uniqueItems", "format", "oneOf", "pattern"}


@pytest.mark.parametrize("path", APIS)
def test_what_no_call_can_be_held_to_is_said_unless_the_tool_is_strict(
    path: str, client: TestClient
) -> None:
    """Agents send schemas as their languages make them; one keyword must not end all work."""
    loose = body(path, tools=[tool(path, "get_weather", LOOSE)])
    response = client.post(f"/v1/{path}", json=loose)
    assert response.status_code == 200, response.text
    assert "Paris" in response.text
    told = response.headers["X-Edgewise-Ignored"].split(", ")
    assert {f"tools.{key}" for key in UNHELD} == set(told)
    strict = body(path, tools=[tool(path, "get_weather", LOOSE, strict=True)])
    refused = client.post(f"/v1/{path}", json=strict)
    assert refused.status_code == 400, refused.text
    assert "propertyNames" in refused.json()["error"]["message"]


def test_tools_that_are_not_ours_are_left_out_and_said(client: TestClient) -> None:
    kept = tool(MESSAGES, "get_weather", CITY, cache_control={"type": "ephemeral"})
    for path, other, said in (
        (RESPONSES, {"type": "web_search", "external_web_access": False}, "tools.web_search"),
        (MESSAGES, {"type": "web_search_2", "name": "web_search"}, "tools.web_search_2"),
        (MESSAGES, kept | {"name": "other"}, "tools.cache_control"),
    ):
        asked = body(path, tools=[*tools(path), other])
        response = client.post(f"/v1/{path}", json=asked)
        assert response.headers["x-edgewise-ignored"] == said
        assert read(path, response.json()) == SAID


def test_the_sdks_tool_runner_goes_on_without_a_thread() -> None:
    """Unless told otherwise it wants the conversation kept; where none is, it sends it whole."""
    import anthropic

    @anthropic.beta_tool
    def get_weather(city: str) -> str:
        """The weather of a city."""
        return f"sunny in {city}"

    with served(WEATHER, "It is sunny.") as client:
        asks = anthropic.Anthropic(base_url=str(client.base_url), api_key="-", http_client=client)
        runner = asks.beta.messages.tool_runner(
            model="edgewise:edge",
            max_tokens=400,
            messages=BODIES[MESSAGES]["messages"],
            tools=[get_weather],
        )
        call, said = list(runner)
    assert (call.stop_reason, said.stop_reason) == ("tool_use", "end_turn")
    assert said.content[0].text == "It is sunny."  # type: ignore[union-attr]


def test_a_cloud_that_breaks_the_form_is_refused() -> None:
    cloud = ScriptedCloud(saying("No."), tokenizer=ToolTokenizer())
    told = {"model": "edgewise", "edgewise": {"provenance": True}}
    with served('{"n": 3}', cloud=cloud) as client:
        reply = post(client, CHAT, response_format=form_of(NUMBER), tools=[], **told)
        assert read(CHAT, reply) == [("text", '{"n": 3}')]
        reasons = {token["reason"] for token in reply["edgewise"]["tokens"]}
        assert {"forced", "grammar"} <= reasons
        assert reply["usage"]["edgewise"]["failed_calls"] > 0
        assert 'outcome="grammar"' in client.get("/metrics").text


def test_a_schema_that_takes_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    with served('{"n": 3}') as client:
        post(client, CHAT, response_format=form_of(NUMBER), tools=[])
        monkeypatch.setattr(compiled, "SECONDS", 0.0)
        heavy = {"anyOf": [{"pattern": f"^.*a.{{{n}}}b.{{{n}}}$"} for n in range(200)]}
        asked = body(CHAT, response_format=form_of(heavy), tools=[])
        response = client.post("/v1/chat/completions", json=asked)
        assert response.status_code == 400
        assert " 0 s" in response.json()["error"]["message"]
        monkeypatch.undo()
        # Whoever comes next is served as ever.
        reply = post(client, CHAT, response_format=form_of(NUMBER), tools=[])
        assert read(CHAT, reply) == [("text", '{"n": 3}')]
