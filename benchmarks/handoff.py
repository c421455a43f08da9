"""A race for the first token and a handoff (as DiSCo, arXiv 2502.11417): does it earn a place?

`python -m benchmarks.handoff`. Edge and cloud begin at once; whoever is first is shown. Where that
is the edge it writes on, beside the cloud's stream: once the stream has all that is shown, it goes
on from there; where the stream says something else, which nobody can unsay, the cloud is asked to
go on from the edge's text, and the edge stops. Where the cloud is first it writes everything.

Edge and cloud are the bundled pair: the edge at the pace of half a billion parameters or four times
as fast, the cloud's tokens 27 ms apart behind a round trip and the time of its first token: 35 ms,
or half a second more where the engine is busy. The cloud alone streams in the same run. Markdown;
as published: `--questions 100 --workers 4`.
"""

import argparse
import multiprocessing
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple

import numpy as np

from benchmarks.markdown import line
from edgewise.addresses import bundled
from edgewise.edge.kv import common_prefix
from edgewise.edge.llamacpp import LlamaModel
from edgewise_lab.bench.pace import HALF_BILLION, Pace, PacedEdge
from edgewise_lab.evaluation.statistics import difference_interval
from edgewise_lab.evaluation.systems import question_ids, text_of
from edgewise_lab.evaluation.tasks.base import Question
from edgewise_lab.evaluation.tasks.grading import is_strictly_right
from edgewise_lab.evaluation.tasks.pocketqa import MAX_TOKENS, pocketqa

TOKEN, FIRST = 0.027, 0.035
FAST = Pace(HALF_BILLION.ids, tuple(seconds / 4 for seconds in HALF_BILLION.seconds))
PACES = {29: HALF_BILLION, 7: FAST}


class Cell(NamedTuple):
    """Milliseconds: a round trip, how long an engine is busy before it begins, an edge's step."""

    trip: int
    busy: int
    step: int


class Shown(NamedTuple):
    """An answer: `edge` tokens are the edge's, `requests` were made; times in seconds."""

    strict: bool
    first: float
    gap: float
    seconds: float
    edge: int
    tokens: int
    requests: int


class CloudStream:
    """The cloud's tokens behind `ids` as they arrive, read in a thread of its own."""

    def __init__(self, cloud: LlamaModel, ids: Sequence[int], first: float, most: int) -> None:
        self.ids: list[int] = []
        self.arrived: list[float] = []
        self._begun, self._first, self._most = time.monotonic(), first, most
        self._news = threading.Condition()
        self._stopped = self._ended = False
        self._thread = threading.Thread(target=self._run, args=(cloud, list(ids)), daemon=True)
        self._thread.start()

    def rest(self, at: int) -> Iterator[tuple[int, float]]:
        """Tokens from `at` on, as they come, and when they did."""
        while True:
            with self._news:
                while len(self.ids) <= at and not self._ended:
                    self._news.wait()
                if len(self.ids) <= at:
                    return
                one = self.ids[at], self.arrived[at]
            yield one
            at += 1

    def stop(self) -> None:
        """Hang up."""
        self._stopped = True
        self._thread.join()

    def _run(self, cloud: LlamaModel, ids: list[int]) -> None:
        session = cloud.session()
        try:
            session.open(ids)
            for at in range(self._most):
                token = session.step().proposed
                due = self._begun + self._first + at * TOKEN
                while not self._stopped and (left := due - time.monotonic()) > 0:
                    time.sleep(min(left, 0.02))
                if self._stopped:
                    return
                with self._news:
                    self.ids.append(token)
                    self.arrived.append(time.monotonic())
                    self._news.notify_all()
                if token in cloud.tokenizer.eos_ids or at == self._most - 1:
                    return
                session.extend([token])
        finally:
            session.close()
            with self._news:
                self._ended = True
                self._news.notify_all()


class _Worker:
    model: LlamaModel
    cloud: LlamaModel


def _begin() -> None:
    _Worker.model = LlamaModel(bundled("edge"), threads=1)
    _Worker.cloud = LlamaModel(bundled("cloud"), threads=1, slots=3)


class Race:
    """One answer of both."""

    def __init__(self, cell: Cell, prompt: Sequence[int]) -> None:
        self._prompt, self._eos = list(prompt), _Worker.model.tokenizer.eos_ids
        self._first = (cell.trip + cell.busy) / 1000 + FIRST
        self._edge = PacedEdge(_Worker.model, PACES[cell.step])
        self.ids: list[int] = []
        self.times: list[float] = []
        self.edge = self.requests = 0

    def alone(self) -> None:
        """The cloud, streaming."""
        self._follow(self._ask())

    def run(self) -> None:
        """Until the answer's end."""
        stream = self._ask()
        session = self._edge.session()
        session.open(self._prompt)
        try:
            while not self._over:
                token = session.step().proposed
                if not self.ids and stream.ids:
                    break
                session.extend([token])
                self._show(token, time.monotonic())
                self.edge += 1
                known = len(stream.ids)
                same = common_prefix(self.ids, stream.ids[:known])
                if same == len(self.ids):
                    break
                if same < known:
                    stream.stop()
                    stream = self._ask()
                    break
        finally:
            session.close()
        if not self._over:
            self._follow(stream)
        stream.stop()

    @property
    def _over(self) -> bool:
        return bool(self.ids) and (self.ids[-1] in self._eos or len(self.ids) == MAX_TOKENS)

    def _ask(self) -> CloudStream:
        self.requests += 1
        self._asked = len(self.ids)
        ids = [*self._prompt, *self.ids]
        return CloudStream(_Worker.cloud, ids, self._first, MAX_TOKENS - len(self.ids))

    def _follow(self, stream: CloudStream) -> None:
        for token, at in stream.rest(len(self.ids) - self._asked):
            self._show(token, at)

    def _show(self, token: int, at: float) -> None:
        self.ids.append(token)
        self.times.append(max([at, *self.times[-1:]]))


def _shown(cell: Cell, question: Question, both: bool) -> Shown:
    tokenizer = _Worker.model.tokenizer
    race = Race(cell, question_ids(tokenizer, question))
    begun = time.monotonic()
    if both:
        race.run()
    else:
        race.alone()
    return Shown(
        strict=is_strictly_right(question, text_of(tokenizer, race.ids)),
        first=race.times[0] - begun,
        gap=float(np.diff(race.times).max(initial=0.0)),
        seconds=race.times[-1] - begun,
        edge=race.edge,
        tokens=len(race.ids),
        requests=race.requests,
    )


def show(
    cells: Sequence[Cell], races: dict[Cell, list[Shown]], alone: dict[Cell, list[Shown]]
) -> None:
    """A row a cell: the race, then the cloud alone."""
    head = [
        "round trip, ms",
        "engine busy, ms",
        "edge, ms a token",
        "edge first, %",
        "edge's tokens, %",
    ]
    head += ["requests", "first, ms", "alone", "gap, ms", "alone", "time, s", "alone"]
    head += ["strictly right, %", "alone", "difference"]
    print("\n".join(line(head, head=True)))
    for cell in cells:
        some, other = races[cell], alone[cell]
        n = len(some)
        shown = [str(part) for part in cell]
        shown += [f"{100 * sum(one.edge > 0 for one in some) / n:.0f}"]
        shown += [f"{100 * sum(o.edge for o in some) / sum(o.tokens for o in some):.0f}"]
        shown += [f"{sum(one.requests for one in some) / n:.1f}"]
        for name, scale in (("first", 1000), ("gap", 1000), ("seconds", 1)):
            for found in (some, other):
                value = scale * float(np.median([getattr(one, name) for one in found]))
                shown.append(f"{value:.0f}" if scale > 1 else f"{value:.2f}")
        right = [[one.strict for one in found] for found in (some, other)]
        low, high = (100 * end for end in difference_interval(*right))
        shown += [f"{100 * sum(one) / n:.0f}" for one in right]
        shown += [f"{100 * (sum(right[0]) - sum(right[1])) / n:+.0f} ({low:+.0f} to {high:+.0f})"]
        print("\n".join(line(shown)))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--questions", type=int, default=20)
    parser.add_argument("--workers", type=int, default=2, help="processes side by side")
    options = parser.parse_args()
    questions = pocketqa().first(options.questions).questions
    cells = [Cell(trip, busy, step) for step in PACES for busy in (0, 500) for trip in (50, 200)]
    work = [
        (cell, question, both) for question in questions for cell in cells for both in (True, False)
    ]
    print(f"{len(work)} answers", file=sys.stderr)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.workers, context, _begin) as pool:
        found = list(pool.map(_shown, *zip(*work, strict=True)))
    races: dict[Cell, list[Shown]] = {cell: [] for cell in cells}
    alone: dict[Cell, list[Shown]] = {cell: [] for cell in cells}
    for (cell, _, both), one in zip(work, found, strict=True):
        (races if both else alone)[cell].append(one)
    show(cells, races, alone)


if __name__ == "__main__":
    main()
