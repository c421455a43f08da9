"""What the server says has left, and what answers cost: in usage, in lists, in its metrics."""

from typing import Any

import pytest

from edgewise.cloud.engine import LlamaServer
from edgewise.costs.meter import Billing, Limits
from edgewise.costs.price import price_of
from tests.server.in_process import ASK, CHAT, app


def asked(client: Any, body: dict[str, Any], **more: Any) -> dict[str, Any]:
    path = "completions" if "prompt" in body else "chat/completions"
    reply = client.post(f"/v1/{path}", json={**body, "max_tokens": 6, **more})
    assert reply.status_code == 200
    return reply.json()["usage"]["edgewise"]


def sent(client: Any) -> list[dict[str, Any]]:
    reply = client.get("/v1/sent")
    assert "sky" not in reply.text
    return reply.json()["data"]


def metric(client: Any, name: str) -> float:
    lines = client.get("/metrics").text.splitlines()
    (found,) = [line for line in lines if line.startswith(f"edgewise_cost_{name} ")]
    return float(found.split()[1])


def test_usage_the_lists_and_the_metrics_agree(cloud: LlamaServer) -> None:
    billing = Billing(price_of("2,0.5,8"), limits=Limits(alone=False))
    with app(cloud, billing=billing) as client:
        assert sent(client) == []
        costs: list[dict[str, Any]] = []
        for number, body in enumerate((CHAT, CHAT, ASK)):
            usage = asked(client, body)
            costs.append(usage["cost"])
            listed = sent(client)
            assert len(listed) == number + 1
            assert {name: listed[0][name] for name in usage["sent"]} == usage["sent"]
            assert (usage["sent"]["host"][:10], usage["sent"]["consults"]) == ("127.0.0.1:", 6)
        metrics = {name: metric(client, name) for name in ("paid_total", "alone_total", "saved")}
    assert all(cost["paid"] > 0 for cost in costs)
    # The record of what was sent tells conversations apart.
    latest, *first = (one["conversation"] for one in listed)
    assert {latest, *first} == {latest, first[0]} != {latest}
    assert listed[1]["bytes"] > 0
    for name, value in metrics.items():
        part = name.removesuffix("_total")
        assert value == pytest.approx(sum(cost[part] for cost in costs))


def test_the_cloud_alone_is_not_held_to_itself_but_to_the_limit(cloud: LlamaServer) -> None:
    whole = Billing(price_of("2,2,8"))
    with app(cloud, billing=whole) as client:
        usage = asked(client, CHAT, model="edgewise:cloud", max_tokens=40)
        assert usage["edge_tokens"] == 0
        assert usage["cost"]["saved"] < 0
    limited = Billing(price_of("2,2,8"), limits=Limits(answer=price_of("0.0002,0,0").input))
    with app(cloud, billing=limited) as client:
        # The edge's words would pass for the cloud's.
        refused = client.post(
            "/v1/chat/completions", json=CHAT | {"model": "edgewise:cloud", "max_tokens": 40}
        )
        assert refused.status_code == 502
        assert "limits on costs" in refused.json()["error"]["message"]
        # 5 x 2 + 16 x 8 = 138 millionths; a second one would come to 308.
        assert [one["consults"] for one in sent(client)] == [1]
        assert 1e6 * metric(client, "paid_total") == pytest.approx(138)


def test_without_a_price_and_a_cloud_there_is_nothing_to_say() -> None:
    with app() as client:
        usage = asked(client, CHAT)
        assert usage["cost"] is None
        assert usage["sent"].pop("host") is None
        assert set(usage["sent"].values()) == {0}
        assert sent(client) == []
        assert "edgewise_cost" not in client.get("/metrics").text


def test_an_answer_cut_short_counts(cloud: LlamaServer) -> None:
    billing = Billing(price_of("2,0.5,8"), limits=Limits(alone=False))
    with app(cloud, billing=billing) as client:
        body = {**CHAT, "stream": True, "max_tokens": 12}
        with client.stream("POST", "/v1/chat/completions", json=body) as reply:
            next(reply.iter_lines())
        usage = asked(client, CHAT)
        assert billing.sums.answers == 2
        assert metric(client, "paid_total") > usage["cost"]["paid"]
