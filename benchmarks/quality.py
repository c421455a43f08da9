"""What the bundled pair keeps, and what it learns without answers.

`python -m benchmarks.quality keep`: 20 splits of the test questions; on one part of each a
threshold that keeps a quality is looked for, on the rest it is judged. `... final`: routers of 130
prompts without answers beside those that need no training.
What either model makes of a prefix is computed once for all systems. Prints Markdown.
"""

import argparse
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from benchmarks.real_pair import KnownCloud, KnownEdge, checkpoint
from edgewise.errors import UsageError
from edgewise.opening import open_router
from edgewise.pair import open_models
from edgewise.routers.base import Router
from edgewise.routers.named import router_named
from edgewise.settings import Settings
from edgewise_lab.evaluation.calibration import Answers
from edgewise_lab.evaluation.promise import keeping, sequence
from edgewise_lab.evaluation.statistics import difference_interval
from edgewise_lab.evaluation.systems import CloudAlone, Outcome, cloud_share, edge_alone
from edgewise_lab.evaluation.tasks.base import Question, Task
from edgewise_lab.evaluation.tasks.grading import agreeing_task, is_right
from edgewise_lab.evaluation.tasks.pocketqa import pocketqa
from edgewise_lab.tables import line
from edgewise_lab.training.fit import Recipe
from edgewise_lab.training.labels.base import labels_named
from edgewise_lab.training.router import Training

SPLITS, KEEPS = 20, (0.7, 0.8, 0.9, 0.95)
PROMPTS, HELD_OUT = 130, 26
ASKED = (0.05, 0.1)
TRIED = (0.02, 0.03, 0.04, 0.05, 0.06, 0.07, 0.08, 0.1, 0.12, 0.14)
"""Parts of the edge's own tokens that reach the thresholds that are tried."""

By = dict[float, list[Outcome]]
"""By threshold: the answers to all questions."""


class Pair:
    """The bundled pair."""

    def __init__(self) -> None:
        self.models = open_models(Settings(threads=1))
        edge, cloud = self.models.both()
        self.edge: Any = KnownEdge(edge)
        self.cloud: Any = KnownCloud(cloud)
        self.bare = edge, cloud
        self.router = open_router(Settings(router="bundled"), edge)[0]

    def by_question(self, task: Task, answer: Callable[[Question], None]) -> None:
        for question in task.questions:
            answer(question)
            self.edge.forget()
            self.cloud.forget()

    def grid(self, task: Task, routers: dict[str, tuple[Router, Sequence[float]]]) -> dict[str, By]:
        """Every router's answers at every one of its thresholds."""
        found: dict[str, By] = {name: {at: [] for at in ats} for name, (_, ats) in routers.items()}

        def answer(question: Question) -> None:
            one = replace(task, questions=(question,))
            for name, (router, ats) in routers.items():
                answers = Answers(router, one, edge=self.edge, cloud=self.cloud)
                for at in ats:
                    found[name][at].append(answers.at(at).answers[0].outcome)

        self.by_question(task, answer)
        return found

    def tried(self, router: Router, task: Task) -> list[float]:
        """Thresholds that so many of the edge's own tokens reach."""
        alone = edge_alone(self.bare[0], task.max_tokens, router)
        scores = [t.score for q in task.questions[:100] for t in alone.ask(q).tokens]
        return [float(np.quantile(np.array(scores, float), 1 - part)) for part in TRIED]


def keep(pair: Pair, questions: int, calibration: int) -> list[str]:
    """Agreement with the cloud, and right answers, by the bundled router and by entropy."""
    task = pocketqa("test").first(questions)
    alone = CloudAlone(pair.bare[1], pair.bare[0].tokenizer, task.max_tokens)
    blank = replace(task, questions=tuple(unknown(q) for q in task.questions))
    agreeing = agreeing_task(blank, {q.id: alone.answer(q).text for q in task.questions})
    routers = {"bundled": pair.router, "entropy": router_named("entropy")}
    ats = {name: sequence(pair.bare[0], router) for name, router in routers.items()}
    right = pair.grid(task, {name: (router, ats[name]) for name, router in routers.items()})
    rng = np.random.default_rng(0)
    orders = [rng.permutation(questions) for _ in range(SPLITS)]
    lines = line(["router", "kept", "asked", "refused", "held", "rate", "share"], head=True)
    for name, by in right.items():
        agreed = {
            at: [
                replace(one, right=is_right(question, one.text))
                for question, one in zip(agreeing.questions, ones, strict=True)
            ]
            for at, ones in by.items()
        }
        for what, answers in (("agreement", agreed), ("right", by)):
            for asked in KEEPS:
                cells = split(asked, ats[name], answers, orders, calibration)
                lines += line([name, what, f"{asked:.0%}", *cells])
    return lines


def split(
    asked: float, ats: Sequence[float], answers: By, orders: Sequence[Any], calibration: int
) -> list[str]:
    """How many splits were refused and held, the mean rate and cloud share on the rest."""
    rates: list[float] = []
    shares: list[float] = []
    for order in orders:
        few, rest = order[:calibration], order[calibration:]
        try:
            found = keeping(asked, ats, lambda at, few=few: [answers[at][i] for i in few])
        except UsageError:
            continue
        judged = [answers[found.threshold][i] for i in rest]
        rates.append(float(np.mean([one.right for one in judged])))
        shares.append(cloud_share(judged))
    held = sum(rate >= asked for rate in rates)
    means = [f"{np.mean(rates):.1%}", f"{np.mean(shares):.1%}"] if rates else ["", ""]
    return [str(len(orders) - len(rates)), f"{held} of {len(rates)}", *means]


def unknown(question: Question) -> Question:
    """The prompt alone, as a file of prompts has it."""
    return replace(question, known=False, answer="", check="words", choices=None)


def final(pair: Pair, test: Task, work: Path, variants: Sequence[str], seeds: int) -> list[str]:
    """Variants are LABEL:INPUT,INPUT; each is trained for several seeds on the same prompts."""
    routers: dict[str, Router] = {"entropy": router_named("entropy")}
    train = pocketqa("train").first(PROMPTS)
    starts = {name: pair.tried(router, train) for name, router in routers.items()}
    for variant in variants:
        for seed in range(seeds):
            name = f"{variant} {seed}"
            routers[name] = trained(pair, variant, seed, work / name)
            starts[name] = pair.tried(routers[name], train)
    found = pair.grid(test, {name: (router, starts[name]) for name, router in routers.items()})
    lines = line(["router", "asked", "share", "right", "above entropy, points"], head=True)
    for asked in ASKED:
        rival = nearest(found["entropy"], asked)
        for name, by in found.items():
            own = nearest(by, asked)
            lines += line([name, f"{asked:.0%}", *shown(own), points(own, rival)])
    return lines


def trained(pair: Pair, variant: str, seed: int, folder: Path) -> Router:
    """Fitted to prompts without answers; no thresholds."""
    label, _, inputs = variant.partition(":")
    asked = pocketqa("train").first(PROMPTS)
    blank = tuple(unknown(question) for question in asked.questions)
    training = Training(
        replace(asked, questions=blank[:-HELD_OUT]),
        replace(asked, questions=blank[-HELD_OUT:]),
        folder,
        edge=pair.bare[0],
        cloud=pair.bare[1],
        label=labels_named(label)[0],
        inputs=tuple(inputs.split(",")),
        recipe=Recipe(seed=seed),
        data=folder.parent / label,
    )
    training.collect()
    training.label()
    training.fit()
    return checkpoint(folder)[0]


def nearest(by: By, asked: float) -> list[Outcome]:
    return min(by.values(), key=lambda outcomes: abs(cloud_share(outcomes) - asked))


def shown(outcomes: Sequence[Outcome]) -> list[str]:
    right = float(np.mean([one.right for one in outcomes]))
    return [f"{cloud_share(outcomes):.1%}", f"{right:.1%}"]


def points(one: Sequence[Outcome], other: Sequence[Outcome]) -> str:
    first, second = [o.right for o in one], [o.right for o in other]
    low, high = difference_interval(first, second)
    return f"{100 * (np.mean(first) - np.mean(second)):.1f} ({100 * low:.1f} to {100 * high:.1f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=["keep", "final"])
    parser.add_argument("--questions", type=int, default=600)
    parser.add_argument("--calibration", type=int, default=200)
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "quality")
    parser.add_argument("--variant", action="append", default=[], help="LABEL:INPUT,INPUT")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--skip", type=int, default=0, help="of the questions, the first; final")
    chosen = parser.parse_args()
    pair = Pair()
    if chosen.part == "keep":
        lines = keep(pair, chosen.questions, chosen.calibration)
    else:
        test = pocketqa("test").first(chosen.questions)
        test = replace(test, questions=test.questions[chosen.skip :])
        lines = final(pair, test, chosen.work, chosen.variant, chosen.seeds)
    print("\n".join(lines))


if __name__ == "__main__":
    main()
