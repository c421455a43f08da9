"""A router checkpoint: `config.json`, and `model.safetensors` where the router has weights."""

from itertools import pairwise
from pathlib import Path
from typing import Literal

import msgspec

from edgewise.edge.base import EdgeModel
from edgewise.errors import RouterMismatch, UsageError

CONFIG, WEIGHTS = "config.json", "model.safetensors"
MAX_CONFIG = 1 << 20

Input = Literal["hidden", "top_logprobs", "scalars"]


class RouterCard(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a checkpoint says of itself.

    `thresholds` maps a cloud share (as text, "0.05") to the threshold that realises it, measured
    on `calibrated_on`. Fingerprints are those of the edge model's file and of its tokenizer.
    `trained_on` and `label` say what the weights were fitted to.
    """

    format: Literal[1] = 1
    kind: Literal["max-prob", "margin", "entropy", "logtoku", "mlp"]
    edge_fingerprint: str
    tokenizer_fingerprint: str
    hidden_size: int
    inputs: tuple[Input, ...] = ()
    top_k: int = 0
    thresholds: dict[str, float] = {}
    calibrated_on: str = ""
    trained_on: str = ""
    label: str = ""

    def check(self, edge: EdgeModel, where: Path) -> None:
        """Raise `RouterMismatch` unless the router was made for this very edge model."""
        problem = None
        if self.hidden_size != edge.hidden_size:
            problem = f"hidden size {self.hidden_size}, not {edge.hidden_size}"
        elif self.tokenizer_fingerprint != edge.tokenizer.fingerprint():
            problem = "another tokenizer"
        elif self.edge_fingerprint != edge.fingerprint():
            problem = "another file (training or quantisation)"
        if problem:
            raise RouterMismatch(
                f"The router {str(where)!r} was made for an edge model with {problem}; "
                "train one for this model or choose --router entropy."
            )

    def threshold(self, share: float) -> float | None:
        """The calibrated threshold for `share`, between the two nearest calibrated shares."""
        known = sorted((float(text), value) for text, value in self.thresholds.items())
        for (low, at_low), (high, at_high) in pairwise(known):
            if low <= share <= high:
                return at_low + (at_high - at_low) * (share - low) / (high - low)
        return next((value for exact, value in known if exact == share), None)


def read_card(folder: Path) -> RouterCard:
    """Read and validate `config.json`; raises `UsageError`."""
    path = folder / CONFIG
    if not path.is_file():
        raise UsageError(
            f"There is no router in {str(folder)!r} (no {CONFIG}); name a checkpoint's folder or "
            "one of the built-in routers."
        )
    if path.stat().st_size > MAX_CONFIG:
        raise UsageError(f"{str(path)!r} is larger than {MAX_CONFIG} bytes: not a router's.")
    try:
        card = msgspec.json.decode(path.read_bytes(), type=RouterCard)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{str(path)!r} is no valid router description: {error}.") from error
    if not all(_is_share(text) and 0 <= value <= 1 for text, value in card.thresholds.items()):
        raise UsageError(f"{str(path)!r} has thresholds that do not map a share to a score.")
    return card


def _is_share(text: str) -> bool:
    try:
        return 0 <= float(text) <= 1
    except ValueError:
        return False
