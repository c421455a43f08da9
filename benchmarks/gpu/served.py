"""Sessions on a schedule at one device, whose passes are really run. Needs nothing but Python.

Each session's answer grows by 10 tokens a second. What it asks for waits for a pass; a pass takes
requests of one width, oldest first. Time is that of the passes: where none waits, the clock goes to
the next request at once. Held: 99% of what is waited for comes within 100 ms of when it was due.
"""

import math
import random
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from typing import NamedTuple

from benchmarks.capacity.search import largest

PACE = 10.0
"""Tokens a second of a session."""

LIMIT, LATE = 0.1, 0.01
"""Seconds that a request may wait, and the share that may wait longer."""

SHARE, CORRECTED = 0.05, 0.06
"""Tokens that a routed session asks for, one each, and those that verification corrects."""

BLOCKS = (4, 4, 8, 16)
"""Drafts of a block, 8 in the mean; each is as likely."""

PUSH = 16
"""Ids after which a routed session tells what it has written, so that a consult reads few."""


class Request(NamedTuple):
    """`width` ids of a session, due at so many seconds; somebody waits for it, or nobody does."""

    due: float
    width: int
    waited: bool = True


Way = Callable[[random.Random], Iterator[Request]]
"""What one session asks for, without end, from the second 0 on."""


def written(_rng: random.Random) -> Iterator[Request]:
    """The device writes every token."""
    token = 0
    while True:
        yield Request(token / PACE, 1)
        token += 1


def routed(rng: random.Random) -> Iterator[Request]:
    """A consult reads what was not told yet and writes a token; nobody waits for what is told."""
    token = unread = 0
    while True:
        token, unread = token + 1, unread + 1
        if consult := rng.random() < SHARE:
            yield Request(token / PACE, min(width for width in (1, *BLOCKS) if width >= unread))
        elif unread == PUSH:
            yield Request(token / PACE, PUSH, waited=False)
        unread = 0 if consult or unread == PUSH else unread


def verified(rng: random.Random) -> Iterator[Request]:
    """Blocks of drafts. What follows a correction in its block is read in vain.

    Not counted: blocks that were sent before the correction was known, a round trip's.
    """
    token = 0
    while True:
        size = rng.choice(BLOCKS)
        stands = next((at for at in range(size) if rng.random() < CORRECTED), size - 1)
        token += stands + 1
        yield Request(token / PACE, size)


WAYS: dict[str, Way] = {"written": written, "routed": routed, "verified": verified}


def load(way: Way, sessions: int, seconds: float) -> list[Request]:
    """What the sessions ask for within so many seconds, by time; they are amid their answers."""
    found: list[Request] = []
    for number in range(sessions):
        rng = random.Random(number)
        begin = rng.uniform(5, 10)
        for request in way(rng):
            if request.due >= begin + seconds:
                break
            if request.due >= begin:
                found.append(request._replace(due=request.due - begin))
    return sorted(found)


Run = Callable[[int, int], float]
"""Seconds of a pass over so many sessions, so many ids of each."""

Sizes = Callable[[int], Iterator[int]]
"""Numbers of sessions that a pass of this width has, ascending."""


def waits(requests: Sequence[Request], run: Run, sizes: Sizes) -> Iterator[float]:
    """Seconds from when each that is waited for was due until it came."""
    numbers = {width: list(sizes(width)) for width in {request.width for request in requests}}
    queues: dict[int, deque[Request]] = {width: deque() for width in numbers}
    arrives, clock = 0, 0.0
    while arrives < len(requests) or any(queues.values()):
        if not any(queues.values()):
            clock = max(clock, requests[arrives].due)
        while arrives < len(requests) and requests[arrives].due <= clock:
            queues[requests[arrives].width].append(requests[arrives])
            arrives += 1
        width = min((queue[0].due, width) for width, queue in queues.items() if queue)[1]
        queue = queues[width]
        count = min(len(queue), numbers[width][-1])
        clock += run(next(number for number in numbers[width] if number >= count), width)
        for request in (queue.popleft() for _ in range(count)):
            if request.waited:
                yield clock - request.due


def holds(requests: Sequence[Request], run: Run, sizes: Sizes) -> bool:
    """Whether 99% come in time; not run to the end where that cannot be any more."""
    allowed = LATE * sum(request.waited for request in requests)
    late = (wait for wait in waits(requests, run, sizes) if wait > LIMIT)
    return next(islice(late, math.floor(allowed), None), None) is None


def served(way: Way, seconds: float, run: Run, sizes: Sizes, most: int) -> tuple[int, int]:
    """Sessions that are served, `most` at the most, and the number computed from full passes."""
    requests = load(way, 64, 60)
    work = 0.0
    for width, count in Counter(request.width for request in requests).items():
        *_, rows = sizes(width)
        work += count / (64 * 60) * sorted(run(rows, width) for _ in range(5))[2] / rows
    computed = math.floor(1 / work)

    def tried(sessions: int) -> bool:
        return holds(load(way, sessions, seconds), run, sizes)

    return largest(tried, start=min(computed, most), most=most), computed
