"""`edgewise bench energy`: what tokens take, where a meter tells."""

from contextlib import ExitStack, closing
from typing import Annotated

import msgspec
import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from edgewise.cli import options, render
from edgewise.cli.options import DRAWS, MACHINE, MODELS, RECORD, ROUTING, SERVING, VIEW, takes
from edgewise.loop.decoder import Decoder
from edgewise.loop.policy import Policy
from edgewise.pair import open_pair
from edgewise.settings import Settings
from edgewise_lab.bench.energy import Ask, Energy, EnergyBench, Quantity, meters
from edgewise_lab.commands import task_options
from edgewise_lab.evaluation.systems import question_prompt
from edgewise_lab.evaluation.tasks.named import open_task


# A price would hold consults back, and answers are greedy, as a task's.
@takes(
    *(*MODELS, *VIEW, *ROUTING, *MACHINE),
    reads=["cloud_key"],
    unaffected=[*DRAWS, *SERVING, *RECORD],
)
def energy(
    task: Annotated[str, typer.Argument(help="A task, as for eval.")] = "pocketqa",
    *,
    data: task_options.Data = None,
    chosen: Settings,
    questions: Annotated[int, typer.Option(min=1, help="Asked over and over.")] = 24,
    seconds: Annotated[
        float, typer.Option(min=1, max=120, help="Of a block, at rest or answering.")
    ] = 10.0,
    rounds: Annotated[int, typer.Option(min=3, help="Interleaved rounds.")] = 5,
    json: options.Json = False,
) -> None:
    """Joules a token beyond rest: the edge alone, and with its cloud.

    By RAPL, NVML or powermetrics; refused where there is none. A cloud elsewhere is not counted.
    """
    asked = open_task(task, data=data)
    with ExitStack() as stack:
        counting = [stack.enter_context(closing(meter)) for meter in meters()]
        pair = stack.enter_context(open_pair(chosen))
        chosen_ones = asked.questions[:questions]
        prompts = [question_prompt(pair.edge.tokenizer, one) for one in chosen_ones]

        def asking(decoder: Decoder) -> Ask:
            return lambda number: decoder.generate(prompts[number], max_tokens=asked.max_tokens)

        def decoder(policy: Policy) -> Decoder:
            # The pair's own keeps a record of what was sent for users.
            return Decoder(pair.edge, router=pair.router, policy=policy, cloud=pair.cloud)

        systems = {"edge alone": asking(decoder(pair.policy.edge_alone()))}
        if pair.cloud is not None:
            systems["pair"] = asking(decoder(pair.policy))
        progress = stack.enter_context(render.progress(hidden=json))
        bar = progress.add_task("blocks", total=rounds * (1 + len(systems)))
        bench = EnergyBench(counting, systems)
        found = bench.measure(
            len(prompts), seconds=seconds, rounds=rounds, done=lambda: progress.advance(bar)
        )
    print(msgspec.json.encode(found).decode()) if json else render.show(_table(found))


def _table(found: Energy) -> Table:
    title = (
        f"Energy by {', '.join(found.meters)}: {found.idle.median:.1f} W at rest "
        f"({found.idle.low:.1f} to {found.idle.high:.1f}), {found.rounds} rounds"
    )
    table = Table(title=title, box=SIMPLE_HEAD)
    table.add_column("system")
    figures = ("J a token beyond rest", "W", "ms a token")
    for name in (*figures, "answers", "tokens", "by the cloud", "failed"):
        table.add_column(name, justify="right")
    for one in found.systems:
        table.add_row(
            one.system,
            _told(one.joules, 3),
            _told(one.watts, 1),
            _told(one.seconds, 1, 1000),
            str(one.answers),
            str(one.tokens),
            f"{one.cloud_tokens / one.tokens:.1%}",
            str(one.failed_calls),
        )
    table.caption = "Medians of the rounds, with the lowest and the highest."
    return table


def _told(one: Quantity, digits: int, times: float = 1) -> str:
    middle, low, high = (f"{times * value:.{digits}f}" for value in (one.median, one.low, one.high))
    return f"{middle} ({low} to {high})"
