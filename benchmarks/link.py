"""What a link costs, over shares, round trips and losses: `python -m benchmarks.link`.

The bundled pair with its router, the cloud model in a real llama-server behind a gateway process,
an emulated link between device and gateway. The edge is as slow as a 0.5B-shaped model is here and
now (measured first, by batch; --model names another), consults are `--engine` ms longer. See
`edgewise_lab.bench.link`. Prints Markdown; `--json FILE` keeps the figures, `--plot FILE` draws
time per token over the round trip.
"""

import argparse
from collections.abc import Sequence
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import msgspec
from rich.console import Console
from rich.progress import Progress

from benchmarks import random_qwen
from edgewise.addresses import bundled
from edgewise.cloud.base import CloudModel
from edgewise.cloud.gateway import GatewayCloud
from edgewise.edge.llamacpp import LlamaModel
from edgewise.parts import open_router
from edgewise.settings import Settings
from edgewise_lab.bench.link import Conditions, Figure, Gaps, LinkBench, LinkRow, gateway_process
from edgewise_lab.bench.pace import Pace, measured
from edgewise_lab.evaluation.tasks.pocketqa import pocketqa
from edgewise_lab.tables import line
from tests.llama_server_process import llama_server

HEAD = ["RTT, ms", "loss", "asked", "p", "d", "waiting / edge", "ahead / edge", "bound"]
HEAD += ["ahead / bound", "ahead / waiting", "TTFT / edge", "gaps of the edge, ms"]
HEAD += ["gaps waiting", "gaps ahead", "decodes a token", "cloud tokens wasted", "late"]
HEAD += ["identical", "right: edge / waiting / ahead"]


def figure(found: Figure) -> str:
    return f"{found.value:.2f} ({found.low:.2f} to {found.high:.2f})"


def gaps(found: Gaps) -> str:
    return " / ".join(f"{1000 * gap:.0f}" for gap in (found.p50, found.p95, found.p99))


def drawn(row: LinkRow) -> list[str]:
    margins = ", ".join(f"{margin:.2f}" for margin in row.margins)
    return line(
        [
            f"{1000 * row.round_trip:.0f}",
            f"{row.loss:.0%}",
            f"{row.share:.0%}",
            f"{row.consults:.1%}",
            f"{row.changed:.0%}",
            figure(row.waiting),
            figure(row.ahead),
            f"{row.bound:.2f}",
            f"{row.ahead.value / row.bound:.2f}",
            figure(row.ahead_over_waiting),
            f"{row.ttft:.2f}",
            gaps(row.edge_gaps),
            gaps(row.waiting_gaps),
            gaps(row.ahead_gaps),
            f"{row.decodes_per_token:.2f}",
            f"{row.wasted:.1%}",
            f"{row.late}",
            f"{row.identical} of {row.questions}" + (f" ({margins})" if margins else ""),
            " / ".join(f"{right:.0%}" for right in row.right),
        ]
    )


def plot(rows: Sequence[LinkRow], engine: float, path: Path) -> None:
    """Time per token over the round trip, a panel for each share."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    shares = sorted({row.share for row in rows})
    canvas = Canvas(figsize=(3 + 4 * len(shares), 3.6), layout="constrained")
    FigureCanvasAgg(canvas)
    highest = 0.0
    panels = canvas.subplots(1, len(shares), sharey=True, squeeze=False)[0]
    for axes, share in zip(panels, shares, strict=True):
        at = sorted(
            (r for r in rows if r.share == share and not r.loss), key=lambda r: r.round_trip
        )
        trips = [1000 * row.round_trip for row in at]
        step = 1000 * median(row.step for row in rows)
        axes.plot(trips, [step] * len(at), "--", c="grey", label="edge alone")
        for name, values in (
            ("waiting", [row.waiting.value for row in at]),
            ("speculating", [row.ahead.value for row in at]),
            ("bound", [row.bound for row in at]),
        ):
            style = ":" if name == "bound" else "o-"
            axes.plot(trips, [step * value for value in values], style, ms=4, label=name)
        # A whole answer of 32 tokens streamed after one round trip: computed, not measured.
        alone = [(trip + 32 * 1000 * engine) / 32 for trip in trips]
        axes.plot(trips, alone, "-.", c="black", label="cloud alone, streaming (computed)")
        axes.set(title=f"cloud share {share:.0%}", xlabel="round trip, ms")
        highest = max(highest, *(step * row.waiting.value for row in at))
    panels[0].set(ylabel="time per token, ms", ylim=(0, 1.05 * highest))
    # Beside the panels, where it covers no line.
    named = panels[0].get_legend_handles_labels()
    canvas.legend(*named, loc="outside right upper", fontsize=7)
    canvas.savefig(path)


def paced_as(model: Path) -> Pace:
    """As a 0.5B is here."""
    with LlamaModel(model, context=512, threads=2, gpu_layers=0) as large:
        return measured(large)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=6)
    parser.add_argument("--shares", type=float, nargs="+", default=(0.05,))
    parser.add_argument("--trips", type=float, nargs="+", default=(0, 50, 100, 200), help="ms")
    parser.add_argument("--loss-at", type=float, nargs="*", default=(), help="ms, with 1%% loss")
    parser.add_argument("--engine", type=float, default=25, help="ms added to a consult")
    parser.add_argument("--model", type=Path, help="0.5B-shaped GGUF; made when missing")
    parser.add_argument("--dead", type=int, default=4, help="answers whose link goes dead")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        pace = paced_as(options.model or random_qwen.build(folder / "qwen.gguf"))
        model = LlamaModel(bundled("edge"), threads=1)
        stack.callback(model.close)
        router, card = open_router(Settings(), model)
        assert card is not None
        engine = stack.enter_context(llama_server(bundled("cloud")))
        url = stack.enter_context(gateway_process(engine))

        def connect(at: str) -> CloudModel:
            cloud = GatewayCloud(at)
            cloud.check(model.tokenizer)
            return cloud

        task = pocketqa().first(options.questions)
        bench = LinkBench(model, router, url, connect, pace=pace, task=task)
        links = [(trip, 0.0) for trip in options.trips] + [(trip, 0.01) for trip in options.loss_at]
        plan = []
        for share, (trip, loss) in product(options.shares, links):
            threshold = card.threshold(share)
            if threshold is None:
                parser.error(f"no threshold for {share}; known: {sorted(card.thresholds)}")
            engine_seconds = options.engine / 1000
            plan.append(Conditions(trip / 1000, share, threshold, loss, engine_seconds))
        progress = stack.enter_context(Progress(console=Console(stderr=True), transient=True))
        bar = progress.add_task("answers", total=3 * len(plan) * options.questions)
        rows = [bench.row(conditions, lambda: progress.advance(bar)) for conditions in plan]
        dead = bench.silence(plan[-1]._replace(loss=0.0), options.dead)
    if options.json:
        options.json.write_bytes(msgspec.json.encode(rows))
    if options.plot:
        plot(rows, options.engine / 1000, options.plot)
    print("\n".join(line(HEAD, head=True) + [text for row in rows for text in drawn(row)]))
    print(f"\nEdge {1000 * pace.seconds[0]:.1f} ms a step, {options.questions} questions a line.")
    longest = ", ".join(f"{seconds:.2f}" for seconds in dead)
    print(f"Longest silence of answers whose link went dead, s: {longest}.")


if __name__ == "__main__":
    main()
