"""Many answers and many verified blocks: what the benchmarks tell, and what they refuse."""

import asyncio
import re
from pathlib import Path
from random import Random
from types import ModuleType

import pytest

from benchmarks import many, verified_load
from benchmarks.many import Answer, Late, Round, late_of, seen, speeds_of
from benchmarks.verified_load import Device, Done, turn
from edgewise.addresses import bundled

ROW = re.compile(r"^\| (?!model|devices)(.+) \|$", re.MULTILINE)


def rows(said: str) -> list[list[str]]:
    """Cells of the tables' lines, without the heads."""
    return [found.split(" | ") for found in ROW.findall(said)]


def test_both_servers_answer(capsys: pytest.CaptureFixture[str]) -> None:
    asked = "--answers 1 2 --rounds 1 --tokens 4 --context 512 --late 1 --long 40 --most 9"
    many.main(["--model", str(bundled("edge")), *asked.split()])
    said = capsys.readouterr().out
    found = rows(said)
    assert [(kind, count) for _, kind, count, *_ in found[:4]] == [
        ("differ", "1"), ("differ", "2"), ("shared", "1"), ("shared", "2")
    ]  # fmt: skip
    assert [row[-1] for row in found[:4]] == ["1/1"] * 4
    assert all(float(speed) > 0 for row in found[:4] for speed in row[3:6])
    assert [row[1] for row in found[4:]] == ["short", "long"]
    assert asked in said


def test_blocks_are_verified_and_written(capsys: pytest.CaptureFixture[str]) -> None:
    model = str(bundled("edge"))
    asked = "--devices 2 6 --blocks 3 --seconds 0.2 --context 512 --prompt 20"
    verified_load.main(["--model", model, *asked.split()])
    found = rows(capsys.readouterr().out)
    assert [row[:2] for row in found] == [["2", "3"], ["6", "3"]]
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
    late = (Late(0.1, 0.02, 0.01, 40, True), Late(0.3, 0.2, 0.01, 41, True))
    assert late_of([late])[:3] == ["40", "100 (100 to 100)", "300 (300 to 300)"]
    assert set(speeds_of([])) == set(late_of([])) == {"-"}


def test_pauses_beside_a_late_request() -> None:
    fifth = Answer(asked=10.0, stamps=[12.0, 12.1], prompt=7)
    others = [[9.0, 9.5, 11.5, 11.6, 20.0], [9.0, 9.4, 9.9, 13.0]]
    found = seen(fifth, others)
    assert (found.first, found.prompt, found.beside) == (2.0, 7, True)
    assert found.pause == pytest.approx(8.4)
    assert found.usual == pytest.approx(0.5)
    assert not seen(fifth, [[9.0, 11.0]]).beside


@pytest.mark.parametrize("program", [many, verified_load])
@pytest.mark.parametrize("wrong", ["--model nothing.gguf", "--threads 0", "--context 0"])
def test_wrong_options_are_refused(program: ModuleType, wrong: str, tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    model.touch()
    with pytest.raises(SystemExit) as found:
        program.main(["--model", str(model), *wrong.split()])
    assert found.value.code == 2
