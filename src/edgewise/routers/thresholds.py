"""Thresholds that answers start with: measured, for a router that has none, or tuned and stored.

To measure them, the edge model answers a few prompts, once for each router. The threshold for a
cloud share is the score that this share of the tokens exceeds.
"""

import hashlib
import logging
import os
from collections.abc import Mapping
from contextlib import closing, suppress
from pathlib import Path

import msgspec
import numpy as np

from edgewise.addresses import user_path
from edgewise.edge.base import EdgeModel, Needs
from edgewise.prompts import Message, prompt_of
from edgewise.routers.base import Router, checked_score
from edgewise.routers.card import Thresholds

SHARES = (0.01, 0.02, 0.03, 0.05, 0.07, 0.1, 0.15, 0.2, 0.3, 0.5)
PROMPTS = (
    "Why is the sky blue? Answer in two sentences.",
    "A shop sells 14 boxes of 6 pens at 3 dollars a box, and half of them again on Tuesday. How "
    "much does it take in? Explain each step.",
    "Write a Python function that returns the second largest number of a list.",
    "Where would you put a plate after washing it? A. table B. cupboard C. garden D. car. Explain, "
    "then name the letter.",
    "Write a short letter to a neighbour whose dog barks at night.",
)
TOKENS = 40
"""The greatest length, in tokens, of each answer to one of `PROMPTS`."""

TIERS = "tiers"
"""The `identity` for thresholds of a cloud model after the first: they depend on no router."""

_log = logging.getLogger(__name__)


def own_thresholds(edge: EdgeModel, router: Router, identity: str) -> Mapping[str, float]:
    """Return the threshold to start with for each of `SHARES`, by this share as text ("0.05").

    They come from the router's scores of the edge model's own answers. The first call for a model
    and an `identity`, the router's digest, takes seconds; the result is stored for later calls.
    Empty if the router's `needs` are `Needs.NOTHING`, or if no prompt fits the context.
    """
    if router.needs is Needs.NOTHING:
        return {}
    record = _record("starts", edge, identity, *PROMPTS, f"{TOKENS}")
    if known := _kept(record):
        return known
    # It takes seconds in which nothing else is to be seen.
    _log.warning(
        "%s answers %d short prompts first, once, to set the router's threshold",
        edge.name,
        len(PROMPTS),
    )
    # For each model: the entropy of one is above half of its maximum at every fifth token, that of
    # a more certain one never.
    scores = own_scores(edge, router)
    if not scores:
        return {}
    thresholds = {f"{share:g}": float(np.quantile(scores, 1 - share)) for share in SHARES}
    _keep(record, thresholds)
    return thresholds


def tuned_thresholds(edge: EdgeModel, identity: str, cloud: str) -> Mapping[str, float]:
    """Return the thresholds that `keep_tuned` stored, by cloud share (as text, "0.05"), or {}.

    For the first cloud model, `identity` is the router's digest and `cloud` the key that
    `opening.nearest_cloud` returns. For a later one of several cloud models, `identity` is `TIERS`
    and `cloud` the key that `opening.tier_address` returns.
    """
    return _kept(_record("tuned", edge, identity, cloud))


def keep_tuned(
    edge: EdgeModel, identity: str, cloud: str, thresholds: Mapping[str, float]
) -> Path | None:
    """Store tuned `thresholds`, by cloud share as text, in place of earlier ones.

    `tuned_thresholds` returns them for the same edge model, `identity` and `cloud`, described
    there. Returns the file, or None if it cannot be written.
    """
    return _keep(_record("tuned", edge, identity, cloud), thresholds)


def _record(kind: str, edge: EdgeModel, *parts: str) -> Path | None:
    folder = user_path("cache", kind)
    held = "\n".join((edge.fingerprint(), edge.build, *parts))
    return folder and folder / hashlib.sha256(held.encode()).hexdigest()


def _kept(record: Path | None) -> Mapping[str, float]:
    """Return stored thresholds; none if the file is missing or invalid."""
    with suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):
        if record:
            return msgspec.json.decode(record.read_bytes(), type=Thresholds)
    return {}


def _keep(record: Path | None, thresholds: Mapping[str, float]) -> Path | None:
    """Store thresholds; return the file, or None if that fails."""
    # Then the next start measures again.
    with suppress(OSError):
        if record:
            record.parent.mkdir(parents=True, exist_ok=True)
            # Another process may read or write it meanwhile.
            partial = record.with_name(f"{record.name}.{os.getpid()}")
            partial.write_bytes(msgspec.json.encode(thresholds))
            return partial.replace(record)
    return None


def own_scores(edge: EdgeModel, router: Router) -> list[float]:
    """Return the scores of all tokens in the edge's greedy answers to those `PROMPTS` that fit."""
    scores: list[float] = []
    with closing(edge.session(router.needs, top=router.top)) as session:
        for prompt in PROMPTS:
            ids = prompt_of(edge.tokenizer, [Message("user", prompt)]).ids
            if len(ids) + TOKENS > edge.context:
                continue
            session.open(ids)
            for _ in range(TOKENS):
                step = session.step()
                scores.append(checked_score(router, step))
                # An id that was read before the next decode: `proposed` is not kept by every step.
                token = step.proposed
                if token in edge.tokenizer.eos_ids:
                    break
                session.extend([token])
    return scores
