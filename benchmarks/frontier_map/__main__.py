"""The map: time per token over the edge's speed and the round trip, and what is fastest where.

    python -m benchmarks.frontier_map --plot map.png --points --questions 100

Predicted from what the pocket models do (p, d, lengths, where the edge agrees with the cloud) and
from an engine at the pace of a large model, both measured first. `--points` checks six places of
the map by real runs: a paced edge, an emulated link, a real llama-server at that pace. Time per
token is that of whole answers, prompt included, over their tokens. Prints Markdown.
"""

import argparse
import multiprocessing
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path

import msgspec
import numpy as np
from msgspec.structs import replace

from benchmarks.frontier_map.figure import Grid, draw
from benchmarks.frontier_map.inputs import MODELS, Inputs, measured
from benchmarks.frontier_map.points import Checked, Point, measured_point
from benchmarks.frontier_map.predicted import NAMES, WAYS, predicted
from benchmarks.markdown import line
from edgewise.addresses import bundled
from edgewise_lab.bench.paced_engine import EnginePace
from edgewise_lab.evaluation.tasks.pocketqa import pocketqa
from tests.llama_server_process import llama_server

# The slowest first: they run side by side.
POINTS = ((45, 100), (30, 200), (20, 100), (15, 20), (10, 50), (5, 300))
"""Step and round trip, ms."""

STEPS, TRIPS = (5, 10, 20, 30, 45, 60), (0, 50, 100, 200, 300)
"""Of the table, ms."""

SAME = {"cloud": ("cloud", "speculation"), "any": WAYS}


def _found(options: argparse.Namespace, pace: EnginePace) -> Inputs:
    if options.inputs and options.inputs.exists():
        return msgspec.json.decode(options.inputs.read_bytes(), type=Inputs)
    with llama_server(bundled("cloud")) as url:
        task = pocketqa().first(options.questions)
        found = measured(task, options.share, url, pace, options.sample)
    if options.inputs:
        options.inputs.write_bytes(msgspec.json.encode(found))
    return found


def table(inputs: Inputs, pace: EnginePace) -> list[str]:
    """Milliseconds a token, each way."""
    head = ["edge, ms a token", "RTT, ms", *(NAMES[way] for way in WAYS), "edge alone"]
    rows = line([*head, "fastest with the cloud's words", "fastest of all"], head=True)
    for step, trip in product(STEPS, TRIPS):
        at = predicted(inputs, pace, step / 1000, trip / 1000)
        cells = [f"{1000 * at.seconds[way]:.1f}" for way in (*WAYS, "edge")]
        best = [NAMES[at.fastest(ways)] for ways in SAME.values()]
        rows += line([str(step), str(trip), *cells, *best])
    return rows


def compared(
    inputs: Inputs, pace: EnginePace, points: Sequence[Point], checked: Sequence[Checked]
) -> list[str]:
    """Predicted against measured: the formulas are told how slow edge and engine really were."""
    head = ["edge, ms a token", "RTT, ms", "way", "predicted", "measured (95%)"]
    rows = line([*head, "measured / predicted"], head=True)
    for point, found in zip(points, checked, strict=True):
        at = predicted(
            replace(inputs, engine=found.engine),
            pace,
            point.step,
            point.round_trip,
            slower=found.slower,
            drafting=point.drafting,
        )
        for way in WAYS:
            told, seconds = at.seconds[way], found.ways[way]
            low, high = seconds.interval
            name = NAMES[way]
            if way == "speculation":
                kind = "pipelined" if point.pipelined else "waiting"
                name = f"{name}, {kind}, drafts of {point.draft}"
            between = f"({1000 * low:.1f} to {1000 * high:.1f})"
            rows += line(
                [
                    f"{1000 * point.step:g}",
                    f"{1000 * point.round_trip:g}",
                    name,
                    f"{1000 * told:.1f}",
                    f"{1000 * seconds.per_token:.1f} {between}",
                    f"{seconds.per_token / told:.3f}",
                ]
            )
    return rows


def told(inputs: Inputs) -> list[str]:
    """The inputs in words."""
    models = "; ".join(
        f"{name} {inputs.answers[name].right:.1%} right, {inputs.answers[name].mean:.1f} tokens"
        for name in MODELS
    )
    engine = inputs.engine
    return [
        f"{len(inputs.prompts)} questions, prompts of {np.mean(inputs.prompts):.1f} tokens; "
        f"{models}.",
        f"Share {inputs.share:.0%}: p = {inputs.asked:.1%}, d = {inputs.changed:.0%}; the edge "
        f"agrees with {inputs.acceptance:.1%} of the cloud's tokens. A consult takes the engine "
        f"{1000 * engine.consult:.1f} ms, a stream's first token {1000 * engine.first:.1f}, each "
        f"further one {1000 * engine.token:.1f}.",
    ]


def _point(inputs: Inputs, pace: EnginePace, step: float, round_trip: float) -> Point:
    """To be measured, with the drafts that are best there."""
    drafting = predicted(inputs, pace, step, round_trip).drafting
    return Point(
        step=step,
        round_trip=round_trip,
        threshold=inputs.threshold,
        questions=len(inputs.prompts),
        draft=drafting.draft,
        pipelined=drafting.pipelined,
        pace=(pace.first, pace.token, pace.read),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=100)
    parser.add_argument("--sample", type=int, default=20, help="questions that time the engine")
    parser.add_argument("--share", type=float, default=0.05)
    parser.add_argument("--pace", type=float, nargs=3, default=EnginePace(), metavar="SECONDS")
    parser.add_argument("--points", action="store_true", help="check six by real runs")
    parser.add_argument(
        "--at",
        type=float,
        nargs=2,
        action="append",
        metavar="MS",
        help="a place instead of the six: edge, trip",
    )
    parser.add_argument("--beside", type=int, default=3, help="points side by side")
    parser.add_argument("--inputs", type=Path, help="JSON of what was measured; made when missing")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path)
    options = parser.parse_args()
    pace = EnginePace(*options.pace)
    inputs = _found(options, pace)
    print("\n\n".join(told(inputs)) + "\n\n" + "\n".join(table(inputs, pace)), flush=True)
    if options.plot:
        grid: Grid = {
            (step / 1000, trip / 1000): predicted(inputs, pace, step / 1000, trip / 1000)
            for step, trip in product(np.arange(5, 61, 2.5), range(0, 301, 10))
        }
        draw(grid, [(step / 1000, trip / 1000) for step, trip in POINTS], options.plot)
    if options.points:
        chosen = options.at or POINTS
        points = [_point(inputs, pace, step / 1000, trip / 1000) for step, trip in chosen]
        spawned = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(options.beside, mp_context=spawned) as pool:
            found = list(pool.map(measured_point, points))
        print("\n" + "\n".join(compared(inputs, pace, points, found)))
        if options.json:
            options.json.write_bytes(msgspec.json.encode(found))


if __name__ == "__main__":
    main()
