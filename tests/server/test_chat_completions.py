"""`/v1/chat/completions` over a real server: shapes, streams, what is honoured and refused."""

from typing import Any

import httpx2
import pytest

from edgewise.addresses import bundled
from edgewise.testing.link import Link, Quality
from tests.asked import HARD
from tests.llama_server_process import llama_server
from tests.server.in_process import data_of
from tests.server.serving import serving

# Alone the edge always says the same; a pair whose share is steered depends on when completions
# come.
ASK = {
    "model": "edgewise:edge",
    "messages": [{"role": "user", "content": "Tell me about copper."}],
}
ASK_HARD = [{"role": "user", "content": HARD}]
PATH = "/v1/chat/completions"


def post(url: str, **more: Any) -> httpx2.Response:
    return httpx2.post(url + PATH, json=ASK | more, timeout=60, trust_env=False)


def answer(url: str, **more: Any) -> dict[str, Any]:
    response = post(url, **more)
    assert response.status_code == 200, response.text
    return response.json()


def chunks(url: str, **more: Any) -> list[dict[str, Any]]:
    """All chunks of a stream; the end is checked here."""
    response = post(url, stream=True, **more)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.text.strip().endswith("data: [DONE]")
    return data_of(response.text)


def said(found: list[dict[str, Any]]) -> str:
    return "".join(c["choices"][0]["delta"].get("content", "") for c in found if c["choices"])


def test_a_stream_says_the_same_as_a_whole_answer(url: str) -> None:
    whole = answer(url, seed=7, temperature=0.8)
    found = chunks(url, seed=7, temperature=0.8, stream_options={"include_usage": True})
    assert said(found) == whole["choices"][0]["message"]["content"]
    assert found[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    *_, last, usage = found
    assert last["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    assert len({chunk["id"] for chunk in found}) == 1
    assert all(chunk["object"] == "chat.completion.chunk" for chunk in found)
    # Without `include_usage` it has no usage.
    assert all("usage" not in chunk for chunk in chunks(url))


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
def test_an_answer_ends_at_its_limit(url: str, field: str) -> None:
    found = answer(url, **{field: 3})
    assert found["usage"]["completion_tokens"] == 3
    assert found["choices"][0]["finish_reason"] == "length"


def test_a_stop_string_ends_the_answer_before_it(url: str) -> None:
    whole = answer(url)["choices"][0]["message"]["content"]
    stop = whole[10:14]
    for form in (stop, [stop, "never said"]):
        found = answer(url, stop=form)
        assert found["choices"][0]["message"]["content"] == whole.partition(stop)[0]
        assert found["choices"][0]["finish_reason"] == "stop"
        assert said(chunks(url, stop=form)) == whole.partition(stop)[0]


def test_a_seed_repeats_a_drawn_answer(url: str) -> None:
    drawn = [
        answer(url, seed=seed, temperature=1.5)["choices"][0]["message"]["content"]
        for seed in (3, 3, -4)
    ]
    assert drawn[0] == drawn[1] != drawn[2]
    # Without one every draw is another.
    drawn = {answer(url, temperature=1.5)["choices"][0]["message"]["content"] for _ in range(4)}
    assert len(drawn) > 1


@pytest.mark.parametrize("model", ["edgewise:edge", "edgewise:cloud"])
def test_logprobs_have_bytes_and_candidates(url: str, model: str) -> None:
    found = answer(url, model=model, logprobs=True, top_logprobs=3, max_tokens=12)
    content = found["choices"][0]["logprobs"]["content"]
    assert content
    for one in content:
        assert one["logprob"] <= 0
        assert bytes(one["bytes"]).decode("utf-8", "replace") == one["token"]
        assert len(one["top_logprobs"]) == 3
        probabilities = [top["logprob"] for top in one["top_logprobs"]]
        assert probabilities == sorted(probabilities, reverse=True)
        # Greedy: the token is the likeliest of who wrote it.
        assert one["top_logprobs"][0]["token"] == one["token"]
    streamed = chunks(url, model=model, logprobs=True, top_logprobs=3, max_tokens=12)
    told = [c["choices"][0]["logprobs"] for c in streamed]
    assert [one for part in told if part for one in part["content"]] == content


def test_model_ids_choose_who_writes(url: str) -> None:
    edge = answer(url, model="edgewise:edge")["usage"]["edgewise"]
    assert (edge["cloud_tokens"], edge["cloud_calls"]) == (0, 0)
    assert (edge["cloud_prompt_computed"], edge["cloud_prompt_cached"]) == (0, 0)
    fresh = [{"role": "user", "content": "Tell me about a word that nobody asked for yet."}]
    cloud = answer(url, model="edgewise:cloud", messages=fresh)["usage"]["edgewise"]
    assert cloud["edge_tokens"] == 0
    assert cloud["cloud_calls"] < cloud["cloud_tokens"]
    assert cloud["cloud_prompt_computed"] > 0
    assert answer(url, model="edgewise@0")["usage"]["edgewise"]["cloud_tokens"] == 0
    all_of_it = answer(url, model="edgewise@1")["usage"]["edgewise"]
    assert all_of_it["edge_tokens"] == 0
    some = answer(url, model="edgewise@0.2", max_tokens=64)["usage"]["edgewise"]
    # How much depends on what others left of the share's budget: not all of it.
    assert some["cloud_share"] < 1


def test_provenance_is_told_on_demand(url: str) -> None:
    found = answer(url, model="edgewise@0.2", messages=ASK_HARD, edgewise={"provenance": True})
    tokens = found["edgewise"]["tokens"]
    assert len(tokens) == found["usage"]["completion_tokens"]
    assert {token["source"] for token in tokens} == {"edge", "cloud"}
    by_cloud = [token for token in tokens if token["source"] == "cloud"]
    assert len(by_cloud) == found["usage"]["edgewise"]["cloud_tokens"]
    for token in by_cloud:
        assert token["reason"] == "critical"
        assert 0 <= token["score"] <= 1
        assert token["edge"]
        assert token["cloud"]
    assert found["edgewise"]["timing"]["ttft"] > 0
    streamed = chunks(url, model="edgewise@0.2", messages=ASK_HARD, edgewise={"provenance": True})
    own = [chunk["edgewise"] for chunk in streamed if "edgewise" in chunk]
    told = [one["token"] for one in own if "token" in one]
    assert [token["index"] for token in told] == list(range(len(told)))
    assert {token["source"] for token in told} == {"edge", "cloud"}


@pytest.mark.deep
def test_guesses_are_told_while_a_consult_flies() -> None:
    with llama_server(bundled("cloud")) as engine:
        link = Link("127.0.0.1", int(engine.rpartition(":")[2]), Quality(round_trip=0.1))
        flags = ("--cloud", link.url, "--threads", "1", "--router", "bundled")
        with serving(*flags) as far:
            found = chunks(far, model="edgewise@0.2", messages=ASK_HARD, edgewise={"pending": True})
        link.close()
    own = [chunk["edgewise"] for chunk in found if "edgewise" in chunk]
    assert any("pending" in one for one in own)
    assert not any("token" in one for one in own)


def test_a_second_turn_does_not_read_the_first_again(url: str) -> None:
    history = [{"role": "user", "content": "Tell me about copper. " * 8}]
    first = answer(url, messages=history, max_tokens=24)
    said_first = first["choices"][0]["message"]["content"]
    history += [
        {"role": "assistant", "content": said_first},
        {"role": "user", "content": "And iron?"},
    ]
    second = answer(url, messages=history, max_tokens=8)
    cached = second["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert cached >= 0.9 * first["usage"]["prompt_tokens"]


def test_what_openais_client_sends_unasked_is_accepted(url: str) -> None:
    found = answer(
        url,
        max_tokens=2,
        n=1,
        tools=[],
        logit_bias={},
        frequency_penalty=0,
        presence_penalty=0,
        user="somebody",
        response_format={"type": "text"},
        temperature=None,
    )
    assert 1 <= found["usage"]["completion_tokens"] <= 2
