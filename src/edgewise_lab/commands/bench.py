"""`edgewise bench`: measure speeds on this machine, and compare a pair with other systems."""

from collections.abc import Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from typing import Annotated

import msgspec
import typer
from msgspec.structs import replace
from rich.progress import Progress

from edgewise.advice import CloudPace, cloud_pace
from edgewise.cli import options, render
from edgewise.cli.options import DRAWS, ONE_VOCABULARY, takes
from edgewise.cloud.base import CloudModel
from edgewise.cloud.hosts import hosts_of, require_allowed
from edgewise.cloud.registry import AUTO
from edgewise.errors import UsageError
from edgewise.loop.policy import LONGEST_DEADLINE
from edgewise.opening import cloud_address, open_cloud, open_edge, require_one_cloud
from edgewise.pair import open_pair
from edgewise.settings import Settings
from edgewise_lab.bench.link import Conditions, LinkBench, LinkRow, advice_over, gateway_process
from edgewise_lab.bench.pace import HALF_BILLION, UNPACED, Pace, measured
from edgewise_lab.commands import shared
from edgewise_lab.commands.eval import shares_of
from edgewise_lab.commands.rules import rules
from edgewise_lab.evaluation.calibration import Answers, Calibrated, thresholds_for
from edgewise_lab.evaluation.plan import Contender
from edgewise_lab.evaluation.tasks.base import Task
from edgewise_lab.evaluation.tasks.named import with_calibration
from edgewise_lab.tables import FigureTable

app = typer.Typer(help="Measure speeds on this machine, and compare systems.", no_args_is_help=True)
app.command()(rules)


@app.command()
@takes(
    *(*ONE_VOCABULARY, "router", "speculate", "ctx", "threads"),
    reads=["cloud_key", "edge_key", "cloud_share", "gpu_layers"],
    unaffected=[*DRAWS],
)
def link(
    task: Annotated[str, typer.Argument(help="A task, as for eval.")] = "pocketqa",
    *,
    data: shared.Data = None,
    chosen: Settings,
    cloud_share: Annotated[
        list[float] | None, options.share_option("Cloud share; repeatable; default: 0.05.")
    ] = None,
    round_trip: Annotated[
        list[float] | None,
        typer.Option(min=0, max=10_000, metavar="MS", help="Repeatable; default: 0, 50, 100, 200."),
    ] = None,
    loss: Annotated[float, typer.Option(min=0, max=0.5, help="Share of packets lost.")] = 0,
    engine_time: Annotated[
        float, typer.Option(min=0, help="Emulated time of a large model, ms per consult.")
    ] = 25.0,
    pace: Annotated[
        str | None,
        typer.Option(help="Slow the edge to the speed of a 0.5b, or of a GGUF; or none."),
    ] = None,
    questions: Annotated[int, typer.Option(min=2, help="Questions per line.")] = 12,
    calibration: Annotated[int, typer.Option(help="Extra questions for missing thresholds.")] = 60,
    json: options.Json = False,
) -> None:
    """Measure time per token over an emulated link: edge alone, and a pair waiting or speculating.

    By default the bundled pair answers through a gateway started for it, its edge as slow as a
    0.5B. At the end is advice for the longest round trip: edge alone, cloud alone or the pair.
    """
    shares = shares_of(cloud_share, chosen)
    trips = [0.0, 50.0, 100.0, 200.0] if round_trip is None else round_trip
    tasks = with_calibration(
        task, "test", data=data, check=None, limit=questions, calibration=calibration
    )
    shared.tell_of_code(tasks)
    first = Conditions(0.0, 0.0, 0.0, loss, engine_time / 1000, chosen.speculate)
    with render.progress(hidden=json) as progress:
        slowed = _pace_named(pace, chosen)
        rows, cloud = _measured(chosen, tasks, slowed, shares, trips, first, progress)
    longest = max(rows, key=lambda row: row.round_trip)
    advice = advice_over(longest, cloud, engine_time / 1000)
    if json:
        print(msgspec.json.encode({"rows": rows, "advice": advice}).decode())
    else:
        render.show(shared.drawn(_link_table(rows)))
        render.out.print("\n".join(advice.sentences))


def _pace_named(name: str | None, chosen: Settings) -> Pace:
    """Return pace `name` (an address: measured); None: "0.5b" for the bundled edge, else "none"."""
    name = name or ("0.5b" if chosen.edge == "bundled" else "none")
    if name == "0.5b":
        return HALF_BILLION
    if name == "none":
        return UNPACED
    with closing(open_edge(Settings(edge=name, ctx=512, threads=chosen.threads))) as model:
        return measured(model)


@contextmanager
def _served(chosen: Settings) -> Generator[str]:
    """Yield the cloud's URL; a gateway serves the bundled one. `UsageError` if it has no URL."""
    require_one_cloud(chosen)
    address = cloud_address(chosen)
    if address == "bundled":
        with gateway_process() as url:
            yield url
    elif address.startswith("http"):
        require_allowed(address, hosts_of(chosen.cloud_hosts))
        yield address
    else:
        raise UsageError(
            f"A link needs a cloud at its other end, and {address!r} is not a URL; give --cloud "
            "http://host:port, or bundled."
        )


def _measured(
    chosen: Settings,
    tasks: tuple[Task, Task],
    pace: Pace,
    shares: list[float],
    trips: list[float],
    like: Conditions,
    progress: Progress,
) -> tuple[list[LinkRow], CloudPace]:
    """Return a row for every share and round trip (ms), and the cloud's pace without the link."""
    asked, held_out = tasks
    bar = progress.add_task("answers", total=3 * len(shares) * len(trips) * len(asked.questions))
    of_urls = {"cloud_engine": AUTO, "cloud_tokenizer": None, "cloud_model": None}
    alone = replace(chosen, cloud="none", **of_urls)
    with open_pair(alone) as pair, _served(chosen) as url:

        def connected(at: str) -> CloudModel:
            # The link's own address is local; `_served` has checked the host that it leads to.
            cloud = open_cloud(replace(chosen, cloud=at, cloud_hosts=None), pair.edge)
            assert cloud is not None
            return cloud

        def fresh(lacking: Sequence[float]) -> Mapping[float, Calibrated]:
            with closing(connected(url)) as cloud:
                answers = Answers(pair.router, held_out, edge=pair.edge, cloud=cloud)
                return thresholds_for(lacking, answers)

        thresholds = Contender("pair", pair.router, pair.card).thresholds(shares, fresh)
        bench = LinkBench(pair.edge, pair.router, url, connected, pace=pace, task=asked)
        with closing(connected(url)) as cloud:
            unlinked = cloud_pace(cloud, pair.edge.tokenizer, LONGEST_DEADLINE)
        rows = [
            bench.row(
                like._replace(round_trip=trip / 1000, share=share, threshold=thresholds[share]),
                lambda: progress.advance(bar),
            )
            for share in shares
            for trip in trips
        ]
        return rows, unlinked


def _link_table(rows: list[LinkRow]) -> FigureTable:
    first = rows[0]
    title = f"Time per token over the edge alone ({1000 * first.step:.1f} ms), {first.questions} "
    lines = [
        [
            f"{1000 * row.round_trip:.0f}",
            f"{row.cloud_share:.0%}",
            f"{row.consults:.1%}",
            f"{row.changed:.0%}",
            f"{row.waiting.value:.2f}",
            f"{row.speculating.value:.2f} ({row.speculating.low:.2f}-{row.speculating.high:.2f})",
            f"{row.bound:.2f}",
            "/".join(f"{100 * right:.0f}" for right in row.right) + "%",
        ]
        for row in rows
    ]
    head = ["RTT, ms", "share", "p", "d", "waiting", "speculating", "bound", "right"]
    return FigureTable(title + "questions a line (95% intervals)", head, lines)
