"""Runs rules on a task: finds their thresholds for each target cloud share, grades answers."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgewise.edge.base import Tokenizer
from edgewise.errors import ContextOverflow
from edgewise_lab.bench.rules.engine import Asked, RowAnswer, RowEngine
from edgewise_lab.bench.rules.rule import CLOUD, EDGE, Rule
from edgewise_lab.evaluation import systems
from edgewise_lab.evaluation.calibration import SETTLED
from edgewise_lab.evaluation.store import Cell, Store
from edgewise_lab.evaluation.systems import Outcome
from edgewise_lab.evaluation.tasks.base import Task
from edgewise_lab.evaluation.tasks.grading import agreeing_task

ROUNDS = 6
"""Most answers to each calibration question to find a threshold, after one by the edge alone."""

_LOWEST = -1e9
"""A threshold that every signal reaches but -inf, where a rule verifies and the models agree."""


class _Tried(NamedTuple):
    """A threshold, the cloud share that it realised, and the signals at all tokens."""

    threshold: float
    share: float
    signals: NDArray[np.float32]

    def nearer(self, share: float) -> float:
        """Return a threshold that realises about `share` if the signals stay as they are here."""
        reach = float((self.signals >= self.threshold).mean())
        wanted = min(1.0, reach * share / self.share if self.share else share)
        return max(_LOWEST, float(np.quantile(self.signals, 1 - wanted, method="lower")))


class Sweep:
    """Runs rules with a pair of models, and keeps answers and thresholds in a store."""

    def __init__(
        self,
        engine: RowEngine,
        tokenizer: Tokenizer,
        store: Store,
        *,
        context: int,
        done: Callable[[int], None] = lambda count: None,
        rows: int | None = None,
    ) -> None:
        """`context` is the longest sequence in ids; `done` gets each batch's number of answers."""
        self._engine, self._tokenizer, self._store = engine, tokenizer, store
        self._context, self._done, self._rows = context, done, rows

    def run(
        self, task: Task, calibration: Task, rules: Sequence[Rule], shares: Sequence[float]
    ) -> dict[Cell, list[Outcome]]:
        """Return the outcomes of edge alone, cloud alone, and every rule at every cloud share.

        Keys hold a rule's name and a share, None for a fixed threshold. Other thresholds are found
        on `calibration`. What the store has is reused. Where no right answer is known, the cloud's
        takes its place. Raises `ContextOverflow` for a question that leaves no room for an answer.
        """
        fixed = [rule for rule in (EDGE, CLOUD, *rules) if rule.threshold is not None]
        asked = [(rule, share) for share in shares for rule in rules if rule.threshold is None]
        cells = {Cell(rule.name): (rule, rule.threshold or 0.0) for rule in fixed}
        found = self._thresholds(calibration, asked)
        cells |= {Cell(wish[0].name, wish[1]): (wish[0], found[wish]) for wish in asked}
        self._answer(task, cells)
        grades = systems.as_graded_today if task.known else systems.graded
        if not task.known:
            replies = (self._store.get(Cell(CLOUD.name), one) for one in task.questions)
            task = agreeing_task(task, {one.question: one.text for one in replies if one})
        return {
            cell: [
                grades(question, kept)
                for question in task.questions
                if (kept := self._store.get(cell, question))
            ]
            for cell in cells
        }

    def _thresholds(
        self, task: Task, wishes: Sequence[tuple[Rule, float]]
    ) -> Mapping[tuple[Rule, float], float]:
        """Return a threshold for each (rule, share): a stored one, or one found now and stored."""
        cells = {wish: Cell(wish[0].name, wish[1]) for wish in wishes}
        known = {wish: self._store.threshold(cell) for wish, cell in cells.items()}
        found = {wish: threshold for wish, threshold in known.items() if threshold is not None}
        lacking = [wish for wish in wishes if wish not in found]
        # By trial: the cloud's tokens change later signals.
        rules = list(dict.fromkeys(rule for rule, _ in lacking))
        alone = dict(zip(rules, self._tried(task, [(one, np.inf) for one in rules]), strict=True))
        last = {wish: alone[wish[0]] for wish in lacking}
        best = dict(last)
        for _ in range(ROUNDS):
            far = [w for w, at in best.items() if abs(at.share - w[1]) > SETTLED * w[1]]
            tries = [(wish[0], last[wish].nearer(wish[1])) for wish in far]
            for wish, tried in zip(far, self._tried(task, tries), strict=True):
                last[wish] = tried
                if abs(tried.share - wish[1]) < abs(best[wish].share - wish[1]):
                    best[wish] = tried
        for wish, at in best.items():
            self._store.set_threshold(cells[wish], at.threshold)
            found[wish] = at.threshold
        return found

    def _tried(self, task: Task, tries: Sequence[tuple[Rule, float]]) -> list[_Tried]:
        """Answer all questions with each (rule, threshold); return what it realised over all."""
        asked = [(at, *one) for at in range(len(task.questions)) for one in tries]
        answers = [answer for some, _ in self._batches(task, asked) for answer in some]
        found: list[_Tried] = []
        for number, (_, threshold) in enumerate(tries):
            own = answers[number :: len(tries)]
            by_cloud = np.concatenate([answer.by_cloud for answer in own])
            signals = np.concatenate([answer.signals for answer in own])
            found.append(_Tried(threshold, float(by_cloud.mean()), signals))
        return found

    def _answer(self, task: Task, cells: Mapping[Cell, tuple[Rule, float]]) -> None:
        """Answer each question for each of `cells` that the store lacks, and store the outcome."""
        missing = [
            (at, cell)
            for at, question in enumerate(task.questions)
            for cell in cells
            if self._store.get(cell, question) is None
        ]
        waiting = iter(missing)
        asked = [(at, *cells[cell]) for at, cell in missing]
        for answers, seconds in self._batches(task, asked):
            tokens = sum(len(answer.ids) for answer in answers)
            for answer, (at, cell) in zip(answers, waiting, strict=False):
                ids, by_cloud = answer.ids.tolist(), int(answer.by_cloud.sum())
                outcome = systems.written(
                    task.questions[at],
                    systems.text_of(self._tokenizer, ids),
                    len(ids),
                    cut=systems.is_cut(self._tokenizer, ids),
                    cloud_tokens=by_cloud,
                    consults=1 if cell == Cell(CLOUD.name) else by_cloud,
                    seconds=seconds * len(ids) / tokens,
                )
                self._store.add(cell, outcome)

    def _batches(
        self, task: Task, asked: Sequence[Asked]
    ) -> Iterator[tuple[list[RowAnswer], float]]:
        """Yield the answers of each batch as it ends, with its seconds."""
        if not asked:
            return
        prompts = [systems.question_ids(self._tokenizer, one) for one in task.questions]
        rooms = [systems.max_answer_tokens(len(p), task.max_tokens, self._context) for p in prompts]
        for question, room in zip(task.questions, rooms, strict=True):
            if room < 1:
                raise ContextOverflow(
                    f"Question {question.id!r} leaves no room in a context of {self._context}",
                    hint="leave it out, or raise the context",
                    setting="ctx",
                )
        begun = time.monotonic()
        for answers in self._engine.in_batches(prompts, rooms, asked, self._rows):
            yield answers, time.monotonic() - begun
            self._done(len(answers))
            begun = time.monotonic()
