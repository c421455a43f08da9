"""Many answers, many verified blocks and the search for a capacity: what the benchmarks tell."""

import asyncio
import re
from pathlib import Path
from random import Random
from types import ModuleType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks import many, verified_load
from benchmarks.capacity.search import ladder, largest
from benchmarks.many import Round, speeds_of
from benchmarks.verified_load import Device, Done, turn
from edgewise.addresses import bundled

ROW = re.compile(r"^\| (?!model|devices)(.+) \|$", re.MULTILINE)


def rows(said: str) -> list[list[str]]:
    """Cells of the tables' lines, without the heads."""
    return [found.split(" | ") for found in ROW.findall(said)]


def test_both_servers_answer(capsys: pytest.CaptureFixture[str]) -> None:
    asked = "--answers 2 --rounds 1 --tokens 4 --context 512 --most 9"
    many.main(["--model", str(bundled("edge")), *asked.split()])
    found = rows(capsys.readouterr().out)
    assert [(kind, count) for _, kind, count, *_ in found] == [("differ", "2"), ("shared", "2")]
    assert [row[-1] for row in found] == ["1/1"] * 2
    assert all(float(speed) > 0 for row in found for speed in row[3:6])


def test_blocks_are_verified_and_written(capsys: pytest.CaptureFixture[str]) -> None:
    model = str(bundled("edge"))
    asked = "--devices 2 --blocks 3 --seconds 0.2 --context 512 --prompt 20"
    verified_load.main(["--model", model, *asked.split()])
    found = rows(capsys.readouterr().out)
    assert [row[:2] for row in found] == [["2", "3"]]
    assert all(float(speed) > 0 for row in found for speed in row[2:5])


class AtOnce(Device):
    """Replies at once."""

    async def ask(self, block: int, *, verify: bool) -> int:
        await asyncio.sleep(0)
        return block


def test_tokens_of_all_devices_are_counted() -> None:
    done = Done()
    devices = [AtOnce([1], Random(0), 100) for _ in range(4)]
    asyncio.run(turn(devices, 3, 0.05, done, verify=True))
    assert done.tokens == 3 * len(done.waits) > 0


def test_figures_of_rounds() -> None:
    kept = [
        (Round(10, 0), Round(20, 1)),
        (Round(30, 0), Round(25, 0)),
        (Round(18, 1), Round(20, 1)),
    ]
    assert speeds_of(kept) == [
        "30.0", "25.0", "1.200", "18.0", "20.0", "0.900 (0.500 to 1.200)", "1 and 2"
    ]  # fmt: skip
    assert set(speeds_of([])) == {"-"}


@pytest.mark.parametrize("program", [many, verified_load])
@pytest.mark.parametrize("wrong", ["--model nothing.gguf", "--threads 0", "--context 0"])
def test_wrong_options_are_refused(program: ModuleType, wrong: str, tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    model.touch()
    with pytest.raises(SystemExit) as found:
        program.main(["--model", str(model), *wrong.split()])
    assert found.value.code == 2


@given(st.integers(0, 300), st.integers(1, 400), st.integers(1, 300))
def test_the_search_finds_the_highest_rung_that_holds(limit: int, start: int, most: int) -> None:
    tried: list[int] = []

    def holds(sessions: int) -> bool:
        tried.append(sessions)
        return sessions <= limit

    found = largest(holds, start=start, most=most)
    assert found == max((rung for rung in ladder(most) if rung <= limit), default=0)
    assert len(set(tried)) == len(tried)
