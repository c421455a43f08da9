"""A GGUF in the gateway's own process: any file, verified by it, tenants apart."""

import asyncio
import threading
import time
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from edgewise.edge.base import EdgeOptions, Floats
from edgewise.edge.kv import BATCH, KvSession, Run
from edgewise.errors import CloudRejected, UsageError
from edgewise.gateway import local
from edgewise.gateway.fleet import engines_at
from edgewise.gateway.local import LocalEngine
from edgewise.sampling import Sampling
from edgewise.testing.scripted_edge import ScriptedEdge, noise, replying
from tests import models
from tests.gateway.plain_client import check, opened
from tests.gateway.processes import until
from tests.gateway.running import gateway

ROUNDING = 0.05
"""Nats by which a batch of several ids may differ from passes over one."""


@pytest.fixture(scope="module")
def long_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model for long texts."""
    path = tmp_path_factory.mktemp("long") / "long.gguf"
    return models.write_transformer(path, models.byte_level(), context=2048)


@pytest.mark.anyio
async def test_a_long_block_is_verified_as_its_parts_are(long_path: Path) -> None:
    ids = [1 + 7 * number % 250 for number in range(720)]
    engine = LocalEngine(str(long_path), EdgeOptions(threads=1, context=2048))

    async def verified(end: int, count: int) -> list[list[float]]:
        completion = await engine.verify(ids[:end], count, Sampling())
        completion.validate(asked=0, prompt=end, verify=count)
        return [[one.logprob, one.best] for one in completion.verified]

    try:
        whole = await verified(720, 600)
        parts = [await verified(end, 60) for end in range(180, 721, 60)]
    finally:
        await engine.close()
    assert len(whole) == 600
    for one, other in zip(whole, chain.from_iterable(parts), strict=True):
        assert one == pytest.approx(other, abs=ROUNDING)


@pytest.mark.anyio
@pytest.mark.parametrize("verify", [0, 100])
async def test_a_prompt_that_nobody_waits_for_is_read_no_further_and_what_was_read_is_kept(
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

    engine = LocalEngine(str(long_path), EdgeOptions(threads=1, context=2048), slots=1)
    try:
        monkeypatch.setattr(KvSession, "before", held)
        ask, n = (engine.verify, verify) if verify else (engine.complete, 1)
        left = asyncio.ensure_future(ask(ids, n, Sampling()))
        assert await asyncio.to_thread(begun.wait, 60)
        left.cancel()
        await asyncio.wait([left])
        let.set()
        assert (await engine.complete(ids, 1, Sampling())).cached == 2 * BATCH
    finally:
        await engine.close()
    assert starts[:4] == [0, BATCH, 2 * BATCH, 3 * BATCH]


@pytest.mark.anyio
async def test_what_a_gateway_opens_by_an_address(long_path: Path) -> None:
    long = str(long_path)
    for address, model in (("bundled", "cloud"), (long, "long")):
        (engine,) = await engines_at([address], key=None, options=EdgeOptions(context=64))
        try:
            assert (await engine.describe()).model == model
            if address == long:  # its options are honoured
                assert (await engine.complete([1] * 40, 1, Sampling())).ids
                with pytest.raises(CloudRejected):
                    await engine.complete([1] * 100, 1, Sampling())
        finally:
            await engine.close()
    refusals: list[tuple[list[str], dict[str, Any], str]] = [
        ([long, "http://127.0.0.1:9"], {}, "engine"),
        ([long, "bundled"], {}, "engine"),
        ([long], {"kind": "vllm"}, "engine"),
        ([long], {"model": "long"}, "engine"),
        (["./none.gguf"], {}, "engine"),
        ([__file__], {}, "engine"),
        ([long], {"options": EdgeOptions(context=4096)}, "ctx"),
    ]
    for addresses, how, setting in refusals:
        with pytest.raises(UsageError) as refused:
            await engines_at(addresses, key=None, **how)
        assert refused.value.setting == setting


@pytest.mark.anyio
async def test_the_first_pass_is_over_before_anybody_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads the weights from the disk: longer than a health check waits."""
    passes: list[int] = []
    edge = ScriptedEdge(lambda ids: passes.append(len(ids)) or noise()(ids))
    monkeypatch.setattr(local, "LlamaModel", lambda *_, **__: edge)
    await LocalEngine().close()
    assert passes == [1]


@pytest.mark.parametrize(("n", "verify"), [(4096, 0), (0, 4095)])
@pytest.mark.parametrize("how", ["cancelled", "deadline"])
def test_what_is_left_ends(monkeypatch: pytest.MonkeyPatch, how: str, n: int, verify: int) -> None:
    """It would keep its slot busy for minutes, and all who come after it would wait."""
    rows: list[int] = []

    def script(ids: Sequence[int]) -> Floats:
        rows.append(len(ids))
        time.sleep(0.005)
        return replying("x" * 9000, prompt="")(ids)

    edge = ScriptedEdge(script, context=9000)
    monkeypatch.setattr(local, "LlamaModel", lambda *_, **__: edge)
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
