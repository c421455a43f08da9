"""What must be said beside an answer stands in its usage, whole or streamed."""

import json
from typing import Any

from msgspec.structs import replace
from starlette.testclient import TestClient

from edgewise.server.app import make_app
from edgewise.testing.scripted_edge import ScriptedEdge, replying
from tests.server.in_process import CHAT, TEXT, answering_of, app


def notices(client: Any, question: str) -> list[str | None]:
    """Of a whole answer and of a streamed one."""
    asked = {**CHAT, "messages": [{"role": "user", "content": question}], "max_tokens": 4}
    whole = client.post("/v1/chat/completions", json=asked).json()
    streamed = {**asked, "stream": True, "stream_options": {"include_usage": True}}
    text = client.post("/v1/chat/completions", json=streamed).text
    lines = [line.removeprefix("data: ") for line in text.splitlines() if "data: {" in line]
    usages = [json.loads(line)["usage"] for line in lines]
    return [one["edgewise"]["notice"] for one in (whole["usage"], usages[-1])]


def test_what_the_bundled_pair_was_never_taught_is_said() -> None:
    with app() as client:
        first, second = notices(client, "Why is the sky blue?")
        assert first == second
        assert first is not None
        assert "bundled" in first
        assert notices(client, "Tell me about iron.") == [None, None]


def test_of_other_models_nothing_is_said() -> None:
    answering = answering_of(ScriptedEdge(replying(TEXT, prompt="sky: ")))
    answering.settings = replace(answering.settings, edge="small.gguf")
    with TestClient(make_app(answering)) as client:
        assert notices(client, "Why is the sky blue?") == [None, None]
    answering.close()
