"""Labels of the bundled pair: a few real answers, and a cloud that is no judge."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from edgewise.addresses import bundled
from edgewise.cloud.local import LocalCloud
from edgewise.edge.llamacpp import LlamaModel
from edgewise_lab.evaluation.tasks.base import Task
from edgewise_lab.evaluation.tasks.pocketqa import pocketqa
from edgewise_lab.training.fit import Recipe
from edgewise_lab.training.labels.base import kept_values, labels_named
from edgewise_lab.training.router import Training
from tests.training.linear import KIND, Linear

TASK = pocketqa("train").first(15)


@pytest.fixture(scope="module")
def pair() -> Iterator[tuple[LlamaModel, LocalCloud]]:
    edge = LlamaModel(bundled("edge"), threads=1)
    cloud = LocalCloud(LlamaModel(bundled("cloud"), threads=1))
    with closing(edge), closing(cloud):
        yield edge, cloud


def labelled(pair: tuple[LlamaModel, LocalCloud], folder: Path, name: str, task: Task, **more: str):
    (label,) = labels_named(name, **more)
    edge, cloud = pair
    one = Training(
        *(task, task, folder / label.name),
        edge=edge,
        cloud=cloud,
        label=label,
        inputs=("scalars",),
        recipe=Recipe(epochs=1, objective=label.objective, held_out=0.2),
        kind=KIND,
        data=folder,
    )
    one.collect()
    one.label()
    return one, kept_values(label, folder)


def test_labels_of_the_bundled_pair(pair: tuple[LlamaModel, LocalCloud], tmp_path: Path) -> None:
    """What is worth a consult is a mismatch, and what changes the outcome diverges."""
    _, mismatch = labelled(pair, tmp_path, "mismatch", TASK)
    _, value = labelled(pair, tmp_path, "value", TASK)
    _, outcome = labelled(pair, tmp_path, "r2r", TASK, judge="outcome")
    for question in TASK.questions:
        different, diverges = mismatch[question.id], outcome[question.id]
        assert all(a >= b for a, b in zip(different, diverges, strict=True))
        assert all(a >= b for a, b in zip(diverges, value[question.id], strict=True))
    assert 0 < sum(map(sum, outcome.values())) < sum(map(sum, mismatch.values()))


def test_both_models_read_the_references(
    pair: tuple[LlamaModel, LocalCloud], tmp_path: Path
) -> None:
    one, begins = labelled(pair, tmp_path, "co-llm", TASK)
    one.fit()
    data = Linear.data[-1]
    assert data.cloud_logprob is not None
    assert np.isfinite(data.cloud_logprob).all()
    assert set(np.concatenate([*begins.values()])) == {0.0, 1.0}
    known = data.labels > 0
    # Where the cloud is right and the edge wrong, the cloud finds the token likelier.
    assert data.edge_logprob is not None
    assert (data.cloud_logprob[known] > data.edge_logprob[known]).mean() > 0.9
