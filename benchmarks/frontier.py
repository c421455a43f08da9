"""The pocket pair beside everything else that could answer: `python -m benchmarks.frontier`.

Edge, larger edge, streamed cloud, the bundled router at several shares, untrained routers, the
commit point and whole questions, on every axis at once. Quality is that of `--questions` questions,
as fast as they go; times, bills and bytes are those of the first `--timed` of them, with an edge as
slow as a 0.5B, a real llama-server at the pace of a large model, and an emulated link between the
two. Prints Markdown. Answers are kept in `--out`: interrupted, it goes on.
"""

import argparse
import sys
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from rich.progress import track

from benchmarks.paced_engine import PacedEngine
from edgewise.addresses import bundled
from edgewise.cloud.engine import LlamaServer
from edgewise.edge.base import EdgeModel
from edgewise.edge.llamacpp import LlamaModel
from edgewise.opening import open_router
from edgewise.routers.base import Router
from edgewise.settings import Settings
from edgewise.testing.link import Link, Quality
from edgewise_lab.bench.frontier.report import MeasuredAnswers, frontier
from edgewise_lab.bench.frontier.timed import (
    PLACE_NOTE,
    MeasuredAnswer,
    PairSystems,
    Timed,
    measure,
)
from edgewise_lab.bench.link import http_target
from edgewise_lab.bench.pace import HALF_BILLION, UNPACED, EnginePace, Pace
from edgewise_lab.commands.shared import tables_of
from edgewise_lab.evaluation.calibration import Answers, thresholds_for
from edgewise_lab.evaluation.plan import contender_named, manifest
from edgewise_lab.evaluation.report import CLOUD, EDGE, Row
from edgewise_lab.evaluation.store import Store
from edgewise_lab.evaluation.tasks.base import Task
from edgewise_lab.evaluation.tasks.pocketqa import pocketqa
from tests.llama_server_process import llama_server
from tests.pocket_models import MID

SLOWER = 1.45
"""How many times as slow as the edge the larger edge is: by the sizes of the two."""

SPECULATE = 16
SERVER = {"n_parallel": 4, "n_ctx": 2048, "cache_ram_mib": 0}
"""Slots for the consults that fly at once; a prompt that is not in one of them is read again."""

MAIN_SHARE, MAIN = 0.05, "bundled at 5%"
UNTRAINED = ("entropy", "max-prob", "margin", "random")

Make = Callable[[], Timed]


class Twice(NamedTuple):
    """A system without pace and link, and with both."""

    quality: Make
    timed: Make


class Pocket:
    """The bundled pair, its cloud in a llama-server; everything ends with `stack`."""

    def __init__(self, stack: ExitStack, options: argparse.Namespace) -> None:
        """Thresholds that no card has are set on questions that are held out."""
        self._stack, self.pace = stack, EnginePace()
        self.held_out = pocketqa("calibration").first(options.calibration)
        self.edge = self._model(bundled("edge"))
        url = stack.enter_context(llama_server(bundled("cloud"), flags=SERVER))
        paced = PacedEngine(url, self.pace)
        stack.callback(paced.close)
        link = Link(*http_target(paced.url), Quality(round_trip=options.trip / 1000))
        stack.callback(link.close)
        self.cloud, self._near = self._engine(url, UNPACED, None)
        _, self._far = self._engine(link.url, HALF_BILLION, link)

    def systems(self, shares: list[float], store: Store[MeasuredAnswer]) -> dict[str, Twice]:
        """By the names of their rows; making one may set a threshold first."""
        near, far = self._near, self._far
        found = {
            EDGE.system: Twice(near.edge, far.edge),
            "larger edge": Twice(
                lambda: near.larger_edge(self._model(MID), UNPACED),
                lambda: far.larger_edge(self._model(MID), HALF_BILLION.times(SLOWER)),
            ),
            CLOUD.system: Twice(near.cloud, far.cloud),
        }
        router, card = open_router(Settings(), self.edge)
        assert card is not None
        known = {share: card.threshold(share) for share in sorted({*shares, MAIN_SHARE})}
        for share, threshold in known.items():
            if threshold is None:
                sys.exit(f"no threshold for {share}; known: {sorted(card.thresholds)}")
            found[f"bundled at {100 * share:g}%"] = self._pair(router, lambda at=threshold: at)
        at = known[MAIN_SHARE]
        assert at is not None
        found[f"{MAIN}, waiting"] = self._pair(router, lambda: at, speculate=0)
        for name in UNTRAINED:
            own = contender_named(name)
            answers = Answers(own.router, self.held_out, edge=self.edge, cloud=self.cloud)
            find = partial(thresholds_for, answers=answers)
            found[f"{name} at 5%"] = self._pair(
                own.router,
                lambda own=own, find=find: own.thresholds([MAIN_SHARE], find, store)[MAIN_SHARE],
            )
        found["commit point"] = Twice(
            lambda: near.commit_point(0), lambda: far.commit_point(SPECULATE)
        )
        return found

    def _pair(
        self, router: Router, threshold: Callable[[], float], speculate: int = SPECULATE
    ) -> Twice:
        # What is guessed meanwhile changes no answer.
        return Twice(
            lambda: self._near.pair(router, threshold(), 0),
            lambda: self._far.pair(router, threshold(), speculate),
        )

    def _engine(self, url: str, pace: Pace, link: Link | None) -> tuple[LlamaServer, PairSystems]:
        cloud = LlamaServer(url)
        self._stack.callback(cloud.close)
        cloud.check_vocabulary(self.edge.tokenizer)
        most, seconds = self.held_out.max_tokens, self.pace.of
        systems = PairSystems(self.edge, cloud, most, pace=pace, link=link, seconds=seconds)
        self._stack.callback(systems.close)
        return cloud, systems

    def _model(self, path: Path) -> EdgeModel:
        return self._stack.enter_context(closing(LlamaModel(path, threads=1)))


def answered(
    pocket: Pocket, options: argparse.Namespace, task: Task, store: Store[MeasuredAnswer]
) -> dict[str, MeasuredAnswers]:
    """Every system's answers."""
    systems = pocket.systems(list(options.shares), store)
    wanted = {EDGE.system, CLOUD.system, *(options.systems or systems)}
    if unknown := sorted(wanted - set(systems)):
        sys.exit(f"There is no system {unknown[0]!r}; known: {', '.join(systems)}.")
    chosen = [(name, twice) for name, twice in systems.items() if name in wanted]
    found: dict[str, MeasuredAnswers] = {}
    for name, twice in track(chosen, "systems", console=Console(stderr=True), transient=True):
        few = task.questions[: options.timed]
        quality = measure(f"{name}, quality", twice.quality, task.questions, store, lambda: None)
        timed = measure(f"{name}, timed", twice.timed, few, store, lambda: None)
        note = PLACE_NOTE if name == "commit point" else ""
        found[name] = MeasuredAnswers(quality, timed, note=note)
    return found


def options_of() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=40, help="for quality")
    parser.add_argument("--timed", type=int, default=6, help="of these, with pace and link")
    parser.add_argument("--calibration", type=int, default=100, help="others, for thresholds")
    parser.add_argument("--shares", type=float, nargs="+", default=(0.01, 0.05, 0.1))
    parser.add_argument("--systems", nargs="+", help="only these rows; edge and cloud always")
    parser.add_argument("--trip", type=float, default=50, help="round trip, ms")
    parser.add_argument("--out", type=Path, help="folder of answers")
    options = parser.parse_args()
    if not 1 <= options.timed <= options.questions:
        parser.error("--timed is from 1 to --questions")
    return options


def main() -> None:
    options = options_of()
    task = pocketqa().first(options.questions)
    with ExitStack() as stack:
        pocket = Pocket(stack, options)
        conditions: Mapping[str, object] = {
            "round_trip_ms": options.trip,
            "edge_step_ms": 1000 * HALF_BILLION.seconds[0],
            "larger_edge_times": SLOWER,
            "cloud_pace": pocket.pace._asdict(),
            "speculate": SPECULATE,
        }
        # How many questions there are is no part of it: they are added to.
        described = manifest(pocketqa(), pocket.held_out, pocket.edge, pocket.cloud)
        store = Store(options.out, {**described, **conditions}, MeasuredAnswer)
        found = answered(pocket, options, task, store)
    bare = (EDGE.system, CLOUD.system)
    main_row = MAIN if MAIN in found else next(name for name in found if name not in bare)
    report = frontier(found, main_row, conditions)
    rows = [Row(one, {}) for one in report.systems]
    title = f"{options.questions} questions, times of {options.timed}"
    for table in tables_of(title, rows, main_row):
        print(f"\n{table.title}:\n\n{table.markdown}")
    notes = {one.system: one.timing.note for one in report.systems if one.timing}
    print("\n" + "\n".join(f"- {name}: {note}" for name, note in notes.items() if note))
    told = (f"{name.replace('_', ' ')} {value}" for name, value in report.conditions.items())
    print(f"\nConditions: {', '.join(told)}.")


if __name__ == "__main__":
    main()
