"""Figures of outcomes, with 95% intervals. The gap is the cloud's accuracy minus the edge's."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec.structs import asdict

from edgewise_lab.evaluation import statistics
from edgewise_lab.evaluation.statistics import Interval
from edgewise_lab.evaluation.store import Cell
from edgewise_lab.evaluation.systems import Outcome, changed_share, cloud_share, total

EDGE, CLOUD = Cell("edge"), Cell("cloud")

SERVED = ", served"
"""Suffix in the name of a system that runs a router as users get it, with a shared budget."""

Outcomes = Mapping[Cell, Sequence[Outcome]]
Grade = Callable[[Outcome], bool]


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one system on some questions; rates are fractions, intervals 95% intervals.

    `cloud_share_asked` is the target of `cloud_share`, None without one. `to_read` counts answers
    that a person must grade; they are in no accuracy. `cut` is the fraction that ended at a limit
    of length. `interval` belongs to `accuracy`, `gain_interval` to the accuracy minus the edge's.
    `worse` is the fraction that the edge alone has right and this system wrong. `gap_recovered` is
    None without a gap, `difference` is the accuracy minus the main system's, None without one.
    `strict_...` is by strict grading.

    Counts are sums over the answers. `cloud_tokens` are the cloud's tokens in them, `wasted_tokens`
    were requested in vain, `written` is all that the cloud generated. `cloud_calls` were answered,
    `failed_calls` were not; `changed` is the mean number of tokens that a consult changed.
    `prompt_cached` and `prompt_computed` are the cloud's prompt tokens by its engine's usage
    report; `cloud_work` is computed + written tokens over those of cloud alone (None: no report).
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
    """Figures of one system: over all questions, and for each kind (family) that code can grade."""

    overall: Figures
    families: dict[str, Figures]


def rows(found: Outcomes, main: Cell | None = None) -> list[Row]:
    """Return the figures of every system in `found`, which must hold edge alone and cloud alone.

    With `main`, a key of `found`, they also have the difference in accuracy to that system.
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
        cloud_share_interval=statistics.ratio_interval(asked, output),
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


def _read(
    found: Outcomes, cell: Cell, main: Cell | None, grade: Callable[[Outcome], bool]
) -> dict[str, Any]:
    """Return the fields of `Figures` that depend on how answers are graded, here by `grade`."""
    edge, right, cloud, rival = (
        [grade(o) for o in found[which] if not o.to_read]
        for which in (EDGE, cell, CLOUD, main or EDGE)
    )
    recovered = statistics.gap_recovered(edge, right, cloud)
    return {
        "accuracy": sum(right) / len(right),
        "interval": statistics.mean_interval(right),
        "gain_interval": statistics.difference_interval(right, edge),
        "worse": sum(e and not r for e, r in zip(edge, right, strict=True)) / len(right),
        "gap_recovered": recovered[0] if recovered else None,
        "gap_interval": recovered[1] if recovered else None,
        "difference": (sum(right) - sum(rival)) / len(right) if main else None,
        "difference_interval": statistics.difference_interval(right, rival) if main else None,
    }


def _work(outcomes: Sequence[Outcome]) -> int | None:
    computed = total(o.computed for o in outcomes)
    return None if computed is None else computed + _written(outcomes)


def _written(outcomes: Sequence[Outcome]) -> int:
    return sum(
        o.cloud_tokens + o.wasted_tokens if o.written is None else o.written for o in outcomes
    )


def as_json(
    task: str,
    table: Sequence[Row],
    *,
    known: bool = True,
    warnings: Sequence[str] = (),
    main: Cell | None = None,
) -> str:
    """Return the figures of each system as JSON text, with those of each family in them.

    `measure` is "agreement" if the right answers are not `known`: the cloud's took their place.
    """
    told = {
        "task": task,
        "measure": "accuracy" if known else "agreement",
        "warnings": warnings,
        "main": main,
        "systems": [{**asdict(row.overall), "families": row.families} for row in table],
    }
    return msgspec.json.encode(told).decode()
