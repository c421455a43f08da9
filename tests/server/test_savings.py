"""What the server says answers cost: in usage, at `/v1/savings`, and in its metrics."""

from typing import Any

import pytest

from edgewise.cloud.engine import LlamaServer
from edgewise.costs.meter import Billing, Limits
from edgewise.costs.price import price_of
from tests.doubles.scripted_engine import ScriptedEngine
from tests.server.in_process import ASK, CHAT, app

SUMMED = ("paid", "alone", "saved", "input_tokens", "cached_tokens", "output_tokens")


def asked(client: Any, body: dict[str, Any], **more: Any) -> dict[str, Any]:
    path = "completions" if "prompt" in body else "chat/completions"
    reply = client.post(f"/v1/{path}", json={**body, "max_tokens": 6, **more})
    assert reply.status_code == 200
    return reply.json()["usage"]["edgewise"]


def metric(client: Any, name: str) -> float:
    (found,) = [
        line.split()[1]
        for line in client.get("/metrics").text.splitlines()
        if line.startswith(f"edgewise_cost_{name}{{")
    ]
    return float(found)


def test_usage_the_sums_and_the_metrics_agree() -> None:
    engine = ScriptedEngine()
    cloud = LlamaServer(engine.url)
    billing = Billing(price_of("2,0.5,8"), limits=Limits(alone=False))
    with app(cloud, billing=billing) as client:
        assert client.get("/v1/savings").json()["answers"] == 0
        costs = [asked(client, body)["cost"] for body in (CHAT, CHAT, ASK)]
        reply = client.get("/v1/savings").json()
        metrics = {name: metric(client, name) for name in ("paid_total", "alone_total", "saved")}
        listed = client.get("/v1/sent").json()["data"]
    assert all(cost["paid"] > 0 for cost in costs)
    assert reply["answers"] == 3
    for name in SUMMED:
        assert reply["total"][name] == pytest.approx(sum(cost[name] for cost in costs))
    latest, first = reply["conversations"]
    assert (latest["answers"], first["answers"]) == (1, 2)
    assert first["paid"] == pytest.approx(costs[0]["paid"] + costs[1]["paid"])
    # Under the names that the record of what was sent gives them.
    assert [one["conversation"] for one in listed] == [
        latest["conversation"],
        first["conversation"],
        first["conversation"],
    ]
    assert metrics["paid_total"] == pytest.approx(reply["total"]["paid"])
    assert metrics["alone_total"] == pytest.approx(reply["total"]["alone"])
    assert metrics["saved"] == pytest.approx(reply["total"]["saved"])
    cloud.close()
    engine.close()


def test_the_edge_alone_saves_all_of_it() -> None:
    engine = ScriptedEngine()
    cloud = LlamaServer(engine.url)
    with app(cloud, billing=Billing(price_of("2,0.5,8"))) as client:
        cost = asked(client, CHAT, model="edgewise:edge")["cost"]
        # "sky: " is five tokens, and six were written.
        assert cost["paid"] == 0
        assert 1e6 * cost["saved"] == pytest.approx(5 * 2 + 6 * 8)
        assert not cost["estimated"]
    cloud.close()
    engine.close()


def test_the_cloud_alone_is_not_held_to_itself_but_to_the_limit() -> None:
    engine = ScriptedEngine()
    cloud = LlamaServer(engine.url)
    whole = Billing(price_of("2,2,8"))
    with app(cloud, billing=whole) as client:
        usage = asked(client, CHAT, model="edgewise:cloud", max_tokens=40)
        assert usage["edge_tokens"] == 0
        assert usage["cost"]["saved"] < 0
    limited = Billing(price_of("2,2,8"), limits=Limits(answer=price_of("0.0002,0,0").input))
    with app(cloud, billing=limited) as client:
        usage = asked(client, CHAT, model="edgewise:cloud", max_tokens=40)
        # 5 x 2 + 16 x 8 = 138 millionths; a second one would come to 308.
        assert (usage["cloud_tokens"], usage["cloud_calls"]) == (16, 1)
        assert 1e6 * usage["cost"]["paid"] == pytest.approx(138)
    cloud.close()
    engine.close()


def test_without_a_price_there_is_nothing_to_say() -> None:
    with app() as client:
        assert asked(client, CHAT)["cost"] is None
        reply = client.get("/v1/savings").json()
        assert reply == {
            "object": "savings",
            "answers": 0,
            "total": None,
            "models": [{"model": "edgewise", "answers": 0, "total": None}],
            "conversations": [],
        }
        assert "edgewise_cost" not in client.get("/metrics").text


def test_a_key_guards_the_sums() -> None:
    with app(api_key="sk-1") as client:
        assert client.get("/v1/savings").status_code == 401
        assert (
            client.get("/v1/savings", headers={"Authorization": "Bearer sk-1"}).status_code == 200
        )


def test_an_answer_cut_short_counts() -> None:
    engine = ScriptedEngine()
    cloud = LlamaServer(engine.url)
    billing = Billing(price_of("2,0.5,8"), limits=Limits(alone=False))
    with app(cloud, billing=billing) as client:
        body = {**CHAT, "stream": True, "max_tokens": 12}
        with client.stream("POST", "/v1/chat/completions", json=body) as reply:
            next(reply.iter_lines())
        asked(client, CHAT)
        found = client.get("/v1/savings").json()
        assert found["answers"] == 2
        assert found["total"]["paid"] > 0
    cloud.close()
    engine.close()
