"""What consults are worth: which changed a token, which decided the answer, and what scores say.

At each position of a pair's own answer either model has a token for it. The one that was not
taken is written instead and the pair goes on from there; the value of a consult is 1 where only
the answer with the cloud's token is right, -1 where only that with the edge's is, and else 0.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import NamedTuple

import msgspec
import numpy as np

from edgewise.cloud.base import CloudModel
from edgewise.edge.base import EdgeModel
from edgewise.events import Token
from edgewise.loop.decoder import Decoder, collect
from edgewise.loop.policy import LONGEST_DEADLINE
from edgewise.prompts import Prompt
from edgewise.routers.base import Router
from edgewise.sampling import Sampling
from edgewise_lab.evaluation.statistics import Interval, ratio_interval
from edgewise_lab.evaluation.systems import paired, question_ids, text_of
from edgewise_lab.evaluation.tasks.base import Question, Task
from edgewise_lab.evaluation.tasks.grading import is_right, is_strictly_right

CUTS = (0.5, 0.75, 0.9, 0.95, 0.98, 0.99)
"""Quantiles of the scores between the bins of a curve: few scores are high, and they matter."""


class Weighed(msgspec.Struct, frozen=True):
    """A position that the router scored in a pair's answer.

    `differ`: the models' tokens are two. `value` of the cloud's by the lenient reading, -1, 0 or
    1, `strict_value` by the strict one.
    """

    question: str
    family: str
    index: int
    score: float
    consulted: bool
    differ: bool
    value: int = 0
    strict_value: int = 0


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """A family's consults.

    `changed` the token, `mattered`: right with them and wrong without, `harmed`: the other way
    round; `missed` are positions without a consult where one would have mattered.
    """

    family: str
    questions: int
    consults: int
    changed: int
    mattered: int
    harmed: int
    missed: int
    strict_mattered: int
    strict_harmed: int
    strict_missed: int


class Bin(msgspec.Struct, frozen=True, kw_only=True):
    """Positions with scores from `low` to `high`: the mean score, and the mean value.

    Intervals are 95 %, from questions resampled with all of their positions.
    """

    low: float
    high: float
    positions: int
    score: float
    value: float
    interval: Interval
    strict_value: float
    strict_interval: Interval


def weigh(
    edge: EdgeModel,
    cloud: CloudModel,
    router: Router,
    threshold: float,
    task: Task,
    *,
    deadline: float = LONGEST_DEADLINE,
    done: Callable[[], None] = lambda: None,
) -> list[Weighed]:
    """Every scored position of the pair's answers; greedy, with a static threshold.

    Costs a token of the cloud's at every position, and an answer's rest wherever the two models
    differ. `deadline` in seconds a consult; `done` is called after each question.
    """
    decoder = paired(edge, router, threshold, cloud, deadline=deadline)
    found: list[Weighed] = []
    for question in task.questions:
        found += _Branches(decoder, cloud, question, task.max_tokens, deadline).weighed()
        done()
    return found


def spread(positions: Sequence[Weighed]) -> list[Spread]:
    """By family, in the order of their first questions."""
    families = dict.fromkeys(one.family for one in positions)
    return [_spread(name, [one for one in positions if one.family == name]) for name in families]


def curve(positions: Sequence[Weighed], cuts: Sequence[float] = CUTS) -> list[Bin]:
    """Measured value against score, in bins between these quantiles of the scores."""
    scores = np.array([one.score for one in positions])
    bounds = np.unique(np.quantile(scores, cuts, method="lower"))
    places = np.searchsorted(bounds, scores, side="left")
    return [
        _bin([one for one, at in zip(positions, places, strict=True) if at == place])
        for place in np.unique(places)
    ]


class _Grades(NamedTuple):
    right: bool
    strict: bool


class _Branches:
    """One question's answer, and what would have come of the other model's tokens in it."""

    def __init__(
        self,
        decoder: Decoder,
        cloud: CloudModel,
        question: Question,
        longest: int,
        deadline: float,
    ) -> None:
        self._decoder, self._cloud, self._question = decoder, cloud, question
        self._tokenizer = decoder.edge.tokenizer
        self._longest, self._deadline = longest, deadline
        self._prompt = tuple(question_ids(self._tokenizer, question))

    def weighed(self) -> list[Weighed]:
        with self._decoder.stream(
            self._prompt, max_tokens=self._longest, candidates=True
        ) as events:
            tokens = collect(events).tokens
        ids = [token.id for token in tokens]
        own = self._grades(ids)
        cloud = self._by_cloud(tokens)
        return [
            self._position(token, ids, cloud[token.index], own)
            for token in tokens
            if token.score is not None
        ]

    def _by_cloud(self, tokens: Sequence[Token]) -> list[int]:
        """The cloud's token at every position: written, or asked for now."""
        ids = [*self._prompt]
        found: list[int] = []
        with closing(self._cloud.open(Prompt(self._prompt))) as session:
            for token in tokens:
                if token.source == "edge":
                    asked = session.ask(list(ids), 1, Sampling(), self._deadline)
                    found.append(asked.result().ids[0])
                else:
                    found.append(token.id)
                ids.append(token.id)
        return found

    def _position(self, token: Token, ids: list[int], by_cloud: int, own: _Grades) -> Weighed:
        by_edge, consulted = token.edge[0].id, token.source == "cloud"
        assert token.score is not None
        differ = by_edge != by_cloud
        right = strict = 0
        if differ:
            branch = self._rest([*ids[: token.index], by_edge if consulted else by_cloud])
            other = self._grades(branch)
            with_cloud, with_edge = (own, other) if consulted else (other, own)
            right = with_cloud.right - with_edge.right
            strict = with_cloud.strict - with_edge.strict
        question = self._question
        return Weighed(
            question.id,
            question.family,
            token.index,
            float(token.score),
            consulted,
            differ,
            right,
            strict,
        )

    def _rest(self, begun: list[int]) -> list[int]:
        """`begun`, and how the pair goes on from it."""
        room = self._longest - len(begun)
        ends = begun[-1] in self._tokenizer.eos_ids
        if ends or room < 1 or len(self._prompt) + len(begun) > self._decoder.edge.context:
            return begun
        answer = self._decoder.generate([*self._prompt, *begun], max_tokens=room)
        return [*begun, *(token.id for token in answer.tokens)]

    def _grades(self, ids: Sequence[int]) -> _Grades:
        text = text_of(self._tokenizer, ids)
        return _Grades(is_right(self._question, text), is_strictly_right(self._question, text))


def _spread(family: str, positions: Sequence[Weighed]) -> Spread:
    asked = [one for one in positions if one.consulted]
    rest = [one for one in positions if not one.consulted]
    return Spread(
        family=family,
        questions=len({one.question for one in positions}),
        consults=len(asked),
        changed=sum(one.differ for one in asked),
        mattered=sum(one.value > 0 for one in asked),
        harmed=sum(one.value < 0 for one in asked),
        missed=sum(one.value > 0 for one in rest),
        strict_mattered=sum(one.strict_value > 0 for one in asked),
        strict_harmed=sum(one.strict_value < 0 for one in asked),
        strict_missed=sum(one.strict_value > 0 for one in rest),
    )


def _bin(positions: Sequence[Weighed]) -> Bin:
    scores = [one.score for one in positions]
    values = [one.value for one in positions]
    strict = [one.strict_value for one in positions]
    n = len(positions)
    low, high = min(scores), max(scores)
    return Bin(
        low=low,
        high=high,
        positions=n,
        # Of equal scores the mean may round to beside them.
        score=min(max(sum(scores) / n, low), high),
        value=sum(values) / n,
        interval=_mean_interval(positions, values),
        strict_value=sum(strict) / n,
        strict_interval=_mean_interval(positions, strict),
    )


def _mean_interval(positions: Sequence[Weighed], values: Sequence[int]) -> Interval:
    """Of the mean value: positions of one answer are no independent draws, questions are."""
    sums: dict[str, float] = {}
    counts: dict[str, int] = {}
    for one, value in zip(positions, values, strict=True):
        sums[one.question] = sums.get(one.question, 0.0) + value
        counts[one.question] = counts.get(one.question, 0) + 1
    return ratio_interval(list(sums.values()), list(counts.values()))
