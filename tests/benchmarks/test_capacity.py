"""Capacity: the arithmetic by hand, the search, and a load at a real llama-server."""

import asyncio
import math
import time
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.capacity.__main__ import main, run, texts
from benchmarks.capacity.engines import Meter, Room, Served, served
from benchmarks.capacity.memory import (
    H100,
    QWEN_32B,
    QWEN_72B,
    Use,
    cloud_only,
    computed,
    held,
    offloaded,
    routed,
    routed_offloaded,
    streamed,
)
from benchmarks.capacity.search import STEP, ladder, largest
from benchmarks.capacity.sessions import LIMIT, Load, Run, Texts
from edgewise.engines.llama_server import LlamaServerEngine
from tests.doubles.scripted_engine import ScriptedEngine

SHORT = Load(2, 0.25, 40.0, 24, 20, 1.0)
"""Two sessions whose answers take half a second."""


def test_memory_by_hand() -> None:
    assert (QWEN_32B.kv_bytes(), QWEN_72B.kv_bytes()) == (262_144, 327_680)
    # 80 GB x 0.9 - 32.8 x 2 GB = 6.4 GB; a session of 1,000 tokens takes 262 MB.
    assert held(QWEN_32B, H100, 16, 1000) == 24
    # 320 GB x 0.9 - 145.4 GB = 142.6 GB; 4,000 tokens take 1.31 GB.
    assert held(QWEN_72B, H100.times(4), 16, 4000) == 108
    assert held(QWEN_72B, H100, 16, 1) == 0
    # 10 tokens/s x 7% x 262 MB = 184 MB/s a session, of 50 GB/s.
    assert offloaded(QWEN_32B, H100, 10, 1000, 0.07) == 272
    # 395.6e12 / (2 x 32.8e9 x 3 ids a token x 10 tokens/s).
    assert computed(QWEN_32B, H100, 10, 3) == 201


def test_the_least_limit_is_named() -> None:
    use = Use(1000, 10, 3, 0.03)
    assert cloud_only(QWEN_32B, H100, 16, use) == (24, "KV memory")
    assert routed(QWEN_32B, H100, 16, use) == (24, "KV memory")
    assert routed_offloaded(QWEN_32B, H100, 16, use) == (201, "arithmetic")
    long = use._replace(tokens=4000, share=0.07)
    assert routed_offloaded(QWEN_32B, H100, 16, long) == (68, "link")
    assert routed_offloaded(QWEN_72B, H100, 16, use) == (0, "KV memory")


def test_steps_too_long_for_the_pace_serve_nobody() -> None:
    assert streamed(QWEN_72B, H100, 16, 100, 1000, 1) == 0
    assert 0 < streamed(QWEN_32B, H100, 16, 10, 1000, 3) < computed(QWEN_32B, H100, 10, 3)


@given(st.integers(0, 300), st.integers(1, 400), st.integers(1, 300))
def test_the_search_finds_the_highest_rung_that_holds(limit: int, start: int, most: int) -> None:
    tried: list[int] = []

    def holds(sessions: int) -> bool:
        tried.append(sessions)
        return sessions <= limit

    found = largest(holds, start=start, most=most)
    assert found == max((rung for rung in ladder(most) if rung <= limit), default=0)
    assert len(set(tried)) == len(tried)


def test_the_rungs_are_a_tenth_apart() -> None:
    rungs = ladder(500)
    assert (rungs[0], rungs[-1]) == (1, 500)
    assert all(high - low <= max(1, low * (STEP - 1)) for low, high in pairwise(rungs))


@pytest.fixture(scope="module")
def ids() -> Texts:
    return texts()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with served("llama-server", "bundled", Room(4, 256), tmp_path_factory.mktemp("m")) as at:
        yield at


@pytest.mark.parametrize("warm", [True, False])
def test_consults_are_answered_and_what_was_computed_is_kept(
    server: Served, ids: Texts, warm: bool
) -> None:
    row = run(server, SHORT._replace(warm=warm), ids)
    assert list(row.found.failed) == []
    assert row.found.late
    # 24 + 20 ids for an answer of 20 tokens, each once; the borders of the second blur it.
    assert 0 < row.computed < 2 * 44 / 20
    assert row.written > 0


def test_all_tokens_of_the_engine_count(server: Served, ids: Texts) -> None:
    row = run(server, SHORT._replace(share=None, pace=20.0), ids)
    assert list(row.found.failed) == []
    assert row.found.stopped or len(row.found.late) == pytest.approx(2 * 20 * 1.0, abs=4)
    assert row.found.first


def test_who_is_not_answered_is_late_and_the_schedule_goes_on(ids: Texts) -> None:
    """An engine that takes a minute: everything that was due in the second counts as never."""
    engine = ScriptedEngine(seconds=60.0)
    seen = asyncio.run(_stalled(engine.url, SHORT._replace(share=1.0), ids))
    engine.close()
    late, stopped, seconds = seen
    assert stopped
    # 80 a second are due; 5% of them late, and then it is over.
    assert len(late) > 4
    assert set(late) == {math.inf}
    assert seconds < LIMIT + 30


async def _stalled(url: str, load: Load, ids: Texts) -> tuple[list[float], bool, float]:
    engine = LlamaServerEngine(url)

    async def stream(prompt: list[int], tokens: int) -> AsyncIterator[int]:
        raise AssertionError
        yield 0

    async def meter() -> Meter:
        return Meter(0, 0)

    begun = time.perf_counter()
    found, _ = await Run(load._replace(tenant=""), ids, engine, stream).found(meter)
    seconds = time.perf_counter() - begun - load.turn
    await engine.close()
    return list(found.late), found.stopped, seconds


TINY = ["--answer", "8", "--prompt", "16", "--pace", "20", "--seconds", "0.5", "--shares", "0.5"]


def test_sessions_are_searched(capsys: pytest.CaptureFixture[str]) -> None:
    main([*TINY, "--slots", "2"])
    told = capsys.readouterr().out
    assert "| cloud-only | " in told
    assert "| 50% of tokens | " in told


def test_room_for_fewer_sessions(capsys: pytest.CaptureFixture[str]) -> None:
    main([*TINY, "--table", "held", "--sessions", "4"])
    told = capsys.readouterr().out
    assert told.count("| nothing | ") == 3
    assert told.count("| 8192 MiB of memory | ") == 3


def test_the_computed_table(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--table", "gpu"])
    told = capsys.readouterr().out
    assert "| Qwen2.5-32B | fp16 | 1x 80 GB | 256 KiB | 48 | 24 | 6 |" in told
    assert "| Qwen2.5-72B | fp16 | 1x 80 GB | 320 KiB | no room | no room | no room |" in told


def test_without_vllm_one_sentence(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VLLM_PYTHON", raising=False)
    main(["--engine", "vllm"])
    assert capsys.readouterr().out.startswith("vLLM is left out")


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no model"):
        main([*TINY, "--model", str(tmp_path / "none.gguf")])
