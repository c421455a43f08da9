"""`edgewise tune`: thresholds of a router for a pair, from some prompts."""

from collections.abc import Callable, Mapping
from typing import Annotated

import msgspec
import typer
from msgspec.structs import replace
from rich.box import SIMPLE_HEAD
from rich.table import Table

from edgewise import pair, parts
from edgewise.cli import options, render
from edgewise.cli.options import MACHINE, MODELS, PRIVACY, takes
from edgewise.cloud.base import CloudModel
from edgewise.costs.price import price_of
from edgewise.edge.base import EdgeModel
from edgewise.errors import UsageError
from edgewise.routers.base import Router
from edgewise.routers.start import KEEP, keep_tuned
from edgewise.settings import Settings
from edgewise_lab import tables
from edgewise_lab.commands import shared
from edgewise_lab.evaluation.calibration import Answers, Calibrated, thresholds_for
from edgewise_lab.evaluation.promise import CONFIDENCE, Promise, keeping, require_prompts, sequence
from edgewise_lab.evaluation.systems import CloudAlone, require_room
from edgewise_lab.evaluation.tasks.base import Task
from edgewise_lab.evaluation.tasks.grading import agreeing_task
from edgewise_lab.evaluation.tasks.named import open_task
from edgewise_lab.training.router import SHARES
from edgewise_lab.training.spending import MeteredCloud, SpendingMeter

FEWEST = 20
"""Prompts; fewer say next to nothing about a share of 1%."""


@takes(
    *(*MODELS, *PRIVACY, *MACHINE, "router", "price"),
    reads=["cloud_key", "edge_key"],
    unaffected=[
        "cloud_share",
        "threshold",
        "top_p",
        "seed",
        "speculate",
        "on_cloud_error",
        "on_edge_error",
    ],
)
def tune(
    task: shared.TaskName,
    *,
    data: shared.Data = None,
    check: shared.Check = None,
    limit: Annotated[int, typer.Option(metavar="N", help="The first N prompts.")] = 100,
    max_tokens: shared.MaxTokens = None,
    keep: Annotated[
        float | None,
        options.share_option(
            "Instead of shares: the part of the answers, such as 95%, that must agree with the "
            "cloud's own, or be right where that is known."
        ),
    ] = None,
    chosen: Settings,
    json: options.Json = False,
) -> None:
    """Set a router's thresholds for this pair by some prompts; run and serve begin from them."""
    asked = _prompts(open_task(task, data=data, check=check).first(limit), max_tokens)
    if keep is not None:
        require_prompts(keep, len(asked.questions))
    meter = SpendingMeter()
    with pair.open_models(chosen) as models, render.progress(hidden=json) as progress:
        edge, cloud = models.both()
        require_room(asked, edge, cloud)
        named = replace(chosen, router=parts.chosen_router(chosen, edge))
        router, card = parts.open_router(named, edge)
        bar = progress.add_task("answers", total=None)
        metered, done = MeteredCloud(cloud, meter), lambda: progress.advance(bar)
        if keep is None:
            found = thresholds_for(SHARES, router, asked, edge=edge, cloud=metered, done=done)
            thresholds = {f"{share:g}": point.threshold for share, point in found.items()}
        else:
            found = _kept(keep, router, asked, edge, metered, done)
            thresholds = {**parts.starts_of(named, router, card, edge), KEEP: found.threshold}
        place = keep_tuned(
            edge, parts.router_identity(named), parts.cloud_address(chosen), thresholds
        )
    if place is None:
        raise UsageError("There is no folder to keep thresholds in", hint="set HOME")
    if json:
        told = {"router": named.router, "thresholds": thresholds, **_realised(found)}
        print(msgspec.json.encode(told).decode())
        return
    if isinstance(found, Promise):
        render.out.print(_promised(found, agreement=not asked.known))
    else:
        render.show(_table(found, f"{named.router}, {len(asked.questions)} prompts"))
    price = price_of(chosen.price) if chosen.price else None
    render.note(f"It took {meter.spent.described(price)}.")
    use = "answer at this one" if keep else "begin from these"
    render.out.print(f"run, chat and serve {use} with this pair and router ({place}).")


def _kept(
    keep: float,
    router: Router,
    asked: Task,
    edge: EdgeModel,
    cloud: CloudModel,
    done: Callable[[], None],
) -> Promise:
    """The threshold that keeps so much; the cloud's own answers are right where none are known."""
    if not asked.known:
        alone = CloudAlone(cloud, edge.tokenizer, asked.max_tokens)
        replies: dict[str, str] = {}
        for question in asked.questions:
            replies[question.id] = alone.answer(question).text
            done()
        asked = agreeing_task(asked, replies)
    answers = Answers(router, asked, edge=edge, cloud=cloud, done=done)
    return keeping(
        keep,
        sequence(edge, router),
        lambda threshold: [one.outcome for one in answers.at(threshold).answers],
    )


def _realised(found: Mapping[float, Calibrated] | Promise) -> dict[str, object]:
    if isinstance(found, Promise):
        return {"kept": found}
    shares = {f"{share:g}": (point.share, *point.interval) for share, point in found.items()}
    return {"realised": shares}


def _promised(found: Promise, *, agreement: bool) -> str:
    what = "agreed with the cloud's own" if agreement else "were right"
    return (
        f"At a threshold of {found.threshold:.6f} {found.right} of {found.prompts} answers {what}: "
        f"at least {found.least:.1%} of answers to such prompts, with {CONFIDENCE:.0%} confidence. "
        f"The cloud wrote {tables.share(found.share, found.interval)} of the tokens."
    )


def _prompts(task: Task, max_tokens: int | None) -> Task:
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
