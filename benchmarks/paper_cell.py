"""The paper's cell: `python -m benchmarks.paper_cell --edge EDGE --cloud URL`.

CommonsenseQA with a 0.5B model on the device and a 32B model behind an engine, as in arXiv
2504.07878: a router is trained on the train split, then edge alone, pair and cloud alone answer
100 questions of the development set and all of it, beside every baseline. For example

    --edge Qwen/Qwen2.5-0.5B-Instruct-GGUF:Q4_K_M --cloud http://gpu-machine:8000

with Qwen2.5-32B-Instruct behind that address. Interrupted, it goes on. Datasets come from the hub
or, with --train-data and --data, from the published JSON Lines files.
"""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from edgewise.routers.card import CONFIG, read_card

PAPER_QUESTIONS = 100


def edgewise(*arguments: object) -> None:
    """Run the command as a user would; a failure ends the benchmark."""
    command = [sys.executable, "-m", "edgewise", *map(str, arguments)]
    print("$ edgewise", *arguments, file=sys.stderr)
    if code := subprocess.run(command, check=False).returncode:
        sys.exit(code)


def train(options: argparse.Namespace, models: Sequence[object], router: Path) -> None:
    """A router for this pair, unless an earlier run has made it."""
    if (router / CONFIG).exists() and read_card(router).thresholds:
        return
    data = ("--data", options.train_data) if options.train_data else ()
    edgewise(
        *("train", "commonsenseqa", "--out", router, "--limit", options.train, *data),
        *("--calibration", options.calibration, "--label", options.label, *models),
    )


def evaluate(
    options: argparse.Namespace, models: Sequence[object], router: Path, limit: int | None
) -> None:
    """One table, with the JSON and CSV beside it."""
    name = f"dev-{limit or 'whole'}"
    data: tuple[object, ...] = ()
    if options.data:
        data = ("--data", options.data, "--calibration-data", options.train_data)
    shares = [part for share in options.shares for part in ("--cloud-share", share)]
    limited = () if limit is None else ("--limit", limit)
    edgewise(
        *("eval", "commonsenseqa", "--router", router, *shares, *limited, *data, *models),
        *("--calibration", options.calibration, "--out", options.out / name),
        *("--csv", options.out / f"{name}.csv", "--plot", options.out / f"{name}.png"),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--edge", required=True, help="GGUF of the edge model")
    parser.add_argument("--cloud", required=True, help="the engine's address, or a GGUF")
    parser.add_argument("--out", type=Path, default=Path("build/paper_cell"))
    parser.add_argument("--train", type=int, default=2000, help="questions to train on")
    parser.add_argument("--calibration", type=int, default=200, help="to set thresholds with")
    parser.add_argument("--label", default="value")
    parser.add_argument("--shares", type=float, nargs="+", default=(0.03, 0.05, 0.07))
    parser.add_argument("--whole", type=int, help="how much of the development set; default all")
    parser.add_argument("--train-data", type=Path, help="train_rand_split.jsonl")
    parser.add_argument("--data", type=Path, help="dev_rand_split.jsonl")
    parser.add_argument("--ctx", type=int, default=2048)
    options = parser.parse_args()
    if (options.data is None) != (options.train_data is None):
        parser.error("give both --train-data and --data, or neither")
    models = ("--edge", options.edge, "--cloud", options.cloud, "--ctx", options.ctx)
    options.out.mkdir(parents=True, exist_ok=True)
    edgewise("doctor", "--edge", options.edge, "--cloud", options.cloud)
    router = options.out / "router"
    train(options, models, router)
    paper = PAPER_QUESTIONS if options.whole is None else min(PAPER_QUESTIONS, options.whole)
    evaluate(options, models, router, paper)
    evaluate(options, models, router, options.whole)


if __name__ == "__main__":
    main()
