"""Calibrate the pair's router: `python -m pocket.calibrate` writes `bundled/router/config.json`."""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec

from edgewise.addresses import bundled
from edgewise.cloud.local import LocalCloud
from edgewise.edge.llamacpp import LlamaModel
from edgewise.evaluation.calibration import thresholds_for
from edgewise.evaluation.tasks.pocketqa import pocketqa
from edgewise.routers.card import RouterCard
from edgewise.routers.uncertainty import MaxProb

BUNDLED = bundled("edge").parent

SHARES = (0.01, 0.02, 0.03, 0.05, 0.07, 0.10, 0.15)
QUESTIONS = 600


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=BUNDLED)
    folder: Path = parser.parse_args().folder
    edge = LlamaModel(folder / "edge.gguf")
    cloud = LocalCloud(LlamaModel(folder / "cloud.gguf"))
    router, task = MaxProb(), pocketqa("calibration").first(QUESTIONS)
    thresholds = thresholds_for(SHARES, router, task, edge=edge, cloud=cloud)
    card = RouterCard(
        kind="max-prob",
        edge_fingerprint=edge.fingerprint(),
        tokenizer_fingerprint=edge.tokenizer.fingerprint(),
        hidden_size=edge.hidden_size,
        thresholds={f"{share:g}": threshold for share, threshold in thresholds.items()},
        calibrated_on="pocketqa, calibration split",
    )
    cloud.close()
    edge.close()
    (folder / "router").mkdir(exist_ok=True)
    text = msgspec.json.format(msgspec.json.encode(card), indent=2)
    (folder / "router" / "config.json").write_bytes(text + b"\n")


if __name__ == "__main__":
    main()
