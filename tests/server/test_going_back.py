"""Provenance tells enough to go back to any token and let the edge go on from there."""

from typing import Any

import httpx2

from edgewise.testing.scripted_cloud import ScriptedCloud
from edgewise.testing.scripted_edge import replying
from edgewise_lab.evaluation.tasks.pocketqa import pocketqa
from tests.server.in_process import ASK, CHAT, app

OTHER = "The sea is blue."


def post(url: str, path: str, body: dict[str, Any]) -> dict[str, Any]:
    reply = httpx2.post(f"{url}/v1/{path}", json=body, timeout=120, trust_env=False)
    return reply.raise_for_status().json()


def test_how_the_edge_would_have_ended(url: str) -> None:
    """The bundled pair: from the first changed token on it is the edge's own answer."""
    for question in pocketqa().questions[:8]:
        chat = {"messages": [{"role": "user", "content": question.prompt}], "max_tokens": 96}
        told = {"edgewise": {"provenance": True}}
        pair = post(url, "chat/completions", {"model": "edgewise@0.3", **chat, **told})
        edge = post(url, "chat/completions", {"model": "edgewise:edge", **chat, **told})
        own, tokens = edge["edgewise"]["tokens"], pair["edgewise"]["tokens"]
        asked = [one for one in tokens if one["source"] == "cloud" and one["edge"]]
        changed = [one for one in asked if one["edge"][0]["token"] != one["text"]]
        if changed:
            break
    else:
        raise AssertionError("the cloud changed nothing")
    at = changed[0]["index"]
    ids = [*pair["edgewise"]["prompt_token_ids"], *(one["id"] for one in tokens[:at])]
    back = {"model": "edgewise:edge", "prompt": ids, "max_tokens": 96, **told}
    ghost = post(url, "completions", back)
    begun = ghost["edgewise"]["tokens"]
    assert begun[0]["text"] == changed[0]["edge"][0]["token"]
    assert [one["id"] for one in begun] == [one["id"] for one in own[at:]]
    # Nothing of it left, and the prompt was in the KV cache.
    assert ghost["usage"]["edgewise"]["cloud_calls"] == 0
    assert ghost["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
    assert pair["usage"]["edgewise"]["correction_tokens"] >= len(changed) > 0


def test_prompts_ids_come_once_and_only_where_asked_for() -> None:
    with app(ScriptedCloud(replying(OTHER, prompt="sky: "))) as client:
        for path, body in (("completions", ASK), ("chat/completions", CHAT)):
            plain = client.post(f"/v1/{path}", json={**body, "stream": True}).text
            assert "prompt_token_ids" not in plain
            told = {**body, "edgewise": {"provenance": True}}
            streamed = client.post(f"/v1/{path}", json={**told, "stream": True}).text
            whole = client.post(f"/v1/{path}", json=told).json()
            assert streamed.count('"prompt_token_ids":[115,107,121,58,32]') == 1
            assert streamed.index("prompt_token_ids") < streamed.index('"token":{"index":0')
            assert whole["edgewise"]["prompt_token_ids"] == list(b"sky: ")


def test_the_threshold_stands_beside_the_score() -> None:
    told = {**ASK, "edgewise": {"provenance": True}}

    def held(client: Any, model: str) -> list[tuple[float | None, float | None]]:
        reply = client.post("/v1/completions", json={**told, "model": model}).json()
        return [(one["score"], one["threshold"]) for one in reply["edgewise"]["tokens"]]

    with app(ScriptedCloud(replying(OTHER, prompt="sky: ")), threshold=0.7) as client:
        assert set(held(client, "edgewise")) == {(1.0, 0.7)}
        assert {threshold for _, threshold in held(client, "edgewise:edge")} == {None}
        assert {threshold for _, threshold in held(client, "edgewise@0")} == {None}
        steered = [threshold for score, threshold in held(client, "edgewise@0.2") if score]
        alone = held(client, "edgewise:cloud")
    # The controller moves it from token to token.
    assert len({round(one or 0, 6) for one in steered}) > 3
    # Where a consult brings several tokens, those behind the first had no score.
    assert alone[:2] == [(1.0, 0.0), (None, None)]
