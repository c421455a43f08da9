"""vLLM's dialect against replies written from its source: no vLLM ran here (`make test-vllm`)."""

import asyncio
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from edgewise.cloud.connect import connect
from edgewise.completion import Completion
from edgewise.engines.base import Client
from edgewise.engines.vllm import COMPLETIONS, GENERATE, VllmEngine
from edgewise.errors import (
    CloudProtocolError,
    CloudRejected,
    CloudUnavailable,
    VocabularyMismatch,
)
from edgewise.prompts import Prompt
from edgewise.sampling import Sampling
from edgewise.testing.scripted_edge import ByteTokenizer
from tests.cloud.dialects import (
    DialectServer,
    Vllm,
    completed,
    generation,
    said,
    serving,
    vllm_routes,
)

GREEDY = Sampling()


@pytest.fixture(params=[True, False], ids=["generate", "completions"])
def server(request: pytest.FixtureRequest) -> Iterator[DialectServer]:
    with serving(vllm_routes(generate=request.param)) as made:
        yield made


@pytest.fixture
def cloud(server: DialectServer) -> Iterator[Vllm]:
    made = Vllm(server.url, key="sk")
    yield made
    made.close()


def is_short(server: DialectServer) -> bool:
    return ("POST", GENERATE) in server.routes


def ask(cloud: Vllm, ids: list[int], n: int = 1, sampling: Sampling = GREEDY) -> Completion:
    return cloud.open(Prompt(tuple(ids))).ask(ids, n, sampling, 30).result()


def test_a_consult_takes_the_form_that_is_open(server: DialectServer, cloud: Vllm) -> None:
    cloud.check(ByteTokenizer())
    server.asked.clear()
    server.headers.clear()
    completion = ask(cloud, [1, 2, 3])
    ((path, body),) = server.asked
    assert server.headers[0]["Authorization"] == "Bearer sk"
    assert len(server.headers[0]["X-Session-Id"]) == 24
    if is_short(server):
        assert (path, body["token_ids"]) == (GENERATE, [1, 2, 3])
        assert body["sampling_params"]["max_tokens"] == 1
        assert (completion.ids, completion.logprobs) == ((97,), (-0.25,))
        assert [candidate.id for candidate in completion.top[0]] == [97, 98]
        assert (completion.cached, completion.computed) == (2, 1)
    else:
        assert (path, body["prompt"], body["model"]) == (COMPLETIONS, [1, 2, 3], "qwen")
        assert body["return_tokens_as_token_ids"] is True
        assert (completion.ids, completion.logprobs) == ((98,), (-0.5,))
        assert [candidate.id for candidate in completion.top[0]] == [98, 7]
        assert (completion.cached, completion.computed) == (None, None)
    assert not completion.stopped


def test_what_it_can_do(server: DialectServer, cloud: Vllm) -> None:
    cloud.check(ByteTokenizer())
    able = cloud.abilities
    assert (able.engine, able.model, able.tokenizer) == ("vLLM", "qwen", True)
    assert (able.priority, able.salt, able.top) == ("lower first", True, 2)
    assert able.meter is is_short(server)


def test_without_salt_and_priority_neither_is_sent(server: DialectServer, cloud: Vllm) -> None:
    def plain(body: Any) -> tuple[int, Any]:
        extra = {"priority", "cache_salt"} & set(body)
        return (400, b"unknown field") if extra else (200, completed([98]))

    server.routes["POST", COMPLETIONS] = plain
    cloud.check(ByteTokenizer())
    assert (cloud.abilities.priority, cloud.abilities.salt) == ("none", False)
    server.asked.clear()
    client = Client("s", "pepper", urgent=False)
    cloud.submit(cloud.engine.complete([1], 1, GREEDY, client), 30).result()
    ((_, body),) = server.asked
    assert "priority" not in body
    assert "cache_salt" not in body


def test_one_that_takes_anything_for_a_salt_has_none(server: DialectServer, cloud: Vllm) -> None:
    server.routes["POST", COMPLETIONS] = said(completed([98]))
    cloud.check(ByteTokenizer())
    assert not cloud.abilities.salt


@pytest.mark.parametrize(("urgent", "priority"), [(True, 0), (False, 1)])
def test_salt_and_priority_where_it_has_them(
    server: DialectServer, cloud: Vllm, urgent: bool, priority: int
) -> None:
    cloud.check(ByteTokenizer())
    server.asked.clear()
    client = Client("s", "pepper", urgent=urgent)
    cloud.submit(cloud.engine.complete([1], 1, GREEDY, client), 30).result()
    ((_, body),) = server.asked
    assert (body["cache_salt"], body["priority"]) == ("pepper", priority)


def test_sampling_has_vllms_words(server: DialectServer, cloud: Vllm) -> None:
    sampling = Sampling(temperature=0.7, top_k=40, top_p=0.9, min_p=0.1, seed=3)
    ask(cloud, [1, 2], 1, sampling)
    body = server.asked[-1][1]
    fields = body["sampling_params"] if is_short(server) else body
    assert (fields["temperature"], fields["top_k"]) == (0.7, 40)
    assert (fields["top_p"], fields["min_p"]) == (0.9, 0.1)
    assert fields["seed"] == sampling.seed_at(2)
    ask(cloud, [1, 2])
    body = server.asked[-1][1]
    fields = body["sampling_params"] if is_short(server) else body
    assert fields["temperature"] == 0
    assert "seed" not in fields


def test_an_end_that_the_engine_kept_is_the_edges(server: DialectServer, cloud: Vllm) -> None:
    ended = generation([])
    ended["choices"][0]["finish_reason"] = "stop"
    cloud.check(ByteTokenizer())
    server.routes["POST", COMPLETIONS] = said(completed([], finish="stop"))
    server.routes["POST", GENERATE] = said(ended)
    completion = ask(cloud, [1], 4)
    assert completion.stopped
    assert completion.ids == (256,)
    assert completion.logprobs == (None,)


MALFORMED: dict[str, Any] = {
    "no JSON": b"<html>",
    "no text": b"\xff\xfe",
    "another shape": {"text": "sky"},
    "no choice": {"choices": []},
    "two choices": {"choices": [*generation([1])["choices"]] * 2},
    "a list": [1, 2],
}


@pytest.mark.parametrize("name", MALFORMED)
def test_another_reply_is_a_sentence(server: DialectServer, cloud: Vllm, name: str) -> None:
    cloud.check(ByteTokenizer())
    for path in (GENERATE, COMPLETIONS):
        server.routes["POST", path] = said(MALFORMED[name])
    with pytest.raises(CloudProtocolError, match="vLLM") as refused:
        ask(cloud, [1])
    assert "--" not in str(refused.value)


@pytest.mark.parametrize(
    "tokens", [["sky"], ["token_id:"], ["token_id:-1"], ["token_id:٣"], ["token_id:1.5"]]
)
def test_tokens_as_text_are_no_ids(tokens: list[str]) -> None:
    reply = completed([98])
    reply["choices"][0]["logprobs"]["tokens"] = tokens
    with serving(vllm_routes(generate=False) | {("POST", COMPLETIONS): said(reply)}) as server:
        cloud = Vllm(server.url)
        with pytest.raises(CloudProtocolError, match="tokens as text"):
            ask(cloud, [1])
        cloud.close()


def test_one_that_lies_from_the_first_request_on_is_said_to_lie() -> None:
    """And not to take no ids, for which it would be asked by text."""
    reply = completed([98, 99, 100])
    with serving(vllm_routes(generate=False) | {("POST", COMPLETIONS): said(reply)}) as server:
        with closing(Vllm(server.url)) as cloud, pytest.raises(CloudProtocolError, match="3"):
            cloud.check(ByteTokenizer())
        with pytest.raises(CloudProtocolError, match="3"):
            connect(server.url, ByteTokenizer())
        assert not any("chat" in path for path, _ in server.asked)


def test_a_completion_without_ids_is_refused() -> None:
    reply = {"choices": [{"text": "sky", "logprobs": None, "finish_reason": "length"}]}
    with serving(vllm_routes(generate=False) | {("POST", COMPLETIONS): said(reply)}) as server:
        cloud = Vllm(server.url)
        with pytest.raises(CloudRejected, match="does not take and return token ids"):
            cloud.check(ByteTokenizer())
        cloud.close()


def test_an_engine_that_tells_less_says_none() -> None:
    bare = {"choices": [{"token_ids": [5, 6]}]}
    with serving(vllm_routes() | {("POST", GENERATE): said(bare)}) as server:
        cloud = Vllm(server.url)
        completion = ask(cloud, [1], 2)
        cloud.close()
    assert completion.ids == (5, 6)
    assert completion.logprobs == (None, None)
    assert (completion.top, completion.cached, completion.computed) == ((), None, None)


@pytest.mark.parametrize("status", [401, 403, 404])
def test_a_closed_short_form_is_found_once(status: int) -> None:
    routes = vllm_routes() | {("POST", GENERATE): said(b"closed", status)}
    with serving(routes) as server:
        cloud = Vllm(server.url)
        for _ in range(3):
            assert ask(cloud, [1]).ids == (98,)
        assert len(server.bodies(GENERATE)) == 1
        assert len(server.bodies(COMPLETIONS)) == 3
        cloud.close()


def test_consults_at_once_find_the_form_together(server: DialectServer) -> None:
    server.seconds = 0.02

    async def all_at_once() -> list[Completion]:
        engine = VllmEngine(server.url)
        try:
            asked = (engine.complete([1, number], 1, GREEDY) for number in range(6))
            return await asyncio.gather(*asked)
        finally:
            await engine.close()

    completions = asyncio.run(all_at_once())
    assert len(completions) == 6
    assert len(server.bodies(GENERATE)) == (6 if is_short(server) else 1)
    assert len(server.bodies(COMPLETIONS)) == (0 if is_short(server) else 6)


def test_one_who_gives_up_does_not_decide_for_the_others(server: DialectServer) -> None:
    server.seconds = 0.1

    async def one_leaves() -> Completion:
        engine = VllmEngine(server.url)
        try:
            first = asyncio.create_task(engine.complete([1], 1, GREEDY))
            await asyncio.sleep(0.02)
            second = asyncio.create_task(engine.complete([2], 1, GREEDY))
            await asyncio.sleep(0.02)
            first.cancel()
            return await second
        finally:
            await engine.close()

    assert asyncio.run(one_leaves()).ids


def test_the_probe_takes_few_rounds(server: DialectServer) -> None:
    """Readiness and name, the strings, the consults, what it detokenises: each side by side."""
    server.seconds = 0.1
    cloud = Vllm(server.url)
    cloud.check(ByteTokenizer())
    cloud.close()
    rounds = 4 if is_short(server) else 5
    assert server.rounds == rounds
    assert len(server.asked) >= 10


def test_an_engine_that_is_not_ready_is_not_probed(server: DialectServer) -> None:
    server.routes["GET", "/health"] = said(b"loading", 503)
    cloud = Vllm(server.url)
    with pytest.raises(CloudUnavailable, match="not ready"):
        cloud.check(ByteTokenizer())
    cloud.close()
    assert {path for path, _ in server.asked} <= {"/health", "/v1/models"}


def test_an_engine_without_its_tokenizer_proves_nothing(server: DialectServer) -> None:
    server.routes["POST", "/tokenize"] = said(b"no tokenizer", 400)
    cloud = Vllm(server.url)
    with pytest.raises(VocabularyMismatch, match="nothing proves") as refused:
        cloud.check(ByteTokenizer())
    assert refused.value.hint == "serve its tokenizer too"
    assert not cloud.abilities.tokenizer
    cloud.close()


def test_another_vocabulary_is_named_by_its_string(server: DialectServer) -> None:
    server.routes["POST", "/tokenize"] = said({"tokens": [1, 2]})
    cloud = Vllm(server.url)
    with pytest.raises(VocabularyMismatch, match="Hello world"):
        cloud.check(ByteTokenizer())
    cloud.close()


def test_a_probe_forgets_what_an_engine_was_before() -> None:
    with serving(vllm_routes()) as server:
        cloud = Vllm(server.url)
        cloud.check(ByteTokenizer())
        assert ask(cloud, [1]).ids == (97,)
        server.routes.pop(("POST", GENERATE))
        server.routes["GET", "/v1/models"] = said({"data": [{"id": "larger"}]})
        cloud.check(ByteTokenizer())
        assert ask(cloud, [1]).ids == (98,)
        assert server.bodies(COMPLETIONS)[-1]["model"] == "larger"
        assert cloud.identity().endswith("vLLM larger")
        cloud.close()
