"""What clients are told when something is wrong: OpenAI's form, the server's own words."""

import logging
from collections.abc import Sequence
from typing import Any

import pytest

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
from edgewise.testing import ScriptedCloud, ScriptedEdge, replying
from tests.server.in_process import ASK, app, data_of


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


def test_a_bug_in_the_model_is_a_500_that_says_nothing() -> None:
    def failing(ids: Sequence[int]) -> Floats:
        raise ZeroDivisionError("a secret")

    with app(edge=ScriptedEdge(failing)) as client:
        response = client.post("/v1/completions", json=ASK)
        streamed = client.post("/v1/completions", json=ASK | {"stream": True}).text
    assert response.status_code == 500
    for error in (response.json(), data_of(streamed)[-1]):
        assert error["error"]["code"] == "internal_error"
    assert "secret" not in response.text + streamed


def test_a_key_is_asked_for_at_the_api_and_at_the_metrics() -> None:
    with app(api_key="sk-1") as client:
        for headers in ({}, {"Authorization": "Bearer sk-2"}, {"Authorization": "Basic sk-1"}):
            for path in ("/v1/models", "/v1/sent", "/metrics"):
                refused = client.get(path, headers=headers)
                assert refused.status_code == 401
                assert refused.headers["www-authenticate"] == "Bearer"
                assert refused.json()["error"]["code"] == "invalid_api_key"
        assert client.get("/health").status_code == 200
        right = {"Authorization": "Bearer sk-1"}
        assert client.get("/v1/models", headers=right).status_code == 200


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
