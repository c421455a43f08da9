"""Calibrate the pair's router: `python -m pocket.calibrate` writes `bundled/router/config.json`.

Thresholds are quantiles of the router's scores over the pair's own answers to the calibration
questions. Scores drift once the cloud has written into the prefix, so the answers are made anew
with each estimate until the realised share settles.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec
import numpy as np

from edgewise.addresses import bundled
from edgewise.cloud.local import LocalCloud
from edgewise.decoding import Answer, Decoder
from edgewise.edge.llamacpp import LlamaModel
from edgewise.evaluation.comparison import ask
from edgewise.evaluation.questions import pocketqa
from edgewise.policy import Policy
from edgewise.routers.card import RouterCard
from edgewise.routers.uncertainty import MaxProb

BUNDLED = bundled("edge").parent

SHARES = (0.01, 0.02, 0.03, 0.05, 0.07, 0.10, 0.15)
ROUNDS = 4


def _answers(edge: LlamaModel, cloud: LocalCloud, threshold: float) -> list[Answer]:
    decoder = Decoder(edge, router=MaxProb(), policy=Policy(threshold=threshold), cloud=cloud)
    return [ask(decoder, question) for question in pocketqa("calibration")]


def threshold_for(share: float, edge: LlamaModel, cloud: LocalCloud) -> float:
    """The threshold above which a fraction `share` of the pair's own scores lies."""
    threshold = 1.0
    for _ in range(ROUNDS):
        answers = _answers(edge, cloud, threshold)
        scores = [token.score for answer in answers for token in answer.tokens]
        threshold = float(np.quantile([s for s in scores if s is not None], 1 - share))
    return threshold


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=BUNDLED)
    folder: Path = parser.parse_args().folder
    edge = LlamaModel(folder / "edge.gguf")
    cloud = LocalCloud(LlamaModel(folder / "cloud.gguf"))
    card = RouterCard(
        kind="max-prob",
        edge_fingerprint=edge.fingerprint(),
        tokenizer_fingerprint=edge.tokenizer.fingerprint(),
        hidden_size=edge.hidden_size,
        thresholds={f"{share:g}": threshold_for(share, edge, cloud) for share in SHARES},
        calibrated_on="pocketqa, calibration split",
    )
    cloud.close()
    edge.close()
    (folder / "router").mkdir(exist_ok=True)
    text = msgspec.json.format(msgspec.json.encode(card), indent=2)
    (folder / "router" / "config.json").write_bytes(text + b"\n")


if __name__ == "__main__":
    main()
