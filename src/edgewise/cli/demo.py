"""`edgewise demo`: the bundled pair on held-out questions."""

from contextlib import ExitStack
from typing import Annotated

import msgspec
import typer

from edgewise.addresses import bundled
from edgewise.cli import options, render
from edgewise.cloud.local import LocalCloud
from edgewise.edge.llamacpp import LlamaModel
from edgewise.errors import UsageError
from edgewise.evaluation.plan import Contender, Evaluation
from edgewise.evaluation.report import Summary, rows, summary
from edgewise.evaluation.sweep import Store
from edgewise.evaluation.systems import paired, question_ids
from edgewise.evaluation.tasks.base import Task
from edgewise.evaluation.tasks.grading import is_right
from edgewise.evaluation.tasks.pocketqa import pocketqa
from edgewise.loop.decoder import Decoder
from edgewise.pair import open_router
from edgewise.settings import Settings


def demo(
    questions: Annotated[int, typer.Option(help="How many held-out questions.")] = 100,
    cloud_share: Annotated[
        float, typer.Option(help="Cloud share whose calibrated threshold is used.")
    ] = 0.05,
    json: options.Json = False,
) -> None:
    """Stream an answer of each family, then compare edge, pair and cloud."""
    held_out = pocketqa()
    if not 1 <= questions <= len(held_out.questions):
        most = len(held_out.questions)
        raise UsageError(f"--questions must be from 1 to {most}, not {questions}.")
    with ExitStack() as stack:
        edge = LlamaModel(bundled("edge"))
        stack.callback(edge.close)
        cloud = LocalCloud(LlamaModel(bundled("cloud")))
        stack.callback(cloud.close)
        router, card = open_router(Settings(), edge)
        threshold = card.threshold(cloud_share) if card else None
        if card is None or threshold is None:
            known = ", ".join(sorted(card.thresholds)) if card else "none"
            raise UsageError(f"No threshold is calibrated for {cloud_share}; known: {known}.")
        if not json:
            pair = paired(edge, router, threshold, cloud)
            _show(pair, held_out.first(len(held_out.families)))
        progress = stack.enter_context(render.progress(hidden=json))
        bar = progress.add_task("answers", total=3 * questions)
        evaluation = Evaluation(
            held_out.first(questions),
            pocketqa("calibration"),
            edge=edge,
            cloud=cloud,
            store=Store(None, {}),
            done=lambda: progress.advance(bar),
        )
        contender = Contender("pair", router, card)
        table = rows(evaluation.run([contender], [cloud_share], baselines=False))
    result = summary("pocketqa", contender.name, table)
    if json:
        print(msgspec.json.encode(result).decode())
    else:
        render.out.print(render.figures_table(f"{questions} held-out questions", table))
        _conclude(result)


def _show(decoder: Decoder, task: Task) -> None:
    render.out.print("Tokens written by the cloud model are [bold red]red[/].\n", markup=True)
    for question in task.questions:
        render.out.print(render.printable(question.prompt), style="dim", markup=False)
        ids = question_ids(decoder.edge.tokenizer, question)
        with decoder.stream(ids, max_tokens=task.max_tokens) as events:
            answer = render.paint(events)
        verdict = "right" if is_right(question, answer.text) else "wrong"
        render.out.print(f"[dim]{verdict}; {render.summary(answer)}[/dim]\n", markup=True)


def _conclude(result: Summary) -> None:
    low, high = result.interval.pair_minus_edge
    gain = result.accuracy.pair - result.accuracy.edge
    render.out.print(
        f"The cloud wrote {result.cloud_share:.1%} of the pair's tokens; pair minus edge: "
        f"{100 * gain:+.0f} points (95% interval {100 * low:+.0f} to {100 * high:+.0f}, "
        f"{result.questions} questions)."
    )
