"""A longer way to a cloud in the server's process, for one answer."""

from typing import Any

import pytest
from starlette.testclient import TestClient

from edgewise.routers.constant import Constant
from edgewise.server.answering import Answering
from edgewise.server.app import make_app
from edgewise.settings import Settings
from edgewise.testing.scripted_cloud import ScriptedCloud
from edgewise.testing.scripted_edge import ScriptedEdge, replying
from tests.server.in_process import ASK, TEXT, app

OTHER = "The sea is deep and has no end."
WAY = 0.5


def cloud() -> ScriptedCloud:
    return ScriptedCloud(replying(OTHER, prompt="sky: "))


def asked(client: Any, **more: Any) -> Any:
    own = {"provenance": True, **more.pop("edgewise", {})}
    return client.post("/v1/completions", json={**ASK, **more, "edgewise": own})


def waited(reply: Any) -> list[bool]:
    return [token["seconds"] >= WAY for token in reply.json()["edgewise"]["tokens"]]


def test_each_consult_comes_so_much_later_and_of_the_cloud_alone_the_first() -> None:
    with app(cloud()) as client:
        pair = asked(client, max_tokens=2, edgewise={"round_trip": WAY})
        alone = asked(client, model="edgewise:cloud", edgewise={"round_trip": WAY})
        plain = asked(client, max_tokens=2)
        health = client.get("/health").json()
    assert waited(pair) == [True, True]
    assert waited(alone) == [True] + [False] * len(OTHER)
    assert alone.json()["choices"][0]["text"] == OTHER
    assert waited(plain) == [False, False]
    # Nobody else waits longer for it.
    assert health["round_trip_seconds"] is None or health["round_trip_seconds"] < WAY


def test_the_answer_is_the_same_over_any_way() -> None:
    """The edge runs ahead meanwhile."""
    texts: set[str] = set()
    for trip in (0, 0.02):
        with app(cloud(), run_ahead=8) as client:
            reply = asked(client, edgewise={"round_trip": trip})
        texts.add(reply.json()["choices"][0]["text"])
    assert texts == {OTHER}


@pytest.mark.parametrize("address", ["http://127.0.0.1:9", "none"])
def test_it_is_refused_where_the_cloud_is_elsewhere(address: str) -> None:
    answering = Answering(
        edge=ScriptedEdge(replying(TEXT, prompt="sky: ")),
        router=Constant(1.0),
        card=None,
        settings=Settings(cloud=address),
        cloud=None if address == "none" else cloud(),
        slots=1,
        queue=1,
    )
    with TestClient(make_app(answering)) as client:
        reply = asked(client, edgewise={"round_trip": 0.1})
        assert not client.get("/health").json()["cloud_is_here"]
    answering.close()
    assert reply.status_code == 400
    assert "in the server's process" in reply.json()["error"]["message"]
    assert reply.json()["error"]["param"] == "edgewise.round_trip"


@pytest.mark.parametrize("trip", [-0.1, 0.6, "0.1"])
def test_only_what_a_link_can_be_is_taken(trip: object) -> None:
    with app(cloud()) as client:
        reply = asked(client, edgewise={"round_trip": trip})
    assert (reply.status_code, reply.json()["error"]["param"]) == (400, "edgewise.round_trip")


def test_the_edge_alone_waits_for_nobody() -> None:
    with app(cloud()) as client:
        reply = asked(client, model="edgewise:edge", edgewise={"round_trip": WAY})
    assert reply.json()["choices"][0]["text"] == TEXT
    assert not any(waited(reply))
