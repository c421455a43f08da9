"""Signals: what a trained router reads of a `Step`, the edge model's prediction for one token.

Training reads the same signals. To add one, put it into `SIGNALS` and into docs/routers.md.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgewise.edge.base import Floats, Needs, Step
from edgewise.errors import UsageError
from edgewise.routers import text

EVIDENCE = 10
"""How many of the largest logits `logtoku` reads."""

Reference = tuple[tuple[float, ...], ...]
"""Quantiles of the edge model's three uncertainties (entropy, 1 - p1, 1 - (p1 - p2)) on text that
it writes by itself, ascending. A rank among them means the same for any edge model."""

QUANTILES = 65
"""The number of quantiles in a `Reference`, for each uncertainty."""


class Signal(NamedTuple):
    """A feature of a `Step` that routers may take as input.

    `read(step, k)` returns its values, float32[width], with `RouterCard.top_k` as k. For the
    embedding of the proposed token `read` is None: a router looks it up in a table of its own.
    `width` is a number, or "d" for the size of the hidden state, or "k". `needs` are the parts of
    the step that `read` uses; `top` is how many of the likeliest ids it uses (k if the width is
    "k"). Routers are trained on the signals with `default`, unless their inputs are named.
    """

    name: str
    read: Callable[[Step, int], Floats] | None
    width: int | Literal["d", "k"]
    needs: Needs = Needs.NOTHING
    top: int = 0
    default: bool = True
    ranked: bool = False
    """Whether routers read the ranks (`ranks_of`) of `read`'s values; `width` counts the ranks."""


def _hidden(step: Step, _k: int) -> Floats:
    return step.hidden


def _logprobs(step: Step, k: int) -> Floats:
    """Return the logprobs of the k likeliest ids, best first."""
    _, logits = step.top(k)
    return logits - logits[0] + np.float32(step.logprob(step.proposed))


def _scalars(step: Step, _k: int) -> Floats:
    """Return entropy (nats), max-prob, margin and LogTokU."""
    first, second = map(math.exp, _logprobs(step, 2))
    # LogTokU ranks tokens badly by itself: where many words would do, many logits are large, which
    # counts as certainty. But it tells how large they are, which logprobs do not.
    _, logits = step.top(EVIDENCE)
    return np.array([step.entropy, first, first - second, logtoku(logits)], np.float32)


def _uncertainties(step: Step, _k: int) -> Floats:
    """Return entropy (nats), 1 - p1 and 1 - (p1 - p2)."""
    first, second = map(math.exp, _logprobs(step, 2))
    return np.array([step.entropy, 1.0 - first, 1.0 - first + second], np.float32)


def _text(step: Step, _k: int) -> Floats:
    return text.text_of(step)


_LIKELIEST = Needs.ENTROPY | Needs.TOP

SIGNALS = {
    signal.name: signal
    for signal in (
        Signal("hidden", _hidden, "d", Needs.HIDDEN),
        Signal("top_logprobs", _logprobs, "k", _LIKELIEST),
        Signal("scalars", _scalars, 4, _LIKELIEST, top=EVIDENCE),
        Signal("text", _text, len(text.NAMES), Needs.TEXT | Needs.TOP, top=2, default=False),
        Signal("ranks", _uncertainties, 6, _LIKELIEST, top=2, default=False, ranked=True),
        Signal("token_embedding", None, 0, default=False),
    )
}
"""All signals by name, in the order of a router's inputs."""

READ = tuple(name for name, signal in SIGNALS.items() if signal.read is not None)
"""The names of signals that are read from a step, and collected for training."""


def signals_of(inputs: Iterable[str]) -> list[Signal]:
    """Return the signals with these names. Raises `UsageError` for an unknown name."""
    if unknown := [name for name in inputs if name not in SIGNALS]:
        raise UsageError(
            f"There is no input {unknown[0]!r} of routers",
            hint=f"known are {', '.join(SIGNALS)}",
            setting="inputs",
        )
    return [SIGNALS[name] for name in inputs]


def needs_of(inputs: Sequence[str]) -> Needs:
    """Return the parts of a `Step` that the signals named `inputs` read."""
    needs = Needs.NOTHING
    for signal in signals_of(inputs):
        needs |= signal.needs
    return needs


def top_of(inputs: Sequence[str], top_k: int) -> int:
    """Return how many likeliest ids the signals `inputs` read at most, `top_k` for width "k"."""
    return max((top_k if one.width == "k" else one.top for one in signals_of(inputs)), default=0)


def width_of(inputs: Sequence[str], hidden_size: int, top_k: int) -> int:
    """Return how many values a router's `inputs` (names of signals) have together at a step."""
    sizes = {"d": hidden_size, "k": top_k}
    widths = [signal.width for signal in signals_of(inputs)]
    return sum(width if isinstance(width, int) else sizes[width] for width in widths)


def reader_of(
    inputs: Sequence[str], top_k: int, reference: Reference = ()
) -> Callable[[Step], Floats]:
    """Return a function that reads the signals `inputs` from a step, as float32[width_of(...)].

    Their order is kept. `token_embedding` adds no values. `top_k` is the number of logprobs in
    `top_logprobs`. `reference` holds the quantiles for `ranks`; without this input it may be empty.
    """
    signals = signals_of(inputs)
    reads = [
        _ranked(one.read, reference) if one.ranked else one.read for one in signals if one.read
    ]
    if len(reads) == 1:
        (only,) = reads
        return lambda step: only(step, top_k)
    if not reads:
        return lambda step: np.empty(0, np.float32)
    return lambda step: np.concatenate([read(step, top_k) for read in reads])


def _ranked(
    read: Callable[[Step, int], Floats], reference: Reference
) -> Callable[[Step, int], Floats]:
    return lambda step, k: ranks_of(read(step, k), reference)


def ranks_of(values: Floats, reference: Reference) -> Floats:
    """Return the ranks of `values` among known quantiles, then the log-odds of these ranks.

    `values` is float32[..., m], the result float32[..., 2m]. `reference` holds the quantiles of
    each of the m columns. A rank is a place among them, from 0.5 / `QUANTILES` to 1 minus this.
    """
    quantiles = [
        np.interp(values[..., at], known, np.linspace(0.0, 1.0, len(known)))
        for at, known in enumerate(reference)
    ]
    # Off 0 and 1, where log-odds are infinite.
    ranks = np.clip(np.stack(quantiles, axis=-1), 0.5 / QUANTILES, 1.0 - 0.5 / QUANTILES)
    return np.concatenate([ranks, np.log(ranks / (1.0 - ranks))], axis=-1).astype(np.float32)


def logtoku(logits: Floats) -> float:
    """Return the uncertainty LogTokU, aleatoric times epistemic, of the largest logits, float32[k].

    Ma et al. 2025 (arXiv 2502.00290), equations 3-6: with x the logits (negative ones count as 0)
    and S their sum, AU = -sum x_i/S (digamma(x_i + 1) - digamma(S + 1)) and EU = k / (S + k). The
    result is EU * AU / log k (log k is the maximum of AU), from 0 to 1; 1 if no logit is positive.
    """
    size = len(logits)
    evidence = np.maximum(logits.astype(np.float64), 0.0)
    total = float(evidence.sum())
    if total == 0.0:
        return 1.0
    shifted = digamma(np.append(evidence, total) + 1.0)
    aleatoric = float(-(evidence / total) @ (shifted[:-1] - shifted[-1]))
    return min(1.0, max(0.0, aleatoric / math.log(size)) * size / (total + size))


def digamma(x: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the digamma function for x > 0, to 1e-9 (Abramowitz and Stegun 6.3.5 and 6.3.18)."""
    below = (1.0 / (x + np.arange(6.0)[:, None])).sum(axis=0)
    y = x + 6.0
    inverse = 1.0 / (y * y)
    series = inverse * (1 / 12 - inverse * (1 / 120 - inverse * (1 / 252 - inverse / 240)))
    return np.log(y) - 0.5 / y - series - below
