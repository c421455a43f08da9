"""Does the cloud share hold over a conversation? `python -m benchmarks.share_drift`.

The bundled pair answers many questions one after the other with one budget, as a conversation
does: once with thresholds calibrated on all families, and for each family with thresholds
calibrated on the others only. Prints the realised share and its drift from the one asked for.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from contextlib import closing

from rich.console import Console
from rich.progress import Progress

from benchmarks.markdown import line
from benchmarks.routers.plan import of_families
from edgewise.addresses import bundled
from edgewise.cloud.local import LocalCloud
from edgewise.edge.llamacpp import LlamaModel
from edgewise.loop.decoder import Decoder, collect
from edgewise.loop.policy import Budget, Policy
from edgewise.parts import open_router
from edgewise.settings import Settings
from edgewise_lab.evaluation.calibration import thresholds_for
from edgewise_lab.evaluation.systems import question_ids
from edgewise_lab.evaluation.tasks.base import Task
from edgewise_lab.evaluation.tasks.pocketqa import pocketqa


def realised(decoder: Decoder, task: Task) -> tuple[float, float, float]:
    """The cloud share in all, and the least and greatest of a hundred answers in a row."""
    budget = Budget()
    written: list[tuple[int, int]] = []
    for question in task.questions:
        ids = question_ids(decoder.edge.tokenizer, question)
        with decoder.stream(ids, max_tokens=task.max_tokens, budget=budget) as generation:
            usage = collect(generation).usage
            budget = generation.budget
        written.append((usage.cloud_tokens + usage.wasted_tokens, usage.edge_tokens))
    hundreds = [share(written[at : at + 100]) for at in range(0, len(written) - 99, 100)]
    return share(written), min(hundreds), max(hundreds)


def share(written: Sequence[tuple[int, int]]) -> float:
    cloud = sum(pair[0] for pair in written)
    return cloud / (cloud + sum(pair[1] for pair in written))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--answers", type=int, default=1000)
    parser.add_argument("--shares", type=float, nargs="+", default=(0.03, 0.05, 0.10))
    parser.add_argument("--calibration", type=int, default=300)
    options = parser.parse_args()
    began = time.monotonic()
    test, held_out = pocketqa("test"), pocketqa("calibration")
    lines = line(
        ["answers of", "calibrated on", "asked", "realised", "drift", "of 100 in a row"], head=True
    )
    with (
        closing(LlamaModel(bundled("edge"), threads=1)) as edge,
        closing(LocalCloud(LlamaModel(bundled("cloud"), threads=1))) as cloud,
        Progress(console=Console(stderr=True), transient=True) as progress,
    ):
        router, _ = open_router(Settings(), edge)
        cases = [(test.families, held_out.families)]
        cases += [((f,), tuple(o for o in test.families if o != f)) for f in test.families]
        bar = progress.add_task("rows", total=len(cases) * len(options.shares))
        for answered, calibrated in cases:
            task = of_families(test, answered).first(options.answers)
            other = of_families(held_out, calibrated).first(options.calibration)
            points = thresholds_for(options.shares, router, other, edge=edge, cloud=cloud)
            for asked, point in points.items():
                policy = Policy(threshold=point.threshold, cloud_share=asked)
                decoder = Decoder(edge, router=router, policy=policy, cloud=cloud)
                found, low, high = realised(decoder, task)
                cells = [", ".join(answered), ", ".join(calibrated), f"{asked:.0%}"]
                cells += [f"{found:.2%}", f"{found / asked - 1:+.1%}", f"{low:.1%} to {high:.1%}"]
                lines += line(cells)
                progress.advance(bar)
    print("\n".join(lines))
    print(f"\n{options.answers} answers a row, one budget each.")
    print(f"{time.monotonic() - began:.0f} s", file=sys.stderr)


if __name__ == "__main__":
    main()
