"""The largest number of sessions that holds a criterion, by few runs."""

import math
from collections.abc import Callable

STEP = 1.1
_LEAP = 4


def ladder(most: int) -> list[int]:
    """Whole numbers up to `most`, each at most a tenth above the one before where that is one."""
    rungs = [1]
    while rungs[-1] < most:
        rungs.append(min(most, max(rungs[-1] + 1, math.floor(rungs[-1] * STEP))))
    return rungs


def largest(holds: Callable[[int], bool], *, start: int, most: int) -> int:
    """The highest rung up to `most` at which `holds`, found from `start`; 0 where none does.

    It is taken to hold below what holds; no rung is tried twice.
    """
    rungs = [0, *ladder(most)]
    index = max(i for i, rung in enumerate(rungs) if rung <= max(start, 1))
    good, bad = 0, len(rungs)
    while bad - good > 1:
        if holds(rungs[index]):
            good = index
            index = min(index + _LEAP, len(rungs) - 1) if bad == len(rungs) else (good + bad) // 2
        else:
            bad = index
            index = max(index - _LEAP, 1) if not good else (good + bad) // 2
    return rungs[good]
