"""vLLM's and SGLang's dialects against replies written from their sources (`make test-vllm`)."""

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest
from msgspec.structs import replace

from edgewise.cloud.base import ConsultRequest
from edgewise.cloud.connect import connect, open_engine
from edgewise.cloud.engine import EngineCloud
from edgewise.cloud.registry import UnknownEngine
from edgewise.completion import Completion
from edgewise.engines.base import Client
from edgewise.errors import (
    CloudProtocolError,
    CloudRejected,
    CloudUnavailable,
    EdgewiseError,
    VocabularyMismatch,
)
from edgewise.prompts import Prompt
from edgewise.sampling import Sampling
from edgewise.testing.scripted_edge import ByteTokenizer
from tests.doubles.engine_dialects import DIALECTS, Dialect, Writing
from tests.doubles.scripted_engine import Reply, ScriptedEngine, Twisted, said

WORDS: dict[Dialect, str] = {"vllm": "vLLM", "sglang": "SGLang"}


@pytest.fixture(params=WORDS)
def server(request: pytest.FixtureRequest) -> Iterator[ScriptedEngine]:
    with closing(ScriptedEngine(dialect=request.param)) as made:
        yield made


@pytest.fixture
def cloud(server: ScriptedEngine) -> Iterator[EngineCloud]:
    made = open_engine(server.url, key="sk", engine=server.speaks)
    assert isinstance(made, EngineCloud)
    yield made
    made.close()


def ask(cloud: EngineCloud, ids: list[int], n: int = 1, **drawn: Any) -> Completion:
    request = ConsultRequest(ids, n, 30, Sampling(**drawn))
    return cloud.open(Prompt(tuple(ids))).ask(request).result()


def write(server: ScriptedEngine, **values: Any) -> None:
    """Let it answer every consult with these values."""
    server.fault = lambda number: Twisted(lambda writing: replace(writing, **values))


def test_an_engine_that_is_named_is_not_asked_what_it_is(server: ScriptedEngine) -> None:
    open_engine(server.url, engine="vllm").close()
    assert not server.requests


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
def test_anything_else_is_not_known(
    engine: ScriptedEngine, models: Any, error: type[Exception], problem: str
) -> None:
    engine.replies["/v1/models"] = said(models)
    with pytest.raises(error, match=problem):
        open_engine(engine.url)


def test_a_router_with_one_engine_down_is_ready(server: ScriptedEngine, cloud: EngineCloud) -> None:
    server.replies["/health"] = said(b"Unhealthy servers", 503)
    server.replies["/readiness"] = said({"healthy_workers": 1, "total_workers": 2})
    cloud.check_vocabulary(ByteTokenizer())
    assert ask(cloud, [97]).ids


def test_a_consult(server: ScriptedEngine, cloud: EngineCloud) -> None:
    write(server, ids=[97], logprobs=[-0.5], top=[[(97, -0.5), (7, -2.0)]], took=0.0123)
    completion = ask(cloud, [1, 2, 3])
    body, headers = server.requests[-1].body, server.requests[-1].headers
    assert headers["Authorization"] == "Bearer sk"
    assert len(headers["X-Session-Id"]) == 24
    if server.speaks == "vllm":
        assert (body["prompt"], body["model"], body["max_tokens"]) == ([1, 2, 3], "scripted", 1)
        assert body["return_tokens_as_token_ids"] is True
    else:
        assert (body["input_ids"], body["max_new_tokens"]) == ([1, 2, 3], 1)
        assert body["routing_key"] == headers["X-SMG-Routing-Key"]
        assert completion.engine_seconds == 0.0123
    assert (completion.ids, completion.logprobs) == ((97,), (-0.5,))
    assert [candidate.id for candidate in completion.top[0]] == [97, 7]
    assert (completion.cached, completion.computed, completion.stopped) == (2, 1, False)


def test_a_salt_is_sent_where_it_has_one(server: ScriptedEngine, cloud: EngineCloud) -> None:
    """One that takes anything for a salt has none."""
    client, engine, dialect = Client("s", "pepper"), cloud.engine, DIALECTS[server.speaks]
    cloud.check_vocabulary(ByteTokenizer())
    assert (engine.dialect, engine.described.model) == (WORDS[server.speaks], "scripted")
    assert engine.salted
    cloud.submit(engine.complete([1], 1, Sampling(), client), 30).result()
    assert server.requests[-1].body["cache_salt"] == "pepper"
    written = Writing(ids=[97], logprobs=[-0.5], top=[[(97, -0.5)]])
    server.replies[dialect.path] = said(dialect.reply(written))
    cloud.check_vocabulary(ByteTokenizer())
    assert not engine.salted
    cloud.submit(engine.complete([1], 1, Sampling(), client), 30).result()
    assert "cache_salt" not in server.requests[-1].body


def test_sampling_has_the_engines_words(server: ScriptedEngine, cloud: EngineCloud) -> None:
    ask(cloud, [1, 2], temperature=0.7, top_k=40, top_p=0.9, min_p=0.1, seed=3)
    body, seed = server.requests[-1].body, "seed" if server.speaks == "vllm" else "sampling_seed"
    drawn = [body[name] for name in ("temperature", "top_k", "top_p", "min_p", seed)]
    assert drawn == [0.7, 40, 0.9, 0.1, Sampling(temperature=0.7, seed=3).seed_at(2)]
    ask(cloud, [1, 2])
    body = server.requests[-1].body
    assert body["temperature"] == 0
    assert seed not in body


def test_an_end_that_the_engine_kept_is_the_edges(
    server: ScriptedEngine, cloud: EngineCloud
) -> None:
    cloud.check_vocabulary(ByteTokenizer())
    write(server, ids=[], logprobs=[], top=[], ended=True, cached=None, computed=None)
    completion = ask(cloud, [1], 4)
    assert completion.stopped
    assert (completion.ids, completion.logprobs) == ((256,), (None,))
    assert (completion.cached, completion.computed) == (None, None)


@pytest.mark.parametrize("token", ["sky", "token_id:", "token_id:-1", "token_id:٣", "token_id:1.5"])
def test_tokens_as_text_are_no_ids(token: str) -> None:
    with closing(ScriptedEngine(dialect="vllm")) as server:
        write(server, ids=[token])
        cloud = open_engine(server.url)
        assert isinstance(cloud, EngineCloud)
        with closing(cloud), pytest.raises(CloudProtocolError, match="tokens as text"):
            ask(cloud, [1])


def test_one_that_lies_from_the_first_request_on_is_not_asked_by_text(
    server: ScriptedEngine,
) -> None:
    write(server, ids=[98, 99, 100], logprobs=[-0.5] * 3, top=[])
    with pytest.raises(CloudProtocolError):
        connect(server.url, ByteTokenizer())
    assert not any("chat" in path for path in server.paths)


AS_TEXT = {"choices": [{"text": "sky", "logprobs": None, "finish_reason": "length"}]}


@pytest.mark.parametrize(
    ("path", "reply", "error", "problem"),
    [
        (None, said(AS_TEXT), CloudRejected, "token ids"),
        (None, said({"error": {"message": "not supported"}}, 400), CloudRejected, "token ids"),
        ("/tokenize", said(b"no tokenizer", 400), VocabularyMismatch, None),
    ],
)
def test_an_engine_that_takes_no_ids_or_has_no_tokenizer_is_refused(
    server: ScriptedEngine,
    cloud: EngineCloud,
    path: str | None,
    reply: Any,
    error: type[EdgewiseError],
    problem: str | None,
) -> None:
    server.replies[path or DIALECTS[server.speaks].path] = reply
    with pytest.raises(error, match=problem) as refused:
        cloud.check_vocabulary(ByteTokenizer())
    assert refused.value.setting is None


def test_the_probe_takes_few_rounds(server: ScriptedEngine, cloud: EngineCloud) -> None:
    """Readiness and name, the strings, the consults, what it detokenises: each in parallel."""
    server.pause = 0.1
    cloud.check_vocabulary(ByteTokenizer())
    rounds, end = 0, 0.0
    for asked in sorted(server.requests, key=lambda asked: asked.begun):
        if asked.begun >= end:
            rounds, end = rounds + 1, asked.ended
        end = min(end, asked.ended)
    assert rounds == 4
    assert len(server.requests) >= 10


@pytest.mark.parametrize("also", [{}, {"/readiness": said({"status": "not_ready"}, 503)}])
def test_an_engine_that_is_not_ready_is_not_probed(
    server: ScriptedEngine, cloud: EngineCloud, also: dict[str, Reply]
) -> None:
    server.replies |= {"/health": said(b"loading", 503), **also}
    with pytest.raises(CloudUnavailable, match="503"):
        cloud.check_vocabulary(ByteTokenizer())
    assert {*server.paths} <= {"/health", "/readiness", "/v1/models"}
