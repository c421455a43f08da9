"""The frontier as tables."""

from edgewise_lab.bench.frontier.report import Frontier
from edgewise_lab.evaluation.statistics import Interval
from edgewise_lab.tables import FigureTable


def tables(found: Frontier) -> list[FigureTable]:
    """Quality and time; what it costs; whole questions at equal cost."""
    return [_quality(found), _costs(found), _whole(found)]


def notes(found: Frontier) -> list[str]:
    """Notes for reading the rows, a sentence each."""
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
    lines = [
        [
            row.system,
            *(_told(row.bills[name], ".2f") for name in lists),
            f"{row.requests:.1f}",
            _told(row.read, ".0f"),
            _told(row.engine_seconds, ".2f"),
            f"{_told(row.sent, ',.0f')} / {_told(row.received, ',.0f')}",
            f"{row.decodes:.1f}",
            f"{row.positions:.0f}",
        ]
        for row in found.rows
    ]
    title = "Costs an answer; bills over the cloud alone's (1), reads by the engine's own meter"
    return FigureTable(title, head, lines)


def _whole(found: Frontier) -> FigureTable:
    head = ["at the same", "whole questions", "sent, %", "right, %", f"{found.main} is ahead by"]
    head += ["strict, %", "ahead by"]
    lines = [
        [
            one.axis,
            one.system,
            f"{100 * one.sent:.0f}" + ("" if one.reached else " (dearer without any)"),
            f"{100 * one.accuracy:.1f}",
            _in_points(one.accuracy_gain, one.accuracy_gain_interval),
            f"{100 * one.strict_accuracy:.1f}",
            _in_points(one.strict_accuracy_gain, one.strict_accuracy_gain_interval),
        ]
        for one in found.whole
    ]
    title = f"Whole questions to the cloud at the cost of {found.main!r} (composed, exactly)"
    return FigureTable(title, head, lines)


def _percent(value: float, interval: Interval) -> str:
    low, high = interval
    return f"{100 * value:.1f} ({100 * low:.0f} to {100 * high:.0f})"


def _in_points(value: float, interval: Interval) -> str:
    low, high = interval
    # A difference of nothing has no sign.
    return f"{100 * value + 0.0:+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"


def _told(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
