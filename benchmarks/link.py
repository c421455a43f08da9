"""What a link costs, over shares, round trips and losses: `python -m benchmarks.link`.

The bundled pair with its router, the cloud model in a real llama-server behind a gateway process,
an emulated link between device and gateway. The edge is as slow as a 0.5B-shaped model is here and
now (measured first, by batch; --model names another), consults are `--engine` ms longer. See
`edgewise_lab.bench.link`. Prints Markdown.
"""

import argparse
from collections.abc import Sequence
from contextlib import ExitStack, closing
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks import random_qwen
from benchmarks.shared import show
from edgewise.addresses import bundled
from edgewise.cloud.base import CloudModel
from edgewise.cloud.gateway import GatewayCloud
from edgewise.edge.llamacpp import LlamaModel
from edgewise.events import Token
from edgewise.loop.decoder import Decoder
from edgewise.loop.policy import Policy
from edgewise.opening import open_router
from edgewise.routers.base import Router
from edgewise.settings import Settings
from edgewise.testing.link import Link, Quality
from edgewise_lab.bench.link import (
    Conditions,
    Connect,
    Figure,
    LinkBench,
    LinkRow,
    gateway_process,
    http_target,
)
from edgewise_lab.bench.pace import PacedEdge, measured
from edgewise_lab.evaluation.systems import question_ids
from edgewise_lab.evaluation.tasks.base import Task
from edgewise_lab.evaluation.tasks.pocketqa import pocketqa
from tests.llama_server_process import llama_server

HEAD = (
    *("RTT, ms", "loss", "asked", "p", "d", "waiting / edge", "speculating / edge", "bound"),
    *("speculating / bound", "speculating / waiting", "TTFT / edge", "gaps of the edge, ms"),
    *("gaps waiting", "gaps speculating", "decodes a token", "cloud tokens wasted"),
    *("failed calls", "identical", "right: edge / waiting / speculating"),
)


def figure(found: Figure) -> str:
    return f"{found.value:.2f} ({found.low:.2f} to {found.high:.2f})"


def drawn(row: LinkRow) -> list[str]:
    margins = ", ".join(f"{margin:.2f}" for margin in row.margins)
    gaps = [
        " / ".join(f"{1000 * gap:.0f}" for gap in (found.p50, found.p95, found.p99))
        for found in (row.edge_gaps, row.waiting_gaps, row.speculating_gaps)
    ]
    return [
        *(f"{1000 * row.round_trip:.0f}", f"{row.loss:.0%}", f"{row.cloud_share:.0%}"),
        *(f"{row.consults:.1%}", f"{row.changed:.0%}"),
        *(figure(row.waiting), figure(row.speculating), f"{row.bound:.2f}"),
        f"{row.speculating.value / row.bound:.2f}",
        *(figure(row.speculating_over_waiting), f"{row.ttft:.2f}", *gaps),
        *(f"{row.decodes_per_token:.2f}", f"{row.wasted:.1%}", f"{row.failed_calls}"),
        f"{row.identical} of {row.questions}" + (f" ({margins})" if margins else ""),
        " / ".join(f"{right:.0%}" for right in row.right),
    ]


def silences(
    edge: Any, router: Router, url: str, connect: Connect, policy: Policy, task: Task, trip: float
) -> list[float]:
    """The longest gap of each answer whose link goes dead after its fifth token, seconds."""
    longest: list[float] = []
    for question in task.questions:
        link = Link(*http_target(url), Quality(round_trip=trip))
        with closing(link), closing(connect(link.url)) as cloud:
            decoder = Decoder(edge, router=router, policy=policy, cloud=cloud)
            ids = question_ids(edge.tokenizer, question)
            try:
                for _ in range(3):  # the deadline learns the latency
                    decoder.generate(ids, max_tokens=task.max_tokens)
                longest.append(longest_gap(decoder, ids, link, task.max_tokens))
            finally:
                link.restore()
    return longest


def longest_gap(decoder: Decoder, ids: Sequence[int], link: Link, max_tokens: int) -> float:
    gaps: list[float] = []
    with decoder.stream(ids, max_tokens=max_tokens) as events:
        for event in events:
            if isinstance(event, Token):
                gaps.append(event.seconds)
                if event.index == 4:
                    link.stall()
    return max(gaps[5:], default=0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=6)
    parser.add_argument("--shares", type=float, nargs="+", default=(0.05,))
    parser.add_argument("--trips", type=float, nargs="+", default=(0, 50, 100, 200), help="ms")
    parser.add_argument("--loss-at", type=float, nargs="*", default=(), help="ms, with 1%% loss")
    parser.add_argument("--engine", type=float, default=25, help="ms added to a consult")
    parser.add_argument("--model", type=Path, help="0.5B-shaped GGUF; made when missing")
    parser.add_argument("--dead", type=int, default=4, help="answers whose link goes dead")
    options = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory()))
        slow = options.model or random_qwen.build(folder / "qwen.gguf")
        with LlamaModel(slow, context=512, threads=2, gpu_layers=0) as large:
            pace = measured(large)
        model = LlamaModel(bundled("edge"), threads=1)
        stack.callback(model.close)
        router, card = open_router(Settings(), model)
        assert card is not None
        engine = stack.enter_context(llama_server(bundled("cloud")))
        url = stack.enter_context(gateway_process(engine))

        def connect(at: str) -> CloudModel:
            cloud = GatewayCloud(at)
            cloud.check_vocabulary(model.tokenizer)
            return cloud

        task = pocketqa().first(options.questions)
        bench = LinkBench(model, router, url, connect, pace=pace, task=task)
        links = [(trip, 0.0) for trip in options.trips] + [(trip, 0.01) for trip in options.loss_at]
        plan: list[Conditions] = []
        for share, (trip, loss) in product(options.shares, links):
            threshold = card.threshold(share)
            if threshold is None:
                parser.error(f"no threshold for {share}; known: {sorted(card.thresholds)}")
            plan.append(Conditions(trip / 1000, share, threshold, loss, options.engine / 1000))
        show(HEAD, (drawn(bench.row(one, lambda: None)) for one in plan))
        last, few = plan[-1], task.first(options.dead)
        reached = url, connect, last.speculating, few, last.round_trip
        dead = silences(PacedEdge(model, pace), router, *reached)
    print(f"\nEdge {1000 * pace.seconds[0]:.1f} ms a step, {options.questions} questions a line.")
    longest = ", ".join(f"{seconds:.2f}" for seconds in dead)
    print(f"Longest silence of answers whose link went dead, s: {longest}.")


if __name__ == "__main__":
    main()
