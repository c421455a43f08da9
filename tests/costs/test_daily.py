"""A day's sum holds across threads and processes, and a file that cannot hold it is said to."""

import logging
import stat
import subprocess
import sys
from decimal import Decimal
from pathlib import Path

import pytest

from edgewise.costs.daily import DailyTotal, spent_place, today
from edgewise.errors import UsageError

DAY = "2026-01-02"
ADDING = """
import sys
from decimal import Decimal
from pathlib import Path
from edgewise.costs.daily import DailyTotal
file = DailyTotal(Path(sys.argv[1]))
print(sum(file.add("2026-01-02", "", Decimal("0.1"), Decimal("1")) for _ in range(8)))
"""


def test_sums_are_exact_and_apart(tmp_path: Path) -> None:
    file = DailyTotal(tmp_path / "state" / "spent.db")
    for _ in range(10):
        assert file.add(DAY, "", Decimal("0.1"))
    assert file.add(DAY, "EUR", Decimal(5))
    assert file.add(today(), "", Decimal(7))
    assert file.of(DAY, "") == 1
    assert file.of(DAY, "EUR") == 5
    assert file.of("2026-01-03", "") == 0
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert file.path.parent.stat().st_mode & 0o077 == 0


def test_never_above_the_most(tmp_path: Path) -> None:
    file, most = DailyTotal(tmp_path / "spent.db"), Decimal("0.3")
    assert file.add(DAY, "", Decimal("0.2"), most)
    assert not file.add(DAY, "", Decimal("0.100001"), most)
    assert file.add(DAY, "", Decimal("-0.1"), most)
    assert file.add(DAY, "", Decimal("0.2"), most)
    assert not file.add(DAY, "", Decimal("0.000001"), most)
    # What was spent without a limit counts, and what is given back always may be.
    assert file.add(DAY, "", Decimal(1))
    assert file.add(DAY, "", Decimal("-0.1"), most)
    assert file.of(DAY, "") == Decimal("1.2")


def test_processes_share_a_limit(tmp_path: Path) -> None:
    path = tmp_path / "spent.db"
    processes = [
        subprocess.Popen([sys.executable, "-c", ADDING, str(path)], stdout=subprocess.PIPE)
        for _ in range(3)
    ]
    added = [int(process.communicate(timeout=60)[0]) for process in processes]
    assert sum(added) == 10
    assert DailyTotal(path).of(DAY, "") == 1


@pytest.mark.parametrize("broken", ["no database", "a folder", "no number", "not finite"])
def test_a_file_that_cannot_be_used(
    tmp_path: Path, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "spent.db"
    file = DailyTotal(path)
    if broken == "no database":
        path.write_bytes(b"not a database" * 100)
    elif broken == "a folder":
        path.mkdir()
    else:
        import sqlite3

        file.add(today(), "", Decimal(0))
        with sqlite3.connect(path) as raw:
            raw.execute("UPDATE spent SET amount = ?", ("abc" if broken == "no number" else "NaN",))
    with pytest.raises(UsageError) as refused:
        file.require_usable()
    assert refused.value.setting == "max_cost_day"
    with caplog.at_level(logging.WARNING):
        assert not file.add(today(), "", Decimal(1), Decimal(5))
        assert not file.add(today(), "", Decimal(1))
    assert len(caplog.records) == 1


def test_where_it_lies(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert spent_place() == tmp_path / "edgewise" / "spent.db"
