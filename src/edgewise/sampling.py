"""Choosing an id from logits: greedy, or temperature, then top-k, top-p and min-p, then a draw."""

from collections.abc import Mapping

import msgspec
import numpy as np
from numpy.typing import NDArray

from edgewise.edge.base import Floats, Step
from edgewise.edge.step import top_ids
from edgewise.errors import UsageError, require

# Below this the likeliest id has all probability, unless two logits are nearly equal.
_LEAST_TEMPERATURE = 1e-5
_LIKELY = 64  # ids sorted first: sorting all of a large vocabulary takes half as long as a step


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """The sampling parameters of an answer, used by both models.

    `temperature` (0 to 100) is greedy below 1e-5, as in vLLM; so is `top_k` 1. `top_k` 0, `top_p` 1
    and `min_p` 0 switch these filters off. A value out of range raises `UsageError`.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        require(0 <= self.temperature <= 100, "temperature", "from 0 to 100", self.temperature)
        require(self.top_k >= 0, "top_k", "0 or more", self.top_k)
        require(0 < self.top_p <= 1, "top_p", "above 0 and at most 1", self.top_p)
        require(0 <= self.min_p <= 1, "min_p", "from 0 to 1", self.min_p)
        require(0 <= self.seed < 2**63, "seed", "from 0 to 2^63 - 1", self.seed)

    @property
    def greedy(self) -> bool:
        """Whether the likeliest id is always taken."""
        return self.temperature < _LEAST_TEMPERATURE or self.top_k == 1

    def seed_at(self, position: int) -> int:
        """Return a 32-bit seed for an engine to draw the token after `position` ids."""
        return int(np.random.SeedSequence([self.seed, position]).generate_state(1)[0])

    def choose(self, step: Step, allowed: NDArray[np.bool_] | None = None) -> int:
        """Return the next token id, by the edge model's prediction `step`.

        `allowed`, bool[vocabulary], restricts the choice to the ids that it marks, at least one.
        With it, or unless the sampling is greedy, the step's logits must be readable (see `Step`).
        """
        if allowed is not None:
            ids = np.flatnonzero(allowed[: step.size])
            logits = step.logits[ids]
            return int(ids[logits.argmax() if self.greedy else self._drawn(logits, step.position)])
        if self.greedy:
            return step.proposed
        return self._drawn(step.logits, step.position)

    def _drawn(self, logits: Floats, position: int) -> int:
        """Return the id of a draw, the same for the same seed and `position`."""
        # By seed and position alone, so that a rollback has no random state to restore.
        draw = np.random.default_rng([self.seed, position]).random()
        weights = np.exp((logits - logits.max()) / np.float32(self.temperature))
        if self.min_p and self.top_p == 1:
            # Else top-p goes by the shares of all.
            weights[weights < self.min_p] = 0
        ids = top_ids(logits, self.top_k or _LIKELY)
        total = float((weights[ids] if self.top_k else weights).sum(dtype=np.float64))
        place = self._place(weights[ids], total, draw)
        if place == len(ids) and not self.top_k:
            ids = top_ids(logits, len(logits))
            place = self._place(weights[ids], total, draw)
        # Rounding may put the draw beyond the last.
        return int(ids[min(place, len(ids) - 1)])

    def _place(self, weights: Floats, total: float, draw: float) -> int:
        """Return the index of the drawn one of descending `weights`; their number if it is beyond.

        `draw` is from 0 to 1; `total` is the sum of all weights, including those not passed.
        """
        sums = np.cumsum(weights, dtype=np.float64)
        most = len(weights)
        kept = int(np.count_nonzero(weights >= self.min_p))
        if self.top_p < 1:
            reached = int(np.searchsorted(sums, self.top_p * total)) + 1
            if reached > most == kept:
                return most
            kept = min(kept, reached)
        elif kept == most:
            return int(np.searchsorted(sums, draw * total, side="right"))
        return min(int(np.searchsorted(sums, draw * sums[kept - 1], side="right")), kept - 1)


CHAT = Sampling(temperature=0.7, min_p=0.05)
"""The default sampling of a chat; see `Pair.chat_sampling`."""


def drawn_as(said: Mapping[str, float]) -> Sampling:
    """Return a model file's values as `Sampling`; `CHAT` if invalid or without temperature."""
    if "temperature" not in said:
        return CHAT
    try:
        return msgspec.convert(said, Sampling, strict=False)
    except (UsageError, msgspec.ValidationError):
        return CHAT
