"""`edgewise tune`: set a router's thresholds for a pair of models from sample prompts."""

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
import typer
from msgspec.structs import replace
from rich.progress import Progress

from edgewise import opening, pair
from edgewise.addresses import user_path
from edgewise.cli import options, render
from edgewise.cli.options import MACHINE, MODELS, PRIVACY, takes
from edgewise.cloud.base import CloudModel
from edgewise.completion import Completion
from edgewise.costs.price import price_of
from edgewise.edge.base import EdgeModel
from edgewise.errors import UsageError
from edgewise.loop.decoder import Decoder
from edgewise.loop.one_cloud import UNKNOWN, unsure
from edgewise.loop.policy import Policy
from edgewise.routers.base import Router
from edgewise.routers.thresholds import TIERS, keep_tuned
from edgewise.settings import Settings
from edgewise_lab import tables
from edgewise_lab.commands import shared
from edgewise_lab.commands.shared import counted, resume_hint
from edgewise_lab.evaluation.calibration import Answers, Calibrated, thresholds_for
from edgewise_lab.evaluation.plan import manifest
from edgewise_lab.evaluation.systems import Decoded, require_room
from edgewise_lab.evaluation.tasks.base import Task
from edgewise_lab.evaluation.tasks.named import open_task
from edgewise_lab.training.router import SHARES
from edgewise_lab.training.spending import SpendingMeter
from edgewise_lab.wrapped_cloud import WrappedCloud, observed

FEWEST = 20
"""Smallest number of prompts; fewer say next to nothing about a cloud share of 1%."""

MOST_LOST = 5
"""Most prompts (at most a tenth) at which the cloud may fail."""


@takes(
    *(*MODELS, *PRIVACY, *MACHINE, "router", "price", "deadline"),
    reads=["cloud_key", "edge_key"],
    unaffected=[
        *("cloud_share", "threshold", "top_p", "seed", "speculate"),
        *("on_cloud_error", "on_edge_error", "tier_share", "tier_threshold"),
    ],
)
def tune(
    task: shared.TaskName,
    *,
    data: shared.Data = None,
    check: shared.Check = None,
    limit: Annotated[int, typer.Option(metavar="N", help="Use the first N prompts.")] = 100,
    max_tokens: shared.MaxTokens = None,
    chosen: Settings,
    json: options.Json = False,
) -> None:
    """Find a router's thresholds for this pair on sample prompts; run and serve start from them.

    With several clouds it also finds when to ask each further one, by its share of the tokens.
    """
    asked = open_task(task, data=data, check=check).first(limit)
    if len(asked.questions) < FEWEST:
        raise UsageError(
            f"{len(asked.questions)} prompts are too few to set a threshold by",
            hint=f"give {FEWEST} or more",
        )
    if max_tokens is not None:
        asked = replace(asked, max_tokens=max_tokens)
    meter = SpendingMeter()
    opened = pair.open_pair(replace(chosen, router=pair.NEVER), slots=2)
    hint = resume_hint("What was answered is kept: the same command goes on from there.")
    with opened as models, render.progress(hidden=json) as progress, hint:
        tuned = _tuned(chosen, models, asked, meter, progress)
    found = tuned.found
    if json:
        shares = {f"{share:g}": (point.share, *point.interval) for share, point in found.items()}
        report = {"router": tuned.router, "thresholds": tuned.thresholds, "realised": shares}
        report |= {"tiers": tuned.tiers} if tuned.tiers else {}
        print(msgspec.json.encode({**report, "left_out": tuned.lost}).decode())
        return
    lines = [
        [f"{share:.0%}", f"{point.threshold:.6f}", tables.share(point.share, point.interval)]
        for share, point in found.items()
    ]
    title = f"{Path(tuned.router).name} for {tuned.models}, {len(asked.questions)} prompts"
    table = tables.FigureTable(title, ["cloud share", "threshold", "realised"], lines)
    render.show(shared.drawn(table))
    _tell(tuned, meter, chosen, models.both()[1].verifies)
    render.out.print(
        f"run, chat and serve begin from these with this pair and router ({tuned.place})."
    )
    render.out.print("Next: edgewise eval QUESTIONS.jsonl says how right it is on yours")


class _Tuned(NamedTuple):
    """What tuning found, and the file `place` that holds it; `lost`: prompts a cloud failed at."""

    router: str
    models: str
    found: Mapping[float, Calibrated]
    thresholds: Mapping[str, float]
    tiers: Mapping[str, Mapping[str, float]]
    place: Path
    lost: Mapping[str, str]


def _tuned(
    chosen: Settings,
    models: pair.Pair,
    asked: Task,
    meter: SpendingMeter,
    progress: Progress,
) -> _Tuned:
    edge, cloud = models.both()
    for one in models.clouds:
        shared.require_writing(one, "a router")
    require_room(asked, edge, cloud)
    named = replace(chosen, router=opening.chosen_router(chosen, edge))
    router, _ = opening.open_router(named, edge)
    identity = opening.router_identity(named)
    clouds = [meter.counted(one) for one in models.clouds]
    answers = Answers(
        router,
        asked,
        edge=edge,
        cloud=clouds[0],
        deadline=chosen.deadline,
        done=counted(progress, "answers"),
        file=(file := _file(named, asked, edge, cloud, identity)),
        may_lose=min(MOST_LOST, len(asked.questions) // 10),
    )
    found = thresholds_for(SHARES, answers)
    thresholds = {f"{share:g}": point.threshold for share, point in found.items()}
    place = keep_tuned(edge, identity, opening.nearest_cloud(chosen), thresholds)
    if place is None:
        raise UsageError("There is no folder to store thresholds in", hint="set HOME")
    start = thresholds.get(f"{opening.DEFAULT_SHARE:g}", 1.0)
    tiers = _tiers(named, router, asked, edge, clouds, start, progress)
    if file:
        file.unlink(missing_ok=True)
    both = f"{edge.name} and {cloud.name}"
    return _Tuned(str(named.router), both, found, thresholds, tiers, place, answers.lost)


def _file(
    chosen: Settings, asked: Task, edge: EdgeModel, cloud: CloudModel, identity: str
) -> Path | None:
    """Return the file that keeps answers until all thresholds are set; None without a cache."""
    if (folder := user_path("cache", "tuning")) is None:
        return None
    # The settings say which words leave, and how the models were loaded.
    settings = replace(chosen, cloud_key=None, edge_key=None, deadline=None, price=None)
    held = [manifest(asked, asked, edge, cloud), identity, edge.build, settings]
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{hashlib.sha256(msgspec.json.encode(held)).hexdigest()}.jsonl"
    return None


def _tell(tuned: _Tuned, meter: SpendingMeter, chosen: Settings, verifies: bool) -> None:
    for name, by_share in tuned.tiers.items():
        listed = ", ".join(f"{float(s):.0%}: {value:.6f}" for s, value in by_share.items())
        render.out.print(render.printable(f"{name} is asked above {listed}"))
    if lost := tuned.lost:
        render.warn(f"prompts left out: {len(lost)}. {next(iter(lost.values()))}")
    if chosen.router is None and verifies:
        render.note(f"no router asks where the cloud verifies: add --router {tuned.router}")
    price = price_of(chosen.price) if chosen.price else None
    render.note(f"It took {meter.spent.described(price)}.")


def _tiers(
    settings: Settings,
    router: Router,
    task: Task,
    edge: EdgeModel,
    clouds: Sequence[CloudModel],
    threshold: float,
    progress: Progress,
) -> dict[str, Mapping[str, float]]:
    """Set and store the thresholds of each further cloud; return them by its name and share.

    The clouds before it answer, the nearest one at the router's `threshold`. A share's threshold is
    the uncertainty that the cloud just before reaches at that fraction of all tokens.
    """
    found: dict[str, Mapping[str, float]] = {}
    policy = Policy(threshold=threshold, deadline=settings.deadline, on_cloud_error="raise")
    for place in range(1, len(clouds)):
        done = counted(progress, "answers with a further cloud", len(task.questions))
        scores: list[float] = []
        scored = WrappedCloud(clouds[place - 1], observed(partial(_note, scores)))
        heard = [*clouds[: place - 1], scored, *clouds[place:]]
        tiers = opening.make_tiers(replace(settings, tier_threshold=None), heard, edge)
        decoder = Decoder(edge, router=router, policy=policy, tiers=tiers[:place])
        system, tokens = Decoded(decoder, task.max_tokens), 0
        for question in task.questions:
            tokens += len(system.ask(question).tokens)
            done()
        scores.sort(reverse=True)
        name = clouds[place].name
        found[name] = {
            f"{share:g}": scores[min(len(scores), max(1, round(share * tokens))) - 1]
            for share in (SHARES if scores else ())
        }
        keep_tuned(edge, TIERS, opening.tier_address(clouds[: place + 1]), found[name])
    return found


def _note(scores: list[float], _: int, completion: Completion) -> None:
    score = unsure(completion)
    scores.extend([UNKNOWN if score is None else score] * len(completion.ids))
