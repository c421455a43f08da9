"""A training of two scripted models with a router that needs no torch."""

from pathlib import Path
from typing import Any

from edgewise.cloud.base import CloudModel
from edgewise.routers.card import CONFIG, WEIGHTS
from edgewise.testing.scripted_cloud import Failing, ScriptedCloud
from edgewise.testing.scripted_edge import ScriptedEdge, replying
from edgewise_lab.evaluation.tasks.base import TRAINED_ON, Question, Task
from edgewise_lab.training.fit import Recipe
from edgewise_lab.training.labels.base import LABELS, Case, Label, Labelling
from edgewise_lab.training.router import Training
from tests.training.linear import KIND

PROMPT = "How many {:02d}?"
EDGE, CLOUD = "So it is 3.", "Oh it is 7."
STAGES = ("collect", "label", "fit", "calibrate")
INPUTS: tuple[str, ...] = ("hidden", "scalars")


class Mismatch(Label):
    """Where the models differ: nobody is asked for it."""

    name = "mismatch"
    described = "the edge's token differs from the cloud's"

    def of(self, case: Case) -> Labelling:
        yield from ()
        return [float(at in case.mismatches) for at in range(len(case.proposed))]


def sums(start: int, count: int, *, known: bool = True) -> Task:
    answer = "7" if known else ""
    questions = [
        Question(f"{i}", "sums", PROMPT.format(i), answer, "number", known=known)
        for i in range(start, start + count)
    ]
    return Task("sums", tuple(questions), max_tokens=30)


def scripted(text: str) -> ScriptedEdge:
    return ScriptedEdge(replying(text, prompt=PROMPT.format(0), unsure=range(len(text))))


def training(
    folder: Path,
    label: str = "mismatch",
    *,
    fault: Failing = lambda ask: None,
    cloud: CloudModel | None = None,
    known: bool = True,
    **more: Any,
) -> Training:
    return Training(
        sums(0, 20, known=known),
        sums(50, 3, known=known),
        folder,
        edge=more.pop("edge", None) or scripted(EDGE),
        cloud=cloud or ScriptedCloud(replying(CLOUD, prompt=PROMPT.format(0)), fault=fault),
        label=Mismatch() if label == "mismatch" else LABELS.load(label)(),
        inputs=more.pop("inputs", INPUTS),
        recipe=more.pop("recipe", Recipe(epochs=2)),
        kind=more.pop("kind", KIND),
        **more,
    )


def only(one: Training, stage: str) -> None:
    getattr(one, stage)()


def fit(one: Training) -> None:
    """With all that comes before."""
    for stage in STAGES[:3]:
        only(one, stage)


def made(folder: Path) -> dict[str, bytes]:
    """A checkpoint's files."""
    return {name: (folder / name).read_bytes() for name in (CONFIG, WEIGHTS, TRAINED_ON)}
