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
from edgewise_lab.evaluation.calibration import Answers, thresholds_for
from edgewise_lab.evaluation.store import read
from edgewise_lab.evaluation.systems import (
    contexts_of,
    edge_alone,
    max_answer_tokens,
    question_ids,
    require_room,
    text_of,
)
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
from edgewise_lab.training.labels.base import (
    Case,
    Label,
    Writer,
    kept_values,
    label_all,
)
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
"""Callback as work begins, with its name and number of steps (None: unknown).

It returns a callback for each step that is done, which gets an estimate of an unknown number.
"""


class Training:
    """Training of one router in four stages: collect, label, fit, calibrate.

    The label says how much the cloud would help at each token; the router learns to predict it.
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
        begin: Begin = lambda name, total: _unseen,
        deadline: float | None = None,
        data: Path | None = None,
        meter: SpendingMeter | None = None,
        workers: int = 1,
    ) -> None:
        """`task` has the questions to train on, `calibration` those to set thresholds on.

        `folder` receives the checkpoint, `data` (default: `folder`/data) what it is made from.
        `kind` is the router's name in `ROUTERS`, `module:Class` or `./file.py:Class`; `inputs` are
        what it reads of a step. `meter` counts cloud tokens; a request to the cloud may take
        `deadline` seconds; calibration uses `workers` threads. Raises `VocabularyMismatch` for two
        vocabularies, and `ContextOverflow` for a question that leaves no room for an answer.
        """
        if cloud.boundaries is not None:
            raise VocabularyMismatch(
                "Training compares both models token by token, and the vocabulary of "
                f"{cloud.name!r} differs from the edge's",
                hint="train it on a pair of one vocabulary, or choose entropy",
                setting="cloud",
            )
        for asked in (task, calibration):
            require_room(asked, edge, cloud)
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
        """Run all four stages, and return the result of the fit."""
        self.collect()
        self.label()
        found = self.fit()
        self.calibrate()
        return found

    def estimate(self) -> Spending | None:
        """Return the expected cost of `run`, measured on the first questions.

        The first `PROBED` questions are collected and labelled for it; `run` reuses the results.
        Returns None if that took no cloud tokens, since an earlier run had stored the results.
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
        more = self._thresholds_cost()
        return Spending(whole.tokens + more.tokens, whole.seconds + more.seconds)

    def _thresholds_cost(self) -> Spending:
        """Estimate the cost of `calibrate`: the pair's answers at several thresholds."""
        lengths = [len(one.ids) for one in read(self._data / ANSWERS, Sample)]
        question = self.calibration.questions[0]
        answer = edge_alone(self.edge, self.calibration.max_tokens).ask(question)
        mean = sum(lengths) / len(lengths) if lengths else len(answer.tokens)
        prompt = len(question_ids(self.edge.tokenizer, question))
        n = len(self.calibration.questions)
        consults = round(n * mean * sum(SHARES) * TRIED)
        tokens = BilledTokens(input=round(consults * (prompt + mean / 2)), output=consults)
        return Spending(tokens, answer.timing.total * n * len(SHARES) * TRIED)

    def collect(self) -> None:
        """Collect and store the texts to label, and the routers' inputs at every token of them.

        The texts are answers of the cloud model or of the edge model, as `Label.text` says.
        """
        _, columns = self._collected()
        self._reference(columns)

    def label(self) -> None:
        """Compute and store the label's values."""
        samples, columns = self._collected()
        with ExitStack() as stack:
            rollouts: dict[Writer, Rollouts] = {}
            for writer in self._label.writers:
                made = local_rollouts(self.edge) if writer == "edge" else self._by_cloud()
                rollouts[writer] = stack.enter_context(closing(made))
            label_all(
                self._label,
                self._cases(samples, columns),
                rollouts,
                self._data,
                partial(self._begin, "labels"),
            )

    def fit(self) -> Fitted:
        """Fit the weights; save them, and a card (`config.json`) that has no thresholds yet.

        Raises `UsageError` where not all texts are labelled.
        """
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
        """Find a threshold for each cloud share; save the card with them, and return it.

        Thresholds are set on the pair's own answers to the calibration questions. A router that
        needs no training gets its checkpoint here. Raises `UsageError` if the folder lacks a
        trained router or holds another kind, `RouterMismatch` if it is for another edge model.
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
        questions = len(self.calibration.questions)
        card = replace(
            card,
            thresholds={f"{share:g}": point.threshold for share, point in found.items()},
            realised={
                f"{share:g}": (point.share, *point.interval) for share, point in found.items()
            },
            calibrated_on=f"{self.calibration.name}, {questions} other questions",
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
        """Return the checkpoint's card (or a new one) without thresholds, and its router."""
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
        """Return the label's texts and their table; what an earlier run collected is reused."""
        if not self.task.known:
            answers = self._answers()
            texts = {one.question: text_of(self.edge.tokenizer, one.ids) for one in answers}
            self.task = agreeing_task(self.task, texts)
        if self._label.text == "answer":
            samples = self._answers()
        else:
            own = self._own()
            done = self._begin("cloud's reading", len(own))
            samples = read_by_cloud(own, self.cloud, self._data, done, meter=self.meter)
        return samples, self._features(samples, self._label.text)

    def _answers(self) -> list[Sample]:
        return self._written("cloud's answers", self._by_cloud(), ANSWERS)

    def _own(self) -> list[Sample]:
        return self._written("edge's answers", local_rollouts(self.edge), OWN)

    def _by_cloud(self) -> Rollouts:
        if self.cloud.local is None:
            return Rollouts(self.cloud)
        return local_rollouts(self.cloud.local, seen=self.meter.counted)

    def _written(self, shown: str, rollouts: Rollouts, name: str) -> list[Sample]:
        contexts = contexts_of(self.edge, self.cloud)
        done = self._begin(shown, len(self.task.questions))
        with closing(rollouts) as writer:
            return collect_answers(
                *(self.task, self.edge.tokenizer, writer, self._data, done),
                contexts=contexts,
                name=name,
            )

    def _features(self, samples: Sequence[Sample], text: Text) -> Columns:
        done = self._begin("edge's features", len(samples))
        return collect_features(samples, text, self.edge, self._data, done)

    def _reference(self, columns: Columns) -> Reference:
        """Return the quantiles for `ranks`, by the edge's own answers; () without this input."""
        if "ranks" not in self.inputs:
            return ()
        if self._label.text != "own":
            columns = self._features(self._own(), "own")
        return reference_of(columns.inputs["ranks"])

    def _cases(self, samples: Sequence[Sample], columns: Columns) -> list[Case]:
        known = {sample.question: sample for sample in samples}
        asked = {question.id: question for question in self.task.questions}
        ends = np.flatnonzero(np.diff(columns.sample)) + 1
        proposed = np.split(columns.proposed, ends)
        contexts = contexts_of(self.edge, self.cloud)
        return [
            Case(
                asked[name],
                known[name],
                ids.tolist(),
                self.edge.tokenizer,
                max_answer_tokens(len(known[name].prompt), self.task.max_tokens, *contexts),
            )
            for name, ids in zip(columns.questions, proposed, strict=True)
        ]


def _unseen(estimate: int = 0) -> None:
    """Nobody watches the progress."""


def kind_recorded(name: str, folder: Path) -> str:
    """Return the router kind `name` as its card records it.

    In `file.py:Class` the path becomes relative to `folder`; other names are returned unchanged.
    """
    file = code_file(name)
    if file is None:
        return name
    beside = os.path.relpath(Path(file).expanduser().resolve(), folder.resolve())
    return f"{Path(beside).as_posix()}{name[len(file) :]}"


def reference_of(values: Floats) -> Reference:
    """Return `QUANTILES` (65) evenly spaced quantiles of each column of float32[n, m] values.

    They have six digits; the router's card keeps them. The router's input `ranks` says where among
    them a value lies, from 0 to 1.
    """
    quantiles = np.quantile(values, np.linspace(0.0, 1.0, QUANTILES), axis=0)
    return tuple(tuple(float(f"{x:.6g}") for x in column) for column in quantiles.T)
