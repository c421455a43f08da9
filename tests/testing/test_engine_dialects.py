"""A scripted engine speaks as all engines do: the real clients understand it."""

import asyncio
from typing import Any

import pytest

from edgewise.cloud.engine import EngineCloud, LlamaServer, Sglang, Vllm
from edgewise.completion import Completion
from edgewise.engines.registry import ENGINES
from edgewise.sampling import Sampling
from edgewise.testing.scripted_edge import EOS, ByteTokenizer
from tests.doubles.engine_dialects import DIALECTS, Dialect, Writing
from tests.doubles.scripted_engine import ScriptedEngine, reply_to

NAMES = {
    "llama-server": "llama-server",
    "vllm": "vllm",
    "vllm-completions": "vllm",
    "sglang": "sglang",
}
CLOUDS: dict[str, type[EngineCloud]] = {
    "llama-server": LlamaServer,
    "vllm": Vllm,
    "sglang": Sglang,
}


async def written(url: str, name: str, ids: list[int], n: int) -> Completion:
    engine = ENGINES.load(name)(url, key=None)
    try:
        await engine.probe()
        return await engine.complete(ids, n, Sampling())
    finally:
        await engine.close()


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_consult_says_the_same_in_every_dialect(dialect: Dialect) -> None:
    engine = ScriptedEngine(dialect=dialect)
    completion = asyncio.run(written(engine.url, NAMES[dialect], [1, 2, 3], 2))
    engine.close()
    first = reply_to([1, 2, 3])
    assert completion.ids == (first, reply_to([1, 2, 3, first]))
    assert completion.logprobs == (-0.1, -0.1)
    assert [top[0].id for top in completion.top] == list(completion.ids)
    assert (completion.cached, completion.computed, completion.stopped) == (2, 1, False)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_an_end_token_ends_it_in_every_dialect(dialect: Dialect) -> None:
    engine = ScriptedEngine(dialect=dialect, script=lambda ids: EOS)
    completion = asyncio.run(written(engine.url, NAMES[dialect], [1, 2, 3], 5))
    engine.close()
    assert (completion.ids, completion.stopped) == ((EOS,), True)


@pytest.mark.parametrize("dialect", DIALECTS)
def test_a_device_proves_the_vocabulary(dialect: Dialect) -> None:
    engine = ScriptedEngine(dialect=dialect)
    cloud = CLOUDS[NAMES[dialect]](engine.url)
    assert "same ids" in cloud.check(ByteTokenizer())
    cloud.close()
    engine.close()


@pytest.mark.parametrize("dialect", DIALECTS)
@pytest.mark.parametrize("value", [None, True, "97", 1 << 64, -1, 0.5, [7]])
def test_it_says_whatever_it_is_told(dialect: Dialect, value: Any) -> None:
    writing = Writing(ids=[value], logprobs=[value], top=[[(value, value)]], cached=value)
    assert repr(value) in repr(DIALECTS[dialect].reply(writing))
