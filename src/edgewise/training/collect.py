"""Examples to train a router on: answers of the oracle, and the edge's features along them.

The oracle follows the edge and takes the cloud's token only where the answer is lost without it.
So its answers are what a good router's pair would write, and its consults are the labels: the
value of a consult, P(right | cloud's token) - P(right | edge's token), when the cloud goes on from
both. It is 1 where the edge's token is beyond repair, else 0.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec
import numpy as np
from numpy.typing import NDArray

from edgewise.edge.base import EdgeModel, EdgeSession
from edgewise.errors import UsageError
from edgewise.evaluation.journal import append, read
from edgewise.evaluation.oracle import Oracle
from edgewise.evaluation.tasks.base import Task
from edgewise.routers.card import Input
from edgewise.routers.features import features, needs_of, top_of

TRACES = "traces.jsonl"
LABEL = "value of a consult, the cloud model going on from both tokens"


class Example(msgspec.Struct, frozen=True):
    """One answer; `consults` are the indices of the cloud's ids in it."""

    question: str
    prompt: tuple[int, ...]
    ids: tuple[int, ...]
    consults: tuple[int, ...]
    right: bool


class Data(msgspec.Struct, frozen=True):
    """`inputs` float32[n, width], `labels` float32[n], `groups` int32[n]: which example."""

    inputs: NDArray[np.float32]
    labels: NDArray[np.float32]
    groups: NDArray[np.int32]


def collect(
    task: Task, oracle: Oracle, folder: Path, done: Callable[[], None] = lambda: None
) -> list[Example]:
    """The oracle's answer to every question; what `folder` holds already is not asked again."""
    path = folder / TRACES
    known = {example.question: example for example in read(path, Example)}
    for question in task.questions:
        if question.id not in known:
            trace = oracle.trace(question)
            example = Example(question.id, trace.prompt, trace.ids, trace.consults, trace.right)
            append(path, example)
            known[question.id] = example
        done()
    return [known[question.id] for question in task.questions]


def data_of(
    examples: Sequence[Example],
    edge: EdgeModel,
    inputs: Sequence[Input],
    top_k: int,
    done: Callable[[], None] = lambda: None,
) -> Data:
    """Features of the very edge build that will run, one row a token of the answers.

    Answers that are wrong say nothing about what a consult is worth and are left out. Raises
    `UsageError` where nothing is left to learn from.
    """
    session = edge.session(needs_of(inputs), top=top_of(inputs, top_k))
    rows: list[NDArray[np.float32]] = []
    labels: list[NDArray[np.float32]] = []
    groups: list[int] = []
    try:
        for group, example in enumerate(examples):
            if example.right:
                rows.append(_rows(session, example, inputs, top_k))
                marked = np.zeros(len(example.ids), np.float32)
                marked[list(example.consults)] = 1.0
                labels.append(marked)
                groups += [group] * len(example.ids)
            done()
    finally:
        session.close()
    if not rows or not 0 < sum(part.sum() for part in labels) < len(groups):
        raise UsageError(
            "There is nothing to learn: the cloud model repairs no answer of the edge model here; "
            "give more questions, or another pair."
        )
    return Data(np.concatenate(rows), np.concatenate(labels), np.array(groups, np.int32))


def _rows(
    session: EdgeSession, example: Example, inputs: Sequence[Input], top_k: int
) -> NDArray[np.float32]:
    """float32[len(ids), width]: the step before each id, from one prefill."""
    session.open(example.prompt[:-1])
    steps = session.steps([example.prompt[-1], *example.ids[:-1]])
    return np.stack([features(step, inputs, top_k) for step in steps])
