"""Figures of outcomes, each with its interval: accuracy, cloud share, gap recovered."""

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import msgspec
from msgspec.structs import asdict

from edgewise_lab.evaluation.statistics import (
    Interval,
    difference_interval,
    gap_recovered,
    mean_interval,
    ratio_interval,
)
from edgewise_lab.evaluation.store import Cell
from edgewise_lab.evaluation.systems import Outcome, changed_share, cloud_share, total

EDGE, CLOUD = Cell("edge"), Cell("cloud")

SERVED = ", served"
"""Ends the name of a router's system with the controller and its share, as users have it."""

Outcomes = Mapping[Cell, Sequence[Outcome]]
Grade = Callable[[Outcome], bool]


Clock = Literal["measured", "composed"]
"""Whether times are of a clock, or sums of such."""


class TimedFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Times in seconds and costs of the `answers` that were timed; means unless stated.

    `time` has the median and the 95th percentile; `ttft` is a median, `gap` a 95th percentile. The
    edge made `decodes` passes over `positions` ids; the cloud had `requests`, guesses in vain
    included, for which its engine computed `read` prompt tokens in `engine_seconds`, by its own
    meter. `bills` are over the cloud alone's, by the names of the price lists. `sent` and
    `received` are bytes. None: not known. `note` says what must be known to read them.
    """

    answers: int
    clock: Clock
    note: str
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


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one system on some questions.

    `interval` is of the accuracy, `gain_interval` of its difference to the edge alone; `worse` is
    the fraction that the edge alone has right, and it has not. Fields with
    `strict_` use strict grading. Replies `to_read` by a person count in neither. `cut` is the
    fraction of replies that were cut at the longest answer, `changed` that of consults that changed
    the token. `gap_recovered` is None where the cloud is not better than the edge. Prompt tokens
    are the cloud's, by its engine's meter, None where it has none. `cloud_work` is what the cloud
    computed of prompts and wrote, in tokens, over the same of the cloud alone. `difference` is this
    less a main system, on the same questions, where there is one.
    """

    system: str
    cloud_share_asked: float | None
    questions: int
    to_read: int
    cut: float
    accuracy: float
    interval: Interval
    gain_interval: Interval
    worse: float
    gap_recovered: float | None
    gap_interval: Interval | None
    strict_accuracy: float
    strict_interval: Interval
    strict_gain_interval: Interval
    strict_worse: float
    strict_gap_recovered: float | None
    strict_gap_interval: Interval | None
    cloud_share: float
    cloud_share_interval: Interval
    cloud_tokens: int
    wasted_tokens: int
    cloud_calls: int
    changed: float | None
    prompt_cached: int | None
    prompt_computed: int | None
    cloud_work: float | None
    tokens_per_second: float
    difference: float | None = None
    difference_interval: Interval | None = None
    strict_difference: float | None = None
    strict_difference_interval: Interval | None = None
    timing: TimedFigures | None = None


class Row(msgspec.Struct, frozen=True):
    """Figures of one system, over everything and by family."""

    overall: Figures
    families: dict[str, Figures]


def rows(found: Outcomes, main: Cell | None = None) -> list[Row]:
    """A row for every system, compared with `main`; `found` must hold edge and cloud."""
    judged = list(dict.fromkeys(one.family for one in found[EDGE] if not one.to_read))
    return [
        Row(
            _figures(cell, found, main),
            {family: _figures(cell, found, main, family) for family in judged},
        )
        for cell in found
    ]


def _figures(cell: Cell, found: Outcomes, main: Cell | None, family: str | None = None) -> Figures:
    """Figures of a family, or of everything."""
    own = {
        which: [o for o in found[which] if family in (None, o.family)]
        for which in (cell, EDGE, CLOUD, main)
        if which is not None
    }
    outcomes = own[cell]
    lenient = _read(own, cell, main, lambda outcome: outcome.right)
    strict = _read(own, cell, main, lambda outcome: outcome.strict)
    work, alone = _work(outcomes), _work(own[CLOUD])
    output = [o.output_tokens for o in outcomes]
    asked = [o.cloud_tokens + o.wasted_tokens for o in outcomes]
    return Figures(
        system=cell.system,
        cloud_share_asked=cell.share,
        questions=len(outcomes),
        to_read=sum(o.to_read for o in outcomes),
        cut=sum(o.cut for o in outcomes) / len(outcomes),
        **lenient,
        **{f"strict_{name}": figure for name, figure in strict.items()},
        cloud_share=cloud_share(outcomes),
        cloud_share_interval=ratio_interval(asked, output),
        cloud_tokens=sum(o.cloud_tokens for o in outcomes),
        wasted_tokens=sum(o.wasted_tokens for o in outcomes),
        cloud_calls=sum(o.consults for o in outcomes),
        changed=changed_share(outcomes),
        prompt_cached=total(o.cached for o in outcomes),
        prompt_computed=total(o.computed for o in outcomes),
        cloud_work=None if work is None or alone is None else work / alone,
        tokens_per_second=sum(output) / sum(o.seconds for o in outcomes),
    )


def _read(found: Outcomes, cell: Cell, main: Cell | None, grade: Grade) -> dict[str, Any]:
    """The fields of `Figures` that a reading of the answers has of its own."""
    edge, right, cloud, rival = (
        [grade(o) for o in found[which] if not o.to_read]
        for which in (EDGE, cell, CLOUD, main or EDGE)
    )
    recovered = gap_recovered(edge, right, cloud)
    return {
        "accuracy": sum(right) / len(right),
        "interval": mean_interval(right),
        "gain_interval": difference_interval(right, edge),
        "worse": sum(e and not r for e, r in zip(edge, right, strict=True)) / len(right),
        "gap_recovered": recovered[0] if recovered else None,
        "gap_interval": recovered[1] if recovered else None,
        "difference": (sum(right) - sum(rival)) / len(right) if main else None,
        "difference_interval": difference_interval(right, rival) if main else None,
    }


def _work(outcomes: Sequence[Outcome]) -> int | None:
    """Tokens that the cloud computed of prompts, and wrote."""
    computed = total(o.computed for o in outcomes)
    written = sum(o.cloud_tokens + o.wasted_tokens for o in outcomes)
    return None if computed is None else computed + written


class Accuracy(msgspec.Struct, frozen=True):
    """Fraction of right answers."""

    edge: float
    pair: float
    cloud: float


class Intervals(msgspec.Struct, frozen=True):
    """95 % intervals."""

    pair_minus_edge: Interval
    gap_recovered: Interval | None


class Strictly(msgspec.Struct, frozen=True):
    """Edge alone, pair and cloud alone by the strict reading."""

    accuracy: Accuracy
    gap_recovered: float | None
    interval: Intervals


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """Edge alone, pair and cloud alone on some questions."""

    questions: int
    accuracy: Accuracy
    gap_recovered: float | None
    cloud_share: float
    cloud_work: float | None
    interval: Intervals
    strict: Strictly


class Summary(Compared, frozen=True, kw_only=True):
    """The pair at one share, as a whole and by family, and every system's figures.

    `warnings` say in a sentence each why a figure may not be what it seems. The `measure` is
    agreement with the cloud's own answers where nobody knows the right ones.
    """

    task: str
    router: str
    families: dict[str, Compared]
    systems: list[Figures]
    warnings: tuple[str, ...] = ()
    measure: Literal["accuracy", "agreement"] = "accuracy"


def summary(
    task: str, router: str | None, table: Sequence[Row], warnings: Sequence[str] = ()
) -> Summary:
    """Summary of `router` at its first share in `table`, as served where that is in it.

    Where that is not there it is of the first system after edge and cloud.
    """
    first: dict[str, Row] = {}
    for row in table:
        first.setdefault(row.overall.system, row)
    edge, cloud = first[EDGE.system], first[CLOUD.system]
    if router is None or not {router, router + SERVED} & first.keys():
        router = table[min(2, len(table) - 1)].overall.system
    pair = first.get(router + SERVED) or first[router]
    whole = _compared(edge.overall, pair.overall, cloud.overall)
    return Summary(
        **asdict(whole),
        task=task,
        router=router,
        families={
            name: _compared(edge.families[name], figures, cloud.families[name])
            for name, figures in pair.families.items()
        },
        systems=[row.overall for row in table],
        warnings=tuple(warnings),
    )


def _compared(edge: Figures, pair: Figures, cloud: Figures) -> Compared:
    return Compared(
        questions=pair.questions,
        accuracy=Accuracy(edge.accuracy, pair.accuracy, cloud.accuracy),
        gap_recovered=pair.gap_recovered,
        cloud_share=pair.cloud_share,
        cloud_work=pair.cloud_work,
        interval=Intervals(pair.gain_interval, pair.gap_interval),
        strict=Strictly(
            Accuracy(edge.strict_accuracy, pair.strict_accuracy, cloud.strict_accuracy),
            pair.strict_gap_recovered,
            Intervals(pair.strict_gain_interval, pair.strict_gap_interval),
        ),
    )


def as_csv(table: Sequence[Row]) -> str:
    """A CSV line for each system and family; `all` is everything."""
    text = io.StringIO()
    fields = [name for name in Figures.__struct_fields__ if name != "timing"]
    names = [name for name in fields if "interval" not in name]
    intervals = [name for name in fields if "interval" in name]
    bounds = [f"{name}_{end}" for name in intervals for end in ("low", "high")]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["family", *names, *bounds])
    for row in table:
        for family, figures in {"all": row.overall, **row.families}.items():
            ends = [end for name in intervals for end in getattr(figures, name) or ("", "")]
            writer.writerow([family, *(getattr(figures, name) for name in names), *ends])
    return text.getvalue()
