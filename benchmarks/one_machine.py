"""Blocks of verification where edge and cloud share the cores: `python -m benchmarks.one_machine`.

The pair answers some questions of a task with verification. No answer depends on its blocks, so the
passes that other sizes would take follow from where it was corrected and how sure the edge was;
what passes take is measured here, in processor time, which other programs on the machine do not
count in. Prints Markdown: tokens a second beside each model alone, and the cloud's work over that
of writing all, both without reading the prompt.
"""

import argparse
import math
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from statistics import median
from typing import NamedTuple

import numpy as np

from edgewise import Pair
from edgewise.edge.base import EdgeModel, Needs
from edgewise.loop.decoder import Answer
from edgewise.loop.verify import SURE
from edgewise_lab.bench.pace import Pace
from edgewise_lab.evaluation.tasks.named import open_task
from edgewise_lab.tables import line

SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
AFTER = 128
"""Ids before what is measured."""


class Written(NamedTuple):
    """A token of an answer: whether it was corrected, and the edge's probability of its own."""

    corrected: bool
    sure: float


class Work(NamedTuple):
    """Tokens, and how many ids each pass was over."""

    tokens: int
    edge: tuple[int, ...]
    cloud: tuple[int, ...]


def trace(answer: Answer) -> list[Written]:
    """What an answer with verification tells of itself."""
    found: list[Written] = []
    for token in answer.tokens:
        own = token.edge[0].logprob if token.source == "cloud" else token.logprob
        found.append(Written(token.source == "cloud", math.exp(own or 0.0)))
    return found


def passes(answer: Sequence[Written], block: int, *, doubt: bool) -> Work:
    """In turns: blocks of up to so many tokens, which end where the edge is in `doubt` if so said.

    What is drafted behind a correction counts as sure as what was written there.
    """
    at, edge, cloud = 0, 0, list[int]()
    while at < len(answer):
        most = min(len(answer), at + (block if at else 1))
        unsure = [i + 1 for i in range(at, most) if doubt and answer[i].sure < SURE]
        end = unsure[0] if unsure else most
        edge += end - at
        cloud.append(end - at)
        wrong = [i + 1 for i in range(at, end) if answer[i].corrected]
        at = wrong[0] if wrong else end
    return Work(len(answer), (1,) * edge, tuple(cloud))


def seconds(pace: Pace, sizes: Sequence[int]) -> float:
    return sum(pace.of(size) for size in sizes)


def pace_of(model: EdgeModel, threads: int, repeats: int) -> Pace:
    """Processor time of passes, over the threads."""
    ids = [int(i) for i in np.random.default_rng(0).integers(10, model.tokenizer.size // 2, 256)]
    taken: dict[int, list[float]] = {size: [] for size in SIZES}
    with closing(model.session(Needs.NOTHING)) as session:
        session.open(ids[:AFTER])
        session.step()
        for _ in range(repeats):
            for size, own in taken.items():
                session.rewind(AFTER)
                begun = time.process_time()
                # A row for each, as a verification needs.
                session.steps(ids[AFTER : AFTER + size])
                own.append((time.process_time() - begun) / threads)
    return Pace(SIZES, tuple(median(own) for own in taken.values()))


def table(traces: Sequence[Sequence[Written]], edge: Pace, cloud: Pace) -> list[str]:
    """Markdown: a line for every size of blocks."""
    tokens = sum(map(len, traces))
    head = [
        "a block",
        "tokens/s",
        "over the edge alone",
        "over the cloud alone",
        "tokens a request",
    ]
    lines = line([*head, "drafts a token", "the cloud's work"], head=True)
    for doubt in (False, True):
        for block in (4, 8, 12, 16, 24, 32):
            made = [passes(one, block, doubt=doubt) for one in traces]
            own = sum(seconds(edge, one.edge) for one in made)
            read = sum(seconds(cloud, one.cloud) for one in made)
            speed = tokens / (own + read)
            lines += line(
                [
                    f"{block}" + (", or a doubt" if doubt else ""),
                    f"{speed:.1f}",
                    f"{speed * edge.of(1):.2f}",
                    f"{speed * cloud.of(1):.2f}",
                    f"{tokens / sum(len(one.cloud) for one in made):.1f}",
                    f"{sum(len(one.edge) for one in made) / tokens:.2f}",
                    f"{read / (tokens * cloud.of(1)):.2f}",
                ]
            )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("task")
    parser.add_argument("--data", type=Path)
    parser.add_argument("--edge", required=True)
    parser.add_argument("--cloud", required=True)
    parser.add_argument("--questions", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=200)
    parser.add_argument("--verify", choices=("on", "exact"), default="on")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--repeats", type=int, default=3)
    chosen = parser.parse_args()
    task = open_task(chosen.task, data=chosen.data, check=None).first(chosen.questions)
    of_both = {"edge": chosen.edge, "cloud": chosen.cloud, "threads": chosen.threads}
    with Pair(**of_both, verify=chosen.verify, temperature=0.0) as pair:
        assert pair.cloud is not None
        assert pair.cloud.local is not None
        paces = [
            pace_of(one, chosen.threads, chosen.repeats) for one in (pair.edge, pair.cloud.local)
        ]
        traces = [
            trace(pair.ask(question.prompt, max_tokens=chosen.max_tokens))
            for question in task.questions
        ]
    corrected = sum(one.corrected for answer in traces for one in answer)
    print(f"{len(traces)} answers, {corrected / sum(map(len, traces)):.1%} corrected.")
    for name, pace in zip(("edge", "cloud"), paces, strict=True):
        each = ", ".join(f"{n}: {1000 * pace.of(n):.0f}" for n in SIZES)
        print(f"A pass of the {name}, ms by ids: {each}.")
    print("\n".join(["", *table(traces, *paces)]))


if __name__ == "__main__":
    main()
