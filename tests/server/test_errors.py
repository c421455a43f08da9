"""What clients are told when something is wrong: OpenAI's form, the server's own words."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from edgewise.cloud.engine import LlamaServer
from edgewise.cloud.gateway import GatewayCloud
from edgewise.edge.base import Floats
from edgewise.errors import (
    CloudError,
    CloudProtocolError,
    CloudRefused,
    CloudRejected,
    CloudTimeout,
    CloudUnavailable,
    ContextOverflow,
    EdgewiseError,
    ModelError,
    UsageError,
)
from edgewise.server.errors import REQUEST_FIELDS, refusal_of
from edgewise.settings import Settings
from edgewise.testing.scripted_cloud import ScriptedCloud
from edgewise.testing.scripted_edge import ScriptedEdge, replying
from tests.doubles.scripted_engine import Misbehaviour, ScriptedEngine
from tests.gateway.running import gateway
from tests.server.in_process import ASK, CHAT, TEXT, app


def told(error: EdgewiseError, **more: Any) -> dict[str, Any]:
    return refusal_of(error, **more).body()["error"]


def test_what_only_the_operator_can_change_is_called_so() -> None:
    error = ModelError("The model does not fit", hint="lower the context", setting="ctx")
    assert told(error) == {
        "message": "The model does not fit; lower the context (the server's setting ctx).",
        "type": "invalid_request_error",
        "param": None,
        "code": None,
    }


def test_what_a_request_has_a_field_for_is_named_as_that() -> None:
    error = UsageError("The temperature is too high", hint="lower it", setting="temperature")
    found = told(error)
    assert (found["message"], found["param"]) == (
        "The temperature is too high; lower it.",
        "temperature",
    )


@pytest.mark.parametrize("name", sorted(Settings.__struct_fields__))
def test_every_setting_is_the_requests_or_the_servers(name: str) -> None:
    found = told(UsageError("Something is wrong", hint="change it", setting=name))
    if name in REQUEST_FIELDS:
        assert found["param"] == name
        assert "server" not in found["message"]
    else:
        assert found["param"] is None
        assert f"setting {name})" in found["message"]
    assert "--" not in found["message"]


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (UsageError, 400, None),
        (ContextOverflow, 400, "context_length_exceeded"),
        (CloudUnavailable, 502, "cloud_unavailable"),
        (CloudTimeout, 502, "cloud_timeout"),
        (CloudRefused, 502, "cloud_refused"),
        (CloudRejected, 502, "cloud_rejected"),
        (CloudProtocolError, 502, "cloud_protocol"),
        (CloudError, 502, "cloud_unavailable"),
        (EdgewiseError, 500, None),
    ],
)
def test_every_error_has_its_status(
    error: type[EdgewiseError], status: int, code: str | None
) -> None:
    made = refusal_of(error("No."))
    assert (made.status, made.code) == (status, code)
    assert made.kind == ("invalid_request_error" if status == 400 else "api_error")


def test_a_bug_says_nothing_of_itself() -> None:
    unexpected = refusal_of(ZeroDivisionError("a secret"))
    assert unexpected.status == 500
    assert unexpected.body()["error"]["code"] == "internal_error"
    assert "secret" not in str(unexpected)


FAULTS: list[tuple[Misbehaviour, str]] = [
    ("error", "cloud_unavailable"),
    ("busy", "cloud_unavailable"),
    ("declined", "cloud_rejected"),
]


@pytest.mark.parametrize("through", ["engine", "gateway"])
@pytest.mark.parametrize(("fault", "code"), FAULTS)
def test_an_engines_request_is_named_in_the_502(
    fault: Misbehaviour, code: str, through: str
) -> None:
    """So that an operator finds it in the engine's log, whatever stands between."""
    engine = ScriptedEngine()
    with gateway([engine.url]) as running:
        cloud = LlamaServer(engine.url) if through == "engine" else GatewayCloud(running.url)
        with app(cloud, on_cloud_error="raise") as client:
            number = engine.asked
            engine.fault = lambda asked: fault
            response = client.post("/v1/completions", json=ASK)
        cloud.close()
    engine.close()
    assert response.status_code == 502
    error = response.json()["error"]
    assert error["code"] == code
    assert f"scripted-{number}" in error["message"]


@pytest.mark.parametrize(("fault", "code"), FAULTS)
def test_in_a_stream_it_is_an_event(fault: Misbehaviour, code: str) -> None:
    engine = ScriptedEngine(fault=lambda asked: fault if asked else None)
    cloud = LlamaServer(engine.url)
    with app(cloud, on_cloud_error="raise") as client:
        text = client.post("/v1/completions", json=ASK | {"stream": True}).text
    cloud.close()
    engine.close()
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data")]
    assert lines[-1] == "[DONE]"
    error = json.loads(lines[-2])["error"]
    assert error["code"] == code
    assert "(request scripted-1)" in error["message"]


def test_by_default_a_fault_of_the_cloud_costs_no_answer() -> None:
    cloud = ScriptedCloud(
        replying(TEXT, prompt="sky: "), fault=lambda asked: CloudUnavailable("gone.")
    )
    with app(cloud) as client:
        response = client.post("/v1/completions", json=ASK)
    assert response.status_code == 200
    assert response.json()["choices"][0]["text"] == TEXT
    assert response.json()["usage"]["edgewise"]["cloud_tokens"] == 0
    assert response.json()["usage"]["edgewise"]["failed_calls"] > 0


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/completions", ASK | {"prompt": "x" * 100}, "prompt"),
        ("/v1/chat/completions", CHAT | {"messages": [{"role": "user", "content": "x" * 100}]},
         "messages"),
    ],
)  # fmt: skip
def test_too_long_a_prompt_names_the_field_that_holds_it(
    path: str, body: dict[str, Any], param: str
) -> None:
    with app(context=64) as client:
        response = client.post(path, json=body)
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", param)
    assert "100 tokens" in error["message"]
    assert "--" not in error["message"]


def test_a_bug_in_the_model_is_a_500_that_says_nothing() -> None:
    def failing(ids: Sequence[int]) -> Floats:
        raise ZeroDivisionError("a secret")

    with app(edge=ScriptedEdge(failing)) as client:
        response = client.post("/v1/completions", json=ASK)
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "internal_error"
    assert "secret" not in response.text


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"{", "JSON"),
        (b"[]", "not valid"),
        (b'{"model": "edgewise"}', "prompt is missing"),
        (b'{"model": "edgewise", "prompt": "a", "spam": 1}', "spam is not supported"),
        (b'{"model": "edgewise", "prompt": "a", "temperature": 9}', "temperature is not valid"),
    ],
)
def test_a_body_that_is_none_is_a_sentence(content: bytes, said: str) -> None:
    with app() as client:
        headers = {"Content-Type": "application/json"}
        response = client.post("/v1/completions", content=content, headers=headers)
    assert response.status_code == 400
    assert said in response.json()["error"]["message"]


@pytest.mark.parametrize("kind", ["application/x-www-form-urlencoded", "text/plain", None])
def test_a_body_that_is_not_said_to_be_json(kind: str | None) -> None:
    """As curl sends it where nothing else is said."""
    with app() as client:
        response = client.post(
            "/v1/completions",
            content=b'{"model": "edgewise", "prompt": "a"}',
            headers={} if kind is None else {"Content-Type": kind},
        )
    assert response.status_code == 400
    assert "application/json" in response.json()["error"]["message"]


def test_a_key_is_asked_for_at_the_api_and_at_the_metrics() -> None:
    with app(api_key="sk-1") as client:
        for headers in ({}, {"Authorization": "Bearer sk-2"}, {"Authorization": "Basic sk-1"}):
            for path in ("/v1/models", "/metrics"):
                refused = client.get(path, headers=headers)
                assert refused.status_code == 401
                assert refused.headers["www-authenticate"] == "Bearer"
                assert refused.json()["error"]["code"] == "invalid_api_key"
        assert client.get("/health").status_code == 200
        right = {"Authorization": "Bearer sk-1"}
        assert client.get("/v1/models", headers=right).status_code == 200


def test_paths_and_methods_that_are_none_have_the_form_too() -> None:
    with app() as client:
        missing = client.get("/v1/nothing")
        wrong = client.put("/v1/completions")
    assert (missing.status_code, wrong.status_code) == (404, 404)
    for response in (missing, wrong):
        assert set(response.json()["error"]) == {"message", "type", "param", "code"}
