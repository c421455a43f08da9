"""Accuracy against cloud share by both readings, with intervals.

Edge, cloud and single points are baselines.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from edgewise.errors import UsageError
from edgewise_lab.evaluation.report import Figures

ALONE = ("edge", "cloud")


def plot(figures: Sequence[Figures], title: str, path: Path) -> None:
    """Write a plot; the file's ending chooses the format (png, svg, pdf)."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError(
            "A plot needs matplotlib", hint="pip install 'edgewise[lab]'", setting="plot"
        ) from error
    figure = Figure(figsize=(13, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    lenient, strict = figure.subplots(1, 2, sharey=True)
    _draw(lenient, figures, "")
    _draw(strict, figures, "strict_")
    lenient.set(ylabel="right, %", title="lenient reading")
    strict.set(title="strict reading")
    # Beside the panels, where it covers no point.
    figure.legend(*lenient.get_legend_handles_labels(), loc="outside right upper")
    figure.suptitle(title)
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"The plot {str(path)!r} cannot be written: {error}.", setting="plot"
        ) from error


def _draw(axes: Any, figures: Sequence[Figures], reading: str) -> None:
    """Every system by one reading: `reading` begins the names of its figures."""
    for name in dict.fromkeys(f.system for f in figures):
        points = sorted((f for f in figures if f.system == name), key=lambda f: f.cloud_share)
        right = [100 * getattr(p, f"{reading}accuracy") for p in points]
        if name in ALONE:
            style = "-" if name == "cloud" else "--"
            axes.axhline(right[0], ls=style, c="grey", label=f"{name} alone")
            continue
        ends = [getattr(p, f"{reading}interval") for p in points]
        below = [at - 100 * low for at, (low, _) in zip(right, ends, strict=True)]
        above = [100 * high - at for at, (_, high) in zip(right, ends, strict=True)]
        shares = [100 * p.cloud_share for p in points]
        axes.errorbar(shares, right, [below, above], marker="o", ms=4, capsize=2, label=name)
    axes.set(xlabel="cloud share, % of output tokens")
    axes.set_xlim(left=0)
