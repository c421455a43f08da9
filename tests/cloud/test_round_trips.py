"""Requests that run together: all are awaited, the first begun that failed is told."""

import asyncio

import pytest

from edgewise.engines.base import side_by_side
from edgewise.errors import CloudRejected, CloudUnavailable


async def after(seconds: float, outcome: int | Exception) -> int:
    await asyncio.sleep(seconds)
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


def test_results_are_there_when_the_round_is_over() -> None:
    async def work() -> list[int]:
        async with side_by_side() as requests:
            tasks = [requests.begin(after(0.02 - n / 100, n)) for n in range(3)]
        return [task.result() for task in tasks]

    assert asyncio.run(work()) == [0, 1, 2]


def test_the_first_begun_that_failed_says_how_whichever_failed_first() -> None:
    done: list[int] = []

    async def slow() -> None:
        done.append(await after(0.05, 7))

    async def work() -> None:
        async with side_by_side() as requests:
            requests.begin(after(0.03, CloudUnavailable("not ready.")))
            requests.begin(after(0.0, CloudRejected("what is that?")))
            requests.begin(slow())

    with pytest.raises(CloudUnavailable, match="not ready"):
        asyncio.run(work())
    # Nobody is hung up on in the middle of an answer.
    assert done == [7]


def test_who_gives_up_takes_all_with_them() -> None:
    ended: list[str] = []

    async def long() -> None:
        try:
            await asyncio.sleep(20)
        finally:
            ended.append("cancelled")

    async def work() -> None:
        async with asyncio.timeout(0.05), side_by_side() as requests:
            requests.begin(long())
            requests.begin(long())

    with pytest.raises(TimeoutError):
        asyncio.run(work())
    assert ended == ["cancelled", "cancelled"]
