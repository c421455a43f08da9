"""Whether a promise of quality is kept: `python -m benchmarks.quality keep`.

20 splits of the bundled pair's test questions; on one part of each a threshold that keeps a quality
is looked for, on the rest it is judged: agreement with the cloud, and right answers, by the bundled
router and by entropy. Prints Markdown.
"""

import argparse
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from typing import Any

import numpy as np
from msgspec.structs import replace

from benchmarks.shared import show
from edgewise.errors import UsageError
from edgewise.opening import open_router
from edgewise.pair import open_models
from edgewise.routers.named import router_named
from edgewise.settings import Settings
from edgewise_lab.evaluation.calibration import Answers
from edgewise_lab.evaluation.promise import keeping, sequence
from edgewise_lab.evaluation.systems import CloudAlone, Outcome, cloud_share
from edgewise_lab.evaluation.tasks.grading import agreeing_task, is_right
from edgewise_lab.evaluation.tasks.pocketqa import pocketqa

SPLITS, KEEPS = 20, (0.7, 0.8, 0.9, 0.95)
HEAD = ("router", "kept", "asked", "refused", "held", "rate", "share")


def rows(options: argparse.Namespace) -> Iterator[list[str]]:
    task = pocketqa("test").first(options.questions)
    rng = np.random.default_rng(0)
    orders = [rng.permutation(options.questions) for _ in range(SPLITS)]
    with closing(open_models(Settings(threads=1), answers=options.workers)) as models:
        edge, cloud = models.both()
        alone = CloudAlone(cloud, edge.tokenizer, task.max_tokens)
        unknown = (replace(q, known=False, check="words", choices=None) for q in task.questions)
        blank = replace(task, questions=tuple(unknown))
        agreeing = agreeing_task(blank, {q.id: alone.answer(q).text for q in task.questions})
        bundled = open_router(Settings(router="bundled"), edge)[0]
        for name, router in (("bundled", bundled), ("entropy", router_named("entropy"))):
            ats = sequence(edge, router)
            made = Answers(router, task, edge=edge, cloud=cloud, workers=options.workers)
            right = {at: made.at(at).outcomes for at in ats}
            agreed = {
                at: [
                    replace(one, right=is_right(question, one.text))
                    for question, one in zip(agreeing.questions, ones, strict=True)
                ]
                for at, ones in right.items()
            }
            for what, answers in (("agreement", agreed), ("right", right)):
                for asked in KEEPS:
                    cells = split(asked, ats, answers, orders, options.calibration)
                    yield [name, what, f"{asked:.0%}", *cells]


def split(
    asked: float,
    ats: Sequence[float],
    answers: Mapping[float, Sequence[Outcome]],
    orders: Sequence[Any],
    calibration: int,
) -> list[str]:
    """How many splits were refused and held, the mean rate and cloud share on the rest."""
    rates, shares = list[float](), list[float]()
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("part", choices=["keep"])
    parser.add_argument("--questions", type=int, default=600)
    parser.add_argument("--calibration", type=int, default=200)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    show(HEAD, rows(parser.parse_args()))


if __name__ == "__main__":
    main()
