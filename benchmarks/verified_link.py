"""What verification costs over a link: `python -m benchmarks.verified_link`.

A scripted pair, which differs at so many of a hundred tokens, each `RATE:EXACT`: the first would
hardly be written by the cloud and are corrected, the others only where that is exact. Where the
edge is unsure is as measured for a real pair (0.5B and 1.5B, three tasks): of what is corrected a
third has p < .5 and a sixth p > .8. The loop is the real one; link and engine take time of a clock
of their own, so that a busy machine changes nothing. Beside verification: a router that asks where
p < .5, blocks that the edge waits for, and the cloud alone, streamed, by its pace. Prints Markdown;
times a token are over the edge's own. The cloud's work is its engine's time over that of writing
all.
"""

import argparse
import math
import random
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cache
from heapq import heappop, heappush
from itertools import product
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.shared import show
from edgewise.completion import Completion
from edgewise.edge.base import Floats
from edgewise.loop import generation, one_cloud, speculate
from edgewise.loop.decoder import Decoder
from edgewise.loop.policy import Policy
from edgewise.routers.untrained import MaxProb
from edgewise.testing.scripted_cloud import ScriptedCloud
from edgewise.testing.scripted_edge import EOS, SIZE, ScriptedEdge
from edgewise_lab.bench import pace as bench_pace
from edgewise_lab.bench.link import Conditions, Way, step_of, time_over
from edgewise_lab.bench.pace import EnginePace, Pace, PacedEdge
from edgewise_lab.evaluation.tasks.base import Question
from edgewise_lab.wrapped_cloud import Flying, WrappedCloud

PROMPT = "q{:03}: "
START = len(PROMPT.format(0))
SURE, UNSURE, LOST = 0.99, 0.7, 0.4
"""The edge's probability of its own token."""

OF_CORRECTED, OF_OTHERS = (1 / 6, 1 / 2, 1 / 3), (0.85, 0.11, 0.04)
"""How often it is so sure."""

HARDLY, NEARLY = math.log(0.002), math.log(0.5)
"""Of the edge's token by the cloud, over its own: corrected, and only where that is exact."""

WAITING = "waiting"
POLICIES = {
    "edge": Policy(cloud_share=0.0),
    "router": Policy(threshold=0.5, speculate=16),
    WAITING: Policy(verify="on", deadline=60.0),
    "verify": Policy(verify="on"),
    "exact": Policy(verify="exact"),
}
HEAD = (
    *("edge, ms (as it was)", "RTT, ms", "differ, %", "router", "waiting", "verify", "exact"),
    *("cloud", "corrected", "tokens a block", "steps a token", "the cloud's work"),
)


def _other(token: int) -> int:
    """The letter after it."""
    return 97 + (token - 96) % 26


class Differing:
    """A scripted pair: what the edge writes, how sure it is, and what the cloud says of it."""

    def __init__(self, tokens: int, corrected: float, exact: float) -> None:
        """`corrected` and `exact` are shares of the tokens; the second includes the first."""
        self.tokens, self._counts = tokens, (round(corrected * tokens), round(exact * tokens))
        self._drawn = cache(self._draw)

    def edge(self, ids: Sequence[int]) -> Floats:
        """The edge's logits."""
        token, sure, _ = self._at(ids)
        logits = np.full(SIZE, -30.0, np.float32)
        logits[[token, _other(token), 32]] = np.log([sure, (1 - sure) / 2, (1 - sure) / 2])
        return logits

    def cloud(self, ids: Sequence[int]) -> Floats:
        """The cloud's logits."""
        token, _, ratio = self._at(ids)
        logits = np.full(SIZE, -30.0, np.float32)
        logits[token] = ratio or 0.0
        if ratio is not None:
            logits[_other(token)] = 0.0
        return logits

    def _at(self, ids: Sequence[int]) -> tuple[int, float, float | None]:
        offset = len(ids) - START
        drawn = self._drawn(bytes(ids[:START]))
        return drawn[offset] if 0 <= offset < len(drawn) else (EOS, SURE, None)

    def _draw(self, prompt: bytes) -> list[tuple[int, float, float | None]]:
        """By place: the edge's token, how sure it is of it, and its ratio where they differ."""
        rng, (corrected, exact) = random.Random(prompt), self._counts
        # Not the first, which is strict.
        places = rng.sample(range(1, self.tokens), exact)
        ratios = dict.fromkeys(places, NEARLY) | dict.fromkeys(places[:corrected], HARDLY)
        drawn: list[tuple[int, float, float | None]] = []
        for place in range(self.tokens):
            ratio = ratios.get(place)
            weights = OF_OTHERS if ratio is None else OF_CORRECTED
            sure = rng.choices((SURE, UNSURE, LOST), weights)[0]
            drawn.append((97 + rng.randrange(26), sure, ratio))
        return drawn


class Clock:
    """Stands for the module `time`: whoever sleeps or waits makes what is due happen."""

    def __init__(self) -> None:
        self.now = 0.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        end = self.now + seconds
        while self._due and self._due[0][0] <= end:
            self.next()
        self.now = end

    def at(self, when: float, happens: Callable[[], None]) -> None:
        self._count += 1
        heappush(self._due, (when, self._count, happens))

    def next(self) -> None:
        """Go on to what is due next."""
        self.now, _, happens = heappop(self._due)
        happens()


class Virtual(Flying):
    """Who waits for it lets the clock run."""

    def __init__(self, clock: Clock) -> None:
        super().__init__()
        self._clock = clock

    def result(self, timeout: float | None = None) -> Completion:
        while not self.done():
            self._clock.next()
        return super().result(timeout)


class VirtualLink:
    """What a link and an engine behind it, which answers a session in turn, take of a clock."""

    def __init__(self, clock: Clock, trip: float, pace: EnginePace) -> None:
        self.clock, self.trip, self.pace = clock, trip, pace
        self._free, self._last = 0.0, Flying()

    def how(self, ids: Sequence[int], n: int, send: Callable[[], Flying]) -> Flying:
        """As `WrappedCloud` has it."""
        made, flight = send().result(), Virtual(self.clock)

        def lands() -> None:
            if flight.set_running_or_notify_cancel():
                flight.set_result(made)

        def arrives() -> None:
            # What was dropped has been cancelled there, too.
            begun = self.clock.now if self._last.cancelled() else max(self._free, self.clock.now)
            self._free, self._last = begun + self.pace.of(max(1, n), 1), flight
            self.clock.at(self._free + self.trip / 2, lands)

        self.clock.at(self.clock.now + self.trip / 2, arrives)
        return flight


@contextmanager
def timed_by(clock: Clock) -> Generator[None]:
    """The loop and paced models go by the clock."""

    def wait(flights: object, seconds: float) -> None:
        clock.sleep(seconds)

    named: list[tuple[Any, str, Any]] = [
        *((module, "time", clock) for module in (bench_pace, generation, one_cloud, speculate)),
        (one_cloud, "futures", SimpleNamespace(wait=wait, TimeoutError=TimeoutError)),
    ]
    with ExitStack() as stack:
        for module, name, value in named:
            stack.callback(setattr, module, name, getattr(module, name))
            setattr(module, name, value)
        yield


def on_a_clock(
    pair: Differing, conditions: Conditions, step: float, pace: EnginePace, questions: int
) -> dict[str, Way]:
    """The answers to some questions by every policy."""
    clock, paced = Clock(), Pace((1, 16), (step, 2 * step))
    found: dict[str, Way] = {}
    with timed_by(clock):
        for name, policy in POLICIES.items():
            link = VirtualLink(clock, conditions.round_trip, pace)
            scripted = ScriptedCloud(pair.cloud, verifies=True)
            scripted.here = name == WAITING
            edge: Any = PacedEdge(ScriptedEdge(pair.edge), paced)
            cloud = WrappedCloud(scripted, link.how)
            found[name] = Way(Decoder(edge, router=MaxProb(), policy=policy, cloud=cloud), edge)
            for question in asked(questions):
                found[name].ask(question, pair.tokens + 1)
    return found


def asked(questions: int) -> tuple[Question, ...]:
    return tuple(
        Question(id=str(n), family="", prompt=PROMPT.format(n), answer="", check="contains")
        for n in range(questions)
    )


def row(
    conditions: Conditions, step: float, pace: EnginePace, found: dict[str, Way], differ: str
) -> list[str]:
    edge, on = found["edge"], found["verify"]
    tokens = on.tokens // len(on.answers)
    alone = pace.of(tokens, START)
    read = on.total("cloud_calls") * pace.first + on.edge.positions * pace.read
    names = ("router", "waiting", "verify", "exact")
    figures = [time_over(found[name], edge, edge) for name in names]
    return [
        f"{1000 * step:.0f} ({1000 * step_of(edge):.1f})",
        f"{1000 * conditions.round_trip:.0f}",
        differ,
        *(f"{one.value:.2f} ({one.low:.2f} to {one.high:.2f})" for one in figures),
        f"{(conditions.round_trip + alone) / tokens / step_of(edge):.2f}",
        f"{on.total('correction_tokens') / on.tokens:.1%}",
        f"{on.tokens / on.total('cloud_calls'):.1f}",
        f"{on.edge.positions / on.tokens:.2f}",
        f"{read / len(on.answers) / alone:.2f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--differ", nargs="+", default=("1.2:2.2", "3.4:6.2"), help="percent")
    parser.add_argument("--trips", type=float, nargs="+", default=(0, 50, 100, 200), help="ms")
    parser.add_argument("--steps", type=float, nargs="+", default=(15, 30), help="ms a token")
    parser.add_argument("--passes", type=float, default=20, help="ms of the engine for a block")
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--questions", type=int, default=20)
    options = parser.parse_args()
    pace = EnginePace(first=options.passes / 1000)

    def rows() -> Iterator[list[str]]:
        for step, trip, differ in product(options.steps, options.trips, options.differ):
            corrected, exact = (float(rate) / 100 for rate in differ.split(":"))
            pair = Differing(options.tokens, corrected, exact)
            conditions = Conditions(trip / 1000, 0.0, 0.0, engine=0.0)
            found = on_a_clock(pair, conditions, step / 1000, pace, options.questions)
            yield row(conditions, step / 1000, pace, found, differ)

    show(HEAD, rows())
    print(f"\n{options.questions} answers of {options.tokens} tokens a line.")


if __name__ == "__main__":
    main()
