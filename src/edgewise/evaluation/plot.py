"""Accuracy against cloud share, with intervals; edge, cloud and single points as baselines."""

from collections.abc import Sequence
from pathlib import Path

from edgewise.errors import UsageError
from edgewise.evaluation.report import Figures

ALONE = ("edge", "cloud")


def plot(figures: Sequence[Figures], title: str, path: Path) -> None:
    """Write a plot; the file's ending chooses the format (png, svg, pdf)."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError(
            "A plot needs matplotlib", hint="pip install 'edgewise[eval]'", setting="plot"
        ) from error
    figure = Figure(figsize=(7, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    for name in dict.fromkeys(f.system for f in figures):
        points = sorted((f for f in figures if f.system == name), key=lambda f: f.cloud_share)
        if name in ALONE:
            style = "-" if name == "cloud" else "--"
            axes.axhline(100 * points[0].accuracy, ls=style, c="grey", label=f"{name} alone")
            continue
        heights = [100 * p.accuracy for p in points]
        below = [100 * (p.accuracy - p.interval[0]) for p in points]
        above = [100 * (p.interval[1] - p.accuracy) for p in points]
        shares = [100 * p.cloud_share for p in points]
        axes.errorbar(shares, heights, [below, above], marker="o", ms=4, capsize=2, label=name)
    axes.set(xlabel="cloud share, % of output tokens", ylabel="accuracy, %", title=title)
    axes.set_xlim(left=0)
    axes.legend()
    try:
        figure.savefig(path)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"The plot {str(path)!r} cannot be written: {error}.", setting="plot"
        ) from error
