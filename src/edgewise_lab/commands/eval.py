"""`edgewise eval`: compare edge alone, cloud alone, routers and baselines on a task."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from msgspec.structs import replace

from edgewise import opening, pair
from edgewise.cli import options, render
from edgewise.cli.options import DRAWS, MACHINE, MODELS, PRIVACY, takes
from edgewise.edge.base import EdgeModel
from edgewise.errors import UsageError
from edgewise.loop.policy import Policy
from edgewise.settings import Settings
from edgewise_lab.commands import shared
from edgewise_lab.evaluation import plan
from edgewise_lab.evaluation.plan import OF_READERS, SYSTEMS, Contender, Evaluation
from edgewise_lab.evaluation.report import CLOUD, EDGE, Row, as_json, rows
from edgewise_lab.evaluation.store import Cell, Store
from edgewise_lab.evaluation.tasks.base import Task, digest, trained_digests
from edgewise_lab.evaluation.tasks.named import with_calibration


# Answers are greedy, so there are no draws; speculating changes none; a cloud that fails ends it.
@takes(
    *(*MODELS, *PRIVACY, "deadline", *MACHINE),
    reads=["cloud_key", "edge_key", "router", "cloud_share"],
    unaffected=[*DRAWS, "speculate", "on_cloud_error", "on_edge_error"],
)
def evaluate(
    task: shared.TaskName,
    *,
    data: shared.Data = None,
    check: shared.Check = None,
    limit: shared.Limit = None,
    max_tokens: shared.MaxTokens = None,
    calibration: Annotated[
        int | None, typer.Option(help="Calibration questions; default: 100, or a fifth of TASK.")
    ] = None,
    calibration_data: Annotated[
        Path | None, typer.Option(help="File of these questions, in the form of --data or TASK.")
    ] = None,
    chosen: Settings,
    router: shared.Routers = None,
    cloud_share: shared.TargetShares = None,
    systems: Annotated[
        str | None, typer.Option(metavar="NAME,...", help=f"Only these: {', '.join(SYSTEMS)}.")
    ] = None,
    out: shared.Out = None,
    workers: shared.Workers = 1,
    json: options.Json = False,
) -> None:
    """Compare edge alone, pair and cloud alone on TASK, and the baselines a router must beat."""
    shares = shares_of(cloud_share, chosen)
    wanted = plan.systems_named(systems, kept=out is not None)
    asked = with_calibration(
        task,
        "test",
        data=data,
        check=check,
        limit=limit,
        calibration=calibration,
        calibration_data=calibration_data,
        max_tokens=max_tokens,
        known=False,
        calibrated=not set(wanted).isdisjoint(plan.CALIBRATED),
    )
    require_checks(asked[0])
    shared.tell_of_code(asked)
    routers = router or [chosen.router]
    named = [one for one in (*routers, *(wanted if systems else ())) if one and one != opening.AUTO]
    kept = f"Answers are in {out}: the same command goes on from there."
    lost = "No answer was kept; with --out FOLDER the next run can go on."
    with shared.resume_hint(kept if out else lost):
        contenders, table = _compared(chosen, asked, routers, shares, out, wanted, workers, named)
    if table:
        tell(asked[0], contenders, table, json=json)


def require_checks(task: Task) -> None:
    """Raise `UsageError` if a person must grade the replies to all questions of the task."""
    if task.to_read == len(task.questions):
        raise UsageError(
            f"All replies to {task.name!r} are to be read by a person",
            hint="give some another check",
        )


def _compared(
    chosen: Settings,
    tasks: tuple[Task, Task],
    routers: Sequence[str | None],
    shares: Sequence[float],
    out: Path | None,
    systems: Sequence[str],
    workers: int,
    named: Sequence[str],
) -> tuple[list[Contender], list[Row]]:
    """Return the routers and all systems' figures; none without edge alone and cloud alone."""
    with pair.open_models(chosen, answers=workers) as models, render.progress() as progress:
        edge, cloud = models.both()
        if cloud.reads_passages:
            for one in named:
                if one not in OF_READERS:
                    shared.require_writing(cloud, repr(one))
            systems = [one for one in systems if one in OF_READERS]
        asked = routers if set(systems).intersection(plan.OF_ROUTERS) else ()
        contenders = contenders_of(asked, chosen, edge, tasks[0], shares)
        bar = progress.add_task("answers", total=None)
        evaluation = Evaluation(
            *tasks,
            edge=edge,
            cloud=cloud,
            store=Store(out, plan.manifest(*tasks, edge, cloud)),
            deadline=chosen.deadline,
            done=lambda: progress.advance(bar),
            workers=workers,
        )
        progress.update(bar, total=evaluation.answers(contenders, shares, systems))
        found = evaluation.run(contenders, shares, systems)
    if {EDGE, CLOUD} <= found.keys():
        return contenders, rows(found)
    render.note(f"Answers are in {out}; the figures need those of edge and cloud, too.")
    return contenders, []


def tell(
    task: Task,
    contenders: Sequence[Contender],
    table: list[Row],
    *,
    json: bool,
    main: Cell | None = None,
) -> None:
    """Print the figures in `table` and warnings, as tables or as JSON.

    `main` is the system that accuracies in `table` are compared with; None: they are not.
    """
    title = f"{task.name}, {len(task.questions)} questions"
    title += "" if task.known else ", agreement with the cloud's own answers"
    sentences = plan.warnings(task, contenders, table)
    if json:
        print(as_json(task.name, table, known=task.known, warnings=sentences, main=main))
    else:
        shared.figures_tables(title, table, main and shared.system_named(main.system, main.share))
        for sentence in sentences:
            render.warn(sentence)


def shares_of(given: list[float] | None, chosen: Settings) -> list[float]:
    """Return the target cloud shares, ascending: those given, the settings' or the default.

    Raises `UsageError` for a share that is not between 0 and 1.
    """
    default = opening.DEFAULT_SHARE if chosen.cloud_share is None else chosen.cloud_share
    shares = given or [default]
    if not all(0 < share < 1 for share in shares):
        raise UsageError("A cloud-share must lie between 0 and 1, such as 0.05.")
    return sorted(set(shares))


def contenders_of(
    names: Sequence[str | None],
    chosen: Settings,
    edge: EdgeModel,
    task: Task,
    shares: Sequence[float],
) -> list[Contender]:
    """Open the named routers (None: the default one) for `edge`; return each as a `Contender`.

    Each has a policy for every cloud share in `shares`. Raises `UsageError` for a router that was
    trained on questions of `task`, and for two of the same name.
    """
    found: dict[str, Contender] = {}
    for name in names:
        named = replace(chosen, router=name)
        named = replace(named, router=opening.chosen_router(named, edge))
        folder = opening.router_folder(named)
        trained = trained_digests(folder) if folder else frozenset[str]()
        seen = [question.id for question in task.questions if digest(question.text) in trained]
        if seen:
            some = ", ".join(seen[:3]) + (", ..." if len(seen) > 3 else "")
            raise UsageError(
                f"{len(seen)} of the {len(task.questions)} questions trained the router in "
                f"{str(folder)!r} ({some}); evaluate it on others."
            )
        router, card = opening.open_router(named, edge)
        shown = Path(str(named.router)).name
        if shown in found:
            raise UsageError(f"Two routers would be shown as {shown!r}; rename one's folder.")
        policies: dict[float, Policy] = {}
        for share in shares:
            one = replace(named, cloud_share=share, threshold=None, on_cloud_error="raise")
            policies[share] = opening.make_policy(one, opening.starts_of(one, router, card, edge))
        found[shown] = Contender(shown, router, card, opening.router_identity(named), policies)
    return list(found.values())
