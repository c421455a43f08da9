"""The machinery of `make faults`: what breaks is seen, what is lost is counted."""

from collections.abc import Iterator

import pytest
from msgspec.structs import replace

from benchmarks.faults.hostile_replies import Site, site, tried
from benchmarks.faults.replies import kinds
from benchmarks.faults.table import Row, failures, table
from tests.doubles.scripted_engine import Twisted

TOKENS = 3


@pytest.fixture(scope="module")
def made() -> Iterator[Site]:
    with site("llama-server", "straight", TOKENS) as running:
        yield running


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("half of it", "protocol"),
        ("status 301", "rejected"),
        ("closed in the body", "unavailable"),
        ("id text", "protocol"),
        ("as text/html", "critical"),
    ],
)
def test_a_hostile_reply_costs_a_reason(made: Site, name: str, reason: str) -> None:
    row = Row(name)
    tried(made, row, kinds(made.size)[name], TOKENS)
    assert (row.tries, row.seen, row.lost, row.reasons) == (TOKENS, TOKENS, 0, {reason})


def test_an_answer_of_other_tokens_is_lost(made: Site) -> None:
    row = Row("another id")
    wrong = Twisted(lambda writing: replace(writing, ids=[7] * len(writing.ids)))
    tried(made, row, wrong, TOKENS)
    assert (row.lost, row.note) == (1, made.way)


def test_a_device_that_ends_is_counted_and_comes_back(made: Site) -> None:
    before = made.device.ended
    made.device.kill()
    assert made.device.answer(1.0, TOKENS) == {"error": "it ended with -9", "own": False}
    assert made.device.ended == before + 1
    assert made.device.answer(1.0, TOKENS)["ids"] == made.quiet


def test_a_fault_that_did_not_happen_proves_nothing() -> None:
    good = Row("good", 17, 34, 0)
    bad = [
        Row("lost", 17, 17, 1),
        Row("ended", 17, 17, 0, 1),
        Row("blind", 17, 17, 0, 0, 1),
        Row("unseen", 17, 15, 0),
        Row("untried", 0, 0, 0),
    ]
    assert failures([good, *bad]) == ["lost", "ended", "blind", "unseen", "untried"]
    assert "| lost | 17 | 17 | 1 | 0 | 0 |  |" in table("Faults", bad)
