"""Does a router that goes on learning regain what shift lost? `python -m benchmarks.online_router`.

For each family routers are trained without it. One of them then answers a stream of questions
under the cloud share and learns from the completions it gets: the left-out family's alone, or those
of all families in turn. What it has learnt by the middle of the stream is judged on the later
half, beside the router as it was trained, entropy, and a router that was trained with the family,
all at thresholds that realise the same share of it. The same on ordinary questions, where nothing
was lost and nothing may get lost, and on the task's shifted sets. Prints Markdown.

Texts, labels and routers are those of `python -m benchmarks.routers` and lie in `--work` as
theirs do; what streams and judges came to is kept there, too: interrupted, it goes on.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from benchmarks.markdown import line, percent
from benchmarks.routers import streams, trainings
from benchmarks.routers.compare import manifest
from benchmarks.routers.online import Habits
from benchmarks.routers.plan import Entry, Plan
from benchmarks.routers.streams import CLOUD, EDGE, LABEL, METHODS, UNTRAINED, Learner, Learnt, Run
from edgewise.errors import UsageError
from edgewise_lab.evaluation.journal import claim
from edgewise_lab.evaluation.statistics import Seeds, pooled_difference, pooled_gap
from edgewise_lab.evaluation.systems import Outcome, cloud_share
from edgewise_lab.evaluation.tasks.pocketqa import PocketQa

REGAINED = 0.5
"""Of what shift lost: less is not worth a state that changes."""

LEAST = 0.05
"""Of the gap: where shift loses less, there is nothing to regain."""

ByFamily = dict[str, list[list[Outcome]]]
"""Outcomes of the later half by family, a list for each seed."""


def main() -> None:
    options = _options()
    # A process a core: threads inside them would only wait for each other.
    os.environ["OMP_NUM_THREADS"] = "1"
    plan = Plan(
        options.work,
        (LABEL,),
        options.seeds,
        (options.share,),
        tuple(options.sets),
        options.train,
        options.calibration,
        options.stream,
        baselines=False,
    )
    habits = Habits(options.share, options.explored, options.heaviest, options.worth == "sure")
    began = time.monotonic()
    try:
        run = prepared(plan, habits)
        found = answered(run)
    except UsageError as error:
        sys.exit(str(error))
    print("\n".join(Tables(run, *found).all()).lstrip())
    print(
        f"\nAt a cloud share of {options.share:.0%}. Of each family {options.stream} questions, "
        "the earlier half to learn from and the later to be judged by; "
        f"{options.calibration} others to set thresholds, {options.train} to train on; "
        f"{options.seeds} training seeds; in brackets 95% intervals."
    )
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)


def _options() -> argparse.Namespace:
    sets = tuple(split for split in PocketQa.splits if split not in ("train", "calibration"))
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("build/routers"))
    parser.add_argument("--sets", nargs="+", choices=sets, default=sets)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--share", type=float, default=0.05)
    parser.add_argument("--train", type=int, default=1000, help="of each family, to train on")
    parser.add_argument("--calibration", type=int, default=150, help="of each, for thresholds")
    parser.add_argument("--stream", type=int, default=400, help="of each, half to learn from")
    parser.add_argument(
        "--explored", type=float, default=0.1, help="of the share, for places drawn at random"
    )
    parser.add_argument(
        "--heaviest", type=float, default=1.0, help="what such a place's completion counts at most"
    )
    parser.add_argument(
        "--worth",
        choices=("sure", "changed"),
        default="sure",
        help="of a consult that changed the token: the cloud's probability of its own, or 1",
    )
    return parser.parse_args()


def prepared(plan: Plan, habits: Habits) -> Run:
    """Routers with and without each family, trained where they are not; the results' folder."""
    described = dict(manifest(plan))
    claim(plan.work, described)
    families = plan.task("test").families if "test" in plan.sets else ()
    entries = [Entry(LABEL, s, f) for s in range(plan.seeds) for f in ("", *families)]
    if left := trainings.unfitted(entries, plan):
        _tell("texts and labels")
        trainings.prepare(plan)
        _tell(f"{len(left)} fits")
        trainings.fit_all(left, plan)
    described["routers"] = [trainings.identity(entry, plan) for entry in entries]
    described["learning"] = [*_values(habits), plan.questions]
    folder = plan.work / "online" / streams.digest(described)
    claim(folder, described)
    return Run(plan, habits, folder)


def answered(run: Run) -> tuple[list[Learner], dict[str, Learnt]]:
    """Streams, then what their learners are worth."""
    splits = run.plan.sets
    every = streams.learners(run, splits)
    known: dict[str, Learnt] = {}
    for known in streams.learn_all(run, every):
        _tell(f"streams: {len(known)} of {len(every)}")
    for split, family in streams.judge_all(run, splits, every, known):
        _tell(f"judged: {split}, {family}")
    return every, known


class Tables:
    """What was found, in Markdown."""

    def __init__(self, run: Run, every: Sequence[Learner], known: dict[str, Learnt]) -> None:
        self._run, self._every, self._known = run, every, known
        self._judged = {
            (split, family): streams.judged(run, split, family)
            for split in run.plan.sets
            for family in run.families(split)
        }

    def all(self) -> list[str]:
        """Left-out families, ordinary questions, shifted sets, and what streams were like."""
        lines: list[str] = []
        for split in self._run.plan.sets:
            if split == "test":
                lines += ["", "### Each family with routers that were trained without it", ""]
                lines += self._left_out()
                lines += ["", "### Elsewhere: the other families, points of accuracy gained", ""]
                lines += self._elsewhere()
            title = "Ordinary questions" if split == "test" else f"Shifted: {split}"
            lines += ["", f"### {title}, a router that knows all families", ""]
            lines += self._knowing_all(split)
        return [*lines, "", "### The streams", "", *self._spent()]

    def _left_out(self) -> list[str]:
        families = self._run.families("test")
        lines = line(["gap recovered, %", *families, "average"], head=True)
        without = {f: self._seeded("test", f, Entry(LABEL, without=f)) for f in families}
        ceiling = {f: self._seeded("test", f, Entry(LABEL)) for f in families}
        for name in UNTRAINED:
            lines += self._gaps("test", name, {f: [self._of("test", f, name)] for f in families})
        lines += self._gaps("test", "as trained, without it", without)
        methods: list[tuple[str, ByFamily]] = []
        for method in METHODS:
            for stream in ("own", "whole"):
                told = {
                    f: self._learnt("test", f, f, (f,) if stream == "own" else families, method)
                    for f in families
                }
                methods.append((f"{method}; {stream} stream", told))
        for name, told in methods:
            lines += self._gaps("test", name, told)
        lines += self._gaps("test", "as trained, with it", ceiling)
        lines += ["", *line(["regained of what was lost, %; points", *families], head=True)]
        for name, told in methods:
            cells = [self._regained(f, told[f], without[f], ceiling[f]) for f in families]
            lines += line([name, *cells])
        return lines

    def _elsewhere(self) -> list[str]:
        """Routers without a family, after a stream of all: on the families that they know."""
        families = self._run.families("test")
        lines = line(["trained without", *METHODS], head=True)
        for left in families:
            others = [f for f in families if f != left]
            cells = [
                self._points(
                    "test",
                    {f: self._learnt("test", f, left, families, method) for f in others},
                    {f: self._seeded("test", f, Entry(LABEL, without=left)) for f in others},
                )
                for method in METHODS
            ]
            lines += line([left, *cells])
        return lines

    def _knowing_all(self, split: str) -> list[str]:
        families = self._run.families(split)
        lines = line(["gap recovered, %", *families, "average"], head=True)
        trained = {f: self._seeded(split, f, Entry(LABEL)) for f in families}
        for name in UNTRAINED:
            lines += self._gaps(split, name, {f: [self._of(split, f, name)] for f in families})
        lines += self._gaps(split, "as trained", trained)
        told = {m: {f: self._learnt(split, f, "", families, m) for f in families} for m in METHODS}
        for method, found in told.items():
            lines += self._gaps(split, method, found)
        lines += ["", *line(["points gained", *families, "average"], head=True)]
        for method, found in told.items():
            cells = [self._points(split, {f: found[f]}, {f: trained[f]}) for f in families]
            lines += line([method, *cells, self._points(split, found, trained)])
        return lines

    def _spent(self) -> list[str]:
        head = ["stream", "without", "method", "realised", "consults", "changed the token"]
        lines = line(head, head=True)
        first = [one for one in self._every if one.base.seed == 0]
        for one in first:
            found = self._known[one.key]
            whole = one.families == self._run.families(one.split)
            name = f"{one.split}, {'all' if whole else ', '.join(one.families)}"
            cells = [name, one.base.without or "-", one.method, f"{found.share:.1%}"]
            lines += line(
                [*cells, str(found.consults), f"{found.changed / max(1, found.consults):.0%}"]
            )
        return lines

    def _gaps(self, split: str, name: str, told: ByFamily) -> list[str]:
        cells = [
            f"{percent(pooled_gap([self._seeds(split, f, own)]))} at {_share(own)}"
            for f, own in told.items()
        ]
        every = [self._seeds(split, f, own) for f, own in told.items()]
        return line([name, *cells, f"**{percent(pooled_gap(every))}**"])

    def _regained(
        self,
        family: str,
        told: list[list[Outcome]],
        without: list[list[Outcome]],
        ceiling: list[list[Outcome]],
    ) -> str:
        """Of the gap between the router without and the one with the family; and the points."""
        low, found, high = (
            pooled_gap([self._seeds("test", family, own)])[0] for own in (without, told, ceiling)
        )
        points = self._points("test", {family: told}, {family: without})
        if not high - low >= LEAST:
            return f"nothing lost; {points}"
        return f"{(found - low) / (high - low):.0%}; {points}"

    def _points(self, split: str, told: ByFamily, rival: ByFamily) -> str:
        """Of accuracy above a rival, averaged over the families."""
        return percent(pooled_difference([self._seeds(split, f, told[f], rival[f]) for f in told]))

    def _seeds(
        self,
        split: str,
        family: str,
        told: list[list[Outcome]],
        rival: list[list[Outcome]] | None = None,
    ) -> Seeds:
        edge, cloud = (self._of(split, family, name) for name in (EDGE, CLOUD))
        columns = zip(*map(_right, rival or [edge]), strict=True)
        return Seeds(
            _right(edge),
            [_right(own) for own in told],
            _right(cloud),
            [sum(column) / len(column) for column in columns],
        )

    def _seeded(self, split: str, family: str, entry: Entry) -> list[list[Outcome]]:
        return [self._of(split, family, entry._replace(seed=s).key) for s in self._all_seeds()]

    def _learnt(
        self, split: str, family: str, without: str, stream: tuple[str, ...], method: str
    ) -> list[list[Outcome]]:
        return [
            self._of(split, family, Learner(Entry(LABEL, s, without), split, stream, method).key)
            for s in self._all_seeds()
        ]

    def _all_seeds(self) -> range:
        return range(self._run.plan.seeds)

    def _of(self, split: str, family: str, row: str) -> list[Outcome]:
        found = self._judged[split, family]
        key = Entry(row).key if row in UNTRAINED else row
        return list(found[key].outcomes)


def _right(found: Sequence[Outcome]) -> list[bool]:
    return [outcome.right for outcome in found]


def _share(seeds: Sequence[Sequence[Outcome]]) -> str:
    return f"{cloud_share([o for found in seeds for o in found]):.1%}"


def _values(habits: Habits) -> list[object]:
    return [getattr(habits, name) for name in habits.__struct_fields__]


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
