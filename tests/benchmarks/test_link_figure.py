"""The figure of a link's table: its legend covers no line."""

from pathlib import Path

import pytest

from benchmarks.link import plot
from edgewise_lab.bench.link import Figure, Gaps, LinkRow
from tests.drawn import require_legend_apart, saved_figures


def row(trip: float, share: float) -> LinkRow:
    gaps = Gaps(p50=0.03, p95=0.04, p99=0.05)
    return LinkRow(
        round_trip=trip,
        loss=0.0,
        share=share,
        questions=4,
        consults=share,
        changed=0.5,
        step=0.03,
        waiting=Figure(1 + 10 * trip, 1.0, 3.0),
        ahead=Figure(1 + 5 * trip, 1.0, 2.0),
        ahead_over_waiting=Figure(0.8, 0.7, 0.9),
        bound=1 + 4 * trip,
        ttft=1.0,
        edge_gaps=gaps,
        waiting_gaps=gaps,
        ahead_gaps=gaps,
        decodes_per_token=1.1,
        thrown_away=0.1,
        wasted=0.0,
        late=0,
        identical=4,
        margins=(),
        right=(0.5, 0.75, 0.75),
    )


@pytest.mark.parametrize("shares", [(0.05,), (0.02, 0.05, 0.1)])
def test_the_legend_stands_beside_the_panels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shares: tuple[float, ...]
) -> None:
    pytest.importorskip("matplotlib")
    drawn = saved_figures(monkeypatch)
    rows = [row(trip, share) for share in shares for trip in (0.0, 0.05, 0.2)]
    plot(rows, 0.025, tmp_path / "link.png")
    (figure,) = drawn
    require_legend_apart(figure)
