"""Trains a router for a pair of models from questions: collect, label, fit, calibrate."""

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from edgewise.cloud.base import CloudModel
from edgewise.costs.price import NOTHING, BilledTokens
from edgewise.edge.base import EdgeModel, Floats
from edgewise.edge.vocabulary import fingerprint
from edgewise.errors import UsageError, VocabularyMismatch
from edgewise.registry import code_file
from edgewise.routers.base import Router
from edgewise.routers.card import CONFIG, RouterCard, behaviour_of, read_card
from edgewise.routers.named import is_trained, router_of
from edgewise.routers.signals import QUANTILES, Reference
from edgewise_lab.evaluation import systems
from edgewise_lab.evaluation.calibration import Answers, thresholds_for
from edgewise_lab.evaluation.store import read
from edgewise_lab.evaluation.tasks.base import Task
from edgewise_lab.evaluation.tasks.grading import agreeing_task
from edgewise_lab.rollouts import Rollouts, local_rollouts
from edgewise_lab.training.collect import (
    ANSWERS,
    OWN,
    Columns,
    Sample,
    Text,
    collect_answers,
    collect_features,
    read_by_cloud,
)
from edgewise_lab.training.fit import Fitted, Recipe, data_of, embeddings_of, fitted
from edgewise_lab.training.labels.base import Case, Label, Writer, kept_values, label_all
from edgewise_lab.training.publish import isotonic, save_card, save_weights
from edgewise_lab.training.spending import Spending, SpendingMeter

SHARES = (0.01, 0.02, 0.03, 0.05, 0.07, 0.10, 0.15)
"""Cloud shares that calibration finds a threshold for."""

PROBED = 8
"""Questions that the cost of a training is estimated from."""

TRIED = 3
"""Thresholds that calibration tries for a cloud share, roughly; used in estimates."""

TOP_K = 10
"""Number of log-probs in the input `top_logprobs`."""

Begin = Callable[[str, int | None], Callable[..., None]]
"""Begins a progress bar: gets name and steps (None: unknown); returns what each step calls."""


class Training:
    """Training of one router in four stages: collect, label, fit, calibrate.

    Each stage stores its results in a folder and the next one reads them, so stages can run apart.
    """

    def __init__(
        self,
        task: Task,
        calibration: Task,
        folder: Path,
        *,
        edge: EdgeModel,
        cloud: CloudModel,
        label: Label,
        inputs: tuple[str, ...],
        recipe: Recipe,
        kind: str = "mlp",
        begin: Begin = lambda name, total: lambda *estimate: None,
        deadline: float | None = None,
        data: Path | None = None,
        meter: SpendingMeter | None = None,
        workers: int = 1,
    ) -> None:
        """`task` has the questions to train on, `calibration` those to set thresholds on.

        `folder` receives the checkpoint, `data` (default: `folder`/data) what it is made from.
        `kind` is the router's, `inputs` are what it reads; a consult may take `deadline` seconds;
        calibration uses `workers` threads. Raises `VocabularyMismatch` for two vocabularies, and
        `ContextOverflow` for a question that leaves no room for an answer.
        """
        if cloud.boundaries is not None:
            raise VocabularyMismatch(
                "Training compares both models token by token, and the vocabulary of "
                f"{cloud.name!r} differs from the edge's",
                hint="train it on a pair of one vocabulary, or choose entropy",
                setting="cloud",
            )
        for asked in (task, calibration):
            systems.require_room(asked, edge, cloud)
        self.task, self.calibration = task, calibration
        self.folder, self._data = folder, data or folder / "data"
        self.meter = meter or SpendingMeter()
        self.edge, self.cloud = edge, self.meter.counted(cloud)
        self._label, self.kind = label, kind
        self.inputs, self.recipe = inputs, recipe
        self.top_k = TOP_K if "top_logprobs" in inputs else 0
        self._begin, self._deadline, self._workers = begin, deadline, workers
        self._data.mkdir(parents=True, exist_ok=True)

    def run(self) -> Fitted:
        """Run all four stages; return the fit's weights and losses."""
        self.collect()
        self.label()
        found = self.fit()
        self.calibrate()
        return found

    def estimate(self) -> Spending | None:
        """Return the expected cost of `run`, by its first two stages on `PROBED` questions.

        None if that took no cloud tokens: an earlier run had stored them.
        """
        every, few = self.task, self.task.first(PROBED)
        self.task = few
        try:
            self.collect()
            self.label()
        finally:
            self.task = every
        probed = self.meter.spent
        if probed.tokens == NOTHING:
            return None
        whole = probed.times(len(every.questions) / len(few.questions))
        # And the pair's answers at several thresholds.
        lengths = [len(one.ids) for one in read(self._data / ANSWERS, Sample)]
        question = self.calibration.questions[0]
        answer = systems.edge_alone(self.edge, self.calibration.max_tokens).ask(question)
        mean = sum(lengths) / len(lengths) if lengths else len(answer.tokens)
        prompt = len(systems.question_ids(self.edge.tokenizer, question))
        n = len(self.calibration.questions)
        consults = round(n * mean * sum(SHARES) * TRIED)
        tokens = BilledTokens(input=round(consults * (prompt + mean / 2)), output=consults)
        seconds = answer.timing.total * n * len(SHARES) * TRIED
        return Spending(whole.tokens + tokens, whole.seconds + seconds)

    def collect(self) -> None:
        """Store the texts to label (`Label.text`), and the routers' inputs at all their tokens."""
        _, columns = self._collected()
        self._reference(columns)

    def label(self) -> None:
        """Compute and store the label's value at each token of the texts."""
        samples, columns = self._collected()
        with ExitStack() as stack:
            rollouts: dict[Writer, Rollouts] = {}
            for writer in self._label.writers:
                rollouts[writer] = stack.enter_context(closing(self._rollouts(writer)))
            cases = self._cases(samples, columns)
            begin = partial(self._begin, "labels")
            label_all(self._label, cases, rollouts, self._data, begin)

    def fit(self) -> Fitted:
        """Fit; save weights, and a card without thresholds. Raises `UsageError` without labels."""
        values = kept_values(self._label, self._data)
        columns = self._collected()[1] if values else None
        if columns is None or not values.keys() >= set(columns.questions):
            raise UsageError(
                f"{str(self.folder)!r} does not hold what this stage needs",
                hint="run all stages first",
                setting="stage",
            )
        reference = self._reference(columns)
        done = self._begin("fitting", self.recipe.epochs)
        data = data_of(
            columns,
            values,
            inputs=self.inputs,
            top_k=self.top_k,
            reference=reference,
            embeddings=embeddings_of(self.edge) if "token_embedding" in self.inputs else None,
        )
        found = fitted(self.kind, data, self.recipe, done)
        card = replace(
            self._plain_card(),
            inputs=self.inputs,
            top_k=self.top_k,
            reference=reference,
            trained_on=f"{self.task.name}, {len(self.task.questions)} questions",
            label=self._label.described,
            probability=isotonic(found.scores, found.labels),
            loss=found.loss,
            baseline_loss=found.baseline_loss,
        )
        save_weights(self.folder, found.tensors, [q.text for q in self.task.questions])
        save_card(self.folder, card)
        return found

    def calibrate(self, shares: Sequence[float] = SHARES) -> RouterCard:
        """Save the card with a threshold for each cloud share, and return it.

        A router that needs no training gets its checkpoint here. Raises `UsageError` if the folder
        lacks a trained router or holds another kind, `RouterMismatch` if it is for another edge.
        """
        card, router = self._to_calibrate()
        answers = Answers(
            router,
            self.calibration,
            edge=self.edge,
            cloud=self.cloud,
            deadline=self._deadline,
            done=self._begin("calibrating", None),
            workers=self._workers,
        )
        found = thresholds_for(shares, answers)
        card = replace(
            card,
            thresholds={f"{share:g}": at.threshold for share, at in found.items()},
            realised={f"{share:g}": (at.share, *at.interval) for share, at in found.items()},
            calibrated_on=f"{self.calibration.name}, {len(self.calibration.questions)} other "
            "questions",
        )
        save_card(self.folder, card)
        return card

    def _plain_card(self) -> RouterCard:
        return RouterCard(
            kind=kind_recorded(self.kind, self.folder),
            edge_fingerprint=self.edge.fingerprint(),
            tokenizer_fingerprint=fingerprint(self.edge.tokenizer),
            hidden_size=self.edge.hidden_size,
            build=self.edge.build,
            behaviour=behaviour_of(self.edge),
        )

    def _to_calibrate(self) -> tuple[RouterCard, Router]:
        card = self._plain_card()
        if (self.folder / CONFIG).exists() or is_trained(self.kind):
            held = replace(read_card(self.folder), thresholds={}, realised={})
            held.require_fits(self.edge, self.folder)
            if held.kind != card.kind:
                raise UsageError(
                    f"{str(self.folder)!r} holds a router of the kind {held.kind!r}, not "
                    f"{card.kind!r}",
                    hint="name its kind, or another folder",
                    setting="kind",
                )
            # Calibrated with this build of the edge model, it belongs to this build.
            card = replace(
                held,
                edge_fingerprint=card.edge_fingerprint,
                build=card.build,
                behaviour=card.behaviour,
            )
        return card, router_of(card, self.folder)

    def _collected(self) -> tuple[list[Sample], Columns]:
        if not self.task.known:
            answers = self._written("cloud")
            texts = {one.question: systems.text_of(self.edge.tokenizer, one.ids) for one in answers}
            self.task = agreeing_task(self.task, texts)
        if self._label.text == "answer":
            samples = self._written("cloud")
        else:
            own = self._written("edge")
            done = self._begin("cloud's reading", len(own))
            samples = read_by_cloud(own, self.cloud, self._data, done, meter=self.meter)
        return samples, self._features(samples, self._label.text)

    def _rollouts(self, writer: Writer) -> Rollouts:
        if writer == "edge":
            return local_rollouts(self.edge)
        if self.cloud.local is None:
            return Rollouts(self.cloud)
        return local_rollouts(self.cloud.local, seen=self.meter.counted)

    def _written(self, by: Writer) -> list[Sample]:
        asked = self.task, self.edge.tokenizer
        done = self._begin(f"{by}'s answers", len(self.task.questions))
        contexts = systems.contexts_of(self.edge, self.cloud)
        name = OWN if by == "edge" else ANSWERS
        with closing(self._rollouts(by)) as writer:
            return collect_answers(*asked, writer, self._data, done, contexts=contexts, name=name)

    def _features(self, samples: Sequence[Sample], text: Text) -> Columns:
        done = self._begin("edge's features", len(samples))
        return collect_features(samples, text, self.edge, self._data, done)

    def _reference(self, columns: Columns) -> Reference:
        if "ranks" not in self.inputs:
            return ()
        if self._label.text != "own":
            columns = self._features(self._written("edge"), "own")
        return reference_of(columns.inputs["ranks"])

    def _cases(self, samples: Sequence[Sample], columns: Columns) -> list[Case]:
        known = {sample.question: sample for sample in samples}
        asked = {question.id: question for question in self.task.questions}
        ends = np.flatnonzero(np.diff(columns.sample)) + 1
        proposed = np.split(columns.proposed, ends)
        contexts = systems.contexts_of(self.edge, self.cloud)
        return [
            Case(
                asked[name],
                known[name],
                ids.tolist(),
                self.edge.tokenizer,
                systems.max_answer_tokens(len(known[name].prompt), self.task.max_tokens, *contexts),
            )
            for name, ids in zip(columns.questions, proposed, strict=True)
        ]


def kind_recorded(name: str, folder: Path) -> str:
    """Return the router kind as its card records it: the path in `file.py:Class` from `folder`."""
    file = code_file(name)
    if file is None:
        return name
    beside = os.path.relpath(Path(file).expanduser().resolve(), folder.resolve())
    return f"{Path(beside).as_posix()}{name[len(file) :]}"


def reference_of(values: Floats) -> Reference:
    """Return `QUANTILES` quantiles, to six digits, of each column of float32[n, m] values."""
    quantiles = np.quantile(values, np.linspace(0.0, 1.0, QUANTILES), axis=0)
    return tuple(tuple(float(f"{x:.6g}") for x in column) for column in quantiles.T)
