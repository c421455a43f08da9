"""Report that compares measured systems with sending whole questions to the cloud."""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Literal, NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace

from edgewise_lab.bench.frontier.billing import PRICE_LISTS, CloudRequest, bill
from edgewise_lab.bench.frontier.timed import MeasuredAnswer
from edgewise_lab.evaluation.report import CLOUD, EDGE, Clock, Figures, TimedFigures, rows
from edgewise_lab.evaluation.store import Cell
from edgewise_lab.evaluation.systems import NEVER, cloud_share, total, within

Way = Literal["routed", "cascade"]
"""How whole questions go to the cloud.

`routed`: a score of the prompt decides before anything is written. `cascade`: the edge answers, and
the score of that answer decides whether the cloud's answer replaces it.
"""


class MeasuredAnswers(NamedTuple):
    """A system's answers to all questions (`quality`); timed answers to the first few (`timed`).

    Accuracy is computed from `quality`, times and bills from `timed`; both may be the same. `clock`
    is "measured", or "composed" if the times are sums of other systems' measured times. `note` is a
    remark for the report's readers.
    """

    quality: Sequence[MeasuredAnswer]
    timed: Sequence[MeasuredAnswer]
    clock: Clock = "measured"
    note: str = ""


class Frontier(msgspec.Struct, frozen=True, kw_only=True):
    """Report of `edgewise bench frontier`: the measurement's conditions, and systems' figures.

    `main` is the name of the system that the others are compared with.
    """

    conditions: dict[str, object]
    main: str
    systems: tuple[Figures, ...]


def frontier(
    found: Mapping[str, MeasuredAnswers], main: str, conditions: Mapping[str, object]
) -> Frontier:
    """Return the report on the systems in `found`, and on two more that send whole questions.

    The cascade sends the questions whose edge answers have the highest `Outcome.uncertainty`, the
    oracle those that only the cloud gets right. Their answers are those of edge alone and cloud
    alone, and their cloud share is at most that of the system `main`. `found` maps names of systems
    to their answers to the same questions, and must hold edge alone, cloud alone and `main`.
    `conditions` (name to value) are copied into the report.
    """
    every = {**found, **_whole(found[EDGE.system], found[CLOUD.system], found[main])}
    every = {name: one._replace(timed=metered_seconds(one.timed)) for name, one in every.items()}
    outcomes = {Cell(name): [a.outcome for a in one.quality] for name, one in every.items()}
    alone = _bills(every[CLOUD.system].timed)
    systems = tuple(
        replace(row.overall, timing=_timing(every[row.overall.system], alone))
        for row in rows(outcomes, Cell(main))
    )
    return Frontier(conditions=dict(conditions), main=main, systems=systems)


def _whole(
    edge: MeasuredAnswers, cloud: MeasuredAnswers, main: MeasuredAnswers
) -> dict[str, MeasuredAnswers]:
    """Return the answers of the cascade and of the oracle, which send whole questions, by name.

    Both stay within the main system's cloud share. The cascade sends the edge's most uncertain
    answers, the oracle questions that only the cloud gets right, its shortest answers first.
    """
    own, theirs = ([one.outcome for one in system.quality] for system in (edge, cloud))
    share = cloud_share([one.outcome for one in main.quality])
    gains = [
        1 / (1 + other.output_tokens) if other.right and not one.right else NEVER
        for one, other in zip(own, theirs, strict=True)
    ]
    kinds: list[tuple[str, Way, list[float]]] = [
        ("cascade, equal share", "cascade", [outcome.uncertainty for outcome in own]),
        ("query level, oracle, equal share", "routed", gains),
    ]
    found: dict[str, MeasuredAnswers] = {}
    for name, way, scores in kinds:
        sent = within(share, own, theirs, scores)
        quality, timed = (
            composed(way, one, other, sent)
            for one, other in ((edge.quality, cloud.quality), (edge.timed, cloud.timed))
        )
        found[name] = MeasuredAnswers(quality, timed, "composed")
    return found


def composed(
    way: Way, edge: Sequence[MeasuredAnswer], cloud: Sequence[MeasuredAnswer], sent: Sequence[int]
) -> list[MeasuredAnswer]:
    """Return the answers of a system that sends the questions with the indices `sent` to the cloud.

    `edge` and `cloud` are the answers of each model alone, one a question. A question in `sent`
    gets the cloud's answer, which begins once the edge has read the prompt (`way` is "routed") or
    written its own answer ("cascade"). The others get the edge's answer. In a cascade the user sees
    it only when it is complete, since until then the cloud's may replace it.
    """
    both = zip(edge, cloud, strict=True)
    if way == "routed":
        return [_sent(way, *one) if i in sent else one[0] for i, one in enumerate(both)]
    return [
        _sent(way, *one) if i in sent else replace(one[0], ttft=one[0].outcome.seconds, gap=0.0)
        for i, one in enumerate(both)
    ]


def _sent(way: Way, edge: MeasuredAnswer, cloud: MeasuredAnswer) -> MeasuredAnswer:
    # The score of a prompt comes with the edge's first step, over all of it.
    before = edge.ttft if way == "routed" else edge.outcome.seconds
    written = 0 if way == "routed" else edge.decodes - 1
    return replace(
        cloud,
        outcome=replace(cloud.outcome, seconds=before + cloud.outcome.seconds),
        ttft=before + cloud.ttft,
        decodes=1 + written,
        positions=edge.positions - (edge.decodes - 1 - written),
    )


def _timing(one: MeasuredAnswers, alone: Mapping[str, float | None]) -> TimedFigures:
    timed = one.timed
    taken = [answer.outcome.seconds for answer in timed]
    bills = _bills(timed)
    return TimedFigures(
        answers=len(timed),
        clock=one.clock,
        note=one.note,
        time=fmean(taken),
        time_p50=_quantile(taken, 0.5),
        time_p95=_quantile(taken, 0.95),
        ttft=_quantile([answer.ttft for answer in timed], 0.5),
        gap=_quantile([answer.gap for answer in timed], 0.95),
        decodes=fmean(answer.decodes for answer in timed),
        positions=fmean(answer.positions for answer in timed),
        requests=fmean(len(answer.requests) for answer in timed),
        read=mean_prompt_tokens_computed(timed),
        engine_seconds=_each(
            [one.engine_seconds for answer in timed for one in answer.requests], len(timed)
        ),
        bills={
            name: own / whole if (own := bills[name]) is not None and whole else None
            for name, whole in alone.items()
        },
        sent=_each([answer.sent for answer in timed], len(timed)),
        received=_each([answer.received for answer in timed], len(timed)),
    )


def _bills(answers: Sequence[MeasuredAnswer]) -> dict[str, float | None]:
    """Return the bill of all `answers` together, by the price list's name."""
    requests = [request for answer in answers for request in answer.requests]
    return {prices.name: bill(prices, requests) for prices in PRICE_LISTS}


def metered_seconds(answers: Sequence[MeasuredAnswer]) -> list[MeasuredAnswer]:
    """Return the answers, with `engine_seconds` filled in for requests whose engine reported none.

    These, mostly cancelled ones, get the mean of all reported times, or keep None if there is none.
    """
    every = [request.engine_seconds for answer in answers for request in answer.requests]
    known = [seconds for seconds in every if seconds is not None]
    mean = fmean(known) if known else None

    def timed(request: CloudRequest) -> CloudRequest:
        own = request.engine_seconds
        return replace(request, engine_seconds=mean if own is None else own)

    return [replace(one, requests=tuple(map(timed, one.requests))) for one in answers]


def mean_prompt_tokens_computed(answers: Sequence[MeasuredAnswer]) -> float | None:
    """Return the mean number of prompt tokens that the engine computed for an answer.

    A request for which the engine did not report this, such as a cancelled one, counts as the
    tokens of its prompt that no earlier request had (`prompt` - `seen`). Without any request the
    result is 0; if the engine reported it for none of the requests, None.
    """
    every = [request for answer in answers for request in answer.requests]
    meters = any(request.computed is not None for request in every)
    counts = (r.prompt - r.seen if meters and r.computed is None else r.computed for r in every)
    return _each([*counts], len(answers))


def _each(counts: Sequence[float | None], answers: int) -> float | None:
    """Return the sum of `counts` divided by `answers`; None if one count is not known."""
    whole = total(counts)
    return None if whole is None else whole / answers


def _quantile(values: Sequence[float], q: float) -> float:
    return float(np.quantile(values, q))
