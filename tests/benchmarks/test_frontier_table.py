"""The pocket pair's frontier, end to end at its smallest, in two parts and then told."""

import json
from pathlib import Path

import pytest

from benchmarks.frontier.__main__ import main

SMALL = ("--questions", "2", "--timed", "1", "--calibration", "4", "--trip", "5")
ROWS = ("bundled at 5%", "entropy at 5%")


def test_two_parts_come_together(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = str(tmp_path / "kept")
    command = (*SMALL, "--systems", *ROWS, "--out", out)
    for part in ("1/2", "2/2"):
        main([*command, "--part", part])
        assert capsys.readouterr().out == ""
    kept = {path: path.read_bytes() for path in Path(out).iterdir()}
    main([*command, "--json", str(tmp_path / "f.json")])
    # Everything was there.
    assert {path: path.read_bytes() for path in Path(out).iterdir()} == kept
    told = capsys.readouterr().out
    assert "trip ms 5" in told
    found = json.loads((tmp_path / "f.json").read_bytes())
    rows = {row["system"]: row for row in found["rows"]}
    assert set(ROWS) | {"edge", "cloud"} < set(rows)
    # As slow as a large model's engine: its first token, and 27 ms for each other one.
    cloud = rows["cloud"]
    assert cloud["time"] > cloud["ttft"] > 0.04
    assert cloud["gap"] > 0.02
    assert cloud["engine_seconds"] < cloud["time"]
    main_row = rows["bundled at 5%"]
    assert main_row["time"] > 0.029 * main_row["decodes"]
    with pytest.raises(SystemExit, match="name another folder"):
        main([*command, "--calibration", "5"])


@pytest.mark.parametrize(
    "wrong",
    [("--timed", "9"), ("--part", "1/2"), ("--part", "3/2", "--out", "x"), ("--systems", "none")],
)
def test_what_cannot_be_is_refused(wrong: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        main([*SMALL, *wrong])
    assert not (tmp_path / "x").exists()
