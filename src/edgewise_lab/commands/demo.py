"""`edgewise demo`: show what the bundled pair does on questions it was not trained on."""

from typing import Annotated

import typer
from msgspec.structs import replace

from edgewise.cli import options, render
from edgewise.cli.options import CONNECTING, COSTS, DRAWS, KEYS, PRIVACY, takes
from edgewise.errors import UsageError
from edgewise.loop.decoder import Decoder, collect
from edgewise.loop.policy import Policy
from edgewise.pair import open_pair
from edgewise.settings import Settings
from edgewise_lab.commands.shared import counted
from edgewise_lab.evaluation.plan import Contender, Evaluation
from edgewise_lab.evaluation.report import Figures, as_json, rows
from edgewise_lab.evaluation.store import Store
from edgewise_lab.evaluation.systems import question_ids
from edgewise_lab.evaluation.tasks.base import Task
from edgewise_lab.evaluation.tasks.pocketqa import pocketqa

SHOWN = ("facts-1309", "each-1366", "steps-1272")
"""Ids of held-out questions that the edge model alone gets wrong and the pair right."""


# The bundled pair answers, greedily and without a connection.
@takes(
    reads=["cloud_share", "deadline", "ctx", "threads", "gpu_layers"],
    unaffected=[
        *(*KEYS, "edge_hosts", *CONNECTING, "cloud_tokenizer", *PRIVACY),
        *(*DRAWS, "speculate", "on_cloud_error", "on_edge_error", *COSTS),
    ],
)
def demo(
    chosen: Settings,
    questions: Annotated[int, typer.Option(help="Number of held-out questions.")] = 100,
    json: options.Json = False,
) -> None:
    """Show three answers that the cloud puts right, then compare edge, pair and cloud."""
    held_out = pocketqa()
    if not 1 <= questions <= len(held_out.questions):
        most = len(held_out.questions)
        raise UsageError(f"--questions must be from 1 to {most}, not {questions}.")
    with open_pair(chosen) as pair:
        if not json:
            alone = Policy(cloud_share=0.0)
            _show(Decoder(pair.edge, router=pair.router, policy=alone), pair.decoder, held_out)
        edge, cloud = pair.both()
        asked = held_out.first(questions)
        with render.progress(hidden=json) as progress:
            done = counted(progress, "answers", 3 * questions)
            store = Store(None, {})
            evaluation = Evaluation(asked, asked, edge=edge, cloud=cloud, store=store, done=done)
            policy = replace(pair.policy, on_cloud_error="raise")
            contender = Contender("pair", pair.router, served={policy.cloud_share or 0.0: policy})
            table = rows(evaluation.alone() | evaluation.served(contender))
    if json:
        print(as_json("pocketqa", table))
    else:
        _conclude(*(row.overall for row in table))


def _show(alone: Decoder, pair: Decoder, task: Task) -> None:
    """Print the edge model's and the pair's answers to the questions in `SHOWN`."""
    render.out.print("Words in [bold red underline]red[/] are the cloud's.\n", markup=True)
    by_id = {question.id: question for question in task.questions}
    for question in map(by_id.__getitem__, SHOWN):
        asked = question.prompt.removeprefix("Question: ").removesuffix(" Answer and Reasoning:")
        render.out.print(f"  {asked}", style="dim")
        for name, decoder in (("edge alone", alone), ("pair", pair)):
            render.out.print(f"{name:>10}: ", end="")
            ids = question_ids(decoder.edge.tokenizer, question)
            with decoder.stream(ids, max_tokens=task.max_tokens) as events:
                collect(render.painted(events))
        render.out.print()


def _conclude(edge: Figures, cloud: Figures, pair: Figures) -> None:
    right = [round(one.accuracy * one.questions) for one in (edge, pair, cloud)]
    render.out.print(
        f"Of {pair.questions} held-out questions the edge model alone has {right[0]} right, the "
        f"pair {right[1]}, the cloud model alone {right[2]}.\n"
        f"The cloud read all of the pair's tokens and wrote {pair.cloud_share:.1%} of them.\n"
        "Both are toys. For real questions: edgewise chat --edge smollm2"
    )
