"""`edgewise train`: a router for a pair of models."""

from pathlib import Path
from typing import Annotated

import typer
from rich.progress import Progress as Bar

from edgewise.cli import options, render
from edgewise.cli.options import MACHINE, MODELS, SERVING, takes
from edgewise.errors import UsageError
from edgewise.evaluation.journal import claim
from edgewise.evaluation.plan import manifest
from edgewise.evaluation.tasks.base import Task
from edgewise.evaluation.tasks.named import with_calibration
from edgewise.pair import open_models
from edgewise.routers.card import Input
from edgewise.settings import Settings
from edgewise.training.fit import Fitted, Recipe, import_torch
from edgewise.training.label import Label, LabelName
from edgewise.training.router import Progress, Stage, Training, labels_named

INPUTS: tuple[Input, ...] = ("hidden", "top_logprobs", "scalars", "token_embedding")
DEFAULT_INPUTS: tuple[Input, ...] = ("hidden", "top_logprobs", "scalars")


# It makes the router, and its thresholds; all else as for an evaluation. `top_k` is its own here.
@takes(
    *(*MODELS, "seed", *MACHINE),
    reads=["cloud_key"],
    unaffected=[
        *("router", "cloud_share", "threshold"),
        *("top_k", "top_p", "min_p", "run_ahead", "on_cloud_error", *SERVING),
    ],
)
def train(
    task: options.TaskName,
    *,
    out: Annotated[
        Path, typer.Option(help="Folder of the checkpoint and of what it is made from.")
    ],
    stage: Annotated[
        Stage | None, typer.Option(help="Only this stage; default all, in this order.")
    ] = None,
    label: Annotated[
        LabelName, typer.Option(help="What a consult is worth; docs/routers.md has the costs.")
    ] = "value",
    rollouts: Annotated[
        int | None, typer.Option(help="value: rollouts of each branch; default 1.")
    ] = None,
    rounds: Annotated[
        int | None,
        typer.Option(help="citer: rounds of training, default 2; with --stage, which round."),
    ] = None,
    data: options.Data = None,
    check: options.Check = None,
    limit: options.Limit = None,
    calibration: Annotated[
        int, typer.Option(help="Questions that thresholds are set on; never trained on.")
    ] = 300,
    chosen: Settings,
    inputs: Annotated[
        list[str] | None,
        typer.Option(help=f"{', '.join(INPUTS)}; may be repeated; default the first three."),
    ] = None,
    top_k: Annotated[int, typer.Option(help="How many log-probs top_logprobs are.")] = 10,
    hidden: Annotated[
        int | None,
        typer.Option(help="Width of the router's hidden layer; 0 is none. Default 64, co-llm 0."),
    ] = None,
    epochs: Annotated[int, typer.Option(help="Epochs of the fit.")] = 40,
) -> None:
    """Train a router for a pair: collect, label, fit, calibrate. Interrupted, it goes on."""
    wanted = _inputs(inputs)
    recipe = _recipe(label, hidden=hidden, epochs=epochs, top_k=top_k, seed=chosen.seed or 0)
    labels = _labels(label, rounds=rounds, rollouts=rollouts)
    if stage in (None, "fit"):
        import_torch()
    asked = with_calibration(
        task, "train", data=data, check=check, limit=limit, calibration=calibration
    )
    every = labels if stage is None else labels[-1:]
    _told(_trained(chosen, asked, out, every, wanted, top_k, recipe, stage))
    if stage in (None, "calibrate"):
        use = f"Use it with --router {out}; edgewise router show {out} says what it is."
        render.out.print(use, markup=False)


def _trained(
    chosen: Settings,
    tasks: tuple[Task, Task],
    out: Path,
    labels: list[Label],
    inputs: tuple[Input, ...],
    top_k: int,
    recipe: Recipe,
    stage: Stage | None,
) -> Fitted | None:
    """Every round, or one stage of it; what was fitted last."""
    fitted: Fitted | None = None
    questions, held_out = tasks
    with open_models(chosen) as models, render.progress() as progress:
        edge, cloud = models.both()
        claim(out, manifest(questions, held_out, edge, cloud))
        for one in labels:
            training = Training(
                questions,
                held_out,
                out,
                edge=edge,
                cloud=cloud,
                label=one,
                inputs=inputs,
                top_k=top_k,
                recipe=recipe,
                progress=_Shown(progress),
            )
            fitted = training.run() if stage is None else _only(training, stage)
    return fitted


def _only(training: Training, stage: Stage) -> Fitted | None:
    if stage == "fit":
        return training.fit()
    run = {"collect": training.collect, "label": training.label, "calibrate": training.calibrate}
    run[stage]()
    return None


def _told(fitted: Fitted | None) -> None:
    if fitted is not None:
        render.out.print(
            f"{fitted.labels.mean():.1%} of the tokens are worth a consult; the router's loss on "
            f"held-out answers is {fitted.loss:.4f} nats, that of the best constant "
            f"{fitted.baseline_loss:.4f}.",
            markup=False,
        )


def _recipe(label: LabelName, *, hidden: int | None, epochs: int, top_k: int, seed: int) -> Recipe:
    width = hidden if hidden is not None else (0 if label == "co-llm" else 64)
    if top_k < 1 or epochs < 1 or width < 0:
        raise UsageError("--top-k and --epochs must be 1 or more, --hidden 0 or more.")
    return Recipe(
        hidden=(width,) if width else (),
        epochs=epochs,
        seed=seed,
        objective="marginal-likelihood" if label == "co-llm" else "cross-entropy",
    )


def _labels(label: LabelName, *, rounds: int | None, rollouts: int | None) -> list[Label]:
    """The labels of every round."""
    if rollouts is not None and label != "value":
        raise UsageError(f"--rollouts belongs to the label value, not {label}; drop it.")
    if rounds is not None and label != "citer":
        raise UsageError(f"--rounds belongs to the label citer, not {label}; drop it.")
    return labels_named(
        label, rounds=2 if rounds is None else rounds, rollouts=1 if rollouts is None else rollouts
    )


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
