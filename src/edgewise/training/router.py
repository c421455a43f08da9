"""From a pair of models and questions to a calibrated checkpoint, in four stages."""

from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import Literal

import numpy as np
from msgspec.structs import replace

from edgewise.cloud.base import CloudModel
from edgewise.edge.base import EdgeModel
from edgewise.edge.vocabulary import fingerprint
from edgewise.errors import UsageError
from edgewise.evaluation.calibration import thresholds_for
from edgewise.evaluation.systems import CloudAlone, edge_alone, paired
from edgewise.evaluation.tasks.base import Task
from edgewise.rollouts.base import Rollouts
from edgewise.rollouts.open import cloud_rollouts, edge_rollouts
from edgewise.routers.card import Input, RouterCard, read_card
from edgewise.routers.mlp import Mlp
from edgewise.training.collect import (
    Columns,
    Sample,
    collect_answers,
    collect_features,
    references,
)
from edgewise.training.fit import Fitted, Recipe, data_of, fit
from edgewise.training.label import (
    Case,
    Citer,
    CoLlm,
    Label,
    LabelName,
    Mismatch,
    PairRollouts,
    Value,
    Writer,
    label_all,
)
from edgewise.training.publish import Measured, isotonic, save_card, save_weights

SHARES = (0.01, 0.02, 0.03, 0.05, 0.07, 0.10, 0.15)
"""Cloud shares that get a threshold."""

MIXED_SHARE = 0.05
"""Cloud share of the pair that writes CITER's second round."""

Stage = Literal["collect", "label", "fit", "calibrate"]


class Progress:
    """Told what is done; this one tells nobody."""

    def stage(self, name: str, total: int | None) -> None:
        """A stage begins; `total` calls of `done` will follow, None where it does not say."""

    def done(self) -> None:
        """One more."""


def labels_named(name: LabelName, *, rounds: int = 2, rollouts: int = 1) -> list[Label]:
    """The labels of each round of training, in order."""
    if name == "citer":
        if rounds not in (1, 2):
            raise UsageError(f"--rounds must be 1 or 2, not {rounds}.")
        every: list[Label] = [Citer("edge"), Citer("pair")]
        return every[:rounds]
    if name == "value":
        return [Value(rollouts)]
    return [CoLlm()] if name == "co-llm" else [Mismatch()]


class Training:
    """Stages of one label's training. What a stage makes lies in the folder; the next reads it."""

    def __init__(
        self,
        task: Task,
        calibration: Task,
        folder: Path,
        *,
        edge: EdgeModel,
        cloud: CloudModel,
        label: Label,
        inputs: tuple[Input, ...],
        top_k: int,
        recipe: Recipe,
        progress: Progress | None = None,
        data: Path | None = None,
    ) -> None:
        """`folder` gets the checkpoint, `data` (default: a folder in it) what it is made from."""
        self.task, self.calibration = task, calibration
        self.folder, self._data = folder, data or folder / "data"
        self.edge, self.cloud = edge, cloud
        self.label_class = label
        self.inputs, self.top_k, self.recipe = inputs, top_k, recipe
        self._progress = progress or Progress()
        self._data.mkdir(parents=True, exist_ok=True)

    def run(self) -> Fitted:
        """All four stages."""
        self.collect()
        self.label()
        fitted = self.fit()
        self.calibrate()
        return fitted

    def collect(self) -> None:
        """The cloud's answers, and what the edge makes of the texts that the label reads."""
        self._collected(allowed=True)

    def label(self) -> None:
        """A value for every token."""
        answers, columns = self._collected(allowed=False)
        self._labelled(answers, columns, allowed=True)

    def fit(self) -> Fitted:
        """Weights, and a card without thresholds."""
        answers, columns = self._collected(allowed=False)
        values = self._labelled(answers, columns, allowed=False)
        self._progress.stage("fitting", self.recipe.epochs)
        data = data_of(
            columns,
            values,
            answers,
            inputs=self.inputs,
            top_k=self.top_k,
            embeddings=self.edge.embeddings() if "token_embedding" in self.inputs else None,
        )
        fitted = fit(data, self.recipe, self._progress.done)
        card = RouterCard(
            kind="mlp",
            edge_fingerprint=self.edge.fingerprint(),
            tokenizer_fingerprint=fingerprint(self.edge.tokenizer),
            hidden_size=self.edge.hidden_size,
            inputs=self.inputs,
            top_k=self.top_k if "top_logprobs" in self.inputs else 0,
            trained_on=f"{self.task.name}, {len(self.task.questions)} questions",
            label=self.label_class.described,
            probability=isotonic(fitted.scores, fitted.labels),
        )
        save_weights(self.folder, fitted.tensors, [q.prompt for q in self.task.questions])
        save_card(self.folder, card, ())
        return fitted

    def calibrate(self, shares: Sequence[float] = SHARES) -> RouterCard:
        """Thresholds on the pair's own answers to other questions, and the model card."""
        card = replace(read_card(self.folder), thresholds={})
        card.check(self.edge, self.folder)
        questions = self.calibration.questions
        self._progress.stage("calibrating", None)
        alone = edge_alone(self.edge, self.calibration.max_tokens)
        edge = [alone.answer(question).right for question in questions]
        large = CloudAlone(self.cloud, self.edge.tokenizer, self.calibration.max_tokens)
        cloud = [large.answer(question).right for question in questions]
        found = thresholds_for(
            shares,
            Mlp(card, self.folder),
            self.calibration,
            edge=self.edge,
            cloud=self.cloud,
            done=self._progress.done,
        )
        card = replace(
            card,
            thresholds={f"{share:g}": point.threshold for share, point in found.items()},
            calibrated_on=f"{self.calibration.name}, {len(questions)} other questions",
        )
        save_card(
            self.folder,
            card,
            [
                Measured(share, point.threshold, point.share, edge, list(point.right), cloud)
                for share, point in found.items()
            ],
        )
        return card

    def _collected(self, *, allowed: bool) -> tuple[list[Sample], Columns]:
        """What the label's text is; unless `allowed`, it must be there."""
        text = self.label_class.text
        if text == "reference":
            answers = references(self.task, self.edge.tokenizer)
        else:
            if not allowed:
                self._require("answers.jsonl", "collect")
            self._progress.stage("cloud's answers", len(self.task.questions))
            with closing(cloud_rollouts(self.cloud)) as cloud:
                answers = collect_answers(
                    self.task, self.edge.tokenizer, cloud, self._data, self._progress.done
                )
        if not allowed:
            self._require(f"{text}-00000.safetensors", "collect")
        self._progress.stage("edge's features", len(answers))
        columns = collect_features(answers, text, self.edge, self._data, self._progress.done)
        return answers, columns

    def _labelled(
        self, answers: list[Sample], columns: Columns, *, allowed: bool
    ) -> dict[str, tuple[float, ...]]:
        label = self.label_class
        if not allowed:
            self._require(f"labels-{label.name}.jsonl", "label")
        self._progress.stage("labels", len(columns.questions))
        known = {answer.question: answer for answer in answers}
        asked = {question.id: question for question in self.task.questions}
        ends = np.flatnonzero(np.diff(columns.answer)) + 1
        proposed = np.split(columns.proposed, ends)
        cases = [
            Case(asked[name], known[name], ids.tolist(), self.edge.tokenizer, self.task.max_tokens)
            for name, ids in zip(columns.questions, proposed, strict=True)
        ]
        with (
            closing(edge_rollouts(self.edge)) as edge,
            closing(cloud_rollouts(self.cloud)) as cloud,
        ):
            rollouts: dict[Writer, Rollouts] = {"edge": edge, "cloud": cloud}
            if isinstance(label, Citer) and label.by == "pair":
                rollouts["pair"] = self._mixed()
            return label_all(label, cases, rollouts, self._data, self._progress.done)

    def _mixed(self) -> PairRollouts:
        """The pair under the router that the folder holds from the round before."""
        card = read_card(self.folder)
        card.check(self.edge, self.folder)
        threshold = card.threshold(MIXED_SHARE)
        if threshold is None:
            raise UsageError("The first round is not calibrated; run its stage calibrate first.")
        return PairRollouts(paired(self.edge, Mlp(card, self.folder), threshold, self.cloud))

    def _require(self, name: str, stage: Stage) -> None:
        if not (self._data / name).exists():
            raise UsageError(
                f"{str(self.folder)!r} does not hold what this stage needs; run --stage {stage} "
                "first."
            )
