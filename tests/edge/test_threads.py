"""The default number of threads, on machines that a folder describes."""

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from edgewise.edge.threads import Threads, default_threads

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /sys")


@pytest.fixture
def cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    def eight(pid: int) -> set[int]:
        return set(range(8))

    monkeypatch.setattr(os, "sched_getaffinity", eight)


def told(system: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = system / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return system


CPU = "devices/system/cpu/cpu{}/"
PAIRS = {CPU.format(n) + "topology/thread_siblings_list": f"{n % 4},{n % 4 + 4}" for n in range(8)}
BIG = {CPU.format(n) + "cpu_capacity": "1024" if n > 3 else "380" for n in range(8)}


@pytest.mark.usefixtures("cpus")
@pytest.mark.parametrize(
    ("files", "threads"),
    [
        ({}, 8),
        (PAIRS, 4),
        (BIG, 4),
        ({"devices/cpu_core/cpus": "0-3,6\n"}, 5),
        ({"devices/cpu_core/cpus": "0-3", **PAIRS}, 4),
        ({"fs/cgroup/cpu.max": "250000 100000"}, 2),
        ({"fs/cgroup/cpu.max": "10000 100000"}, 1),
        ({"fs/cgroup/cpu.max": "max 100000"}, 8),
        ({"devices/cpu_core/cpus": "x-", "fs/cgroup/cpu.max": "? 0"}, 8),
        ({"devices/cpu_core/cpus": "9-11"}, 8),
    ],
)
def test_one_thread_for_each_core(tmp_path: Path, files: dict[str, str], threads: int) -> None:
    assert default_threads(told(tmp_path, files)) == threads


def test_here_it_is_within_what_the_process_may_use() -> None:
    assert 1 <= default_threads() <= len(os.sched_getaffinity(0))


def passes(
    threads: Threads, count: int, seconds: Callable[[int], float], ids: int = 1
) -> list[int]:
    """How many threads each of so many passes took, which last `seconds` by that number."""
    taken: list[int] = []
    for _ in range(count):
        taken.append(threads.of(ids))
        threads.took(ids, taken[-1], seconds(taken[-1]))
    return taken


def test_as_many_as_are_quickest_are_taken_also_when_that_changes() -> None:
    threads = Threads(4)
    idle = passes(threads, 1000, lambda count: 1 / count)
    assert idle[0] == 4
    assert idle.count(4) > 970
    # Another program takes a core: whoever uses all of them waits for it.
    busy = passes(threads, 1000, lambda count: 1 / count if count < 4 else 10.0)
    assert busy[:5] == [4, 3, 3, 3, 3]
    assert busy.count(4) < 10
    assert busy.count(3) > 950
    again = passes(threads, 3000, lambda count: 1 / count)
    assert again[-500:].count(4) > 480


def test_what_changes_is_noticed() -> None:
    # Passes become slower by less than a half.
    threads = Threads(2)
    passes(threads, 1000, lambda count: 1 / count)
    assert passes(threads, 1500, lambda count: 1.0 if count == 1 else 1.3)[-1] == 1
    # After a pass that stalled all are taken again soon.
    threads = Threads(2)
    passes(threads, 200, lambda count: 1 / count)
    passes(threads, 1, lambda count: 50.0)
    assert passes(threads, 60, lambda count: 1 / count).count(2) > 30
    # A trial ends with the first slow pass.
    taken = passes(Threads(2), 1000, lambda count: 9.0 if count == 2 else 1.0)
    assert taken.count(2) < 15
    # Long passes are not compared with short ones.
    threads = Threads(2)
    passes(threads, 40, lambda count: 1 / count)
    assert passes(threads, 10, lambda count: 64.0 * count, ids=64)[-1] == 1
    assert passes(threads, 10, lambda count: 1 / count).count(2) > 6
    assert set(passes(Threads(1), 500, lambda count: 1.0)) == {1}
