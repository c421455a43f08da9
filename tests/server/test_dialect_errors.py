"""What is wrong in a request of any dialect is said by its place in it, in a short sentence."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from edgewise.testing.scripted_edge import ScriptedEdge
from tests.server.in_process import CHAT, app
from tests.tool_models import ToolTokenizer, saying

HALF = "\ud800"
RESPONSE: dict[str, Any] = {"model": "edgewise", "input": "hi"}
MESSAGE: dict[str, Any] = CHAT | {"max_tokens": 9}
PATHS = {"chat/completions": CHAT, "responses": RESPONSE, "messages": MESSAGE}


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with app(edge=ScriptedEdge(saying("Yes."), tokenizer=ToolTokenizer())) as found:
        yield found


def told(client: TestClient, path: str, body: object, status: int = 400) -> str:
    headers = {"Content-Type": "application/json"}
    text = json.dumps(body)
    response = client.post(f"/v1/{path}", content=text, headers=headers)
    assert response.status_code == status, response.text
    message = response.json()["error"]["message"]
    assert len(message) < 300
    assert "\n" not in message
    return message


def user(**turn: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "hi"} | turn]}


PICTURE = {"type": "image_url", "image_url": {"url": "data:"}}
CALL = {"id": "x", "type": "function", "function": {"name": "a", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("path", "more", "sentence"),
    [
        (
            "responses",
            {"input": [{"role": "user", "content": "a"}, {"type": "item_reference", "id": "x"}]},
            "input.1 has the type 'item_reference'; what can be read is message, function_call, "
            "function_call_output, reasoning.",
        ),
        (
            "responses",
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input.0.content.0.type is not valid: "
            "input should be 'text', 'input_text' or 'output_text'.",
        ),
        (
            "messages",
            user(content=[{"type": "image", "source": {}}]),
            "messages.0.content.0 has the type 'image'; what can be read is text, tool_use, "
            "tool_result, thinking.",
        ),
        (
            "chat/completions",
            user(content=[PICTURE]),
            "messages.0.content.0.type is not valid: "
            "input should be 'text', 'input_text' or 'output_text'.",
        ),
        (
            "chat/completions",
            {"messages": [{"role": "assistant", "tool_calls": [CALL | {"spam": 0}]}]},
            "messages.0.tool_calls.0.spam is not supported; leave it out.",
        ),
        (
            "responses",
            {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}},
            "tool_choice.type is not valid: input should be 'function'.",
        ),
        ("responses", {"Spam": 1}, "Spam is not supported; leave it out."),
    ],
)
def test_a_problem_is_where_its_sentence_says(
    client: TestClient, path: str, more: dict[str, Any], sentence: str
) -> None:
    assert told(client, path, PATHS[path] | more) == sentence


@pytest.mark.parametrize("word", ["a" * 100_000, "a\r\nb"])
def test_a_clients_own_words_are_short(client: TestClient, word: str) -> None:
    told(client, "messages", MESSAGE | user(content=[{"type": word}]))
    told(client, "responses", RESPONSE | {"input": [{"type": word}]})
    for path, body in PATHS.items():
        told(client, path, body | {word[:60]: 1})
        told(client, path, body | {word: 1})
        told(client, path, body | {"edgewise": {word: 1}})


@pytest.mark.parametrize("strange", [float("nan"), float("inf"), HALF], ids=repr)
@pytest.mark.parametrize("path", PATHS)
def test_what_is_no_json_is_refused_wherever_it_stands(
    client: TestClient, path: str, strange: object
) -> None:
    """Anywhere in it would have been sent back, or made something else."""
    schema = {"type": "object", "properties": {"x": {"default": strange}}}
    function = {"name": "a", "parameters": schema}
    tools = {
        "chat/completions": [{"type": "function", "function": function}],
        "responses": [{"type": "function"} | function],
        "messages": [{"name": "a", "input_schema": schema}],
    }
    body = PATHS[path]
    for more in ({"metadata": {"a": strange}}, {"tools": tools[path]}, {"temperature": strange}):
        assert told(client, path, body | more).endswith("JSON.")


def test_a_mark_of_utf_8_may_stand_before_a_body(client: TestClient) -> None:
    body = b"\xef\xbb\xbf" + json.dumps(CHAT).encode()
    headers = {"Content-Type": "application/json"}
    found = client.post("/v1/chat/completions", content=body, headers=headers)
    assert found.json()["choices"][0]["message"]["content"] == "Yes."


TURNS = 1000
BLOCKS = [{"type": "text", "text": ""}] * 5
USE = {"type": "tool_use", "id": "x", "name": "a", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "x", "content": BLOCKS}
NUMBERS = {"a": [1] * 500_000}
MANY: dict[str, tuple[str, dict[str, Any], str]] = {
    "blocks": ("messages", {"messages": [{"role": "user", "content": BLOCKS}] * TURNS}, "4096"),
    "blocks to count": (
        "messages/count_tokens",
        {"messages": [{"role": "user", "content": BLOCKS}] * TURNS},
        "4096 parts",
    ),
    "blocks of results": (
        "messages",
        {"messages": [{"role": "user", "content": [RESULT]}] * TURNS},
        "4096 parts",
    ),
    "parts": ("responses", {"input": [{"role": "user", "content": BLOCKS}] * TURNS}, "4096 parts"),
    "parts of outcomes": (
        "responses",
        {"input": [{"type": "function_call_output", "call_id": "x", "output": BLOCKS}] * TURNS},
        "4096 parts",
    ),
    "arguments": (
        "messages",
        {
            "messages": [
                {"role": "user", "content": "hi"},
                {"role": "assistant", "content": [USE | {"input": NUMBERS}] * 2},
                {"role": "user", "content": [RESULT | {"content": "a"}]},
            ]
        },
        "1048576 characters of arguments",
    ),
    "tools": (
        "messages",
        {
            "tools": [{"name": name, "input_schema": NUMBERS} for name in ("a", "b")],
            "tool_choice": {"type": "tool", "name": "b"},
        },
        "1048576 characters",
    ),
}


@pytest.mark.parametrize("which", MANY)
def test_what_is_very_much_is_refused_at_once(client: TestClient, which: str) -> None:
    path, more, sentence = MANY[which]
    assert sentence in told(client, path, PATHS.get(path, CHAT) | more)


def test_the_longest_conversation_of_one_role_is_one_turn(client: TestClient) -> None:
    turns = [{"role": "user", "content": str(number)} for number in range(300)]
    counted = client.post(
        "/v1/messages/count_tokens", json={"model": "edgewise", "messages": turns}
    ).json()
    alone = {"role": "user", "content": "\n\n".join(turn["content"] for turn in turns)}
    again = client.post(
        "/v1/messages/count_tokens", json={"model": "edgewise", "messages": [alone]}
    ).json()
    assert counted == again
