"""An engine that was replaced behind its address: found out, sent nothing, used again when back."""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import closing
from typing import Any

import pytest

from edgewise.addresses import bundled
from edgewise.cloud.base import CloudModel, ConsultRequest
from edgewise.cloud.connect import open_engine
from edgewise.cloud.engine import EngineCloud, LlamaServer
from edgewise.completion import Completion
from edgewise.edge.llamacpp import LlamaModel
from edgewise.engines import vocabulary_check
from edgewise.engines.base import NOBODY, Client
from edgewise.engines.vocabulary_check import VocabularyCheck
from edgewise.errors import (
    CloudError,
    CloudTimeout,
    CloudUnavailable,
    OtherVocabulary,
    VocabularyMismatch,
)
from edgewise.loop.decoder import Decoder
from edgewise.loop.policy import Policy
from edgewise.prompts import Prompt
from edgewise.routers.untrained import Constant
from edgewise.sampling import Sampling
from edgewise.testing.scripted_edge import ByteTokenizer
from tests.doubles.scripted_engine import ScriptedEngine, said
from tests.gateway.doubles import PlainEngine
from tests.gateway.processes import until
from tests.llama_server_process import llama_server
from tests.server_process import free_port

TOKENIZER = ByteTokenizer()


@pytest.fixture
def cloud(engine: ScriptedEngine) -> Iterator[LlamaServer]:
    made = LlamaServer(engine.url)
    made.check_vocabulary(TOKENIZER)
    yield made
    made.close()


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every new connection is a reason to check, however short ago the last check was."""
    monkeypatch.setattr(vocabulary_check, "FRESH_SECONDS", -1.0)


def ask(cloud: CloudModel) -> Completion | CloudError:
    try:
        return cloud.open(Prompt((1, 2))).ask(ConsultRequest([1, 2], 1, 20)).result()
    except CloudError as error:
        return error


async def accepting() -> None:
    """Whatever was probed."""


def restart(engine: ScriptedEngine, **changes: Any) -> None:
    engine.stop()
    for name, value in changes.items():
        setattr(engine, name, value)
    engine.start()


def test_another_model_is_found_out(
    engine: ScriptedEngine, cloud: LlamaServer, at_once: None
) -> None:
    assert isinstance(ask(cloud), Completion)
    restart(engine, mark=1)
    refused = ask(cloud)
    assert type(refused) is OtherVocabulary
    assert refused.reason == "rejected"
    # It is checked again, and sent nothing.
    asked = engine.asked
    assert type(ask(cloud)) is OtherVocabulary
    assert engine.asked - asked <= 1, "a probe's own token at most"
    engine.mark = 0
    assert isinstance(ask(cloud), Completion)
    # The same vocabulary under another name is served on.
    restart(engine, model="scripted, larger", size=300)
    assert isinstance(ask(cloud), Completion)
    assert cloud.identity().endswith("llama-server scripted, larger")
    assert cloud.engine.described.size == 300
    # And another one of which the fixed strings have the same ids is found out.
    restart(engine, size=None, tokenizer=ByteTokenizer("<other>"))
    assert type(ask(cloud)) is OtherVocabulary


def test_a_restart_is_found_out_after_a_second(
    engine: ScriptedEngine, cloud: LlamaServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a consult over the connection that one before it made."""
    monkeypatch.setattr(vocabulary_check, "FRESH_SECONDS", 3600.0)
    restart(engine, mark=1)
    assert isinstance(ask(cloud), Completion)
    monkeypatch.setattr(vocabulary_check, "FRESH_SECONDS", -1.0)
    assert type(ask(cloud)) is OtherVocabulary


def test_an_engine_that_was_down_is_checked(engine: ScriptedEngine, cloud: LlamaServer) -> None:
    assert isinstance(ask(cloud), Completion)
    looks = engine.looks
    assert {type(ask(cloud)) for _ in range(5)} == {Completion}
    assert engine.looks <= looks + 1, "it was checked without a new connection"
    engine.stop()
    assert type(ask(cloud)) is CloudUnavailable
    engine.mark = 1
    engine.start()
    # At once, though the last check was just now.
    assert type(ask(cloud)) is OtherVocabulary


@pytest.mark.parametrize("reply", [said(b"\xff"), said(b"gone", 404), said({}, 503)])
def test_a_check_that_fails_fails_the_consult_and_no_more(at_once: None, reply: Any) -> None:
    with (
        closing(ScriptedEngine(dialect="vllm")) as server,
        closing(open_engine(server.url)) as made,
    ):
        assert isinstance(made, EngineCloud)
        made.check_vocabulary(TOKENIZER)
        for path in ("/health", "/v1/models", "/tokenize"):
            server.replies[path] = reply
            if path != "/health" or reply(None)[0] != 200:
                made.submit(made.engine.close(), 20).result()
                assert isinstance(ask(made), CloudError), path
            del server.replies[path]
            assert isinstance(ask(made), Completion), path


@pytest.mark.anyio
async def test_a_consult_that_leaves_does_not_end_a_check_others_wait_for() -> None:
    class Slow(PlainEngine):
        async def ready(self) -> None:
            await super().ready()
            await asyncio.sleep(0.2)

    engine = Slow()
    check = VocabularyCheck(engine, accepting)
    asked = [check.complete([1], 1, Sampling(), Client("s")) for _ in range(3)]
    tasks = [asyncio.create_task(one) for one in asked]
    while not engine.looks:
        await asyncio.sleep(0.01)
    tasks[0].cancel()
    left, *done = await asyncio.gather(*tasks, return_exceptions=True)
    assert isinstance(left, asyncio.CancelledError)
    assert [completion.ids for completion in done] == [(97,), (97,)]  # type: ignore[union-attr]
    assert (engine.looks, engine.probes) == (1, 1)
    await check.close()


@pytest.mark.anyio
@pytest.mark.parametrize("limit", ["CHECK_SECONDS", "PROBE_SECONDS"])
async def test_a_check_has_an_end(monkeypatch: Any, at_once: None, limit: str) -> None:
    monkeypatch.setattr(vocabulary_check, limit, 0.05)

    class Stalling(PlainEngine):
        stalled = limit == "PROBE_SECONDS"

        async def ready(self) -> None:
            if self.stalled:
                await asyncio.sleep(3600)

    engine = Stalling()
    check = VocabularyCheck(engine, accepting)
    if not engine.stalled:
        await check.run()
        engine.stalled = True
        engine.connected()
    with pytest.raises(CloudTimeout):
        await check.complete([1], 1, Sampling(), Client("s"))
    engine.stalled = False
    assert (await check.complete([1], 1, Sampling(), Client("s"))).ids == (97,)


@pytest.mark.anyio
async def test_a_check_that_ended_before_the_consult_counts_too(at_once: None) -> None:
    """A completion of an engine that was found to be another meanwhile is dropped."""

    class Restarting(PlainEngine):
        refused = False

        async def complete(
            self, ids: Sequence[int], n: int, sampling: Sampling, client: Client = NOBODY
        ) -> Completion:
            if client is not NOBODY and self.mark:
                self.connected()
                while not self.refused:
                    await asyncio.sleep(0.01)
            return await super().complete(ids, n, sampling, client)

    async def accept() -> None:
        engine.refused = bool(engine.mark)
        if engine.mark:
            raise VocabularyMismatch("It is another.")

    engine = Restarting()
    check = VocabularyCheck(engine, accept)
    assert (await check.complete([1], 1, Sampling(), Client("s"))).ids == (97,)
    engine.mark = 1
    with pytest.raises(OtherVocabulary):
        await check.complete([1], 1, Sampling(), Client("s"))


@pytest.mark.deep
def test_a_real_llama_server_that_comes_back_with_another_model(other_path: Any) -> None:
    """As it was met: one question, and the process aborted in `llama_token_to_piece`."""
    port = free_port()
    with LlamaModel(bundled("edge"), threads=1) as edge:
        prompt = edge.tokenizer.encode_prompt("What is the capital of France?")
        with llama_server(bundled("cloud"), port=port) as url:
            cloud = LlamaServer(url)
            cloud.check_vocabulary(edge.tokenizer)
            assert cloud.engine.described.size == edge.tokenizer.size
            assert isinstance(ask(cloud), Completion)
        with llama_server(other_path, port=port):
            policy = Policy(threshold=0.5, speculate=0)
            decoder = Decoder(edge, router=Constant(1.0), policy=policy, cloud=cloud)
            answer = decoder.generate(prompt, max_tokens=12)
            assert {token.source for token in answer.tokens} == {"edge"}
            assert answer.tokens[0].reason in ("rejected", "protocol", "unavailable")
            with pytest.raises(VocabularyMismatch):
                cloud.check_vocabulary(edge.tokenizer)
        with llama_server(bundled("cloud"), port=port):
            until(lambda: isinstance(ask(cloud), Completion))
        cloud.close()
