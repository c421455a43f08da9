"""What the server says has left: in usage, at `/v1/sent`, and of nothing else than counts."""

from typing import Any

from edgewise.cloud.engine import LlamaServer
from tests.doubles.scripted_engine import ScriptedEngine
from tests.server.in_process import ASK, CHAT, app


def sent(client: Any) -> list[dict[str, Any]]:
    reply = client.get("/v1/sent")
    assert reply.status_code == 200
    assert "sky" not in reply.text
    return reply.json()["data"]


def test_usage_and_the_list_say_the_same() -> None:
    engine = ScriptedEngine()
    cloud = LlamaServer(engine.url)
    with app(cloud) as client:
        assert sent(client) == []
        for number, body in enumerate((CHAT, CHAT, ASK)):
            asked = {**body, "max_tokens": 4}
            path = "completions" if "prompt" in body else "chat/completions"
            usage = client.post(f"/v1/{path}", json=asked).json()["usage"]["edgewise"]["sent"]
            assert usage["host"] == engine.url.removeprefix("http://")
            assert usage["consults"] == 4
            listed = sent(client)
            assert len(listed) == number + 1
            assert {name: listed[0][name] for name in usage} == usage
    repeated, first = listed[1], listed[2]
    assert repeated["conversation"] == first["conversation"] != listed[0]["conversation"]
    assert repeated["bytes"] > 0
    cloud.close()
    engine.close()


def test_an_answer_that_sends_nothing_is_not_listed() -> None:
    with app() as client:
        usage = client.post("/v1/chat/completions", json=CHAT).json()["usage"]["edgewise"]["sent"]
        assert usage.pop("host") is None
        assert set(usage.values()) == {0}
        assert sent(client) == []


def test_a_key_guards_the_list() -> None:
    with app(api_key="sk-1") as client:
        assert client.get("/v1/sent").status_code == 401
        found = client.get("/v1/sent", headers={"Authorization": "Bearer sk-1"})
        assert found.json() == {"object": "list", "data": []}
