"""Capacity: the arithmetic by hand, and the search."""

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.capacity.memory import H100, QWEN_32B, QWEN_72B, computed, held, offloaded
from benchmarks.capacity.search import ladder, largest


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


@given(st.integers(0, 300), st.integers(1, 400), st.integers(1, 300))
def test_the_search_finds_the_highest_rung_that_holds(limit: int, start: int, most: int) -> None:
    tried: list[int] = []

    def holds(sessions: int) -> bool:
        tried.append(sessions)
        return sessions <= limit

    found = largest(holds, start=start, most=most)
    assert found == max((rung for rung in ladder(most) if rung <= limit), default=0)
    assert len(set(tried)) == len(tried)
