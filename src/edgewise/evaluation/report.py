"""From outcomes to figures: accuracy, cloud share, gap recovered, each with its interval."""

import csv
import io
from collections.abc import Mapping, Sequence

import msgspec

from edgewise.evaluation.statistics import (
    Interval,
    difference_interval,
    gap_recovered,
    mean_interval,
)
from edgewise.evaluation.sweep import Cell
from edgewise.evaluation.systems import Outcome, changed_share, cloud_share

EDGE, CLOUD = Cell("edge"), Cell("cloud")

Outcomes = Mapping[Cell, Sequence[Outcome]]


class Figures(msgspec.Struct, frozen=True, kw_only=True):
    """One system on some questions.

    `interval` is of the accuracy, `gain_interval` of its difference to the edge alone; the gap
    recovered is averaged over the families, None without a gap. `changed` is the fraction of
    consults that changed the token. Prompt tokens are the cloud's, by its engine's meter.
    """

    system: str
    share_asked: float | None
    questions: int
    accuracy: float
    interval: Interval
    strict_accuracy: float
    gain_interval: Interval
    cloud_share: float
    cloud_tokens: int
    cloud_calls: int
    changed: float | None
    gap_recovered: float | None
    gap_interval: Interval | None
    prompt_cached: int
    prompt_computed: int
    tokens_per_second: float


class Row(msgspec.Struct, frozen=True):
    """One system's figures, over everything and by family."""

    overall: Figures
    families: dict[str, Figures]


def rows(found: Outcomes) -> list[Row]:
    """A row for every system; `found` must hold edge and cloud."""
    families = list(dict.fromkeys(outcome.family for outcome in found[EDGE]))
    return [
        Row(
            _figures(cell, found, families),
            {family: _figures(cell, found, [family]) for family in families},
        )
        for cell in found
    ]


def _figures(cell: Cell, found: Outcomes, families: Sequence[str]) -> Figures:
    outcomes = [o for o in found[cell] if o.family in families]
    right = [o.right for o in outcomes]
    edge = [o.right for o in found[EDGE] if o.family in families]

    def of(family: str, which: Cell) -> list[bool]:
        return [o.right for o in found[which] if o.family == family]

    recovered = gap_recovered([(of(f, EDGE), of(f, cell), of(f, CLOUD)) for f in families])
    return Figures(
        system=cell.system,
        share_asked=cell.share,
        questions=len(outcomes),
        accuracy=sum(right) / len(right),
        interval=mean_interval(right),
        strict_accuracy=sum(o.strict for o in outcomes) / len(outcomes),
        gain_interval=difference_interval(right, edge),
        cloud_share=cloud_share(outcomes),
        cloud_tokens=sum(o.cloud_tokens for o in outcomes),
        cloud_calls=sum(o.consults for o in outcomes),
        changed=changed_share(outcomes),
        gap_recovered=recovered[0] if recovered else None,
        gap_interval=recovered[1] if recovered else None,
        prompt_cached=sum(o.cached for o in outcomes),
        prompt_computed=sum(o.computed for o in outcomes),
        tokens_per_second=sum(o.output_tokens for o in outcomes) / sum(o.seconds for o in outcomes),
    )


class Accuracy(msgspec.Struct, frozen=True):
    """Fraction of right answers."""

    edge: float
    pair: float
    cloud: float


class Intervals(msgspec.Struct, frozen=True):
    """95 % intervals."""

    pair_minus_edge: Interval
    gap_recovered: Interval | None


class Compared(msgspec.Struct, frozen=True):
    """Edge alone, pair and cloud alone on some questions."""

    questions: int
    accuracy: Accuracy
    gap_recovered: float | None
    cloud_share: float
    interval: Intervals


class Summary(msgspec.Struct, frozen=True):
    """The pair at one share, as a whole and by family, and every system's figures."""

    task: str
    router: str
    questions: int
    accuracy: Accuracy
    gap_recovered: float | None
    cloud_share: float
    interval: Intervals
    families: dict[str, Compared]
    systems: list[Figures]


def summary(task: str, router: str, table: Sequence[Row]) -> Summary:
    """Of `router` at the first share that `table` has it at."""
    first: dict[str, Row] = {}
    for row in table:
        first.setdefault(row.overall.system, row)
    edge, pair, cloud = first[EDGE.system], first[router], first[CLOUD.system]
    whole = _compared(edge.overall, pair.overall, cloud.overall)
    return Summary(
        task,
        router,
        *(getattr(whole, name) for name in Compared.__struct_fields__),
        families={
            name: _compared(edge.families[name], figures, cloud.families[name])
            for name, figures in pair.families.items()
        },
        systems=[row.overall for row in table],
    )


def _compared(edge: Figures, pair: Figures, cloud: Figures) -> Compared:
    return Compared(
        pair.questions,
        Accuracy(edge.accuracy, pair.accuracy, cloud.accuracy),
        pair.gap_recovered,
        pair.cloud_share,
        Intervals(pair.gain_interval, pair.gap_interval),
    )


def as_csv(table: Sequence[Row]) -> str:
    """One line a system and family; `all` is everything."""
    text = io.StringIO()
    names = [name for name in Figures.__struct_fields__ if "interval" not in name]
    bounds = [
        f"{name}_{end}"
        for name in ("interval", "gain_interval", "gap_interval")
        for end in ("low", "high")
    ]
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["family", *names, *bounds])
    for row in table:
        for family, figures in {"all": row.overall, **row.families}.items():
            intervals = (figures.interval, figures.gain_interval, figures.gap_interval)
            ends = [end for interval in intervals for end in interval or ("", "")]
            writer.writerow([family, *(_cell(getattr(figures, name)) for name in names), *ends])
    return text.getvalue()


def _cell(value: object) -> object:
    return "" if value is None else value
