"""`edgewise demo`: the bundled pair on held-out questions."""

from contextlib import ExitStack
from typing import Annotated

import msgspec
import typer
from rich.progress import Progress

from edgewise.addresses import bundled
from edgewise.chat import Message, prompt_ids
from edgewise.cli import options, render
from edgewise.cloud.local import LocalCloud
from edgewise.decoding import Decoder
from edgewise.edge.llamacpp import LlamaModel
from edgewise.errors import UsageError
from edgewise.evaluation.comparison import Comparison, compare
from edgewise.evaluation.questions import Question, is_right, pocketqa
from edgewise.evaluation.systems import MAX_TOKENS, alone, paired
from edgewise.registry import open_router
from edgewise.settings import Settings

SHOWN = 3


def demo(
    questions: Annotated[int, typer.Option(help="How many held-out questions.")] = 100,
    cloud_share: Annotated[
        float, typer.Option(help="Cloud share whose calibrated threshold is used.")
    ] = 0.06,
    json: options.Json = False,
) -> None:
    """Stream a few answers of the bundled pair, then compare edge, pair and cloud."""
    held_out = pocketqa("test")
    if not 1 <= questions <= len(held_out):
        raise UsageError(f"--questions must be from 1 to {len(held_out)}, not {questions}.")
    with ExitStack() as stack:
        edge = LlamaModel(bundled("edge"))
        stack.callback(edge.close)
        cloud = LlamaModel(bundled("cloud"), slots=2)
        local = LocalCloud(cloud)
        stack.callback(local.close)
        router, card = open_router(Settings(), edge)
        threshold = card.threshold(cloud_share) if card else None
        if threshold is None:
            known = ", ".join(sorted(card.thresholds)) if card else "none"
            raise UsageError(f"No threshold is calibrated for {cloud_share}; known: {known}.")
        pair = paired(edge, router, threshold, local)
        if not json:
            _show(pair, held_out[:SHOWN])
        with Progress(console=render.err, disable=json, transient=True) as progress:
            task = progress.add_task("questions", total=questions)
            result = compare(
                held_out[:questions],
                edge=alone(edge),
                pair=pair,
                cloud=alone(cloud),
                done=lambda: progress.advance(task),
            )
    if json:
        print(msgspec.json.encode(result).decode())
    else:
        _report(result)


def _show(pair: Decoder, questions: list[Question]) -> None:
    render.out.print("Tokens written by the cloud model are [bold red]red[/].\n", markup=True)
    for question in questions:
        render.out.print(render.printable(question.prompt), style="dim", markup=False)
        ids = prompt_ids(pair.edge.tokenizer, [Message("user", question.prompt)])
        with pair.stream(ids, max_tokens=MAX_TOKENS) as events:
            answer = render.paint(events)
        verdict = "right" if is_right(question, answer.text) else "wrong"
        render.out.print(f"[dim]{verdict}; {render.summary(answer)}[/dim]\n", markup=True)


def _report(result: Comparison) -> None:
    render.out.print(render.comparison_table(result))
    low, high = result.interval
    gain = result.accuracy.pair - result.accuracy.edge
    render.out.print(
        f"The cloud wrote {result.cloud_share:.1%} of the pair's tokens in {result.cloud_calls} "
        f"calls; pair minus edge: {100 * gain:+.0f} points "
        f"(95% interval {100 * low:+.0f} to {100 * high:+.0f}, {result.questions} questions)."
    )
