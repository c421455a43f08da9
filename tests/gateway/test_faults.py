"""Three faults at every second token of an answer; `make faults` does all of them."""

from collections.abc import Iterator

import pytest

from benchmarks.faults.rig import FAULTS, QUICK, Rig, answered, positions, rig


@pytest.fixture(scope="module")
def made() -> Iterator[Rig]:
    with rig() as running:
        yield running


@pytest.mark.parametrize("name", QUICK)
@pytest.mark.parametrize("position", positions()[::2])
def test_no_answer_is_lost(made: Rig, name: str, position: int) -> None:
    assert answered(made, FAULTS[name], position).whole


@pytest.mark.parametrize("name", QUICK)
@pytest.mark.parametrize("position", positions()[::8])
def test_nor_while_the_cloud_reads_along(made: Rig, name: str, position: int) -> None:
    assert answered(made, FAULTS[name], position, "exact").whole


@pytest.mark.parametrize("name", sorted(set(FAULTS) - set(QUICK)))
def test_the_other_faults_in_the_middle(made: Rig, name: str) -> None:
    assert answered(made, FAULTS[name], 7).whole
