"""The map drawn: what is fastest where, and the lines between."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.frontier_map.predicted import NAMES, WAYS, Predicted

COLOURS = {
    "cloud": "#f4c7a1",
    "speculation": "#b7d3ea",
    "larger edge": "#d9d9d9",
    "ahead": "#b5dcb0",
}
PANELS = (
    ("the cloud's own words", ("cloud", "speculation")),
    ("any quality (see the table)", WAYS),
)

Grid = dict[tuple[float, float], Predicted]
"""By step and round trip, seconds."""


def draw(grid: Grid, points: Sequence[tuple[float, float]], path: Path) -> None:
    """Two panels, the legend outside; `points` were measured."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    steps, trips = (sorted({place[axis] for place in grid}) for axis in (0, 1))
    canvas = Figure(figsize=(9, 4.2), layout="constrained")
    FigureCanvasAgg(canvas)
    panels = canvas.subplots(1, len(PANELS), sharey=True)
    across, up = [1000 * trip for trip in trips], [1000 * step for step in steps]
    colours = ListedColormap([COLOURS[way] for way in WAYS])
    for axes, (title, ways) in zip(panels, PANELS, strict=True):
        best = [[WAYS.index(grid[s, r].fastest(ways)) for r in trips] for s in steps]
        axes.pcolormesh(across, up, best, cmap=colours, vmin=-0.5, vmax=len(WAYS) - 0.5)
        for way in ways[1:]:
            gain = [
                [grid[s, r].seconds["cloud"] - grid[s, r].seconds[way] for r in trips]
                for s in steps
            ]
            if np.min(gain) < 0 < np.max(gain):
                style = {"speculation": ":", "larger edge": "--", "ahead": "-"}[way]
                axes.contour(across, up, gain, levels=[0.0], colors="black", linestyles=style)
        for step, trip in points:
            axes.plot(1000 * trip, 1000 * step, "k+", ms=9)
        axes.set(title=title, xlabel="round trip, ms")
    panels[0].set(ylabel="the edge's time per token, ms")
    shown = [Patch(color=COLOURS[way], label=NAMES[way]) for way in WAYS]
    lines = {":": "speculation", "--": "larger edge", "-": "ahead"}
    shown += [
        Line2D([], [], color="black", ls=style, label=f"{NAMES[way]} = streamed")
        for style, way in lines.items()
    ]
    shown.append(Line2D([], [], color="black", marker="+", ls="", label="measured"))
    canvas.legend(handles=shown, loc="outside lower center", ncols=4, fontsize=8)
    canvas.savefig(path, dpi=150)
