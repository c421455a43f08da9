"""`edgewise tune`: thresholds of a router for a pair, from some prompts."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from msgspec.structs import replace
from rich.box import SIMPLE_HEAD
from rich.table import Table

from edgewise import pair, parts
from edgewise.cli import options, render
from edgewise.cli.options import MACHINE, MODELS, PRIVACY, takes
from edgewise.costs.price import price_of
from edgewise.errors import UsageError
from edgewise.routers.start import keep_tuned
from edgewise.settings import Settings
from edgewise_lab.commands import shared
from edgewise_lab.evaluation.calibration import Calibrated, thresholds_for
from edgewise_lab.evaluation.systems import require_room
from edgewise_lab.evaluation.tasks.base import Task
from edgewise_lab.evaluation.tasks.named import open_task
from edgewise_lab.training.router import SHARES
from edgewise_lab.training.spending import MeteredCloud, SpendingMeter

FEWEST = 20
"""Prompts; fewer say next to nothing about a share of 1%."""


@takes(
    *(*MODELS, *PRIVACY, *MACHINE, "router", "price"),
    reads=["cloud_key", "edge_key"],
    unaffected=["cloud_share", "threshold", "top_p", "seed", "speculate", "on_cloud_error"],
)
def tune(
    task: shared.TaskName,
    *,
    data: shared.Data = None,
    limit: Annotated[int, typer.Option(metavar="N", help="The first N prompts.")] = 100,
    max_tokens: shared.MaxTokens = None,
    chosen: Settings,
    json: options.Json = False,
) -> None:
    """Set a router's thresholds for this pair by some prompts; run and serve begin from them."""
    asked = _prompts(task, data, limit, max_tokens)
    meter = SpendingMeter()
    with pair.open_models(chosen) as models, render.progress(hidden=json) as progress:
        edge, cloud = models.both()
        require_room(asked, edge, cloud)
        named = replace(chosen, router=parts.chosen_router(chosen, edge))
        bar = progress.add_task("answers", total=None)
        found = thresholds_for(
            SHARES,
            parts.open_router(named, edge)[0],
            asked,
            edge=edge,
            cloud=MeteredCloud(cloud, meter),
            done=lambda: progress.advance(bar),
        )
        thresholds = {f"{share:g}": point.threshold for share, point in found.items()}
        identity = parts.router_identity(named)
        place = keep_tuned(edge, identity, parts.cloud_address(chosen), thresholds)
    if place is None:
        raise UsageError("There is no folder to keep thresholds in", hint="set HOME")
    if json:
        realised = {f"{share:g}": (point.share, *point.interval) for share, point in found.items()}
        told = {"router": named.router, "thresholds": thresholds, "realised": realised}
        print(msgspec.json.encode(told).decode())
        return
    render.show(_table(found, f"{named.router}, {len(asked.questions)} prompts"))
    price = price_of(chosen.price) if chosen.price else None
    render.note(f"It took {meter.spent.described(price)}.")
    render.out.print(f"run, chat and serve begin from these with this pair and router ({place}).")


def _prompts(name: str, data: Path | None, limit: int, max_tokens: int | None) -> Task:
    task = open_task(name, data=data).first(limit)
    if len(task.questions) < FEWEST:
        raise UsageError(
            f"{len(task.questions)} prompts are too few to set a threshold by",
            hint=f"give {FEWEST} or more",
            setting="limit",
        )
    return task if max_tokens is None else replace(task, max_tokens=max_tokens)


def _table(found: Mapping[float, Calibrated], title: str) -> Table:
    table = Table(title=render.printable(title), box=SIMPLE_HEAD, pad_edge=False)
    for name in ("cloud share", "threshold", "realised"):
        table.add_column(name, justify="right")
    for share, point in found.items():
        realised = f"{point.share:.1%} {shared.percent(point.interval)}"
        table.add_row(f"{share:.0%}", f"{point.threshold:.6f}", realised)
    return table
