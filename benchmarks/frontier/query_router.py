"""A router of whole questions, trained: from the edge's first step, is the cloud right where the
edge is wrong? It learns from the questions that the bundled router learnt from."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import msgspec
import numpy as np
from rich.progress import track

from benchmarks.routers.plan import INPUTS, first_of_each
from edgewise.cloud.base import CloudModel
from edgewise.edge.base import EdgeModel, Needs, Step
from edgewise.edge.vocabulary import fingerprint
from edgewise.routers.base import Router
from edgewise.routers.card import RouterCard, read_card
from edgewise.routers.named import router_of
from edgewise.routers.signals import reader_of
from edgewise_lab.evaluation.store import append, lock_folder, read
from edgewise_lab.evaluation.systems import CloudAlone, edge_alone, question_ids
from edgewise_lab.evaluation.tasks.base import Question
from edgewise_lab.evaluation.tasks.pocketqa import pocketqa
from edgewise_lab.training.fit import Data, Recipe, fitted
from edgewise_lab.training.publish import save_card, save_weights
from edgewise_lab.training.router import TOP_K

_NEEDS = Needs.ENTROPY | Needs.TOP | Needs.HIDDEN


class _First(msgspec.Struct, frozen=True):
    """The edge's first step (as a router's inputs), and whether only the cloud ended right."""

    question: str
    inputs: tuple[float, ...]
    worth: bool


def query_router(folder: Path, edge: EdgeModel, cloud: CloudModel, each: int) -> Router:
    """The one in `folder`, or one that is trained there on `each` questions of every family.

    Interrupted, it goes on. Raises `UsageError` without the packages that training needs.
    """
    if not (folder / "config.json").exists():
        _train(folder, edge, cloud, each)
    card = read_card(folder)
    return router_of(card, folder)


def scores_of(router: Router, edge: EdgeModel, questions: Sequence[Question]) -> list[float]:
    """One a question, of the edge's first step."""
    return [router.score(_first_step(edge, question)) for question in questions]


def _train(folder: Path, edge: EdgeModel, cloud: CloudModel, each: int) -> None:
    task = first_of_each(pocketqa("train"), each)
    lock_folder(folder / "data", {"questions": [question.id for question in task.questions]})
    path = folder / "data" / "firsts.jsonl"
    known = {first.question for first in read(path, _First)}
    own = edge_alone(edge, task.max_tokens)
    alone = CloudAlone(cloud, edge.tokenizer, task.max_tokens)
    left = [question for question in task.questions if question.id not in known]
    for question in track(left, "query router", transient=True):
        inputs = reader_of(INPUTS, TOP_K)(_first_step(edge, question))
        worth = alone.answer(question).right and not own.answer(question).right
        append(path, _First(question.id, tuple(inputs.tolist()), worth))
    found = read(path, _First)
    rows = np.arange(len(found), dtype=np.int32)
    inputs = np.array([first.inputs for first in found], np.float32)
    worths = np.array([first.worth for first in found], np.float32)
    # A row a question: batches of a router's tokens would be one or two an epoch.
    fit = fitted("mlp", Data(inputs, worths, rows, rows), Recipe(batch=128), lambda: None)
    card = RouterCard(
        kind="mlp",
        edge_fingerprint=edge.fingerprint(),
        tokenizer_fingerprint=fingerprint(edge.tokenizer),
        hidden_size=edge.hidden_size,
        inputs=INPUTS,
        top_k=TOP_K,
        trained_on=f"{task.name}, {len(task.questions)} questions",
        label="the cloud is right and the edge wrong, at the end of the prompt",
    )
    save_weights(folder, fit.tensors, [question.prompt for question in task.questions])
    save_card(folder, card, ())


def _first_step(edge: EdgeModel, question: Question) -> Step:
    with closing(edge.session(_NEEDS, top=TOP_K)) as session:
        session.open(question_ids(edge.tokenizer, question))
        return session.step()
