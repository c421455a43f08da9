"""All answers of a pair to one question, as far as anybody asked for them.

With greedy models and a static threshold an answer is a function of the question, the router and
the threshold, and answers of all routers share their beginnings. So what the edge writes after a
beginning, and what the cloud would write there, is computed once, whoever asks: an answer at
another threshold or of another router costs model time only from where it is the first of its kind.
"""

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from edgewise.edge.base import EdgeModel, EdgeSession, Needs, Step
from edgewise_lab.evaluation.systems import Outcome, is_cut, question_ids, text_of
from edgewise_lab.evaluation.tasks.base import Question
from edgewise_lab.evaluation.tasks.grading import is_right, is_strictly_right

NEEDS, TOP = Needs.ENTROPY | Needs.TOP | Needs.HIDDEN, 10
"""What steps keep: all that any router of the comparison reads."""

NEVER = 2.0
"""A threshold that no score reaches."""


class Scorer(Protocol):
    """A router that may also see which ids were written."""

    def score(self, step: Step, written: Sequence[int]) -> float:
        """From 0 to 1, as a router's; `written` are the answer's ids before the step."""
        ...


class Written(NamedTuple):
    """The cloud's token at a place, and its logprob there."""

    id: int
    logprob: float


class Segment:
    """What the edge writes by itself after `prefix`, to the end, and its step before each id."""

    def __init__(self, prefix: tuple[int, ...], ids: tuple[int, ...], steps: list[Step]) -> None:
        self.prefix, self.ids, self.steps = prefix, ids, steps
        self.by_cloud: list[Written] = []
        self.branches: dict[tuple[int, int], Segment] = {}
        self._scores: dict[str, list[float | None]] = {}

    def first(self, name: str, scorer: Scorer, threshold: float, start: int) -> int | None:
        """The first position from `start` on whose score reaches the threshold."""
        scores = self._scores.setdefault(name, [None] * len(self.ids))
        for at in range(start, len(scores)):
            found = scores[at]
            if found is None:
                found = scores[at] = self._scored(scorer, at)
            if found >= threshold:
                return at
        return None

    def scores(self, name: str, scorer: Scorer) -> list[float]:
        """All scores of a router."""
        self.first(name, scorer, NEVER, 0)
        return [score for score in self._scores[name] if score is not None]

    def _scored(self, scorer: Scorer, at: int) -> float:
        return scorer.score(self.steps[at], self.prefix + self.ids[:at])


class Models:
    """Both models in this process, a greedy session each."""

    def __init__(self, edge: EdgeModel, cloud: EdgeModel, max_tokens: int) -> None:
        self.tokenizer, self.max_tokens = edge.tokenizer, max_tokens
        self._edge: EdgeSession = edge.session(NEEDS, top=TOP)
        self._cloud: EdgeSession = cloud.session()

    def close(self) -> None:
        """Give back both sessions."""
        self._edge.close()
        self._cloud.close()

    def after(self, prompt: Sequence[int], prefix: tuple[int, ...]) -> Segment:
        """What the edge makes of a beginning."""
        ids: list[int] = []
        steps: list[Step] = []
        self._edge.open([*prompt, *prefix])
        last = prefix[-1] if prefix else None
        while last not in self.tokenizer.eos_ids and len(prefix) + len(ids) < self.max_tokens:
            if ids:
                self._edge.extend(ids[-1:])
            steps.append(self._edge.step())
            last = steps[-1].proposed
            ids.append(last)
        return Segment(prefix, tuple(ids), steps)

    def by_cloud(self, prompt: Sequence[int], segment: Segment) -> list[Written]:
        """The cloud's token at each place of a segment, in one batch: others ask elsewhere.

        `open` computes only what the KV cache does not hold.
        """
        *before, last = [*prompt, *segment.prefix]
        self._cloud.open(before)
        steps = self._cloud.steps([last, *segment.ids[:-1]])
        return [Written(step.proposed, step.logprob(step.proposed)) for step in steps]


class Graded(NamedTuple):
    text: str
    right: bool
    strict: bool


class Tree:
    """The answers to one question."""

    def __init__(self, question: Question, models: Models) -> None:
        self.question, self._models = question, models
        self.prompt = question_ids(models.tokenizer, question)
        self.root = models.after(self.prompt, ())
        self._graded: dict[tuple[int, ...], Graded] = {}

    def walk(self, name: str, scorer: Scorer, threshold: float) -> Outcome:
        """The pair's answer at a static threshold; `name` tells routers apart."""
        segment, start = self.root, 0
        consults = changed = 0
        while (at := segment.first(name, scorer, threshold, start)) is not None:
            token = self.by_cloud(segment, at).id
            consults += 1
            start = at + 1
            if token != segment.ids[at]:
                changed += 1
                segment, start = self.branch(segment, at, token), 0
        return self.outcome(segment.prefix + segment.ids, consults, changed)

    def by_cloud(self, segment: Segment, at: int) -> Written:
        """What a consult at a place of a segment brings."""
        if not segment.by_cloud:
            segment.by_cloud = self._models.by_cloud(self.prompt, segment)
        return segment.by_cloud[at]

    def branch(self, segment: Segment, at: int, token: int) -> Segment:
        """What the edge writes after another token at a place of a segment."""
        if (at, token) not in segment.branches:
            prefix = (*segment.prefix, *segment.ids[:at], token)
            segment.branches[at, token] = self._models.after(self.prompt, prefix)
        return segment.branches[at, token]

    def outcome(self, ids: tuple[int, ...], consults: int, changed: int) -> Outcome:
        """An answer, graded."""
        graded = self._grade(ids)
        return Outcome(
            question=self.question.id,
            family=self.question.family,
            text=graded.text,
            right=graded.right,
            strict=graded.strict,
            output_tokens=len(ids),
            cut=is_cut(self._models.tokenizer, ids),
            cloud_tokens=consults,
            consults=consults,
            changed=changed,
        )

    def _grade(self, ids: tuple[int, ...]) -> Graded:
        if ids not in self._graded:
            text = text_of(self._models.tokenizer, ids)
            right = is_right(self.question, text)
            self._graded[ids] = Graded(text, right, is_strictly_right(self.question, text))
        return self._graded[ids]
