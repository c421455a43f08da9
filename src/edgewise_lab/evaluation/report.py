"""Figures of an evaluation's outcomes, with 95% intervals: accuracy, cloud share, gap recovered.

The gap is the accuracy of the cloud model alone minus that of the edge model alone. *Gap recovered*
is the fraction of it that a system gains over the edge alone.
"""

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
"""Suffix in the name of a system that runs a router as users get it, with a shared budget."""

Outcomes = Mapping[Cell, Sequence[Outcome]]
Grade = Callable[[Outcome], bool]


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one system on some questions; rates are fractions, intervals 95% intervals.

    `interval` belongs to `accuracy`, `gain_interval` to the accuracy minus that of the edge alone.
    `worse` is the fraction of questions that the edge alone has right and this system wrong.
    `gap_recovered` is None if the cloud alone is no better than the edge alone. Fields with
    `strict_` are by strict grading, which also wants the requested format. `to_read` counts replies
    that a person must grade; no accuracy includes them.

    `cut` is the fraction of replies that end at the maximum length or at a full context.
    `cloud_calls` counts the answered requests to the cloud, `failed_calls` the others; sums of
    `cloud_tokens`, `wasted_tokens` and `written` are as in `Outcome`. `changed` is a mean per
    answered request: how many tokens the cloud wrote in place of different ones of the edge's.
    `prompt_cached` and `prompt_computed` count the cloud's prompt tokens as its engine reports them
    (None: not reported). `cloud_work` is the prompt tokens that the cloud computed plus the tokens
    that it wrote, as a fraction of the same sum for the cloud alone. `difference` is the accuracy
    minus that of the report's main system, if there is one.
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
    written: int
    cloud_calls: int
    failed_calls: int
    changed: float | None
    prompt_cached: int | None
    prompt_computed: int | None
    cloud_work: float | None
    tokens_per_second: float
    difference: float | None = None
    difference_interval: Interval | None = None
    strict_difference: float | None = None
    strict_difference_interval: Interval | None = None


class Row(msgspec.Struct, frozen=True):
    """Figures of one system: over all questions, and for each family (kind) that code can grade."""

    overall: Figures
    families: dict[str, Figures]


def rows(found: Outcomes, main: Cell | None = None) -> list[Row]:
    """Return a row of figures for every system in `found`, in its order.

    `found` must contain the outcomes of edge alone and cloud alone. With `main`, a key of `found`,
    the figures also have the difference in accuracy to that system.
    """
    judged = list(dict.fromkeys(one.family for one in found[EDGE] if not one.to_read))
    return [
        Row(
            _figures(cell, found, main),
            {family: _figures(cell, found, main, family) for family in judged},
        )
        for cell in found
    ]


def _figures(cell: Cell, found: Outcomes, main: Cell | None, family: str | None = None) -> Figures:
    """Return the figures of one cell on a family of questions, or on all."""
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
        written=_written(outcomes),
        cloud_calls=sum(o.consults for o in outcomes),
        failed_calls=sum(o.failed for o in outcomes),
        changed=changed_share(outcomes),
        prompt_cached=total(o.cached for o in outcomes),
        prompt_computed=total(o.computed for o in outcomes),
        cloud_work=None if work is None or alone is None else work / alone,
        tokens_per_second=sum(output) / sum(o.seconds for o in outcomes),
    )


def _read(found: Outcomes, cell: Cell, main: Cell | None, grade: Grade) -> dict[str, Any]:
    """Return the fields of `Figures` that depend on how answers are graded, here by `grade`."""
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
    """Return the prompt tokens that the cloud computed plus the tokens that it wrote."""
    computed = total(o.computed for o in outcomes)
    return None if computed is None else computed + _written(outcomes)


def _written(outcomes: Sequence[Outcome]) -> int:
    own = (o.cloud_tokens + o.wasted_tokens if o.written is None else o.written for o in outcomes)
    return sum(own)


class Accuracy(msgspec.Struct, frozen=True):
    """Fractions of right answers of edge alone, pair and cloud alone."""

    edge: float
    pair: float
    cloud: float


class Intervals(msgspec.Struct, frozen=True):
    """95 % intervals of the gain in accuracy over the edge alone, and of the gap recovered."""

    pair_minus_edge: Interval
    gap_recovered: Interval | None


class Strictly(msgspec.Struct, frozen=True):
    """Accuracy and gap recovered by strict grading, which also wants the requested format."""

    accuracy: Accuracy
    gap_recovered: float | None
    interval: Intervals


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of edge alone, pair and cloud alone on the same questions.

    `cloud_share` and `cloud_work` are the pair's, and defined as in `Figures`.
    """

    questions: int
    accuracy: Accuracy
    gap_recovered: float | None
    cloud_share: float
    cloud_work: float | None
    interval: Intervals
    strict: Strictly


class Summary(Compared, frozen=True, kw_only=True):
    """What an evaluation reports as JSON: a pair against edge and cloud, and all systems' figures.

    The pair uses `router` at the first of the cloud shares asked for; `families` has the same
    comparison for each family of questions. `warnings` are sentences on why a figure may mislead.
    `measure` is "agreement" if the cloud's own replies took the place of unknown right answers.
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
    """Return the summary of one pair beside edge and cloud alone, from the rows of `table`.

    The pair is the first row whose system is called `router` + `SERVED` (the router works as in
    `edgewise serve`), or else the first called `router` (with a fixed threshold). If there is
    neither, or `router` is None, it is the first with `SERVED`, else the third row, or the last.
    """
    first = {row.overall.system: row for row in reversed(table)}
    edge, cloud = first[EDGE.system], first[CLOUD.system]
    if router is None or not {router, router + SERVED} & first.keys():
        names = [row.overall.system for row in table]
        router = next((one for one in names if one.endswith(SERVED)), names[:3][-1])
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
    """Return the figures but for `timing` as CSV text, with a line for each system and family.

    The family `all` is all questions. Intervals have columns `_low` and `_high`; None is empty.
    """
    text = io.StringIO()
    fields = Figures.__struct_fields__
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
