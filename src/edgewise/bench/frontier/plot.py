"""Two figures of a frontier: quality against the bill, and against time."""

from pathlib import Path
from typing import Any

from edgewise.bench.frontier.report import CLOUD, EDGE, Frontier, FrontierRow
from edgewise.errors import UsageError

_STYLES = {"measured": "o", "composed": "s", "expected": "^"}


def plots(found: Frontier, path: Path) -> list[Path]:
    """Write both beside `path`, whose ending chooses the format; returns where.

    Raises `UsageError` where matplotlib is missing or a file cannot be written.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError(
            "A plot needs matplotlib", hint="pip install 'edgewise[eval]'", setting="plot"
        ) from error
    lists = [name for name in found.rows[0].bills if _priced(found, name)]
    places = [path.with_name(f"{path.stem}-{what}{path.suffix}") for what in ("bill", "time")]
    bill = Figure(figsize=(4 + 4 * len(lists), 5), layout="constrained")
    FigureCanvasAgg(bill)
    panels = bill.subplots(1, len(lists), sharey=True, squeeze=False)[0]
    for axes, name in zip(panels, lists, strict=True):
        _draw(axes, found, [row.bills[name] for row in found.rows])
        axes.set(title=name, xlabel="bill, the cloud alone = 1")
    time = Figure(figsize=(9, 5), layout="constrained")
    FigureCanvasAgg(time)
    axes = time.subplots()
    _draw(axes, found, [row.time for row in found.rows])
    axes.set(xlabel="time an answer, s")
    for figure, first, place in ((bill, panels[0], places[0]), (time, axes, places[1])):
        first.set(ylabel="right, % (lenient reading)")
        # Beside the panels, where it covers no point.
        figure.legend(*first.get_legend_handles_labels(), loc="outside right upper", fontsize=8)
        _save(figure, place)
    return places


def _priced(found: Frontier, name: str) -> bool:
    return any(row.bills[name] for row in found.rows)


def _draw(axes: Any, found: Frontier, costs: list[float | None]) -> None:
    """A point a system, with the interval of its accuracy; between the ends, a draw."""
    places = {row.system: cost for row, cost in zip(found.rows, costs, strict=True)}
    ends = {row.system: row for row in found.rows if row.system in (EDGE, CLOUD)}
    drawn = [(places[name], 100 * row.accuracy) for name, row in ends.items()]
    axes.plot(*zip(*drawn, strict=True), ls=":", c="grey", label="at random (expected)")
    for number, row in enumerate(found.rows):
        cost = places[row.system]
        if cost is not None:
            _point(axes, row, cost, number)
    # What costs nothing is seen whole.
    axes.set_xlim(left=-0.03 * max(cost or 0.0 for cost in costs))
    axes.grid(alpha=0.3)


def _point(axes: Any, row: FrontierRow, cost: float, number: int) -> None:
    low, high = (100 * end for end in row.interval)
    right = 100 * row.accuracy
    axes.errorbar(
        [cost],
        [right],
        [[right - low], [high - right]],
        marker=_STYLES[row.clock],
        ms=5,
        capsize=2,
        elinewidth=0.6,
        # Ten colours, then the same ones hollow.
        c=f"C{number % 10}",
        mfc="white" if number // 10 % 2 else None,
        ls="none",
        label=row.system,
    )


def _save(figure: Any, path: Path) -> None:
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"The plot {str(path)!r} cannot be written: {error}.", setting="plot"
        ) from error
