"""Redaction behind the server: what clients get has no placeholder, and a local class stays."""

import pytest

from edgewise.cloud.bridge.adapter import bridged
from edgewise.parts import context_filter
from edgewise.settings import Settings
from edgewise.testing.scripted_cloud import ScriptedCloud
from edgewise.testing.scripted_edge import ByteTokenizer, Script, ScriptedEdge, noise, replying
from tests.server.in_process import app

SAID = "Write to anna@b.example:"


def answered(redact: str, script: Script, model: str) -> tuple[int, str, ScriptedCloud]:
    """Status and body of a reply, and the cloud behind the bridge."""
    cloud = ScriptedCloud(script)
    shown = context_filter(Settings(redact=redact))
    seen = bridged(cloud, ByteTokenizer(), context_filter=shown)
    edge = ScriptedEdge(noise(), context=1 << 14)
    body = {"model": model, "messages": [{"role": "user", "content": SAID}], "max_tokens": 40}
    with app(seen, edge=edge) as client:
        reply = client.post("/v1/chat/completions", json=body)
    return reply.status_code, reply.text, cloud


def test_clients_see_no_placeholder() -> None:
    script = replying(" mail to <EMAIL_1> now", prompt="Write to <EMAIL_1>:")
    status, text, cloud = answered("email", script, "edgewise:cloud")
    assert status == 200
    assert "mail to anna@b.example now" in text
    assert "EMAIL_1" not in text
    assert cloud.asks
    assert not any(b"anna" in bytes(ids) for ids, _ in cloud.asks)


@pytest.mark.parametrize(("model", "status"), [("edgewise:cloud", 400), ("edgewise", 200)])
def test_a_local_class_stays(model: str, status: int) -> None:
    got, text, cloud = answered("email=local", replying("", prompt=""), model)
    assert got == status, text
    assert cloud.opened == 0
    assert ("local" in text) == (status == 400)
