"""vLLM's and SGLang's dialects against replies written from their sources (`make test-vllm`)."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from edgewise.cloud.connect import connect, open_engine
from edgewise.cloud.engine import EngineCloud
from edgewise.completion import Completion
from edgewise.engines.base import Client
from edgewise.engines.registry import UnknownEngine
from edgewise.errors import CloudProtocolError, CloudRejected, CloudUnavailable, VocabularyMismatch
from edgewise.prompts import Prompt
from edgewise.sampling import Sampling
from edgewise.testing.scripted_edge import ByteTokenizer
from tests.cloud.dialects import (
    DialectServer,
    completed,
    said,
    serving,
    sglang_routes,
    vllm_routes,
)

ROUTES = {"vllm": vllm_routes, "sglang": sglang_routes}
PATHS = {"vllm": "/v1/completions", "sglang": "/generate"}
WORDS = {"vllm": "vLLM", "sglang": "SGLang"}


@pytest.fixture(params=ROUTES)
def dialect(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def server(dialect: str) -> Iterator[DialectServer]:
    with serving(ROUTES[dialect]()) as made:
        yield made


@pytest.fixture
def cloud(dialect: str, server: DialectServer) -> Iterator[EngineCloud]:
    made = open_engine(server.url, key="sk", engine=dialect)
    assert isinstance(made, EngineCloud)
    yield made
    made.close()


def ask(cloud: EngineCloud, ids: list[int], n: int = 1, **drawn: Any) -> Completion:
    return cloud.open(Prompt(tuple(ids))).ask(ids, n, Sampling(**drawn), 30).result()


@pytest.mark.parametrize("owner", ["llamacpp", "vllm", "sglang"])
def test_an_engine_says_what_it_is(owner: str) -> None:
    models = said({"data": [{"id": "m", "owned_by": owner}]})
    with serving({("GET", "/v1/models"): models}) as server:
        with closing(open_engine(server.url)) as cloud:
            assert isinstance(cloud, EngineCloud)
            assert cloud.engine.owner == owner
        server.asked.clear()
        open_engine(server.url, engine="vllm").close()
        assert server.asked == []


@pytest.mark.parametrize(
    ("models", "error", "problem"),
    [
        (b"", UnknownEngine, "vllm"),
        ({"hello": 1}, UnknownEngine, "vllm"),
        ({"data": []}, CloudUnavailable, "127.0.0.1"),
        ({"data": [{"id": "gpt", "owned_by": "someone"}]}, UnknownEngine, "someone"),
        ({"data": [{"id": "gpt"}]}, UnknownEngine, "vllm"),
    ],
)
def test_anything_else_is_not_known(models: Any, error: type[Exception], problem: str) -> None:
    routes = {("GET", "/v1/models"): said(models)}
    with serving(routes) as server, pytest.raises(error, match=problem):
        open_engine(server.url)


def asked_of(server: DialectServer) -> dict[str, Any]:
    """The last request's fields, those of the sampling among them."""
    body: dict[str, Any] = server.asked[-1][1]
    return body | body.get("sampling_params", {})


def test_a_consult(dialect: str, server: DialectServer, cloud: EngineCloud) -> None:
    completion = ask(cloud, [1, 2, 3])
    body, headers = asked_of(server), server.headers[-1]
    assert headers["Authorization"] == "Bearer sk"
    assert len(headers["X-Session-Id"]) == 24
    if dialect == "vllm":
        assert (body["prompt"], body["model"], body["max_tokens"]) == ([1, 2, 3], "qwen", 1)
        assert body["return_tokens_as_token_ids"] is True
    else:
        assert (body["input_ids"], body["max_new_tokens"]) == ([1, 2, 3], 1)
        assert body["routing_key"] == headers["X-SMG-Routing-Key"]
        assert completion.engine_seconds == 0.0123
    assert (completion.ids, completion.logprobs) == ((97,), (-0.5,))
    assert [candidate.id for candidate in completion.top[0]] == [97, 7]
    assert (completion.cached, completion.computed, completion.stopped) == (2, 1, False)


def test_what_it_can_do(dialect: str, cloud: EngineCloud) -> None:
    cloud.check(ByteTokenizer())
    able = cloud.abilities
    assert (able.engine, able.model) == (WORDS[dialect], "qwen")
    assert able.salt


def test_a_salt_is_sent_where_it_has_one(
    dialect: str, server: DialectServer, cloud: EngineCloud
) -> None:
    """One that takes anything for a salt has none."""
    client = Client("s", "pepper")
    cloud.check(ByteTokenizer())
    cloud.submit(cloud.engine.complete([1], 1, Sampling(), client), 30).result()
    assert asked_of(server)["cache_salt"] == "pepper"
    if dialect == "vllm":
        server.routes["POST", PATHS[dialect]] = said(completed([97]))
    else:
        reply = server.routes["POST", PATHS[dialect]]
        server.routes["POST", PATHS[dialect]] = lambda body: reply({**body, "cache_salt": ""})
    cloud.check(ByteTokenizer())
    assert not cloud.abilities.salt
    cloud.submit(cloud.engine.complete([1], 1, Sampling(), client), 30).result()
    assert "cache_salt" not in asked_of(server)


def test_sampling_has_the_engines_words(
    dialect: str, server: DialectServer, cloud: EngineCloud
) -> None:
    ask(cloud, [1, 2], temperature=0.7, top_k=40, top_p=0.9, min_p=0.1, seed=3)
    body, seed = asked_of(server), "seed" if dialect == "vllm" else "sampling_seed"
    drawn = [body[name] for name in ("temperature", "top_k", "top_p", "min_p", seed)]
    assert drawn == [0.7, 40, 0.9, 0.1, Sampling(temperature=0.7, seed=3).seed_at(2)]
    ask(cloud, [1, 2])
    assert asked_of(server)["temperature"] == 0
    assert seed not in asked_of(server)


ENDED: dict[str, Any] = {
    "vllm": completed([], finish="stop"),
    "sglang": {"output_ids": [], "meta_info": {"finish_reason": {"type": "stop"}}},
}


def test_an_end_that_the_engine_kept_is_the_edges(
    dialect: str, server: DialectServer, cloud: EngineCloud
) -> None:
    cloud.check(ByteTokenizer())
    server.routes["POST", PATHS[dialect]] = said(ENDED[dialect])
    completion = ask(cloud, [1], 4)
    assert completion.stopped
    assert (completion.ids, completion.logprobs) == ((256,), (None,))
    assert (completion.cached, completion.computed) == (None, None)


@pytest.mark.parametrize("token", ["sky", "token_id:", "token_id:-1", "token_id:٣", "token_id:1.5"])
def test_tokens_as_text_are_no_ids(token: str) -> None:
    reply = completed([98])
    reply["choices"][0]["logprobs"]["tokens"] = [token]
    with serving(vllm_routes() | {("POST", "/v1/completions"): said(reply)}) as server:
        cloud = open_engine(server.url)
        assert isinstance(cloud, EngineCloud)
        with closing(cloud), pytest.raises(CloudProtocolError, match="tokens as text"):
            ask(cloud, [1])


def test_one_that_lies_from_the_first_request_on_is_not_asked_by_text() -> None:
    routes = vllm_routes() | {("POST", "/v1/completions"): said(completed([98, 99, 100]))}
    with serving(routes) as server:
        with pytest.raises(CloudProtocolError, match="takes token ids"):
            connect(server.url, ByteTokenizer())
        assert not any("chat" in path for path, _ in server.asked)


@pytest.mark.parametrize(
    "reply",
    [
        said({"choices": [{"text": "sky", "logprobs": None, "finish_reason": "length"}]}),
        said({"error": {"message": "ids are not supported"}}, 400),
    ],
)
def test_an_engine_that_takes_no_ids_is_refused(
    dialect: str, server: DialectServer, cloud: EngineCloud, reply: Any
) -> None:
    server.routes["POST", PATHS[dialect]] = reply
    with pytest.raises(CloudRejected, match="token ids"):
        cloud.check(ByteTokenizer())


def test_the_probe_takes_few_rounds(server: DialectServer, cloud: EngineCloud) -> None:
    """Readiness and name, the strings, the consults, what it detokenises: each in parallel."""
    server.seconds = 0.1
    cloud.check(ByteTokenizer())
    assert server.rounds == 4
    assert len(server.asked) >= 10


def test_an_engine_that_is_not_ready_is_not_probed(
    server: DialectServer, cloud: EngineCloud
) -> None:
    server.routes["GET", "/health"] = said(b"loading", 503)
    with pytest.raises(CloudUnavailable, match="503"):
        cloud.check(ByteTokenizer())
    assert {path for path, _ in server.asked} <= {"/health", "/v1/models"}


def test_an_engine_without_its_tokenizer_proves_nothing(
    server: DialectServer, cloud: EngineCloud
) -> None:
    server.routes["POST", "/tokenize"] = said(b"no tokenizer", 400)
    with pytest.raises(VocabularyMismatch) as refused:
        cloud.check(ByteTokenizer())
    assert refused.value.setting is None


def test_another_vocabulary_is_named_by_its_string(
    server: DialectServer, cloud: EngineCloud
) -> None:
    server.routes["POST", "/tokenize"] = said({"tokens": [1, 2]})
    with pytest.raises(VocabularyMismatch, match="Hello world"):
        cloud.check(ByteTokenizer())
