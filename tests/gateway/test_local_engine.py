"""A GGUF in the gateway's own process: any file, verified by it, tenants apart."""

import asyncio
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from edgewise.addresses import bundled
from edgewise.cloud.base import ConsultRequest
from edgewise.edge.base import EdgeOptions, Floats, Needs
from edgewise.edge.kv import BATCH, KvSession, Run
from edgewise.edge.llamacpp import LlamaModel
from edgewise.errors import CloudRejected, UsageError
from edgewise.gateway import local
from edgewise.gateway.fleet import engines_at
from edgewise.gateway.local import LocalEngine
from edgewise.prompts import Prompt
from edgewise.sampling import Sampling
from edgewise.testing.scripted_edge import ScriptedEdge, noise, replying
from tests import models
from tests.gateway.plain_client import check, opened
from tests.gateway.processes import until
from tests.gateway.running import Running, device, gateway

PROMPT = list(range(10, 50))
DEADLINE = 60.0
ROUNDING = 0.05
"""Nats by which a batch of several ids may differ from passes over one."""


@pytest.fixture(scope="module")
def long_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model for long texts."""
    path = tmp_path_factory.mktemp("long") / "long.gguf"
    return models.write_transformer(path, models.byte_level(), context=2048)


@pytest.fixture(scope="module")
def running() -> Iterator[Running]:
    """The bundled cloud model, by its path."""
    engine = LocalEngine(str(bundled("cloud")), EdgeOptions(threads=1, context=128))
    with gateway([engine]) as made:
        yield made


def test_a_model_by_its_path_verifies_as_it_would_write(running: Running) -> None:
    with (
        LlamaModel(bundled("cloud"), threads=1) as model,
        device(running, tokenizer=model.tokenizer) as cloud,
        closing(cloud.open(Prompt(tuple(PROMPT)))) as session,
    ):
        assert cloud.verifies
        assert "llama.cpp engine" in cloud.vocabulary_check
        written = session.ask(ConsultRequest(PROMPT, 8, DEADLINE)).result()
        block = [written.ids[0], 7, *written.ids[2:]]
        asked = ConsultRequest([*PROMPT, *block], 0, DEADLINE, verify=len(block))
        verified = session.ask(asked).result().verified
        alone = model.session(Needs.LOGITS)
        alone.open(PROMPT)
        for token, one in zip(block, verified, strict=True):
            step = alone.step()
            assert one.logprob == pytest.approx(step.logprob(token), abs=ROUNDING)
            assert one.best == pytest.approx(step.logprob(step.proposed), abs=ROUNDING)
            assert step.logprob(one.id) == pytest.approx(one.best, abs=2 * ROUNDING)
            alone.extend([token])
        alone.close()
    assert [one.id for one in verified[:2]] == list(written.ids[:2])
    assert verified[1].ratio < 1


def test_a_long_block_is_verified_as_its_parts_are(long_path: Path) -> None:
    ids = [1 + 7 * number % 250 for number in range(720)]

    async def verified(engine: LocalEngine, end: int, count: int) -> list[list[float]]:
        completion = await engine.verify(ids[:end], count, Sampling())
        completion.validate(asked=0, prompt=end, verify=count)
        return [[one.logprob, one.best] for one in completion.verified]

    async def both() -> None:
        engine = LocalEngine(str(long_path), EdgeOptions(threads=1, context=2048))
        try:
            whole = await verified(engine, 720, 600)
            parts = [await verified(engine, end, 60) for end in range(180, 721, 60)]
        finally:
            await engine.close()
        expected = [row for part in parts for row in part]
        assert len(whole) == len(expected) == 600
        for one, other in zip(whole, expected, strict=True):
            assert one == pytest.approx(other, abs=ROUNDING)

    asyncio.run(both())


@pytest.mark.parametrize("verify", [0, 100])
def test_a_prompt_that_nobody_waits_for_is_read_no_further_and_what_was_read_is_kept(
    monkeypatch: pytest.MonkeyPatch, long_path: Path, verify: int
) -> None:
    """Seen: whoever left after a long prompt kept everybody else waiting until it was read."""
    ids = [1 + 7 * number % 250 for number in range(2000)]
    before, starts = KvSession.before, list[int]()
    begun, let = threading.Event(), threading.Event()

    def held(self: KvSession, run: Run) -> None:
        starts.append(run.start)
        if run.start == BATCH:
            begun.set()
            assert let.wait(60)
        before(self, run)

    async def asked_again() -> int | None:
        engine = LocalEngine(str(long_path), EdgeOptions(threads=1, context=2048), slots=1)
        try:
            monkeypatch.setattr(KvSession, "before", held)
            ask, n = (engine.verify, verify) if verify else (engine.complete, 1)
            left = asyncio.ensure_future(ask(ids, n, Sampling()))
            assert await asyncio.to_thread(begun.wait, 60)
            left.cancel()
            await asyncio.wait([left])
            let.set()
            return (await engine.complete(ids, 1, Sampling())).cached
        finally:
            await engine.close()

    assert asyncio.run(asked_again()) == 2 * BATCH
    assert starts[:4] == [0, BATCH, 2 * BATCH, 3 * BATCH]


def test_what_a_gateway_opens_by_an_address(long_path: Path) -> None:
    def opened(*addresses: str, **how: object) -> list[str]:
        async def made() -> list[str]:
            engines = await engines_at(addresses, key=None, **how)  # pyright: ignore[reportArgumentType]
            try:
                return [(await engine.describe()).model or "" for engine in engines]
            finally:
                for engine in engines:
                    await engine.close()

        return asyncio.run(made())

    assert opened("bundled") == ["cloud"]
    assert opened(str(long_path), options=EdgeOptions(context=64)) == ["long"]
    for addresses, how in (
        ((str(long_path), "http://127.0.0.1:9"), {}),
        ((str(long_path), "bundled"), {}),
        ((str(long_path),), {"kind": "vllm"}),
        ((str(long_path),), {"model": "long"}),
        (("./none.gguf",), {}),
        ((__file__,), {}),
    ):
        with pytest.raises(UsageError) as refused:
            opened(*addresses, **how)
        assert refused.value.setting == "engine"
    with pytest.raises(UsageError) as refused:
        opened(str(long_path), options=EdgeOptions(context=4096))
    assert refused.value.setting == "ctx"


def test_the_first_pass_is_over_before_anybody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads the weights from the disk: longer than a health check waits."""
    passes: list[int] = []

    def script(ids: Sequence[int]) -> Floats:
        passes.append(len(ids))
        return noise()(ids)

    def scripted(*_: object, **__: object) -> ScriptedEdge:
        return ScriptedEdge(script)

    monkeypatch.setattr(local, "LlamaModel", scripted)
    engine = LocalEngine()
    asyncio.run(engine.close())
    assert passes == [1]


def test_its_options_are_honoured(long_path: Path) -> None:
    async def asked(context: int) -> None:
        engine = LocalEngine(str(long_path), EdgeOptions(threads=1, context=context))
        try:
            await engine.complete([1] * 100, 1, Sampling())
        finally:
            await engine.close()

    asyncio.run(asked(128))
    with pytest.raises(CloudRejected):
        asyncio.run(asked(64))


@pytest.mark.parametrize(("n", "verify"), [(4096, 0), (0, 4095)])
@pytest.mark.parametrize("how", ["cancelled", "deadline"])
def test_what_nobody_waits_for_ends(
    monkeypatch: pytest.MonkeyPatch, how: str, n: int, verify: int
) -> None:
    """It would keep its slot busy for minutes, and all who come after it would wait."""
    rows: list[int] = []

    def script(ids: Sequence[int]) -> Floats:
        rows.append(len(ids))
        time.sleep(0.005)
        return replying("x" * 9000, prompt="")(ids)

    def scripted(*_: object, **__: object) -> ScriptedEdge:
        return ScriptedEdge(script, context=9000)

    monkeypatch.setattr(local, "LlamaModel", scripted)
    with gateway([LocalEngine(slots=1)]) as running, opened(running.url) as client:
        ids, begun = [1] * 4096, len(rows)
        deadline = 200 if how == "deadline" else 60_000
        client.send([3, 1, 0, ids, check(ids), n, deadline, 0, None, verify])
        until(lambda: len(rows) > begun)
        if how == "cancelled":
            client.send([4, 1])
        else:
            assert client.receive()[:3] == [19, 1, "timeout"]
        assert client.ask(2, 0, [1], 1, 9000)[0] == 17
    assert len(rows) < begun + 1000
