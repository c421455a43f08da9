"""Figures as they are saved, and where their legends stand."""

from pathlib import Path
from typing import Any

import pytest


def saved_figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every figure of matplotlib's that is saved from here on."""
    from matplotlib.figure import Figure

    drawn: list[Any] = []
    save = Figure.savefig

    def saved(figure: Figure, path: Path) -> None:
        drawn.append(figure)
        save(figure, path)

    monkeypatch.setattr(Figure, "savefig", saved)
    return drawn


def require_legend_apart(figure: Any) -> None:
    """One legend, within the figure, over no panel and none of its lines."""
    (legend,) = figure.legends
    place = legend.get_window_extent()
    assert figure.bbox.x0 <= place.x0 < place.x1 <= figure.bbox.x1
    assert figure.bbox.y0 <= place.y0 < place.y1 <= figure.bbox.y1
    for axes in figure.axes:
        assert axes.get_legend() is None
        assert not place.overlaps(axes.get_tightbbox())
        assert axes.get_lines()
        assert not any(place.overlaps(line.get_window_extent()) for line in axes.get_lines())
