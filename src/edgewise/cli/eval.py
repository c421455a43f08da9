"""`edgewise eval`: what a router buys on a task."""

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import typer
from msgspec.structs import replace

from edgewise import pair, settings
from edgewise.cli import options, render
from edgewise.cli.models import open_pair
from edgewise.edge.base import EdgeModel
from edgewise.errors import UsageError
from edgewise.evaluation.plan import Contender, Evaluation, manifest
from edgewise.evaluation.plot import plot
from edgewise.evaluation.report import as_csv, rows, summary
from edgewise.evaluation.sweep import Store
from edgewise.evaluation.tasks.base import Grading, Task
from edgewise.evaluation.tasks.named import with_calibration
from edgewise.loop.policy import LONGEST_DEADLINE
from edgewise.routers.card import digest, trained_digests
from edgewise.settings import Settings


def evaluate(
    task: Annotated[
        str, typer.Argument(help="pocketqa, commonsenseqa, gsm8k or a JSON Lines file.")
    ],
    data: Annotated[
        Path | None, typer.Option(help="Local copy of the task's published file.")
    ] = None,
    check: Annotated[
        Grading | None, typer.Option(help="How a JSON Lines file is graded; default exact.")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Only the first N questions.")] = None,
    calibration: Annotated[
        int, typer.Option(help="Questions that thresholds are set on; never those evaluated.")
    ] = 100,
    calibration_data: Annotated[
        Path | None, typer.Option(help="File that these come from, like --data or TASK.")
    ] = None,
    edge: options.Edge = None,
    cloud: options.Cloud = None,
    cloud_engine: options.CloudEngine = None,
    router: Annotated[list[str] | None, typer.Option(help="As for run; may be repeated.")] = None,
    cloud_share: Annotated[
        list[float] | None, typer.Option(help="Cloud share asked for; may be repeated.")
    ] = None,
    deadline: options.Deadline = None,
    baselines: Annotated[
        bool, typer.Option(help="Random, untrained routers, commit point, query level, oracle.")
    ] = True,
    metric: Annotated[
        Literal["accuracy", "log-likelihood"], typer.Option(help="What to measure.")
    ] = "accuracy",
    out: Annotated[
        Path | None, typer.Option(help="Folder of outcomes; a run that was interrupted goes on.")
    ] = None,
    ctx: options.Ctx = None,
    threads: options.Threads = None,
    gpu_layers: options.GpuLayers = None,
    json: options.Json = False,
    csv: Annotated[Path | None, typer.Option(help="Write every figure as CSV to FILE.")] = None,
    figure: Annotated[
        Path | None, typer.Option("--plot", help="Plot accuracy against cloud share to FILE.")
    ] = None,
) -> None:
    """Edge alone, pair and cloud alone on TASK, with the baselines a router must beat."""
    if metric == "log-likelihood":
        raise UsageError(
            "The log-likelihood of a routed stream is undefined, since two models wrote it; "
            "measure accuracy."
        )
    flags = {"edge": edge, "cloud": cloud, "deadline": deadline, "ctx": ctx, "threads": threads}
    chosen = settings.load({**flags, "gpu_layers": gpu_layers, "cloud_engine": cloud_engine})
    shares = _shares(cloud_share, chosen)
    for path in (csv, figure):
        _require_folder(path)
    questions, held_out = with_calibration(
        task,
        "test",
        data=data,
        check=check,
        limit=limit,
        calibration=calibration,
        calibration_data=calibration_data,
    )
    with ExitStack() as stack:
        edge_model, cloud_model = open_pair(chosen, stack)
        contenders = _contenders(router or [chosen.router], chosen, edge_model, questions)
        store = Store(out, manifest(questions, held_out, edge_model, cloud_model))
        progress = stack.enter_context(render.progress(hidden=json))
        bar = progress.add_task("answers", total=None)
        evaluation = Evaluation(
            questions,
            held_out,
            edge=edge_model,
            cloud=cloud_model,
            store=store,
            deadline=LONGEST_DEADLINE if chosen.deadline is None else chosen.deadline,
            done=lambda: progress.advance(bar),
        )
        table = rows(evaluation.run(contenders, shares, baselines=baselines))
    title = f"{questions.name}, {len(questions.questions)} questions"
    if csv:
        _write(csv, as_csv(table))
    if figure:
        plot([row.overall for row in table], title, figure)
    if json:
        print(msgspec.json.encode(summary(questions.name, contenders[0].name, table)).decode())
    else:
        render.out.print(render.figures_table(title, table))
        render.out.print(render.cost_table(table))


def _shares(given: list[float] | None, chosen: Settings) -> list[float]:
    if chosen.threshold is not None:
        raise UsageError("An evaluation compares at cloud shares; drop the threshold.")
    default = pair.DEFAULT_SHARE if chosen.cloud_share is None else chosen.cloud_share
    shares = given or [default]
    if not all(0 < share < 1 for share in shares):
        raise UsageError("A cloud share must lie between 0 and 1, such as 0.05.")
    return sorted(set(shares))


def _contenders(
    names: Sequence[str | None], chosen: Settings, edge: EdgeModel, task: Task
) -> list[Contender]:
    found: dict[str, Contender] = {}
    for name in names:
        named = replace(chosen, router=name)
        _require_unseen(pair.router_folder(named), task)
        router, card = pair.open_router(named, edge)
        shown = Path(name).name if name else pair.default_router(named)
        if shown in found:
            raise UsageError(f"Two routers would be shown as {shown!r}; rename one's folder.")
        found[shown] = Contender(shown, router, card, pair.router_identity(named))
    return list(found.values())


def _require_unseen(folder: Path | None, task: Task) -> None:
    """A router that was trained on the questions would be flattered by them."""
    trained = trained_digests(folder) if folder else frozenset[str]()
    seen = sum(digest(question.prompt) in trained for question in task.questions)
    if seen:
        raise UsageError(
            f"{seen} of the {len(task.questions)} questions trained the router in {str(folder)!r}; "
            "evaluate it on others."
        )


def _require_folder(path: Path | None) -> None:
    """Before the work, not after it."""
    if path is not None and not path.parent.is_dir():
        raise UsageError(f"{str(path)!r} cannot be written: there is no such folder.")


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{str(path)!r} cannot be written: {error.strerror}.") from error
