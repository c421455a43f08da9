"""Answers side by side and together: the same ones, whoever decodes them."""

import pytest

from benchmarks import side_by_side


def test_all_ways_give_the_same_answers(capsys: pytest.CaptureFixture[str]) -> None:
    side_by_side.main(["--questions", "3", "--rounds", "1", "--tokens", "8", "--together", "2"])
    told = capsys.readouterr().out
    ways = [row for row in told.splitlines() if row.startswith(("| 1 process", "| 2 process"))]
    assert len(ways) == 4 + 3
    assert all(row.endswith("| 0 |") for row in ways)
