"""`edgewise train`: train a router for a pair of models."""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.progress import Progress

from edgewise.addresses import is_path
from edgewise.cli import render
from edgewise.cli.options import MACHINE, ONE_VOCABULARY, takes
from edgewise.costs.price import price_of
from edgewise.errors import UsageError
from edgewise.pair import open_models
from edgewise.routers.card import read_card
from edgewise.routers.signals import SIGNALS
from edgewise.settings import Settings
from edgewise_lab.commands import shared
from edgewise_lab.commands.shared import resume_hint
from edgewise_lab.evaluation.plan import manifest
from edgewise_lab.evaluation.store import MANIFEST, lock_folder
from edgewise_lab.evaluation.tasks.base import Task
from edgewise_lab.evaluation.tasks.named import with_calibration
from edgewise_lab.training.fit import Fitted, Recipe, fit_of
from edgewise_lab.training.labels.base import LABELS, Label
from edgewise_lab.training.router import Begin, Training
from edgewise_lab.training.spending import SpendingMeter

HELPED = {True: 72, False: 130}
"""Fewest training prompts that sufficed in docs/results.md; True: right answers are known."""

Stage = Literal["fit", "calibrate"]

INPUTS = tuple(SIGNALS)
DEFAULT_INPUTS = tuple(name for name, signal in SIGNALS.items() if signal.default)


# It makes the router, and its thresholds; all else as for an evaluation.
@takes(
    *(*ONE_VOCABULARY, "seed", *MACHINE, "price", "deadline"),
    reads=["cloud_key", "edge_key"],
    unaffected=[
        *("router", "cloud_share", "threshold"),
        *("top_k", "top_p", "speculate", "on_cloud_error", "on_edge_error"),
    ],
)
def train(
    task: shared.TaskName,
    *,
    out: Annotated[Path, typer.Option(help="Folder of the checkpoint and its training data.")],
    stage: Annotated[
        Stage | None, typer.Option(help="Run this stage only; default: all four.")
    ] = None,
    label: Annotated[
        str | None,
        typer.Option(help="Token labels; default: value, or without answers rescue or final."),
    ] = None,
    kind: Annotated[
        str, typer.Option(help="Router to train: mlp, a registered kind, or ./file.py:Class.")
    ] = "mlp",
    data: shared.Data = None,
    check: shared.Check = None,
    limit: shared.Limit = None,
    max_tokens: shared.MaxTokens = None,
    calibration: Annotated[
        int | None, typer.Option(help="Calibration questions; default: 300, or a fifth of TASK.")
    ] = None,
    chosen: Settings,
    inputs: Annotated[
        list[str] | None,
        typer.Option(
            metavar="INPUT",
            help=f"{', '.join(INPUTS)}; repeatable; default: the first three; rescue: text, ranks.",
        ),
    ] = None,
    hidden: Annotated[int, typer.Option(help="Width of the hidden layer, 0: none.")] = 64,
    epochs: Annotated[int, typer.Option(help="Training epochs.")] = 40,
    workers: shared.Workers = 1,
) -> None:
    """Train a router for a pair: collect, label, fit, calibrate. An interrupted run continues."""
    if stage != "calibrate":
        fit_of(kind)
    opened = partial(with_calibration, task, "train", data=data, check=check, limit=limit)
    asked = opened(calibration=calibration, max_tokens=max_tokens, known=False)
    shared.tell_of_code(asked)
    label = label or _label_for(asked[0])
    wanted = _inputs(inputs, label)
    chosen_label = LABELS.load(label)()
    if epochs < 1 or hidden < 0:
        raise UsageError("--epochs must be 1 or more, --hidden 0 or more.")
    recipe = Recipe(hidden=(hidden,) if hidden else (), epochs=epochs, seed=chosen.seed or 0)
    how = {"inputs": wanted, "recipe": recipe, "kind": kind, "workers": workers}
    training = partial(Training, *asked, out, **how, deadline=chosen.deadline)
    with resume_hint(f"What was done is in {out}: the same command goes on from there."):
        _told(_trained(chosen, asked, out, training, chosen_label, stage, workers))
    for warning in read_card(out).warnings():
        render.warn(warning)
    if stage != "fit":
        made = out if is_path(str(out)) else f"./{out}"
        use = f"Use it with --router {made}; edgewise router show {made} says what it is."
        judge = f"edgewise eval OTHERS.jsonl --router {made} --router max-prob"
        render.out.print(f"{use}\nNext: {judge} says whether it gains anything on other questions")


def _trained(
    chosen: Settings,
    tasks: tuple[Task, Task],
    out: Path,
    training: Callable[..., Training],
    label: Label,
    stage: Stage | None,
    workers: int,
) -> object:
    price = price_of(chosen.price) if chosen.price else None
    with open_models(chosen, answers=workers) as models, render.progress() as progress:
        edge, cloud = models.both()
        shared.require_writing(cloud, "a router")
        if stage != "calibrate" or not (out / MANIFEST).exists():
            # Thresholds need the checkpoint alone, and are set anew on another build.
            lock_folder(out, manifest(*tasks, edge, cloud))
        meter = SpendingMeter()
        one = training(edge=edge, cloud=cloud, label=label, begin=_bars(progress), meter=meter)
        if stage is None and (estimate := one.estimate()):
            few, least = len(tasks[0].questions), HELPED[tasks[0].known]
            if few < least:
                render.note(
                    f"{few} prompts are few, with {len(tasks[1].questions)} more for its "
                    "thresholds: likely no better than max-prob. "
                    f"{least} are the fewest that helped (docs/results.md)."
                )
            render.note(f"This will take about {estimate.described(price)}.")
        fitted = one.run() if stage is None else getattr(one, stage)()
    render.note(f"It took {meter.spent.described(price)}.")
    return fitted


def _told(fitted: object) -> None:
    if isinstance(fitted, Fitted):
        gained = 1 - fitted.loss / fitted.baseline_loss if fitted.baseline_loss else 0.0
        verdict = "the router has not learnt which"
        if gained > 0:
            verdict = f"the router tells which {gained:.0%} better than a constant does"
        render.out.print(
            f"{fitted.labels.mean():.1%} of the tokens are worth a consult; {verdict} (loss on "
            f"held-out answers: {fitted.loss:.4f} nats, a constant's {fitted.baseline_loss:.4f})."
        )


def _bars(progress: Progress) -> Begin:
    """Return what shows each stage by a bar in place of the last one."""

    def begin(name: str, total: int | None) -> Callable[..., None]:
        for bar in progress.task_ids:
            progress.remove_task(bar)
        return shared.counted(progress, name, total)

    return begin


def _label_for(task: Task) -> str:
    """Return the label that measured best (docs/results.md) for tasks like this."""
    if task.known:
        return "value"
    concluded = all(one.check in ("choice", "number") for one in task.questions)
    return "rescue" if concluded else "final"


def _inputs(given: list[str] | None, label: str) -> tuple[str, ...]:
    if given is None:
        return ("text", "ranks") if label == "rescue" else DEFAULT_INPUTS
    if not set(given) <= set(INPUTS):
        raise UsageError(f"--inputs can be {', '.join(INPUTS)}, not {', '.join(given)}.")
    return tuple(name for name in INPUTS if name in given)
