"""The curve that the page draws a replay over: the bundled pair by cloud share.

python -m pocket.curve --limit 300
"""

import argparse
import json
from pathlib import Path

from edgewise.pair import Pair
from edgewise_lab.evaluation.plan import Contender, Evaluation
from edgewise_lab.evaluation.report import Figures, rows
from edgewise_lab.evaluation.sweep import Store
from edgewise_lab.evaluation.tasks.pocketqa import pocketqa

SHARES = (0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15)
"""Those that the bundled router has calibrated thresholds for."""

DEADLINE = 60.0
"""Seconds; a busy machine may not change the figures."""

PLACE = Path(__file__).parents[1] / "src" / "edgewise" / "server" / "page" / "curve.json"


def curve(limit: int) -> dict[str, object]:
    """Figures of `limit` held-out questions, at static thresholds; shares and rates in percent."""
    task = pocketqa().first(limit)
    with Pair(deadline=DEADLINE) as pair:
        edge, cloud = pair.both()
        evaluation = Evaluation(
            task,
            pocketqa("calibration"),
            edge=edge,
            cloud=cloud,
            store=Store(None, {}),
            deadline=DEADLINE,
        )
        contender = Contender("pair", pair.router, pair.card)
        found = [row.overall for row in rows(evaluation.run([contender], SHARES, baselines=False))]
    return {
        "task": task.name,
        "questions": limit,
        "command": f"python -m pocket.curve --limit {limit}",
        **{one.system: _point(one) for one in found if one.share_asked is None},
        "pair": [_point(one) for one in found if one.share_asked is not None],
    }


def _point(found: Figures) -> dict[str, float | None]:
    def percent(value: float | None) -> float | None:
        return None if value is None else round(100 * value, 1)

    low, high = found.interval
    return {
        "asked": percent(found.share_asked),
        "share": percent(found.cloud_share),
        "right": percent(found.accuracy),
        "low": percent(low),
        "high": percent(high),
        "work": percent(found.cloud_work),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--limit", type=int, default=300, help="questions of the test split")
    found = curve(parser.parse_args().limit)
    PLACE.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
