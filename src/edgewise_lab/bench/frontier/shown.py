"""The frontier as tables and as figures."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from edgewise.errors import UsageError
from edgewise_lab.bench.frontier.report import (
    CLOUD,
    EDGE,
    CurvePoint,
    EqualCost,
    Frontier,
    FrontierRow,
)
from edgewise_lab.evaluation.statistics import Interval
from edgewise_lab.tables import FigureTable


def tables(found: Frontier) -> list[FigureTable]:
    """Quality and time; what it costs; whole questions at equal cost."""
    return [_quality(found), _costs(found), _whole(found)]


def notes(found: Frontier) -> list[str]:
    """What must be known to read the rows, a sentence each."""
    return [f"{row.system}: {row.note}" for row in found.rows if row.note]


def _quality(found: Frontier) -> FigureTable:
    first = found.rows[0]
    head = ["system", "right, %", f"less {found.main}", "strict, %", "less", "share, %"]
    head += ["time p50 / p95, s", "first token, s", "longest gap p95, s", "time is"]
    title = (
        f"Quality on {first.questions} questions, times on {first.timed} of them (95% intervals; "
        f"differences are to {found.main!r}, in points)"
    )
    lines = [
        [
            row.system,
            _percent(row.accuracy, row.interval),
            _in_points(row.difference, row.difference_interval),
            _percent(row.strict_accuracy, row.strict_interval),
            _in_points(row.strict_difference, row.strict_difference_interval),
            f"{100 * row.cloud_share:.1f}",
            f"{row.time_p50:.2f} / {row.time_p95:.2f}",
            f"{row.ttft:.2f}",
            f"{row.gap:.2f}",
            row.clock,
        ]
        for row in found.rows
    ]
    return FigureTable(title, head, lines)


def _costs(found: Frontier) -> FigureTable:
    lists = list(found.rows[0].bills)
    head = ["system", *(f"bill: {name}" for name in lists), "requests", "read by the cloud"]
    head += ["its engine, s", "sent / received, bytes", "edge passes", "over ids"]
    lines = [_cost(row, lists) for row in found.rows]
    title = "Costs an answer; bills over the cloud alone's (1), reads by the engine's own meter"
    return FigureTable(title, head, lines)


def _cost(row: FrontierRow, lists: Sequence[str]) -> list[str]:
    return [
        row.system,
        *(_told(row.bills[name], ".2f") for name in lists),
        f"{row.requests:.1f}",
        _told(row.read, ".0f"),
        _told(row.engine_seconds, ".2f"),
        f"{_told(row.sent, ',.0f')} / {_told(row.received, ',.0f')}",
        f"{row.decodes:.1f}",
        f"{row.positions:.0f}",
    ]


def _whole(found: Frontier) -> FigureTable:
    head = ["at the same", "whole questions", "sent, %", "right, %", f"{found.main} is ahead by"]
    head += ["strict, %", "ahead by"]
    lines = [_equal(one) for one in found.whole]
    title = f"Whole questions to the cloud at the cost of {found.main!r} (composed, exactly)"
    return FigureTable(title, head, lines)


def _equal(one: EqualCost) -> list[str]:
    sent = f"{100 * one.sent:.0f}" + ("" if one.reached else " (dearer without any)")
    return [
        one.axis,
        one.system,
        sent,
        f"{100 * one.accuracy:.1f}",
        _in_points(one.ahead, one.ahead_interval),
        f"{100 * one.strict_accuracy:.1f}",
        _in_points(one.strict_ahead, one.strict_ahead_interval),
    ]


def _percent(value: float, interval: Interval) -> str:
    low, high = interval
    return f"{100 * value:.1f} ({100 * low:.0f} to {100 * high:.0f})"


def _in_points(value: float, interval: Interval) -> str:
    low, high = interval
    # A difference of nothing has no sign.
    return f"{100 * value + 0.0:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"


def _told(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)


_SHARE = re.compile(r" at [0-9.]+%$")
"""Ends the name of a router at a share."""

Reading = Callable[[FrontierRow | CurvePoint], float | None]
"""What stands on the axis."""


def plots(found: Frontier, path: Path) -> list[Path]:
    """Write both beside `path`, whose ending chooses the format; returns where.

    Raises `UsageError` where matplotlib is missing or a file cannot be written.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError(
            "A plot needs matplotlib", hint="pip install 'edgewise[lab]'", setting="plot"
        ) from error
    lists = [name for name in found.rows[0].bills if _priced(found, name)]
    places = [path.with_name(f"{path.stem}-{what}{path.suffix}") for what in ("bill", "time")]
    bill = Figure(figsize=(4 + 4 * len(lists), 5), layout="constrained")
    FigureCanvasAgg(bill)
    panels = bill.subplots(1, len(lists), sharey=True, squeeze=False)[0]
    for axes, name in zip(panels, lists, strict=True):
        _draw(axes, found, lambda one, name=name: one.bills[name])
        # What asks for every token again is far beyond the cloud alone.
        axes.set_xscale("symlog", linthresh=1)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set(title=name, xlabel="bill, the cloud alone = 1")
    time = Figure(figsize=(9, 5), layout="constrained")
    FigureCanvasAgg(time)
    axes = time.subplots()
    _draw(axes, found, lambda one: one.time)
    axes.set(xlabel="time an answer, s")
    for figure, first, place in ((bill, panels[0], places[0]), (time, axes, places[1])):
        first.set(ylabel="right, % (lenient reading)")
        # Beside the panels, where it covers no point.
        figure.legend(*first.get_legend_handles_labels(), loc="outside right upper", fontsize=8)
        _save(figure, place)
    return places


def _priced(found: Frontier, name: str) -> bool:
    return any(row.bills[name] for row in found.rows)


def _draw(axes: Any, found: Frontier, cost_of: Reading) -> None:
    """A point a measured system, with the interval of its accuracy; a router's shares are joined.

    Whole questions are curves over all that may be sent; a draw is the line between the ends.
    """
    ends = [row for row in found.rows if row.system in (EDGE, CLOUD)]
    axes.plot(*_places(ends, cost_of), ls=":", c="grey", label="at random (expected)")
    for name in dict.fromkeys(point.system for point in found.curves):
        curve = [point for point in found.curves if point.system == name]
        axes.plot(*_places(curve, cost_of), ls="--", lw=1, label=f"{name} (composed)")
    measured = [row for row in found.rows if row.clock == "measured"]
    groups = dict.fromkeys(_SHARE.sub("", row.system) for row in measured)
    for number, name in enumerate(groups):
        _points(axes, [r for r in measured if _SHARE.sub("", r.system) == name], cost_of, number)
    axes.margins(x=0.04)
    axes.grid(alpha=0.3)


def _points(axes: Any, rows: list[FrontierRow], cost_of: Reading, number: int) -> None:
    rows = [row for row in rows if cost_of(row) is not None]
    costs, right = _places(rows, cost_of)
    name = _SHARE.sub("", rows[0].system) if len(rows) > 1 else rows[0].system if rows else ""
    below = [at - 100 * row.interval[0] for at, row in zip(right, rows, strict=True)]
    above = [100 * row.interval[1] - at for at, row in zip(right, rows, strict=True)]
    axes.errorbar(
        costs,
        right,
        [below, above],
        marker="osD^v"[number // 10 % 5],
        ms=5,
        capsize=2,
        elinewidth=0.6,
        c=f"C{number % 10}",
        ls="-" if len(rows) > 1 else "none",
        label=name,
    )


def _places(
    found: Sequence[FrontierRow | CurvePoint], cost_of: Reading
) -> tuple[list[float], list[float]]:
    """Costs and percents right, of those whose cost is known."""
    known = [(cost, 100 * one.accuracy) for one in found if (cost := cost_of(one)) is not None]
    return [cost for cost, _ in known], [right for _, right in known]


def _save(figure: Any, path: Path) -> None:
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"The plot {str(path)!r} cannot be written: {error}.", setting="plot"
        ) from error
