"""Turns measured answers into the frontier: accuracy, speed and cost of each system."""

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from edgewise_lab.bench.frontier.billing import (
    LISTS,
    Cost,
    MeasuredAnswer,
    engine_seconds,
    mean_prompt_tokens_computed,
    metered_seconds,
    priced,
)
from edgewise_lab.evaluation.statistics import Interval, difference_interval, mean_interval
from edgewise_lab.evaluation.systems import cloud_share

Way = Literal["routed", "cascade"]
"""`routed`: a score of the prompt decides, before anything is written. `cascade`: the edge answers,
and its answer's score decides whether the cloud answers as well."""

NEVER = float("-inf")
"""The score of a question that is not sent whatever the threshold."""

ROUNDING = 1e-12
"""Relative: sums of the same costs in another order."""


def share(answer: MeasuredAnswer) -> tuple[float, float]:
    outcome = answer.outcome
    return outcome.cloud_tokens + outcome.wasted_tokens, outcome.output_tokens


def seconds(answer: MeasuredAnswer) -> tuple[float, float]:
    """The mean time of an answer."""
    return answer.outcome.seconds, 1.0


def cost_of(cost: Cost, answers: Sequence[MeasuredAnswer]) -> float:
    """Mean cost of the answers."""
    parts = [cost(answer) for answer in answers]
    return sum(a for a, _ in parts) / sum(b for _, b in parts)


class Whole(NamedTuple):
    """Edge and cloud alone on the same questions, each with a score: the highest go to the cloud.

    Nothing is shown of an answer that may still be replaced: in a cascade the first text, also of
    an answer that stays the edge's, comes when that is whole.
    """

    way: Way
    edge: Sequence[MeasuredAnswer]
    cloud: Sequence[MeasuredAnswer]
    scores: Sequence[float]

    def at(self, threshold: float) -> list[MeasuredAnswer]:
        """The answers if questions with a score of at least `threshold` go to the cloud."""
        triples = zip(self.edge, self.cloud, self.scores, strict=True)
        return [
            self._sent(edge, cloud) if score >= threshold and score > NEVER else self._kept(edge)
            for edge, cloud, score in triples
        ]

    def within(self, cost: Cost, most: float) -> float:
        """The lowest threshold at which the answers cost `most` at most; infinite without any."""
        kept, sent = (
            np.array([cost(answer) for answer in answers], np.float64)
            for answers in (
                [self._kept(edge) for edge in self.edge],
                [self._sent(*pair) for pair in zip(self.edge, self.cloud, strict=True)],
            )
        )
        scores = np.array(self.scores, np.float64)
        order = np.argsort(-scores, kind="stable")
        totals = kept.sum(axis=0) + np.cumsum((sent - kept)[order], axis=0)
        ranked = scores[order]
        # Of equal scores all are sent or none.
        ends = np.append(ranked[1:] < ranked[:-1], True) & (ranked > NEVER)
        fits = ends & (totals[:, 0] / totals[:, 1] <= most * (1 + ROUNDING))
        places = np.flatnonzero(fits)
        return float(ranked[places[-1]]) if len(places) else float("inf")

    def _kept(self, edge: MeasuredAnswer) -> MeasuredAnswer:
        if self.way == "routed":
            return edge
        return replace(edge, ttft=edge.outcome.seconds, gap=0.0)

    def _sent(self, edge: MeasuredAnswer, cloud: MeasuredAnswer) -> MeasuredAnswer:
        routed = self.way == "routed"
        # The score of a prompt comes with the edge's first step, over all of it.
        before = edge.ttft if routed else edge.outcome.seconds
        written = 0 if routed else edge.decodes - 1
        return replace(
            cloud,
            outcome=replace(
                cloud.outcome,
                uncertainty=edge.outcome.uncertainty,
                seconds=before + cloud.outcome.seconds,
            ),
            ttft=before + cloud.ttft,
            decodes=1 + written,
            positions=edge.positions - (edge.decodes - 1 - written),
        )


def uncertain(edge: Sequence[MeasuredAnswer]) -> list[float]:
    """A cascade's scores: how unsure the edge was over its answer."""
    return [answer.outcome.uncertainty for answer in edge]


def worth(edge: Sequence[MeasuredAnswer], cloud: Sequence[MeasuredAnswer]) -> list[float]:
    """An oracle's scores: only what the cloud alone gets right, what costs it least first."""
    return [
        1 / (1 + theirs.outcome.output_tokens)
        if theirs.outcome.right and not own.outcome.right
        else NEVER
        for own, theirs in zip(edge, cloud, strict=True)
    ]


EDGE, CLOUD = "edge", "cloud"
SHARE = "cloud share"

Clock = Literal["measured", "composed"]
"""Whether times are of a clock, or sums of such."""


class MeasuredAnswers(NamedTuple):
    """A system's answers: to every question, and those whose times count, to the first of them.

    `note` says what must be known to read its figures.
    """

    quality: Sequence[MeasuredAnswer]
    timed: Sequence[MeasuredAnswer]
    clock: Clock = "measured"
    note: str = ""


class FrontierRow(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of one system; means per answer unless stated, times in seconds.

    Accuracies with 95% intervals, over all `questions`; the rest is over the `timed` ones, guesses
    in vain included. `difference` is this less the main system, on the same questions.
    `time` is the mean, with the median and the 95th percentile; `ttft` is a median, `gap` a 95th
    percentile. The edge made `decodes` passes over `positions` ids; the cloud had `requests`, for
    which its engine computed `read` prompt tokens in `engine_seconds`, by its own meter. `bills`
    are over the cloud alone's, by the names of the price lists. None: not known.
    """

    system: str
    clock: Clock
    note: str
    questions: int
    timed: int
    accuracy: float
    interval: Interval
    difference: float
    difference_interval: Interval
    strict_accuracy: float
    strict_interval: Interval
    strict_difference: float
    strict_difference_interval: Interval
    cloud_share: float
    time: float
    time_p50: float
    time_p95: float
    ttft: float
    gap: float
    decodes: float
    positions: float
    requests: float
    read: float | None
    engine_seconds: float | None
    bills: dict[str, float | None]
    sent: float | None
    received: float | None


class EqualCost(msgspec.Struct, frozen=True, kw_only=True):
    """Whole questions to the cloud at the same `cost` as the main system, called `axis`.

    The `sent` part of all questions goes there. `accuracy_gain` is the main system's accuracy
    less this, with its 95% interval. `reached` is false where even the edge alone costs more.
    """

    axis: str
    cost: float
    system: str
    sent: float
    accuracy: float
    strict_accuracy: float
    accuracy_gain: float
    accuracy_gain_interval: Interval
    strict_accuracy_gain: float
    strict_accuracy_gain_interval: Interval
    reached: bool


class Frontier(msgspec.Struct, frozen=True, kw_only=True):
    """The whole report: how it was measured, a row a system, whole questions by `main`."""

    conditions: dict[str, object]
    main: str
    rows: tuple[FrontierRow, ...]
    whole: tuple[EqualCost, ...]


def frontier(
    found: Mapping[str, MeasuredAnswers],
    main: str,
    conditions: Mapping[str, object],
    scores: Sequence[float] | None = None,
) -> Frontier:
    """`found` must hold `EDGE`, `CLOUD` and `main`, on the same questions.

    `scores` are those of a router of whole questions, one for each, where there is one.
    """
    filled = {
        name: one._replace(timed=metered_seconds(one.timed), quality=metered_seconds(one.quality))
        for name, one in found.items()
    }
    compositions = _compositions(filled, scores)
    equal, composed = _equal(filled, main, compositions)
    every = {**filled, **composed}
    rows = tuple(_row(name, one, every[main], every[CLOUD]) for name, one in every.items())
    return Frontier(conditions=dict(conditions), main=main, rows=rows, whole=tuple(equal))


class _Composition(NamedTuple):
    """Whole questions to the cloud by some scores, on all questions and on those with times."""

    name: str
    quality: Whole
    timed: Whole


def _compositions(
    found: Mapping[str, MeasuredAnswers], scores: Sequence[float] | None
) -> list[_Composition]:
    edge, cloud = found[EDGE], found[CLOUD]
    unsure, gains = uncertain(edge.quality), worth(edge.quality, cloud.quality)
    kinds: list[tuple[str, Way, Sequence[float]]] = [
        ("cascade", "cascade", unsure),
        ("cascade, oracle", "cascade", gains),
        ("query level, oracle", "routed", gains),
    ]
    if scores is not None:
        kinds.insert(2, ("query level, trained", "routed", scores))
    timed = len(edge.timed)
    return [
        _Composition(
            name,
            Whole(way, edge.quality, cloud.quality, own),
            Whole(way, edge.timed, cloud.timed, own[:timed]),
        )
        for name, way, own in kinds
    ]


def axes() -> dict[str, Cost]:
    """Costs that may be held equal, by name."""
    bills = {f"bill, {name}": priced(prices) for name, prices in LISTS.items()}
    return {SHARE: share, "time": seconds, **bills}


def _equal(
    found: Mapping[str, MeasuredAnswers], main: str, compositions: Sequence[_Composition]
) -> tuple[list[EqualCost], dict[str, MeasuredAnswers]]:
    """The table at equal cost; of it the systems at an equal share, as rows of their own."""
    own, lines = found[main], list[EqualCost]()
    right, strictly = _graded(own.quality)
    rows: dict[str, MeasuredAnswers] = {}
    for axis, cost in axes().items():
        most = cost_of(cost, own.timed)
        if most != most:
            continue
        for one in compositions:
            at = one.timed.within(cost, most)
            answers = one.quality.at(at)
            sent = sum(score >= at for score in one.quality.scores) / len(answers)
            lenient, strict = _graded(answers)
            lines.append(
                EqualCost(
                    axis=axis,
                    cost=most,
                    system=one.name,
                    sent=sent,
                    accuracy=_mean(lenient),
                    strict_accuracy=_mean(strict),
                    accuracy_gain=_mean(right) - _mean(lenient),
                    accuracy_gain_interval=difference_interval(right, lenient),
                    strict_accuracy_gain=_mean(strictly) - _mean(strict),
                    strict_accuracy_gain_interval=difference_interval(strictly, strict),
                    reached=cost_of(cost, one.timed.at(at)) <= most * (1 + ROUNDING),
                )
            )
            if axis == SHARE:
                timed = one.timed.at(at)
                rows[f"{one.name}, equal share"] = MeasuredAnswers(answers, timed, "composed")
    return lines, rows


def _row(
    name: str, one: MeasuredAnswers, main: MeasuredAnswers, cloud: MeasuredAnswers
) -> FrontierRow:
    right, strict = _graded(one.quality)
    main_right, main_strict = _graded(main.quality)
    timed = one.timed
    taken = [answer.outcome.seconds for answer in timed]
    return FrontierRow(
        system=name,
        clock=one.clock,
        note=one.note,
        questions=len(right),
        timed=len(timed),
        accuracy=_mean(right),
        interval=mean_interval(right),
        difference=_mean(right) - _mean(main_right),
        difference_interval=difference_interval(right, main_right),
        strict_accuracy=_mean(strict),
        strict_interval=mean_interval(strict),
        strict_difference=_mean(strict) - _mean(main_strict),
        strict_difference_interval=difference_interval(strict, main_strict),
        cloud_share=cloud_share([answer.outcome for answer in timed]),
        time=_mean(taken),
        time_p50=_quantile(taken, 0.5),
        time_p95=_quantile(taken, 0.95),
        ttft=_quantile([answer.ttft for answer in timed], 0.5),
        gap=_quantile([answer.gap for answer in timed], 0.95),
        decodes=_mean([answer.decodes for answer in timed]),
        positions=_mean([answer.positions for answer in timed]),
        requests=_mean([len(answer.requests) for answer in timed]),
        read=mean_prompt_tokens_computed(timed),
        engine_seconds=engine_seconds(timed),
        bills=_bills(timed, cloud),
        sent=_known([answer.sent for answer in timed]),
        received=_known([answer.received for answer in timed]),
    )


def _bills(timed: Sequence[MeasuredAnswer], cloud: MeasuredAnswers) -> dict[str, float | None]:
    return {name: _relative(priced(prices), timed, cloud) for name, prices in LISTS.items()}


def _relative(cost: Cost, timed: Sequence[MeasuredAnswer], cloud: MeasuredAnswers) -> float | None:
    own, alone = cost_of(cost, timed), cost_of(cost, cloud.timed)
    return own / alone if own == own and alone > 0 else None


def _graded(answers: Sequence[MeasuredAnswer]) -> tuple[list[float], list[float]]:
    """Grades answers by the lenient reading, and by the strict one."""
    outcomes = [answer.outcome for answer in answers]
    return [float(o.right) for o in outcomes], [float(o.strict) for o in outcomes]


def _known(counts: Sequence[int | None]) -> float | None:
    known = [count for count in counts if count is not None]
    return _mean(known) if len(known) == len(counts) else None


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _quantile(values: Sequence[float], q: float) -> float:
    return float(np.quantile(values, q))
