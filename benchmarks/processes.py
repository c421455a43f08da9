"""Servers as processes: who has the cores, and how much memory they took. Linux's /proc."""

import asyncio
import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

TICKS = os.sysconf("SC_CLK_TCK")


class Server(NamedTuple):
    """A running server; `pid` may have other processes below it."""

    url: str
    pid: int


def read(pid: int, name: str) -> str:
    """A file of a process; nothing where it has ended."""
    try:
        return Path(f"/proc/{pid}/{name}").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return ""


def tree(pid: int) -> list[int]:
    """A process and all below it."""
    below: dict[str, list[int]] = {}
    for one in (int(folder.name) for folder in Path("/proc").glob("[0-9]*")):
        if stat := read(one, "stat"):
            below.setdefault(stat.rpartition(")")[2].split()[1], []).append(one)
    found = [pid]
    for one in found:
        found += below.get(str(one), [])
    return found


def processor(pids: Sequence[int]) -> float:
    """Processor seconds of these processes and of those below them that have ended."""
    stats = (read(pid, "stat").rpartition(")")[2].split() for pid in pids)
    return sum(int(ticks) for stat in stats for ticks in stat[11:15]) / TICKS


def busy() -> float:
    """Processor seconds of the whole machine; what its host took away is busy, too."""
    user, nice, system, _, _, *rest = map(int, Path("/proc/stat").read_text().split()[1:9])
    return (user + nice + system + sum(rest)) / TICKS


def peak(pid: int) -> float:
    """Peak resident memory of a process and those below it, MB."""
    held = (re.search(r"VmHWM:\s+(\d+) kB", read(one, "status")) for one in tree(pid))
    return sum(int(found[1]) for found in held if found) / 1024


class Meter:
    """Who has the cores, from here on."""

    def __init__(self, servers: Sequence[Server]) -> None:
        self._of = [[os.getpid()], *(tree(server.pid) for server in servers)]
        self._begun, self._busy = time.perf_counter(), busy()
        self._used = [processor(pids) for pids in self._of]

    def read(self) -> tuple[float, list[float]]:
        """Other programs' share of all cores; the cores of this process and of each server."""
        seconds = time.perf_counter() - self._begun
        used = [processor(pids) - was for pids, was in zip(self._of, self._used, strict=True)]
        others = (busy() - self._busy - sum(used)) / seconds / (os.cpu_count() or 1)
        return others, [one / seconds for one in used]


async def quiet(servers: Sequence[Server], most: float) -> bool:
    """Wait until other programs leave the cores; False if they have not in half a minute."""
    for _ in range(60):
        meter = Meter(servers)
        await asyncio.sleep(0.5)
        if meter.read()[0] <= most:
            return True
    return False
