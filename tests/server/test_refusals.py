"""What cannot be honoured is refused by every endpoint in one sentence, in the form of its API."""

import gzip
import json
import logging
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import Future
from typing import Any

import httpx2
import pytest
from starlette.testclient import TestClient

from edgewise.cloud.base import ConsultRequest
from edgewise.completion import Completion
from edgewise.edge.base import Floats
from edgewise.errors import (
    Blocked,
    CloudError,
    CloudProtocolError,
    CloudRefused,
    CloudRejected,
    CloudTimeout,
    CloudUnavailable,
    ContextOverflow,
    EdgewiseError,
    NothingUsable,
    UsageError,
)
from edgewise.listening.logs import OTHERS, REQUESTS
from edgewise.server.errors import REQUEST_FIELDS, refusal_of
from edgewise.server.requests import IGNORED_HEADER
from edgewise.settings import Settings
from edgewise.testing import ScriptedCloud, ScriptedEdge, noise, replying
from edgewise.testing.scripted_cloud import ScriptedCloudSession
from tests.server.in_process import ASK, BODIES, CHAT, TEXT, app, data_of, form_of
from tests.tool_models import ToolTokenizer, saying


@pytest.mark.parametrize("name", sorted(Settings.__struct_fields__))
def test_every_setting_is_the_requests_or_the_servers(name: str) -> None:
    error = UsageError("Something is wrong", hint="change it", setting=name)
    found = refusal_of(error).body()["error"]
    if name in REQUEST_FIELDS:
        assert found["param"] == name
        assert "server" not in found["message"]
    else:
        assert found["param"] is None
        assert f"setting {name})" in found["message"]
    assert "--" not in found["message"]


STATUS: dict[type[EdgewiseError], tuple[int, str | None]] = {
    UsageError: (400, None),
    ContextOverflow: (400, "context_length_exceeded"),
    CloudUnavailable: (502, "cloud_unavailable"),
    CloudTimeout: (502, "cloud_timeout"),
    CloudRefused: (502, "cloud_refused"),
    CloudRejected: (502, "cloud_rejected"),
    CloudProtocolError: (502, "cloud_protocol"),
    CloudError: (502, "cloud_unavailable"),
    EdgewiseError: (500, None),
}


@pytest.mark.parametrize("error", STATUS)
def test_every_error_has_its_status(error: type[EdgewiseError]) -> None:
    made = refusal_of(error("No."))
    assert (made.status, made.code) == STATUS[error]
    assert made.kind == ("invalid_request_error" if made.status == 400 else "api_error")


def test_a_bug_in_the_model_is_a_500_that_says_nothing() -> None:
    def failing(ids: Sequence[int]) -> Floats:
        raise AttributeError("a secret")

    with app(edge=ScriptedEdge(failing)) as client:
        response = client.post("/v1/completions", json=ASK)
        streamed = client.post("/v1/completions", json=ASK | {"stream": True}).text
    assert response.status_code == 500
    for error in (response.json(), data_of(streamed)[-1]):
        assert error["error"]["code"] == "internal_error"
    assert "secret" not in response.text + streamed


JSON = {"Content-Type": "application/json"}
READ = ("/v1/models", "/v1/sent", "/metrics", "/tokenizer_info")
KEYED = [*READ, *(f"/v1/{path}" for path in BODIES), "/tokenize", "/detokenize"]


@pytest.mark.parametrize("path", KEYED)
def test_a_key_is_asked_for_and_nothing_of_a_strangers_body_is_read(path: str) -> None:
    """Neither its JSON, nor so much that it would be too large."""
    wrong = ({}, {"Authorization": "Bearer sk-2"}, {"Authorization": "Basic sk-1"})
    right: dict[str, str] = {**JSON, "Authorization": "Bearer sk-1"}
    method = "GET" if path in READ else "POST"
    with app(api_key="sk-1") as client:
        for headers in (*wrong, {"x-api-key": "sk-1", "Authorization": "Bearer sk-2"}):
            for body in (b"",) if method == "GET" else (b"{", b" " * (9 << 20)):
                refused = client.request(method, path, content=body, headers=JSON | headers)
                assert refused.status_code == 401
                assert refused.headers["www-authenticate"] == "Bearer"
                error = refused.json()["error"]
                if path.startswith("/v1/messages"):
                    assert error["type"] == "authentication_error"
                else:
                    assert error["code"] == "invalid_api_key"
        for shown in (right, {**JSON, "x-api-key": "sk-1"}):
            known = client.request(method, path, content=b"{", headers=shown)
            assert known.status_code == (200 if method == "GET" else 400)


@pytest.mark.parametrize("key", ["sk-1", None])
def test_strangers_are_told_no_address(key: str | None) -> None:
    cloud = ScriptedCloud(replying(TEXT, prompt="sky: "))
    cloud.name = "http://10.1.2.3:8080"
    with app(cloud, api_key=key) as client:
        found = client.get("/health").json()
        assert (found["status"], found["cloud"]) == ("ok", "cloud" if key else cloud.name)
        known = client.get("/health", headers={"x-api-key": key or ""}).json()
        assert known["cloud"] == cloud.name


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_is_a_line_in_the_log(stream: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", REQUESTS)
    shown = {"Authorization": "Bearer sk-1"}
    with app(api_key="sk-1") as client:
        client.post("/v1/completions?key=sk-1", json=ASK | {"stream": stream}, headers=shown)
        client.post("/v1/completions", json=ASK)
        client.get("/v1/%0a%1b[31m")
        client.head("/health")
    told = [(one.name, one.getMessage()) for one in caplog.records if REQUESTS in one.name]
    answer, *rest = [line.split(" in ")[0] for _, line in told]
    assert answer == "POST /v1/completions 200"
    assert f"{len(TEXT) + 1} edge + 0 cloud" in told[0][1]
    assert rest == ["POST /v1/completions 401", "GET /v1/??[31m 404", "HEAD /health 200"]
    # A flood of strangers' lines is counted.
    assert [name for name, _ in told] == [REQUESTS, OTHERS, OTHERS, OTHERS]
    assert not any(word in caplog.text for word in ("sk-1", "sky", "blue"))


@pytest.mark.parametrize(("failing", "said"), [(10**9, 1), (1, 0)])
def test_consults_that_all_fail_are_a_warning(
    failing: int, said: int, caplog: pytest.LogCaptureFixture
) -> None:
    script = replying("blue", prompt="sky? ")
    cloud = ScriptedCloud(
        script, fault=lambda ask: CloudUnavailable("gone.") if ask < failing else None
    )
    asked = {"model": "edgewise@1.0", "prompt": "sky? ", "max_tokens": 4}
    with caplog.at_level(logging.WARNING), app(edge=ScriptedEdge(script), cloud=cloud) as client:
        for _ in range(2):
            assert client.post("/v1/completions", json=asked).status_code == 200
    found = [one for one in caplog.records if one.name == "edgewise.server.answering"]
    assert len(found) == said


TIME = {"type": "function", "function": {"name": "get_time"}}
CALL = {"id": "x", "type": "function", "function": {"name": "a", "arguments": "{}"}}
LONG = "copper " * 5000
HUGE = "a" * (5 << 20)
NAMED = {"type": "function", "function": {"name": "b"}}
USER = {"role": "user", "content": "a"}


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with app(edge=ScriptedEdge(saying("Yes."), tokenizer=ToolTokenizer())) as found:
        yield found


def refused(client: TestClient, path: str, body: object, status: int = 400) -> str:
    """Message, parameter and code of a refusal, in the form of its API."""
    response = client.post(f"/v1/{path}", content=json.dumps(body), headers=JSON)
    assert response.status_code == status, response.text
    found = response.json()
    error = found["error"]
    assert len(error["message"]) < 300
    assert "\n" not in error["message"]
    if path.startswith("messages"):
        kind = "not_found_error" if status == 404 else "invalid_request_error"
        assert (found["type"], error["type"]) == ("error", kind)
    else:
        assert set(error) == {"message", "type", "param", "code"}
        assert error["type"] == "invalid_request_error"
    return f"{error['message']} {error.get('param')} {error.get('code')}"


def said(*content: Any, role: str = "user") -> dict[str, Any]:
    return {"messages": [{"role": role, "content": list(content)}]}


def item(**fields: Any) -> dict[str, Any]:
    return {"input": [{"role": "user", "content": "a"}, fields]}


def function(**fields: Any) -> dict[str, Any]:
    return {"tools": [{"type": "function", "function": {"name": "a", **fields}}]}


TURNS = 1000
BLOCKS = [{"type": "text", "text": ""}] * 5
BLOCKY = {"role": "user", "content": BLOCKS}
RESULT = {"type": "tool_result", "tool_use_id": "x"}
OUTPUT = {"type": "function_call_output", "call_id": "x", "output": BLOCKS}
NUMBERS = {"a": [1] * 500_000}
USE = {"type": "tool_use", "id": "x", "name": "a", "input": NUMBERS}
USED = [
    USER,
    {"role": "assistant", "content": [USE] * 2},
    *said(RESULT | {"content": "a"})["messages"],
]
SCHEMAS = [{"name": name, "input_schema": NUMBERS} for name in ("a", "b")]
MISNAMED = {"type": "json_schema", "name": "?", "schema": {}}
TOO_LONG = "context_length_exceeded"
# No entry is looked at: each would be a fault, and a body has room for a million.
ENTRIES: dict[str, Any] = dict.fromkeys(("spam", *map("x{}".format, range(16))))
REFUSED: dict[str, list[tuple[dict[str, Any], *tuple[str, ...]]]] = {
    "completions": [
        ({"prompt": ""}, "empty"),
        ({"prompt": [1 << 30]}, "ids from 0"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": ["a", "b"]}, "one prompt"),
        ({"prompt": LONG}, TOO_LONG),
        ({"prompt": [97] * 5000}, TOO_LONG),
        ({"prompt": HUGE}, "4194304", TOO_LONG),
        ({"max_tokens": 0}, "echo"),
        ({"echo": True, "logprobs": 1}, "edgewise:edge"),
        ({"logit_bias": ENTRIES}, " logit_bias "),
        *(({"model": id}, "edgewise:edge") for id in ("gpt-9", "", "edgewise:", ":edge", "@0.5")),
    ],
    "chat/completions": [
        ({"n": 2}, "n "),
        ({"messages": [{"role": "assistant", "audio": {"id": "x"}}]}, "messages.0"),
        ({"max_tokens": 4, "max_completion_tokens": 4}, "max_completion_tokens"),
        # A bound is told, and of a union what the value's own kind lacks.
        ({"stop": ["a"] * 17}, "16", "17"),
        ({"stop": 5}, "string", "list"),
        ({"stop": ["a", ""]}, "stop.1"),
        ({"top_logprobs": 3}, "logprobs"),
        ({"stream_options": {}}, "stream"),
        ({"edgewise": {"pending": True}}, "stream"),
        ({"edgewise": {"colour": True}}, "edgewise.colour"),
        ({"logit_bias": ENTRIES}, " logit_bias "),
        # No words of a library's.
        ({"messages": ["a"]}, "messages.0", "an object"),
        ({"messages": [{"role": "tool", "tool_call_id": "x", "content": "x"}]}, "messages"),
        ({"messages": [{"role": "assistant", "contents": "Yes."}]}, "messages.0"),
        ({"messages": [USER | {"spam": 0}]}, "messages.0.spam"),
        ({"messages": [USER | {"content": None}]}, "messages.0"),
        ({"messages": [USER | {"refusal": "b"}]}, "messages.0.refusal"),
        ({"messages": [USER | {"edgewise": ENTRIES}]}, " messages.0.edgewise "),
        ({"messages": [BLOCKY] * TURNS}, "4096"),
        ({"messages": [{"role": "assistant", "tool_calls": [0] * 5}] * TURNS}, "4096"),
        (said({"type": "image_url", "image_url": {"url": "data:"}}), "'image_url'"),
        (said({"type": "text", "text": "a", "spam": 0}), "messages.0.content.0.spam"),
        (said({"type": "text", "text": LONG}), TOO_LONG),
        (said({"type": "text", "text": HUGE}), "4194304", TOO_LONG),
        ({"response_format": {"type": "json_schema"}}, "response_format"),
        ({"response_format": form_of({"not": {}})}, "response_format"),
        ({"response_format": "json"}, "json_schema"),
        ({"response_format": form_of({}) | {"type": "json"}}, "'json'"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "?"}}},
         "response_format.json_schema.name", "A-Z"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [TIME], "tool_choice": NAMED}, "tool_choice"),
        ({"tools": [{"type": "web_search"}]}, "tools"),
        (function(parameters={"type": "array"}), "tools"),
        # The tool that it is about.
        ({"tools": [TIME, *function(parameters={"properties": {"x": {"type": "y"}}})["tools"]]},
         "'a'", "y"),
        ({"tools": [TIME, TIME]}, "tools"),
        ({"model": "edgewise@1.5"}, "edgewise:edge"),
        ({"model": "edgewise:t2"}, "edgewise:edge"),
        ({"model": "edgewise:cloud"}, "the server has none"),
    ],
    "responses": [
        ({"metadata": ENTRIES}, " metadata "),
        ({"input": []}, "at least 1"),
        ({"input": [[None]]}, "input.0"),
        ({"input": [{"type": "reasoning"}]}, "message"),
        ({"input": [BLOCKY] * TURNS}, "4096"),
        ({"input": [OUTPUT] * TURNS}, "4096"),
        (item(type="item_reference", id="x"), "'item_reference'"),
        (item(role="user", content=[{"type": "input_image"}]), "input.1.content.0"),
        ({"edgewise": {"provenance": True}}, "edgewise"),
        ({"text": {"format": MISNAMED}}, "text.format.name"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools", "mode": "auto"}}, "tool_choice."),
        ({"model": "gpt-5"}, "'gpt-5'"),
    ],
    "messages": [
        (said({"type": "thinking", "thinking": "x"}), "message"),
        (said([None]), "messages.0"),
        (said("Copp", role="assistant"), "messages"),
        ({"stop_sequences": ["a"] * 17}, "16", "17"),
        ({"messages": [BLOCKY] * TURNS}, "4096"),
        ({"messages": said(RESULT | {"content": BLOCKS})["messages"] * TURNS}, "4096"),
        ({"messages": USED}, "1048576"),
        ({"tools": SCHEMAS, "tool_choice": {"type": "tool", "name": "b"}}, "1048576"),
        ({"output_config": {"format": {"type": "json_schema"}}}, "schema"),
        ({"context_management": {"edits": [{"type": "clear_tool_uses_1"}]}}, "edits"),
        ({"edgewise": {"provenance": True}}, "edgewise"),
        ({"tools": [{"name": "a"}]}, "input_schema"),
        ({"tools": [{"name": "a", "input_schema": {}}], "tool_choice": {"type": "tool"}}, "name"),
    ],
    "messages/count_tokens": [
        ({"model": "claude"}, "'claude'"),
        ({"messages": [BLOCKY] * TURNS}, "4096"),
    ],
}  # fmt: skip


UNKNOWN_FIELDS: dict[str, dict[str, Any]] = {
    "completions": {"suffix": "x", "best_of": 2},
    "chat/completions": {"modalities": ["text", "audio"], "temperature": 3},
    "responses": {"previous_response_id": "resp_1", "Spam": 1, "truncation": "auto"}
    | {"background": True, "top_logprobs": 2},
    "messages": {"mcp_servers": [{"type": "url"}], "thread": {"type": "create"}, "spam": 1},
    "messages/count_tokens": {"max_tokens": 1},
}
for path, unknown in UNKNOWN_FIELDS.items():
    REFUSED[path] += [({field: value}, field) for field, value in unknown.items()]


@pytest.mark.parametrize(
    ("path", "fields", "words"),
    [(path, fields, words) for path, rows in REFUSED.items() for fields, *words in rows],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_what_is_not_honoured_is_refused(
    client: TestClient, path: str, fields: dict[str, Any], words: list[str]
) -> None:
    status = 404 if "model" in fields else 400
    told = refused(client, path, BODIES[path] | fields, status)
    assert all(word in told for word in words), told
    assert "dictionary" not in told
    assert (TOO_LONG in told) == (TOO_LONG in words)


BARE = {"role": "user", "content": "sky: ", "audio": None, "refusal": None}
NOTHING: dict[str, dict[str, Any]] = {
    "completions": {"best_of": 1, "suffix": None},
    "chat/completions": {"modalities": ["text"], "functions": None, "messages": [BARE]},
    "responses": {"truncation": "disabled", "background": False, "top_logprobs": 0}
    | dict.fromkeys(("previous_response_id", "conversation", "prompt")),
    "messages": {"mcp_servers": [], "container": None},
}


@pytest.mark.parametrize("path", NOTHING)
def test_a_field_that_asks_for_nothing_is_taken(path: str) -> None:
    """As clients of these APIs send it, or as null."""
    nulls = dict.fromkeys(field for field in NOTHING[path] if field != "messages")
    with app() as client:
        for fields in (NOTHING[path], nulls):
            found = client.post(f"/v1/{path}", json=BODIES[path] | fields)
            assert found.status_code == 200, found.text
            assert IGNORED_HEADER not in found.headers


def test_a_model_without_tools_says_so() -> None:
    asked: dict[str, dict[str, Any]] = {
        "chat/completions": TIME,
        "responses": {"type": "function", "name": "a"},
        "messages": {"name": "a", "input_schema": {}},
    }
    with app(edge=ScriptedEdge(saying("x"), tokenizer=ToolTokenizer(None))) as client:
        for path, tool in asked.items():
            assert "tools" in refused(client, path, BODIES[path] | {"tools": [tool]})


@pytest.mark.parametrize("word", ["a" * 100_000, "a\r\nb"])
def test_a_clients_own_words_are_short(client: TestClient, word: str) -> None:
    refused(client, "messages", BODIES["messages"] | said({"type": word}))
    refused(client, "responses", BODIES["responses"] | {"input": [{"type": word}]})
    for path, body in BODIES.items():
        for more in ({word[:60]: 1}, {word: 1}, {"edgewise": {word: 1}}):
            refused(client, path, body | more)


@pytest.mark.parametrize("strange", [float("nan"), float("inf")], ids=repr)
@pytest.mark.parametrize("path", BODIES)
def test_what_is_not_json_is_refused_wherever_it_stands(
    client: TestClient, path: str, strange: object
) -> None:
    """Anywhere in it would have been sent back, or made something else."""
    schema = {"type": "object", "properties": {"x": {"default": strange}}}
    for more in ({"metadata": {"a": strange}}, {"tools": [schema]}, {"temperature": strange}):
        assert "JSON" in refused(client, path, BODIES[path] | more)


@pytest.fixture(scope="module")
def writing() -> Iterator[TestClient]:
    """A server that answers whatever it is asked."""
    with app(edge=ScriptedEdge(noise(), tokenizer=ToolTokenizer())) as found:
        yield found


@pytest.mark.parametrize("half", [r"\ud83d", r"\uDE42", r"\ud83d\u0041", r"\ud83d\ud83d"])
@pytest.mark.parametrize("path", BODIES)
def test_half_a_character_is_read_as_a_replacement(
    writing: TestClient, path: str, half: str
) -> None:
    """JavaScript cuts texts inside an emoji; refused, the conversation could never go on."""
    body = json.dumps(BODIES[path]).replace("sky: ", f"sky: {half}")
    assert half in body
    found = writing.post(f"/v1/{path}", content=body.encode(), headers=JSON)
    assert found.status_code == 200, found.text
    assert not re.search(r"\\u[dD][89a-fA-F]", found.text)


def test_what_only_looks_like_half_a_character_is_left(writing: TestClient) -> None:
    """A backslash that is itself escaped, and both halves."""
    for text in (r"\\ud83d", r"\ud83d\ude42", r"\\\\ud83d"):
        body = f'{{"model": "edgewise", "prompt": "{text}", "max_tokens": 1, "echo": true}}'
        found = writing.post("/v1/completions", content=body.encode(), headers=JSON)
        assert found.json()["choices"][0]["text"].startswith(json.loads(f'"{text}"')), found.text


ASKED = json.dumps(CHAT).encode()
BAD: list[tuple[bytes, dict[str, str], int, str]] = [
    *((one, JSON, 400, "") for one in (b"{", b"", b"\xff", b"[]", b'{"model": "edgewise"}')),
    (gzip.compress(ASKED, mtime=0), {**JSON, "Content-Encoding": "gzip"}, 415, "gzip"),
    # As curl sends it where nothing else is said.
    (ASKED, {"Content-Type": "application/x-www-form-urlencoded"}, 400, "application/json"),
    (ASKED, {"Content-Type": "text/plain"}, 400, "application/json"),
    (ASKED, {}, 400, "application/json"),
    (b'{"model": "' + b"x" * (9 << 20) + b'"}', JSON, 413, " MB"),
]


@pytest.mark.parametrize(
    ("content", "headers", "status", "told"), BAD, ids=lambda one: str(one)[:40]
)
def test_a_body_that_is_not_a_request(
    client: TestClient, content: bytes, headers: dict[str, str], status: int, told: str
) -> None:
    for path in BODIES:
        response = client.post(f"/v1/{path}", content=content, headers=headers)
        assert response.status_code == status, response.text
        message = response.json()["error"]["message"]
        assert told in message
        assert "\n" not in message


def test_what_is_nested_as_deep_as_can_be_read_is_refused(client: TestClient) -> None:
    for depth in range(900, 1000):
        body = ASKED.replace(b'"sky: "', b'[{"type": %s}]' % (b"[" * depth + b"]" * depth))
        found = client.post("/v1/chat/completions", content=body, headers=JSON)
        assert found.status_code == 400, depth


def test_a_mark_of_utf_8_may_stand_before_a_body(client: TestClient) -> None:
    body = b"\xef\xbb\xbf" + json.dumps(CHAT).encode()
    found = client.post("/v1/chat/completions", content=body, headers=JSON)
    assert found.json()["choices"][0]["message"]["content"] == "Yes."


UNKNOWN = [
    ("GET", "/v1/nothing", "GET '/v1/nothing'"),
    ("POST", "/v1/embeddings", "POST '/v1/embeddings'"),
    # An address without its /v1.
    ("POST", "/chat/completions", "/v1"),
    ("DELETE", "/nothing", "DELETE '/nothing'"),
    ("GET", "/../pyproject.toml", "toml"),
    # What is there, and by another method.
    ("PUT", "/v1/completions", "POST"),
    ("GET", "/v1/chat/completions", "POST"),
    ("HEAD", "/v1/completions", "POST"),
    ("POST", "/v1/models", "GET"),
    ("POST", "/health", "GET"),
    ("POST", "/page.js", "GET"),
    ("DELETE", "/", "GET"),
]


@pytest.mark.parametrize(("method", "path", "told"), UNKNOWN)
def test_unknown_paths_and_methods_have_the_form_too(
    client: TestClient, method: str, path: str, told: str
) -> None:
    response = client.request(method, path)
    there = told in ("GET", "POST")
    assert response.status_code == (405 if there else 404)
    assert response.headers.get("allow") == (told if there else None)
    if method != "HEAD":
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
        assert told in response.json()["error"]["message"]


@pytest.mark.parametrize("path", ["/", "/page.js", "/health", "/metrics", "/v1/models", "/v1/sent"])
def test_what_can_be_got_has_a_head(url: str, path: str) -> None:
    found = httpx2.head(f"{url}{path}", trust_env=False)
    assert (found.status_code, found.content) == (200, b"")
    assert int(found.headers["content-length"]) > 0


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("how", ["useless", "blocked"])
@pytest.mark.parametrize("after", [0, 1])
def test_the_edge_writes_nothing_for_the_cloud_alone(
    monkeypatch: pytest.MonkeyPatch, after: int, how: str, stream: bool
) -> None:
    """Seen: its words passed for the cloud's."""
    cloud = ScriptedCloud(noise(), fault=lambda ask: NothingUsable("No.") if ask == after else None)
    if how == "blocked":
        cloud.fault = lambda ask: None
        asks = ScriptedCloudSession.ask

        def blocks(self: ScriptedCloudSession, request: ConsultRequest) -> Future[Completion]:
            if len(cloud.asks) == after:
                raise Blocked("It holds a private word.")
            return asks(self, request)

        monkeypatch.setattr(ScriptedCloudSession, "ask", blocks)
    with app(cloud) as client:
        body = CHAT | {"model": "edgewise:cloud", "max_tokens": 40, "stream": stream}
        found = client.post("/v1/chat/completions", json=body)
        error = data_of(found.text)[-1]["error"] if stream else found.json()["error"]
        assert error["message"].endswith(".")
        assert error["code"] == "cloud_rejected"
        cloud.asks.clear()
        assert client.post("/v1/chat/completions", json=body | {"model": "edgewise@1"}).is_success
    assert found.status_code == (200 if stream else 502)
