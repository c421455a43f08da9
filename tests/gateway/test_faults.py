"""Three faults at every second token of an answer; `make faults` does all of them."""

from collections.abc import Iterator
from itertools import product

import pytest

from benchmarks.faults.rig import FAULTS, QUICK, Rig, Verify, answered, positions, rig


@pytest.fixture(scope="module")
def made() -> Iterator[Rig]:
    with rig() as running:
        yield running


@pytest.mark.parametrize(
    ("name", "position", "verify"),
    [
        *product(QUICK, positions()[::2], ["off"]),
        *product(QUICK, positions()[::8], ["exact"]),
        *product(sorted(set(FAULTS) - set(QUICK)), [7], ["off"]),
    ],
)
def test_no_answer_is_lost(made: Rig, name: str, position: int, verify: Verify) -> None:
    assert answered(made, FAULTS[name], position, verify).whole
