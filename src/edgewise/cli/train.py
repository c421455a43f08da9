"""`edgewise train`: a router for a pair of models."""

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress as Bar

from edgewise import settings
from edgewise.cli import options, render
from edgewise.cli.models import open_pair
from edgewise.errors import UsageError
from edgewise.evaluation.journal import claim
from edgewise.evaluation.plan import manifest
from edgewise.evaluation.tasks.base import Grading
from edgewise.evaluation.tasks.named import with_calibration
from edgewise.routers.card import Input
from edgewise.training.kinds import Fitted, Recipe, fit_of
from edgewise.training.labels.named import labels_named
from edgewise.training.router import Progress, Stage, Training

INPUTS: tuple[Input, ...] = ("hidden", "top_logprobs", "scalars", "token_embedding")
DEFAULT_INPUTS: tuple[Input, ...] = ("hidden", "top_logprobs", "scalars")


def train(
    task: Annotated[
        str, typer.Argument(help="pocketqa, commonsenseqa, gsm8k or a JSON Lines file.")
    ],
    out: Annotated[
        Path, typer.Option(help="Folder of the checkpoint and of what it is made from.")
    ],
    stage: Annotated[
        Stage | None, typer.Option(help="Only this stage; default all, in this order.")
    ] = None,
    label: Annotated[
        str, typer.Option(help="What a consult is worth; docs/routers.md has the costs.")
    ] = "value",
    kind: Annotated[
        str, typer.Option(help="What to train: mlp, a registered kind, or ./file.py:Class.")
    ] = "mlp",
    rollouts: Annotated[
        int | None, typer.Option(help="value: rollouts of each branch; default 1.")
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(help="citer: rounds of training, default 2; with --stage, which round."),
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Local copy of the task's published file.")
    ] = None,
    check: Annotated[
        Grading | None, typer.Option(help="How a JSON Lines file is graded; default exact.")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Only the first N questions.")] = None,
    calibration: Annotated[
        int, typer.Option(help="Questions that thresholds are set on; never trained on.")
    ] = 300,
    edge: options.Edge = None,
    cloud: options.Cloud = None,
    cloud_engine: options.CloudEngine = None,
    inputs: Annotated[
        list[str] | None,
        typer.Option(help=f"{', '.join(INPUTS)}; may be repeated; default the first three."),
    ] = None,
    top_k: Annotated[
        int | None, typer.Option(help="How many log-probs top_logprobs are; default 10.")
    ] = None,
    hidden: Annotated[
        int | None,
        typer.Option(help="Width of the router's hidden layer; 0 is none. Default 64, co-llm 0."),
    ] = None,
    epochs: Annotated[int, typer.Option(help="Epochs of the fit.")] = 40,
    seed: options.Seed = None,
    ctx: options.Ctx = None,
    threads: options.Threads = None,
    gpu_layers: options.GpuLayers = None,
) -> None:
    """Train a router for a pair: collect, label, fit, calibrate. Interrupted, it goes on."""
    flags = {"edge": edge, "cloud": cloud, "ctx": ctx, "threads": threads}
    chosen = settings.load(
        {**flags, "gpu_layers": gpu_layers, "cloud_engine": cloud_engine, "seed": seed}
    )
    wanted = _inputs(inputs)
    labels = labels_named(label, rounds=rounds, rollouts=rollouts)
    width = labels[0].hidden if hidden is None else hidden
    if epochs < 1 or width < 0:
        raise UsageError("--epochs must be 1 or more, --hidden 0 or more.")
    recipe = Recipe(
        hidden=(width,) if width else (),
        epochs=epochs,
        seed=chosen.seed or 0,
        objective=labels[0].objective,
    )
    if stage in (None, "fit"):
        fit_of(kind)
    questions, held_out = with_calibration(
        task, "train", data=data, check=check, limit=limit, calibration=calibration
    )
    with ExitStack() as opened:
        model, large = open_pair(chosen, opened)
        claim(out, manifest(questions, held_out, model, large))
        progress = opened.enter_context(render.progress())
        fitted: Fitted | None = None
        for one in labels if stage is None else labels[-1:]:
            training = Training(
                questions,
                held_out,
                out,
                edge=model,
                cloud=large,
                label=one,
                inputs=wanted,
                top_k=top_k,
                recipe=recipe,
                kind=kind,
                progress=_Shown(progress),
            )
            fitted = training.run() if stage is None else _only(training, stage)
    if fitted is not None:
        render.out.print(
            f"{fitted.labels.mean():.1%} of the tokens are worth a consult; the router's loss on "
            f"held-out answers is {fitted.loss:.4f} nats, that of the best constant "
            f"{fitted.baseline_loss:.4f}.",
            markup=False,
        )
    if stage in (None, "calibrate"):
        render.out.print(
            f"Use it with --router {out}; edgewise router show {out} says what it is.", markup=False
        )


def _only(training: Training, stage: Stage) -> Fitted | None:
    if stage == "fit":
        return training.fit()
    run = {"collect": training.collect, "label": training.label, "calibrate": training.calibrate}
    run[stage]()
    return None


class _Shown(Progress):
    """On a progress bar."""

    def __init__(self, bar: Bar) -> None:
        self._bar = bar
        self._task = bar.add_task("")

    def stage(self, name: str, total: int | None) -> None:
        self._bar.reset(self._task, description=name, total=total)

    def done(self) -> None:
        self._bar.advance(self._task)


def _inputs(given: list[str] | None) -> tuple[Input, ...]:
    if given is None:
        return DEFAULT_INPUTS
    if not set(given) <= set(INPUTS):
        raise UsageError(f"--inputs can be {', '.join(INPUTS)}, not {', '.join(given)}.")
    return tuple(name for name in INPUTS if name in given)
