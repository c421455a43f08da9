"""`/v1/completions`: prompts as text and as token ids."""

from itertools import pairwise
from typing import Any

import httpx2
import numpy as np
import pytest

from edgewise.addresses import bundled
from edgewise.edge.llamacpp import LlamaModel
from edgewise.edge.scoring import MOST
from edgewise.testing.scripted_cloud import ScriptedCloud
from edgewise.testing.scripted_edge import ScriptedEdge, noise, replying
from tests.server.in_process import ASK as IN_PROCESS
from tests.server.in_process import CHAT, TEXT, app, data_of

PATH = "/v1/completions"
ASK = {"model": "edgewise:edge", "prompt": "The word copper names", "max_tokens": 12}


def post(url: str, **more: Any) -> httpx2.Response:
    return httpx2.post(url + PATH, json=ASK | more, timeout=60, trust_env=False)


def answer(url: str, **more: Any) -> dict[str, Any]:
    response = post(url, **more)
    assert response.status_code == 200, response.text
    return response.json()


def test_text_and_its_ids_are_continued_alike(url: str) -> None:
    whole = answer(url)
    assert whole["object"] == "text_completion"
    with LlamaModel(bundled("edge")) as model:
        ids = model.tokenizer.encode_prompt(str(ASK["prompt"]))
    assert whole["usage"]["prompt_tokens"] == len(ids)
    for prompt in (ids, [ids], [ASK["prompt"]]):
        assert answer(url, prompt=prompt)["choices"][0]["text"] == whole["choices"][0]["text"]


def test_a_stream_says_the_same(url: str) -> None:
    response = post(url, stream=True, stream_options={"include_usage": True}, logprobs=2)
    found = data_of(response.text)
    whole = answer(url, logprobs=2)
    texts = [chunk["choices"][0]["text"] for chunk in found if chunk["choices"]]
    assert "".join(texts) == whole["choices"][0]["text"]
    assert found[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    parts = [chunk["choices"][0]["logprobs"] for chunk in found if chunk["choices"]]
    tokens = [token for part in parts if part for token in part["tokens"]]
    assert tokens == whole["choices"][0]["logprobs"]["tokens"]


SAID = "The word copper names a metal."


def test_the_prompt_comes_back_before_its_continuation(url: str) -> None:
    whole = answer(url, prompt=SAID, echo=True, max_tokens=4)
    alone = answer(url, prompt=SAID, max_tokens=4)
    assert whole["choices"][0]["text"] == SAID + alone["choices"][0]["text"]
    assert whole["choices"][0]["logprobs"] is None
    assert whole["usage"]["completion_tokens"] == alone["usage"]["completion_tokens"]
    nothing = answer(url, prompt=SAID, echo=True, max_tokens=0)
    assert nothing["choices"][0]["text"] == SAID
    assert nothing["choices"][0]["finish_reason"] == "length"
    assert nothing["usage"]["completion_tokens"] == 0
    # Of a pair as well: it is only text.
    assert answer(url, model="edgewise", echo=True, max_tokens=0)["choices"][0]["text"]


@pytest.mark.parametrize(
    ("model", "file"), [("edgewise:edge", "edge"), ("edgewise:cloud", "cloud")]
)
def test_a_prompts_logprobs_are_the_models_own(url: str, model: str, file: str) -> None:
    found = answer(url, model=model, prompt=SAID, echo=True, max_tokens=0, logprobs=2)
    told = found["choices"][0]["logprobs"]
    wanted: list[float] = []
    with LlamaModel(bundled(file)) as loaded:
        ids = loaded.tokenizer.encode_prompt(SAID)
        session = loaded.session()
        for token, following in pairwise(ids):
            session.extend([token])
            wanted.append(session.step().logprob(following))
        session.close()
    assert told["token_logprobs"][0] is None
    assert told["top_logprobs"][0] is None
    assert told["token_logprobs"][1:] == pytest.approx(wanted, abs=0.05)
    assert all(len(top) <= 2 for top in told["top_logprobs"][1:])
    assert len(told["tokens"]) == len(told["text_offset"]) == len(ids)


def test_logprobs_of_prompt_and_answer_are_one_list(url: str) -> None:
    asked: dict[str, Any] = {"prompt": SAID, "echo": True, "max_tokens": 3, "logprobs": 1}
    choice = answer(url, **asked)["choices"][0]
    told = choice["logprobs"]
    assert "".join(told["tokens"]) == choice["text"]
    starts = [choice["text"].index(told["tokens"][-1], told["text_offset"][-1])]
    assert starts == told["text_offset"][-1:]
    # What is likeliest is its own candidate, to the bit: evaluations compare them.
    for logprob, top in zip(told["token_logprobs"][1:], told["top_logprobs"][1:], strict=True):
        assert logprob <= max(top.values())
    assert told["token_logprobs"][-1] == max(told["top_logprobs"][-1].values())
    ids = [[*range(3, 9)]]
    by_id = answer(url, **asked | {"prompt": ids})["choices"][0]["logprobs"]
    assert len(by_id["tokens"]) == 9
    first = data_of(post(url, stream=True, **asked).text)[0]
    assert first["choices"][0]["text"] == SAID
    many = len(first["choices"][0]["logprobs"]["tokens"])
    assert first["choices"][0]["logprobs"]["token_logprobs"] == told["token_logprobs"][:many]


def test_a_cloud_elsewhere_tells_no_logprobs_of_a_prompt() -> None:
    cloud = ScriptedCloud(replying(TEXT, prompt="sky: "))
    with app(cloud) as client:
        asked = IN_PROCESS | {"model": "edgewise:cloud", "echo": True, "logprobs": 1}
        response = client.post(PATH, json=asked)
        after = client.post(PATH, json=IN_PROCESS)
    assert response.status_code == 400
    assert "logprobs" in response.json()["error"]["message"]
    assert after.status_code == 200  # its place was given back


def test_long_prompts_are_scored_in_batches() -> None:
    """Of a prompt of many batches every id is scored once, in its place."""
    script = noise(3)
    with app(edge=ScriptedEdge(script)) as client:
        prompt = "x" * (2 * MOST + 5)
        asked = IN_PROCESS | {"model": "edgewise:edge", "prompt": prompt, "max_tokens": 0}
        told = client.post(PATH, json=asked | {"echo": True, "logprobs": 1}).json()
    ids = [*prompt.encode()]
    found = told["choices"][0]["logprobs"]["token_logprobs"]
    for at in range(1, len(ids)):
        logits = script(ids[:at]).astype(float)
        assert found[at] == pytest.approx(
            float(logits[ids[at]] - np.log(np.exp(logits).sum())), abs=1e-4
        )


def test_ids_of_a_text_and_back(url: str) -> None:
    def ask(path: str, **body: Any) -> dict[str, Any]:
        found = httpx2.post(f"{url}/{path}", json=body, timeout=60, trust_env=False)
        assert found.status_code == 200, found.text
        return found.json()

    info = httpx2.get(f"{url}/tokenizer_info", timeout=60, trust_env=False).json()
    text = f"The word copper{info['eos_token']}"
    found = ask("tokenize", prompt=text, add_special_tokens=False)
    assert found["count"] == len(found["tokens"])
    assert found["max_model_len"] == info["model_max_length"]
    assert ask("detokenize", tokens=found["tokens"])["prompt"] == text
    whole = ask("tokenize", prompt=text)["tokens"]
    assert whole[-found["count"] :] == found["tokens"]
    assert info["chat_template"]
    for path, body in (
        ("detokenize", {"tokens": [1 << 30]}),
        ("detokenize", {"tokens": [-1]}),
        ("tokenize", {"prompt": 3}),
        ("tokenize", {"messages": []}),
    ):
        refused = httpx2.post(f"{url}/{path}", json=body, timeout=60, trust_env=False)
        assert refused.status_code == 400, refused.text


OTHER = "The sea is blue."


def test_prompts_ids_come_once_and_only_where_asked_for() -> None:
    with app(ScriptedCloud(replying(OTHER, prompt="sky: "))) as client:
        for path, body in (("completions", IN_PROCESS), ("chat/completions", CHAT)):
            plain = client.post(f"/v1/{path}", json={**body, "stream": True}).text
            assert "prompt_token_ids" not in plain
            told = {**body, "edgewise": {"provenance": True}}
            streamed = client.post(f"/v1/{path}", json={**told, "stream": True}).text
            whole = client.post(f"/v1/{path}", json=told).json()
            assert streamed.count('"prompt_token_ids":[115,107,121,58,32]') == 1
            assert streamed.index("prompt_token_ids") < streamed.index('"token":{"index":0')
            assert whole["edgewise"]["prompt_token_ids"] == list(b"sky: ")


def test_the_threshold_stands_beside_the_score() -> None:
    told = {**IN_PROCESS, "edgewise": {"provenance": True}}

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
