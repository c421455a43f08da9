"""`/v1/completions`: prompts as text and as token ids."""

import json
from typing import Any

import httpx2
import pytest

from edgewise.addresses import bundled
from edgewise.edge.llamacpp import LlamaModel

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
    lines = [x for x in response.text.splitlines() if x.startswith("data: ")]
    assert lines[-1] == "data: [DONE]"
    found = [json.loads(line[6:]) for line in lines[:-1]]
    whole = answer(url, logprobs=2)
    texts = [chunk["choices"][0]["text"] for chunk in found if chunk["choices"]]
    assert "".join(texts) == whole["choices"][0]["text"]
    assert found[-1]["usage"]["completion_tokens"] == whole["usage"]["completion_tokens"]
    parts = [chunk["choices"][0]["logprobs"] for chunk in found if chunk["choices"]]
    tokens = [token for part in parts if part for token in part["tokens"]]
    assert tokens == whole["choices"][0]["logprobs"]["tokens"]


def test_logprobs_in_the_older_form(url: str) -> None:
    found = answer(url, logprobs=2)["choices"][0]["logprobs"]
    assert len(found["tokens"]) == len(found["token_logprobs"]) == len(found["text_offset"])
    assert found["text_offset"][0] == 0
    assert all(len(top) <= 2 for top in found["top_logprobs"])
    assert "".join(found["tokens"]) == answer(url)["choices"][0]["text"]


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"prompt": ""}, "empty"),
        ({"prompt": []}, "prompt"),
        ({"prompt": [1 << 30]}, "ids from 0"),
        ({"prompt": [-1]}, "prompt"),
        ({"prompt": ["a", "b"]}, "prompt"),
        ({"echo": True}, "echo"),
        ({"best_of": 3}, "best_of"),
        ({"suffix": "x"}, "suffix"),
        ({"logprobs": 6}, "logprobs"),
        ({"messages": []}, "messages"),
    ],
)
def test_what_is_not_honoured_is_refused(url: str, more: dict[str, Any], told: str) -> None:
    response = post(url, **more)
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert told in error["message"] + str(error["param"])
