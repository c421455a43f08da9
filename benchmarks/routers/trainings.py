"""The trained routers of the comparison: labels by the product's own training, and the gates."""

import os
import shutil
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, closing
from multiprocessing import get_context
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.routers import gates
from benchmarks.routers import plan as plans
from benchmarks.routers.plan import Entry, Plan
from benchmarks.routers.tree import NEVER, Models, Scorer, Tree
from edgewise.addresses import bundled
from edgewise.cloud.local import LocalCloud
from edgewise.edge.base import EdgeModel
from edgewise.edge.llamacpp import LlamaModel
from edgewise.edge.vocabulary import fingerprint
from edgewise.routers.base import Router
from edgewise.routers.card import RouterCard, read_card
from edgewise.routers.named import identity_named, identity_of, router_named, router_of
from edgewise.routers.signals import reader_of
from edgewise.routers.untrained import Constant
from edgewise_lab.evaluation.store import append, read
from edgewise_lab.evaluation.tasks.base import Task
from edgewise_lab.training.collect import Sample
from edgewise_lab.training.fit import Data, Recipe, fitted
from edgewise_lab.training.labels.base import kept_values
from edgewise_lab.training.publish import save_card, save_weights
from edgewise_lab.training.router import MIXED_SHARE, TOP_K, Training

GATE, DONE = "gate.safetensors", "done"


class First(msgspec.Struct, frozen=True):
    """The edge's first step of an answer (as a router's inputs), and whether it ended right."""

    question: str
    inputs: tuple[float, ...]
    right: bool


def opened(stack: ExitStack, slots: int = 2) -> tuple[LlamaModel, LocalCloud]:
    """The bundled pair, one thread each."""
    edge = stack.enter_context(closing(LlamaModel(bundled("edge"), threads=1, slots=slots)))
    cloud = LlamaModel(bundled("cloud"), threads=1, slots=slots)
    return edge, stack.enter_context(closing(LocalCloud(cloud)))


def folder_of(entry: Entry, plan: Plan) -> Path:
    return plan.work / "routers" / entry.key


def prepare(plan: Plan) -> None:
    """The cloud's answers, the edge's features and first labels, once for all trainings."""
    names = list(plan.labels)
    if plan.baselines and plans.GATES_LABEL not in names:
        names.append(plans.GATES_LABEL)
    texts = {plans.rounds(name)[0].text: name for name in names}
    parts = range(_cores() if plan.baselines else 0)
    with _pool() as pool:
        list(pool.map(_collect, texts.values(), [plan] * len(texts)))
        list(pool.map(_label, names, [plan] * len(names)))
        list(pool.map(_firsts, parts, [plan] * len(parts)))


def unfitted(entries: Sequence[Entry], plan: Plan) -> list[Entry]:
    """Those of the trained routers that are still to be fitted."""
    return [e for e in dict.fromkeys(entries) if not (folder_of(e, plan) / DONE).exists()]


def fit_all(entries: Sequence[Entry], plan: Plan) -> None:
    """Fit them, a process a core."""
    with _pool() as pool:
        list(pool.map(fit, entries, [plan] * len(entries)))


def fit(entry: Entry, plan: Plan) -> None:
    """One router, in its folder."""
    task = _task(entry, plan, "train")
    if entry.name in plans.GATES:
        _fit_gate(entry, task, plan)
    elif entry.name == plans.QUERY_TRAINED:
        _fit_query(entry, task, plan)
    else:
        _fit_label(entry, task, plan)
    (folder_of(entry, plan) / DONE).touch()


def scorer(entry: Entry, plan: Plan, edge: EdgeModel) -> Scorer:
    """A router of the comparison, ready to score."""
    gate = folder_of(entry, plan) / GATE
    if entry.name == plans.RULE:
        return gates.DigitRule(edge.tokenizer)
    if entry.name == plans.THREE_TOKENS:
        return gates.ThreeTokens(gates.loaded(gate))
    if entry.name == plans.POSITION:
        return gates.Position(gates.loaded(gate))
    return gates.Plain(_router(entry, plan))


def identity(entry: Entry, plan: Plan) -> str:
    """Tells a router from any other, whatever it is called."""
    folder = folder_of(entry, plan)
    if (folder / GATE).exists():
        return f"{entry.name}-{gates.digest(folder / GATE)}"
    if entry.trained:
        return identity_of(read_card(folder), folder)
    return identity_named(entry.name) if entry.name in plans.PRODUCT else entry.name


def _router(entry: Entry, plan: Plan) -> Router:
    if entry.name == plans.TOP_ENTROPY:
        return gates.TopEntropy()
    if not entry.trained:
        return router_named(entry.name)
    folder = folder_of(entry, plan)
    return router_of(read_card(folder), folder)


def _cores() -> int:
    return os.cpu_count() or 1


def _pool() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(_cores(), get_context("spawn"))


def _task(entry: Entry, plan: Plan, split: str) -> Task:
    task = plan.task(split)
    return plans.without(task, entry.without) if entry.without else task


def _shared(plan: Plan) -> Path:
    return plan.work / "data"


def _collect(label: str, plan: Plan) -> None:
    with ExitStack() as stack:
        _training(Entry(label), plan, 0, _shared(plan), stack).collect()


def _label(label: str, plan: Plan) -> None:
    with ExitStack() as stack:
        _training(Entry(label), plan, 0, _shared(plan), stack).label()


def _training(entry: Entry, plan: Plan, index: int, data: Path, stack: ExitStack) -> Training:
    """One round of a label's training."""
    edge, cloud = opened(stack)
    label = plans.rounds(entry.name)[index]
    recipe = Recipe(
        hidden=(label.hidden,) if label.hidden else (), seed=entry.seed, objective=label.objective
    )
    return Training(
        _task(entry, plan, "train"),
        _task(entry, plan, "calibration"),
        folder_of(entry, plan),
        edge=edge,
        cloud=cloud,
        label=label,
        inputs=entry.inputs,
        recipe=recipe,
        data=data,
    )


def _fit_label(entry: Entry, task: Task, plan: Plan) -> None:
    """All rounds. A later one has texts and labels of its own: its pair writes them."""
    data, rounds = _shared(plan), len(plans.rounds(entry.name))
    for index in range(rounds):
        if index == 1:
            own = folder_of(entry, plan) / "data"
            shutil.rmtree(own, ignore_errors=True)
            shutil.copytree(data, own, copy_function=os.link)
            data = own
        with ExitStack() as stack:
            training = _training(entry, plan, index, data, stack)
            if index:
                training.collect()
                training.label()
            training.fit()
            if index + 1 < rounds:
                training.calibrate((MIXED_SHARE,))


def _fit_gate(entry: Entry, task: Task, plan: Plan) -> None:
    """A gate learns from the same texts and the same values as the routers."""
    samples = _samples(task, plan)
    values = kept_values(plans.rounds(plans.GATES_LABEL)[0], _shared(plan))
    known = [sample for sample in samples if sample.ids]
    texts, learnt = [s.ids for s in known], [values[s.question] for s in known]
    if entry.name == plans.POSITION:
        tensors = gates.Position.fit(learnt)
    else:
        with ExitStack() as stack:
            size = opened(stack)[0].tokenizer.size
        tensors = gates.ThreeTokens.fit(texts, learnt, size, Recipe(seed=entry.seed))
    gates.saved(tensors, folder_of(entry, plan) / GATE)


def _samples(task: Task, plan: Plan) -> list[Sample]:
    """The cloud's answers to the task's questions."""
    known = {sample.question: sample for sample in read(_shared(plan) / "answers.jsonl", Sample)}
    return [known[question.id] for question in task.questions]


def _firsts(part: int, plan: Plan) -> None:
    """What the router of whole questions learns from: a core's part of the training questions."""
    known = _known_firsts(plan)
    path = _shared(plan) / f"first-{part}.jsonl"
    questions = plan.task("train").questions[part :: _cores()]
    with ExitStack() as stack:
        edge, cloud = opened(stack)
        models = stack.enter_context(
            closing(Models(edge, cloud.model, plan.task("train").max_tokens))
        )
        for question in questions:
            if question.id not in known:
                tree = Tree(question, models)
                right = tree.walk("edge", gates.Plain(Constant(0.0)), NEVER).right
                inputs = reader_of(plans.INPUTS, TOP_K)(tree.root.steps[0])
                append(path, First(question.id, tuple(inputs.tolist()), right))


def _known_firsts(plan: Plan) -> dict[str, First]:
    paths = sorted(_shared(plan).glob("first-*.jsonl"))
    return {first.question: first for path in paths for first in read(path, First)}


def _fit_query(entry: Entry, task: Task, plan: Plan) -> None:
    """A perceptron on the edge's first step: is the cloud right and the edge wrong?"""
    samples, firsts = _samples(task, plan), _known_firsts(plan)
    found = [firsts[sample.question] for sample in samples]
    worth = [s.right and not f.right for s, f in zip(samples, found, strict=True)]
    rows = np.arange(len(samples), dtype=np.int32)
    data = Data(np.array([f.inputs for f in found], np.float32), np.float32(worth), rows, rows)
    # A row a question: batches of a router's tokens would be one or two an epoch.
    fit = fitted("mlp", data, Recipe(batch=128, seed=entry.seed), lambda: None)
    folder = folder_of(entry, plan)
    with ExitStack() as stack:
        edge, _ = opened(stack)
        card = RouterCard(
            kind="mlp",
            edge_fingerprint=edge.fingerprint(),
            tokenizer_fingerprint=fingerprint(edge.tokenizer),
            hidden_size=edge.hidden_size,
            inputs=plans.INPUTS,
            top_k=TOP_K,
            trained_on=f"{task.name}, {len(task.questions)} questions",
            label="the cloud is right and the edge wrong, at the end of the prompt",
        )
    save_weights(folder, fit.tensors, [question.prompt for question in task.questions])
    save_card(folder, card, ())
