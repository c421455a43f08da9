"""`edgewise train`: a router for a pair of models."""

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from edgewise import settings
from edgewise.cli import options, render
from edgewise.cli.models import open_pair
from edgewise.cloud.local import LocalCloud
from edgewise.errors import UsageError
from edgewise.evaluation.journal import claim
from edgewise.evaluation.plan import manifest
from edgewise.evaluation.tasks.base import Check
from edgewise.evaluation.tasks.named import with_calibration
from edgewise.routers.card import Input
from edgewise.training.fit import Recipe
from edgewise.training.router import train_router

INPUTS: tuple[Input, ...] = ("hidden", "top_logprobs", "scalars")


def train(
    task: Annotated[str, typer.Argument(help="pocketqa or a JSON Lines file of questions.")],
    out: Annotated[
        Path, typer.Option(help="Folder of the checkpoint and of what it is made from.")
    ],
    data: Annotated[
        Path | None, typer.Option(help="Local copy of the task's published file.")
    ] = None,
    check: Annotated[
        Check | None, typer.Option(help="How a JSON Lines file is graded; default exact.")
    ] = None,
    limit: Annotated[int | None, typer.Option(help="Only the first N questions.")] = None,
    calibration: Annotated[
        int, typer.Option(help="Questions that thresholds are set on; never trained on.")
    ] = 300,
    edge: options.Edge = None,
    cloud: options.Cloud = None,
    inputs: Annotated[
        list[str] | None, typer.Option(help="hidden, top_logprobs, scalars; default all.")
    ] = None,
    top_k: Annotated[int, typer.Option(help="How many log-probs top_logprobs are.")] = 10,
    hidden: Annotated[int, typer.Option(help="Width of the router's hidden layer.")] = 64,
    seed: options.Seed = None,
    ctx: options.Ctx = None,
    threads: options.Threads = None,
    gpu_layers: options.GpuLayers = None,
) -> None:
    """Train a router for a pair: collect answers, fit, calibrate. Interrupted, it goes on."""
    flags = {"edge": edge, "cloud": cloud, "ctx": ctx, "threads": threads}
    chosen = settings.load({**flags, "gpu_layers": gpu_layers, "seed": seed})
    wanted = _inputs(inputs)
    if top_k < 1 or hidden < 1:
        raise UsageError("--top-k and --hidden must be 1 or more.")
    questions, held_out = with_calibration(
        task, "train", data=data, check=check, limit=limit, calibration=calibration
    )
    with ExitStack() as stack:
        model, large = open_pair(chosen, stack)
        if not isinstance(large, LocalCloud):
            raise UsageError(
                "Training asks what the cloud model would write after every token, so it needs "
                "its weights here; name a GGUF with --cloud."
            )
        claim(out, manifest(questions, held_out, model, large))
        progress = stack.enter_context(render.progress())
        bar = progress.add_task("")
        trained = train_router(
            questions,
            held_out,
            out,
            edge=model,
            cloud=large,
            inputs=wanted,
            top_k=top_k,
            recipe=Recipe(hidden=(hidden,), seed=chosen.seed),
            stage=lambda name, total: progress.reset(bar, description=name, total=total),
            done=lambda: progress.advance(bar),
        )
    fitted = trained.fitted
    render.out.print(
        f"{trained.positive:.1%} of the tokens are worth a consult; the router's loss on held-out "
        f"answers is {fitted.loss:.4f} nats, that of their mean {fitted.baseline_loss:.4f}. Use it "
        f"with --router {out}.",
        markup=False,
    )


def _inputs(given: list[str] | None) -> tuple[Input, ...]:
    if given is None:
        return INPUTS
    if not set(given) <= set(INPUTS):
        raise UsageError(f"--inputs can be {', '.join(INPUTS)}, not {', '.join(given)}.")
    return tuple(name for name in INPUTS if name in given)
