"""Capacity: the search."""

from hypothesis import given
from hypothesis import strategies as st

from benchmarks.capacity.search import ladder, largest


@given(st.integers(0, 300), st.integers(1, 400), st.integers(1, 300))
def test_the_search_finds_the_highest_rung_that_holds(limit: int, start: int, most: int) -> None:
    tried: list[int] = []

    def holds(sessions: int) -> bool:
        tried.append(sessions)
        return sessions <= limit

    found = largest(holds, start=start, most=most)
    assert found == max((rung for rung in ladder(most) if rung <= limit), default=0)
    assert len(set(tried)) == len(tried)
