"""`edgewise demo`: the bundled pair on held-out questions."""

from typing import Annotated

import msgspec
import typer
from msgspec.structs import replace
from rich.progress import Progress

from edgewise.cli import options, render
from edgewise.cli.options import CONNECTING, COSTS, DRAWS, VIEW, takes
from edgewise.errors import UsageError
from edgewise.loop.decoder import Decoder
from edgewise.loop.policy import LONGEST_DEADLINE
from edgewise.pair import Pair, open_pair
from edgewise.parts import DEFAULT_SHARE
from edgewise.settings import Settings
from edgewise_lab.commands.shared import figures_tables
from edgewise_lab.evaluation.plan import Contender, Evaluation
from edgewise_lab.evaluation.report import Accuracy, Intervals, Row, Summary, rows, summary
from edgewise_lab.evaluation.store import Store
from edgewise_lab.evaluation.systems import paired, question_ids
from edgewise_lab.evaluation.tasks.base import Task
from edgewise_lab.evaluation.tasks.grading import is_right, is_strictly_right
from edgewise_lab.evaluation.tasks.pocketqa import pocketqa


# The bundled pair answers, greedily and without a connection.
@takes(
    reads=["cloud_share", "deadline", "ctx", "threads", "gpu_layers"],
    unaffected=[
        *("cloud_key", *CONNECTING, "cloud_tokenizer", *VIEW),
        *(*DRAWS, "speculate", "on_cloud_error", *COSTS),
    ],
)
def demo(
    chosen: Settings,
    questions: Annotated[int, typer.Option(help="How many held-out questions.")] = 100,
    cloud_share: Annotated[
        float | None,
        options.share_option("Cloud share whose calibrated threshold is used; default 0.05."),
    ] = None,
    json: options.Json = False,
) -> None:
    """Stream an answer of each family, then compare edge, pair and cloud."""
    held_out = pocketqa()
    if not 1 <= questions <= len(held_out.questions):
        most = len(held_out.questions)
        raise UsageError(f"--questions must be from 1 to {most}, not {questions}.")
    share = DEFAULT_SHARE if chosen.cloud_share is None else chosen.cloud_share
    deadline = LONGEST_DEADLINE if chosen.deadline is None else chosen.deadline
    with open_pair(replace(chosen, cloud_share=None)) as pair:
        threshold = _threshold(pair, share)
        if not json:
            edge, cloud = pair.both()
            decoder = paired(edge, pair.router, threshold, cloud, deadline=deadline)
            _show(decoder, held_out.first(len(held_out.families)))
        with render.progress(hidden=json) as progress:
            table = _compared(pair, held_out.first(questions), share, deadline, progress)
    result = summary("pocketqa", "pair", table)
    if json:
        print(msgspec.json.encode(result).decode())
    else:
        figures_tables(f"{questions} held-out questions", table)
        _conclude(result)


def _threshold(pair: Pair, share: float) -> float:
    """That of the bundled router's card."""
    threshold = pair.card.threshold(share) if pair.card else None
    if threshold is None:
        known = ", ".join(sorted(pair.card.thresholds)) if pair.card else "none"
        raise UsageError(f"No threshold is calibrated for {share}; known: {known}.")
    return threshold


def _compared(
    pair: Pair, questions: Task, share: float, deadline: float, progress: Progress
) -> list[Row]:
    """The figures of edge, pair and cloud."""
    edge, cloud = pair.both()
    bar = progress.add_task("answers", total=3 * len(questions.questions))
    evaluation = Evaluation(
        questions,
        pocketqa("calibration"),
        edge=edge,
        cloud=cloud,
        store=Store(None, {}),
        deadline=deadline,
        done=lambda: progress.advance(bar),
    )
    contender = Contender("pair", pair.router, pair.card)
    return rows(evaluation.run([contender], [share], baselines=False))


def _show(decoder: Decoder, task: Task) -> None:
    render.out.print("Tokens written by the cloud model are [bold red]red[/].\n", markup=True)
    for question in task.questions:
        render.out.print(render.printable(question.prompt), style="dim")
        ids = question_ids(decoder.edge.tokenizer, question)
        with decoder.stream(ids, max_tokens=task.max_tokens) as events:
            answer = render.paint(events)
        grade = _grade(is_right(question, answer.text), is_strictly_right(question, answer.text))
        render.out.print(f"{grade}; {render.summary(answer, cloud=True)}\n", style="dim")


def _grade(right: bool, strict: bool) -> str:
    """Right is only what is right by both readings."""
    if right != strict:
        passed, failed = ("lenient", "strict") if right else ("strict", "lenient")
        return f"right by the {passed} reading alone, wrong by the {failed} one"
    return "right" if right else "wrong"


def _conclude(result: Summary) -> None:
    lenient = _gain(result.accuracy, result.interval)
    strict = _gain(result.strict.accuracy, result.strict.interval)
    work = render.metered(result.cloud_work, ".0%")
    render.out.print(
        f"The cloud wrote {result.cloud_share:.1%} of the pair's tokens. With the prompts that it "
        f"reads,\nthat is {work} of its work when it writes alone.\n"
        f"Pair minus edge, {result.questions} questions, with 95% intervals:\n"
        f"{lenient} by the lenient reading,\n{strict} by the strict one."
    )


def _gain(accuracy: Accuracy, interval: Intervals) -> str:
    low, high = (f"{100 * end:+.0f}" for end in interval.pair_minus_edge)
    return f"{100 * (accuracy.pair - accuracy.edge):+.0f} points ({low} to {high})"
