"""The pocket pair beside everything else that could answer: `python -m benchmarks.frontier`.

Edge, larger edge, streamed cloud, the bundled router at several shares, untrained routers, the
commit point and whole questions, on every axis at once. Quality is that of
`--questions` questions, as fast as they go; times, bills and bytes are those of the first
`--timed` of them, with an edge as slow as a 0.5B, a real llama-server at the pace of a large model,
and an emulated link between the two. Prints Markdown; `--json FILE` keeps the figures.

Answers are kept in `--out`: interrupted, it goes on. `--part 1/2` and `--part 2/2`, side by side
into one folder, answer half of the systems each; a run without it tells the whole.
"""

import argparse
import hashlib
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec
from rich.console import Console
from rich.progress import Progress

from benchmarks.frontier.pocket import MAIN, NOTES, SLOWER, SPECULATE, Pocket, Twice
from benchmarks.frontier.query_router import query_router, scores_of
from edgewise.errors import UsageError
from edgewise_lab.bench.frontier.billing import MeasuredAnswer
from edgewise_lab.bench.frontier.pair_systems import measure
from edgewise_lab.bench.frontier.report import CLOUD, EDGE, Frontier, MeasuredAnswers, frontier
from edgewise_lab.bench.frontier.shown import notes, tables
from edgewise_lab.bench.pace import HALF_BILLION
from edgewise_lab.evaluation.store import Store
from edgewise_lab.evaluation.tasks.base import Task
from edgewise_lab.evaluation.tasks.pocketqa import pocketqa


def part(text: str) -> tuple[int, int]:
    """`2/3` is the second of three."""
    which, _, of = text.partition("/")
    if not (which.isdigit() and of.isdigit() and 1 <= int(which) <= int(of)):
        raise argparse.ArgumentTypeError(f"{text!r} is no part, such as 1/2")
    return int(which), int(of)


def options_of(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=40, help="for quality")
    parser.add_argument("--timed", type=int, default=6, help="of these, with pace and link")
    parser.add_argument("--calibration", type=int, default=100, help="others, for thresholds")
    parser.add_argument("--shares", type=float, nargs="+", default=(0.01, 0.05, 0.1))
    parser.add_argument("--systems", nargs="+", help="only these rows; edge and cloud always")
    parser.add_argument("--trip", type=float, default=50, help="round trip, ms")
    parser.add_argument("--query-router", type=Path, help="folder: trained there where it is empty")
    parser.add_argument("--train", type=int, default=200, help="of each family, for that one")
    parser.add_argument("--out", type=Path, help="folder of answers")
    parser.add_argument("--part", type=part, help="1/2: the first half of the systems, no tables")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    if not 1 <= options.timed <= options.questions:
        parser.error("--timed is from 1 to --questions")
    if options.part and not options.out:
        parser.error("--part needs --out, where the parts come together")
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = options_of(arguments)
    began = time.monotonic()
    task = pocketqa().first(options.questions)
    held_out = pocketqa("calibration").first(options.calibration)
    try:
        with ExitStack() as stack:
            pocket = Pocket(stack, options.trip / 1000, held_out)
            store = Store(options.out, manifest(pocket, options, task, held_out), MeasuredAnswer)
            found = answered(pocket, options, task, store)
            scores = None
            if options.query_router and not options.part:
                cloud = pocket.near.cloud
                router = query_router(options.query_router, pocket.edge, cloud, options.train)
                scores = scores_of(router, pocket.edge, task.questions)
    except UsageError as error:
        sys.exit(str(error))
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)
    if options.part:
        return
    main_row = MAIN if MAIN in found else next(n for n in found if n not in (EDGE, CLOUD))
    tell(frontier(found, main_row, conditions(pocket, options), scores), options)


def answered(
    pocket: Pocket, options: argparse.Namespace, task: Task, store: Store[MeasuredAnswer]
) -> dict[str, MeasuredAnswers]:
    """Every system's answers; of a part only its own systems'."""
    systems = pocket.systems(list(options.shares), store)
    wanted = {EDGE, CLOUD, *(options.systems or systems)}
    if unknown := sorted(wanted - set(systems)):
        raise UsageError(f"There is no system {unknown[0]!r}; known: {', '.join(systems)}.")
    chosen = {name: twice for name, twice in systems.items() if name in wanted}
    if options.part:
        which, of = options.part
        chosen = {n: t for i, (n, t) in enumerate(chosen.items()) if i % of == which - 1}
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("", total=len(chosen) * (options.questions + options.timed))
        return {
            name: _both(name, twice, options.timed, task, store, progress, bar)
            for name, twice in chosen.items()
        }


def _both(
    name: str,
    twice: Twice,
    timed: int,
    task: Task,
    store: Store[MeasuredAnswer],
    progress: Progress,
    bar: "object",
) -> MeasuredAnswers:
    def done() -> None:
        progress.advance(bar)  # pyright: ignore[reportArgumentType]

    progress.update(bar, description=name)  # pyright: ignore[reportArgumentType]
    quality = measure(f"{name}, quality", twice.quality, task.questions, store, done)
    paced = measure(f"{name}, timed", twice.timed, task.questions[:timed], store, done)
    return MeasuredAnswers(quality, paced, note=NOTES.get(name.split(",")[0], ""))


def conditions(pocket: Pocket, options: argparse.Namespace) -> dict[str, object]:
    """What the figures were measured under."""
    return {
        "round_trip_ms": options.trip,
        "edge_step_ms": 1000 * HALF_BILLION.seconds[0],
        "larger_edge_times": SLOWER,
        "cloud_pace": pocket.pace._asdict(),
        "speculate": SPECULATE,
    }


def manifest(
    pocket: Pocket, options: argparse.Namespace, task: Task, held_out: Task
) -> dict[str, object]:
    """What all answers depend on; how many questions is not: they are added to."""
    digest = hashlib.sha256(msgspec.json.encode([pocketqa(), held_out])).hexdigest()
    models = {"edge": pocket.edge.fingerprint(), "cloud": pocket.near.cloud.engine.described.model}
    return {"format": 2, "questions": digest, **models, **conditions(pocket, options)}


def tell(found: Frontier, options: argparse.Namespace) -> None:
    """Tables in Markdown, and what else was asked for."""
    for table in tables(found):
        print(f"\n{table.title}:\n\n{table.markdown}")
    print("\n" + "\n".join(f"- {sentence}" for sentence in notes(found)))
    told = (f"{name.replace('_', ' ')} {value}" for name, value in found.conditions.items())
    print(f"\nConditions: {', '.join(told)}.")
    if options.json:
        options.json.write_bytes(msgspec.json.encode(found))


if __name__ == "__main__":
    main()
