"""What a cloud share buys as served: `python -m benchmarks.realised_share TASK --edge --cloud`.

Opens the pair once for each row, as `edgewise serve` does: one budget for all answers, the ratio of
verification or the router's threshold started and moved as it is for users. The first questions
behind `--skip` are answered with verification at every `--cloud-share`, exactly, and by every
`--router` at every share; these have a second row, the threshold that they start at, held: if it
has more right at the same share, the controller is at fault. Prints Markdown: right answers and the
realised share with 95% intervals over questions, requests, dropped tokens, seconds. Interrupted, it
goes on.
"""

import argparse
import time
from collections.abc import Iterator
from functools import partial
from itertools import product
from pathlib import Path

import msgspec

from benchmarks.shared import ends, show
from edgewise import Pair
from edgewise_lab.evaluation.statistics import mean_interval, ratio_interval
from edgewise_lab.evaluation.store import append, read
from edgewise_lab.evaluation.tasks.base import Task
from edgewise_lab.evaluation.tasks.grading import is_right
from edgewise_lab.evaluation.tasks.named import open_task

HEAD = (
    *("system", "asked", "right, %", "realised, %", "tokens an answer", "requests", "dropped"),
    "seconds",
)


class Answered(msgspec.Struct, frozen=True):
    """One answer; tokens are the edge's."""

    question: str
    right: bool
    tokens: int
    by_cloud: int
    wasted: int
    seconds: float
    requests: int = 0


def measured(task: Task, path: Path, pair: Pair) -> list[Answered]:
    """What `path` has of the task's questions, or all of them anew: a budget has a past."""
    with pair:
        kept = read(path, Answered)
        if len(kept) >= len(task.questions):
            return kept[: len(task.questions)]
        path.unlink(missing_ok=True)
        for question in task.questions:
            begun = time.monotonic()
            answer = pair.ask(question.prompt, max_tokens=task.max_tokens)
            usage = answer.usage
            one = Answered(
                question.id,
                is_right(question, answer.text),
                usage.edge_tokens + usage.cloud_tokens,
                usage.cloud_tokens,
                usage.wasted_tokens,
                time.monotonic() - begun,
                usage.cloud_calls,
            )
            append(path, one)
    return read(path, Answered)


def row(named: str, share: float | None, found: list[Answered]) -> list[str]:
    tokens, cloud = [one.tokens for one in found], [one.by_cloud for one in found]
    right = [float(one.right) for one in found]
    means = [
        sum(values) / len(found)
        for values in (
            tokens,
            [one.requests for one in found],
            [one.wasted for one in found],
            [one.seconds for one in found],
        )
    ]
    return [
        named,
        "" if share is None else f"{share:.1%}",
        ends(sum(right) / len(right), mean_interval(right), 1),
        ends(sum(cloud) / sum(tokens), ratio_interval(cloud, tokens), 1),
        *(f"{mean:.2f}" for mean in means),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--edge", required=True)
    parser.add_argument("--cloud", required=True)
    parser.add_argument("--router", action="append", default=[])
    parser.add_argument("--verify", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--cloud-share", type=float, action="append", default=[])
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument("--max-tokens", type=int, help="default: the task's")
    parser.add_argument("--skip", type=int, default=0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--work", type=Path, required=True)
    chosen = parser.parse_args()
    task = open_task(chosen.task, data=chosen.data, check=None)
    questions = task.questions[chosen.skip : chosen.skip + chosen.questions]
    most = chosen.max_tokens or task.max_tokens
    task = msgspec.structs.replace(task, questions=questions, max_tokens=most)
    chosen.work.mkdir(parents=True, exist_ok=True)
    of_both = {"edge": chosen.edge, "cloud": chosen.cloud, "threads": chosen.threads}
    opened = partial(Pair, **of_both, temperature=0.0)
    shares = chosen.cloud_share or [0.05, 0.1]

    def rows() -> Iterator[list[str]]:
        def shown(named: str, share: float | None, kept: str, pair: Pair) -> list[str]:
            return row(named, share, measured(task, chosen.work / f"{kept}.jsonl", pair))

        for share in shares if chosen.verify else ():
            pair = opened(verify="on", cloud_share=share)
            yield shown("verify", share, f"verify-{share:g}", pair)
        if chosen.verify:
            yield shown("exact", None, "exact", opened(verify="exact"))
        for router, share in product(chosen.router or ["auto"], shares):
            asking = partial(opened, router=router, verify="off")
            served = asking(cloud_share=share)
            name, start = Path(router).name, served.policy.threshold
            yield shown(f"{name}, as served", share, f"{name}-{share:g}", served)
            held = f"{name}-{share:g}-static"
            yield shown(f"{name}, threshold {start:.3g}", share, held, asking(threshold=start))

    show(HEAD, rows())


if __name__ == "__main__":
    main()
