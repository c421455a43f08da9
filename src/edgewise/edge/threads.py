"""How many CPU threads an edge engine uses: the default, and the choice for each forward pass."""

import os
import subprocess
import sys
from collections import defaultdict, deque
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from statistics import median

SYSTEM = Path("/sys")

_SLOW = 0.5  # A core of less than this share of the fastest core's capacity is an efficiency core


def default_threads(system: Path = SYSTEM) -> int:
    """Return the default number of threads: at least 1, and mostly one for each physical core.

    Linux: the cores that this process may use, no efficiency cores, up to a container's CPU limit.
    macOS: the performance cores. Elsewhere: half of the logical CPUs. `system` is Linux's sysfs.
    """
    if sys.platform == "darwin":
        return _performance_cores() or os.cpu_count() or 1
    if not hasattr(os, "sched_getaffinity"):
        return max(1, (os.cpu_count() or 1) // 2)
    usable = os.sched_getaffinity(0)
    cores = {_siblings(system, cpu) for cpu in _fast(system, usable)}
    return max(1, min(len(cores), _quota(system)))


def _performance_cores() -> int | None:
    command = ["/usr/sbin/sysctl", "-n", "hw.perflevel0.physicalcpu"]
    with suppress(OSError, ValueError, subprocess.SubprocessError):
        done = subprocess.run(command, capture_output=True, timeout=5, check=True)  # noqa: S603
        return int(done.stdout)
    return None


def _read(path: Path) -> str:
    with suppress(OSError, UnicodeDecodeError):
        return path.read_text(encoding="ascii").strip()
    return ""


def _fast(system: Path, cpus: Iterable[int]) -> list[int]:
    """Return `cpus` without efficiency cores, by Intel's list or ARM's capacities if known."""
    cpus = list(cpus)
    if listed := _listed(_read(system / "devices/cpu_core/cpus")):
        return [cpu for cpu in cpus if cpu in listed] or cpus
    place = system / "devices/system/cpu"
    told = {cpu: _read(place / f"cpu{cpu}/cpu_capacity") for cpu in cpus}
    known = {cpu: int(value) for cpu, value in told.items() if value.isdecimal()}
    most = max(known.values(), default=0)
    return [cpu for cpu in cpus if known.get(cpu, most) >= _SLOW * most]


def _siblings(system: Path, cpu: int) -> str:
    """Return a text that names the core of `cpu`: all hyperthreads of a core have the same."""
    told = _read(system / f"devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
    return told or str(cpu)


def _listed(told: str) -> set[int]:
    """Return the numbers in a list such as "0-3,8"; of a broken one, those before the fault."""
    found: set[int] = set()
    with suppress(ValueError):
        for part in filter(None, told.split(",")):
            first, _, last = part.partition("-")
            found |= set(range(int(first), int(last or first) + 1))
    return found


def _quota(system: Path) -> int:
    """Return a container's CPU limit in cores, at least 1; 65,536 if no limit is set."""
    with suppress(ValueError, ZeroDivisionError):
        most, period = _read(system / "fs/cgroup/cpu.max").split()
        return max(1, round(int(most) / int(period)))
    return 1 << 16


TRIES, LATEST = 3, 5
"""A trial of another number takes up to TRIES passes; medians of up to LATEST are compared."""

SOON, LATE = 16, 1024
"""Passes between trials: SOON if the last found a faster number, else twice as many, up to LATE."""

# Other work on the machine, not the number of threads, makes a pass so much slower.
_STALLED = 4.0


class Threads:
    """Finds by trial the fastest number of threads, up to `most`, for each size of forward pass."""

    def __init__(self, most: int) -> None:
        # A pass waits for its slowest thread: on two cores, two threads write 1.5 to 1.8 times as
        # many tokens as one, but 0.5 to 0.7 times as many beside a program that keeps a core busy.
        self.most = most
        self._sizes = defaultdict[int, _Trials](lambda: _Trials(most))

    def of(self, ids: int) -> int:
        """Return the number of threads for a pass over `ids` ids; afterwards call `took`."""
        return self._sizes[ids.bit_length()].next()

    def took(self, ids: int, threads: int, seconds: float) -> None:
        """Record that a pass over `ids` ids took `seconds` with `threads` threads."""
        self._sizes[ids.bit_length()].took(threads, seconds / ids)


class _Trials:
    """Measurements and current choice of `Threads` for passes over a similar number of ids."""

    def __init__(self, most: int) -> None:
        self._most = self._best = most
        self._paces = defaultdict[int, deque[float]](lambda: deque(maxlen=LATEST))
        self._candidate, self._left = most, 0
        self._until, self._pause = 1, SOON
        self._fewer = False

    def next(self) -> int:
        if self._left == 0 and self._until <= 0 and self._most > 1:
            self._fewer = self._best == self._most or (self._best > 1 and not self._fewer)
            self._try(self._best - 1 if self._fewer else self._best + 1)
        return self._candidate if self._left else self._best

    def took(self, threads: int, pace: float) -> None:
        usual = median(self._paces[self._best] or [pace])
        if pace > _STALLED * usual:
            # What was quick before says nothing now.
            self._paces[threads].clear()
        self._paces[threads].append(pace)
        if self._left:
            # Clearly slower: no more passes are spent on it.
            self._left = 0 if pace > 2 * usual else self._left - 1
            if self._left == 0:
                self._judge()
        # Another program took a core, and a pass waits for its slowest thread.
        elif pace > _STALLED * usual and threads > 1:
            self._try(threads - 1)
        else:
            self._until -= 1

    def _try(self, candidate: int) -> None:
        self._candidate, self._left = candidate, TRIES
        self._paces[candidate].clear()

    def _judge(self) -> None:
        before, both = self._best, (self._best, self._candidate)
        self._best = min(both, key=lambda threads: median(self._paces[threads]))
        self._pause = SOON if self._best != before else min(LATE, 2 * self._pause)
        self._until = self._pause
