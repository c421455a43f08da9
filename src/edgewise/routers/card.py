"""A router's checkpoint: its card (`config.json`), and `model.safetensors` if it has weights."""

import math
from collections.abc import Mapping, Sequence
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import numpy as np

from edgewise.edge.base import PROBES, EdgeModel
from edgewise.edge.vocabulary import fingerprint
from edgewise.errors import RouterMismatch, UsageError
from edgewise.routers.signals import Reference, signals_of
from edgewise.settings import unmarked

CONFIG, WEIGHTS = "config.json", "model.safetensors"
MISSED = 0.1
"""`RouterCard.warnings` names a cloud share that is missed by more than this fraction of it."""

# Isotonic curves and thresholds take some kilobytes.
MAX_CONFIG = 1 << 20

LONGEST = 32
"""How many ids of each probe text `behaviour_of` reads."""

# Lower ones, of nearly impossible ids, are noise.
LEAST = -12.0
"""`behaviour_of` raises lower logprobs (nats) to this."""

# For a model 64 wide, f16 differed from q8_0 by 0.07, from q5_0 by 0.55, from a larger one by 3.0.
APART = 0.6
"""The greatest `distance`, in nats, at which two edge models count as builds of the same model."""

_Part = Annotated[float, msgspec.Meta(ge=0, le=1)]
_SHARE = r"^(0(\.\d+)?|1|\d(\.\d+)?e-\d+)$"

Thresholds = dict[Annotated[str, msgspec.Meta(pattern=_SHARE)], _Part]
"""Thresholds (0 to 1) by cloud share as text ("0.05")."""


class RouterCard(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A router's model card, as its checkpoint's `config.json` holds it.

    `kind` names the router's class: a registered name, `module:Class`, or `file.py:Class` with the
    file relative to the checkpoint's folder. `inputs` are the signals that the router reads, in
    this order; `top_k` is the number of logprobs in the input `top_logprobs`; `reference` holds the
    quantiles (see `signals.Reference`) from which the input `ranks` is computed. The router was
    made for one edge model: the fingerprints are hashes of that model's weights and of its
    tokenizer, `build` names its engine and weight format, and `behaviour` holds its logprobs on
    fixed texts (`behaviour_of`), by which the same model in another engine or format is recognised.

    `thresholds` maps a cloud share (the cloud's fraction of all tokens, as text, "0.05") to the
    threshold found for it on the questions `calibrated_on`; `realised` maps it to the share that
    this threshold gave there, and the two ends of that share's 95% interval. `label` describes what
    the router learned to predict from the texts `trained_on`: whether asking the cloud at a token
    is worth it. `probability` lists points (score, probability that it is), both ascending. `loss`
    is the router's on texts held out from training, in nats per token; `baseline_loss` is that of
    the best constant score. `measured` tells what the router gained, and on which questions.
    """

    format: Literal[1] = 1
    kind: str
    edge_fingerprint: str
    tokenizer_fingerprint: str
    hidden_size: int
    inputs: tuple[str, ...] = ()
    top_k: Annotated[int, msgspec.Meta(ge=0)] = 0
    reference: Reference = ()
    thresholds: Thresholds = {}
    calibrated_on: str = ""
    trained_on: str = ""
    label: str = ""
    probability: tuple[tuple[_Part, _Part], ...] = ()
    realised: dict[str, tuple[_Part, _Part, _Part]] = {}
    loss: float | None = None
    baseline_loss: float | None = None
    build: str = ""
    behaviour: tuple[float, ...] = ()
    measured: str = ""

    def require_fits(self, edge: EdgeModel, where: Path) -> None:
        """Raise `RouterMismatch` unless the router in the folder `where` fits this edge model.

        Tokenizer and hidden size must be those in the card; the engine must return the hidden
        states or logits that the router reads, if any. If the hash of the weights differs, the
        model is run: with nearly the same logprobs (`behaviour`) it counts as the same model in
        another format, else as another.
        """
        problem, reads, able = None, "hidden" in self.inputs, edge.abilities
        # LogTokU, one of the scalars, is always 1 where logprobs stand for logits.
        if (reads and not able.hidden) or ("scalars" in self.inputs and not able.logits):
            what = "logits" if able.hidden or not reads else "hidden states"
            raise RouterMismatch(
                f"The router {str(where)!r} reads {what}, and the engine of {edge.name!r} "
                "hands out none",
                hint="choose one that reads none, such as entropy, or another build of the model",
                setting="router",
            )
        # A build that hands out none does not say how large they are.
        sizes = {self.hidden_size, edge.hidden_size} - (set() if reads else {0})
        if len(sizes) > 1:
            problem = f"hidden size {self.hidden_size}, not {edge.hidden_size}"
        elif self.tokenizer_fingerprint != fingerprint(edge.tokenizer):
            problem = "another tokenizer"
        elif self.is_of_another_build(edge) and (
            not self.behaviour or distance(self.behaviour, behaviour_of(edge)) > APART
        ):
            problem = "another file (training or quantisation)"
        if problem:
            raise RouterMismatch(
                f"The router {str(where)!r} was made for an edge model with {problem}",
                hint="train one for this model, or choose entropy",
                setting="router",
            )

    def is_of_another_build(self, edge: EdgeModel) -> bool:
        """Whether the edge model's fingerprint, a hash of its weights, differs from the card's."""
        return self.edge_fingerprint != edge.fingerprint()

    def build_warning(self, edge: EdgeModel) -> str | None:
        """Return a warning if `thresholds` were found with other weights of the model, or None."""
        if not self.thresholds or not self.is_of_another_build(edge):
            return None
        return (
            f"The router was made on another build of the edge model ({self.build or 'unnamed'}), "
            f"and this one is {edge.build or 'unnamed'}: its thresholds may realise other shares; "
            "calibrate it on this build (edgewise train, stage calibrate)."
        )

    def threshold(self, share: float) -> float | None:
        """Return the threshold for a cloud share, interpolated; None outside of `thresholds`."""
        known = [float(text) for text in self.thresholds]
        inside = bool(known) and min(known) <= share <= max(known)
        return start_at(self.thresholds, share) if inside else None

    def probability_at(self, score: float) -> float | None:
        """Return the probability that asking the cloud is worth it at `score`; None if unknown."""
        if not self.probability:
            return None
        scores, values = zip(*self.probability, strict=True)
        return float(np.interp(score, scores, values))

    def warnings(self) -> tuple[str, ...]:
        """Return warnings if `loss` is not below `baseline_loss`, and for each cloud share missed.

        A share is missed if `realised` is off by more than the fraction `MISSED` of it.
        """
        warnings: list[str] = []
        loss, constant = self.loss, self.baseline_loss
        if loss is not None and constant is not None and loss >= constant:
            warnings.append(
                f"The router is no better than a constant: its loss on texts set aside is "
                f"{loss:.4f} nats, a constant's {constant:.4f}; train it on more "
                "questions, or use entropy."
            )
        for share, (realised, low, high) in self.realised.items():
            target = float(share)
            if abs(realised - target) > MISSED * target:
                warnings.append(
                    f"The share {target:.1%} is missed: its threshold realised {realised:.1%} "
                    f"({low:.1%} to {high:.1%}); calibrate on more questions."
                )
        return tuple(warnings)


def start_at(thresholds: Mapping[str, float], share: float) -> float | None:
    """Return the threshold that an answer starts with for a cloud share; None without `thresholds`.

    `thresholds` maps shares (as text) to thresholds, which are interpolated; beyond them the
    nearest is taken. While an answer is written, the budget of cloud tokens moves its threshold.
    """
    if not thresholds:
        return None
    shares, values = zip(*sorted((float(text), at) for text, at in thresholds.items()), strict=True)
    return float(np.interp(share, shares, values))


def read_card(folder: Path) -> RouterCard:
    """Return the card in a checkpoint's folder. Raises `UsageError` if it is missing or invalid."""
    path = folder / CONFIG
    if not path.is_file():
        raise UsageError(
            f"There is no router in {str(folder)!r} (no {CONFIG})",
            hint="name a checkpoint's folder, or a router that needs none",
            setting="router",
        )
    if path.stat().st_size > MAX_CONFIG:
        raise UsageError(f"{str(path)!r} is larger than {MAX_CONFIG} bytes: not a router's.")
    try:
        card = msgspec.json.decode(unmarked(path.read_bytes()), type=RouterCard)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{str(path)!r} is not a valid router description: {error}.") from error
    signals = signals_of(card.inputs)
    columns = 3 if any(signal.ranked for signal in signals) else 0
    takes_k = any(signal.width == "k" for signal in signals)
    ranks = len(card.reference) == columns and all(len(known) > 1 for known in card.reference)
    for holds, problem in (
        (_ascends(*zip(*card.probability, strict=True)), "probabilities that do not ascend"),
        (card.thresholds.keys() >= card.realised.keys(), "realised shares without a threshold"),
        (ranks and _ascends(*card.reference), "a reference that does not go with its inputs"),
        ((card.top_k > 0) == takes_k, "a top_k that does not go with its inputs"),
    ):
        if not holds:
            raise UsageError(f"{str(path)!r} has {problem}.")
    return card


def _ascends(*columns: Sequence[float]) -> bool:
    return all(a <= b for column in columns for a, b in pairwise(column))


def behaviour_of(edge: EdgeModel) -> tuple[float, ...]:
    """Return the edge model's logprobs (nats, at least `LEAST`) of the ids of `PROBES`, in order.

    Of each of these fixed texts the first `LONGEST` ids are run; its first id has no logprob.
    """
    logprobs: list[float] = []
    for text in PROBES:
        ids = edge.tokenizer.encode(text)[: min(LONGEST, edge.context)]
        with closing(edge.session()) as session:
            session.open(ids[:1])
            for position in range(1, len(ids)):
                logprob = session.step().logprob(ids[position])
                logprobs.append(round(max(LEAST, logprob), 3))
                session.extend(ids[position : position + 1])
    return tuple(logprobs)


def distance(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the root of the mean squared difference of two `behaviour_of` results, in nats.

    It is inf if one is empty or if their lengths differ.
    """
    if not one or len(one) != len(other):
        return math.inf
    return math.dist(one, other) / math.sqrt(len(one))
