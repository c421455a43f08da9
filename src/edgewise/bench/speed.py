"""Edge decoding speed: the whole loop against the engine driven bare."""

import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import msgspec
import numpy as np

from edgewise.edge.base import EdgeModel, Needs
from edgewise.events import Token
from edgewise.loop.decoder import Decoder
from edgewise.routers.base import Router


class Speed(msgspec.Struct, frozen=True):
    """Medians over interleaved blocks; `ratio` is the median of the blocks' own ratios."""

    context: int
    blocks: int
    tokens: int
    native_tokens_per_second: float
    edgewise_tokens_per_second: float
    ratio: float
    ratio_low: float
    ratio_high: float


def measure(decoder: Decoder, *, context: int, tokens: int, blocks: int) -> Speed:
    """Decode `tokens` after a random prompt of `context` ids, bare and through `decoder`.

    `decoder.edge` must have room for context + tokens. The order of the two alternates from block
    to block. Raises `UsageError` for an engine without a loop of its own.
    """
    prompt = random_prompt(decoder.edge, context)
    # The first block warms caches up.
    every = [rates(decoder, prompt, tokens, bare_first=n % 2 == 1) for n in range(blocks + 1)]
    native, through = zip(*every[1:], strict=True)
    ratios = [b / a for a, b in every[1:]]
    return Speed(
        context,
        blocks,
        tokens,
        median(native),
        median(through),
        median(ratios),
        min(ratios),
        max(ratios),
    )


def random_prompt(model: EdgeModel, length: int) -> list[int]:
    """The same ids each time."""
    rng = np.random.default_rng(0)
    return [int(i) for i in rng.integers(10, model.tokenizer.size // 2, length)]


def rates(
    decoder: Decoder, prompt: Sequence[int], tokens: int, *, bare_first: bool
) -> tuple[float, float]:
    """Tokens a second of the bare engine and of `decoder`, measured in this order or the other."""
    if bare_first:
        bare = decoder.edge.bare_loop(prompt, tokens)
        return bare, _through(decoder, prompt, tokens)
    through = _through(decoder, prompt, tokens)
    return decoder.edge.bare_loop(prompt, tokens), through


def score_seconds(model: EdgeModel, router: Router, steps: int = 64) -> tuple[float, float]:
    """Median seconds of a score, and of the step that it judges.

    The score's time includes what it reads of the logits; only the hidden state is copied before.
    """
    session = model.session(router.needs & Needs.HIDDEN)
    scores: list[float] = []
    decodes: list[float] = []
    try:
        session.open([model.tokenizer.size // 3])
        for _ in range(min(steps, model.context - 1)):
            begun = time.perf_counter()
            step = session.step()
            decoded = time.perf_counter()
            router.score(step)
            scores.append(time.perf_counter() - decoded)
            decodes.append(decoded - begun)
            session.extend([step.proposed])
    finally:
        session.close()
    return median(scores), median(decodes)


def _through(decoder: Decoder, prompt: Sequence[int], tokens: int) -> float:
    """Tokens per second after the first token, which pays for the prompt."""
    edge: Any = _Endless(decoder.edge)
    endless = Decoder(edge, router=decoder.router, policy=decoder.policy, cloud=decoder.cloud)
    with endless.stream(prompt, max_tokens=tokens + 1) as events:
        seconds = [event.seconds for event in events if isinstance(event, Token)]
    return (len(seconds) - 1) / sum(seconds[1:])


class _Endless:
    """An edge model, or its tokenizer, without end tokens: as the bare loop, it goes on and on."""

    eos_ids = frozenset[int]()

    def __init__(self, part: Any) -> None:
        self._part = part

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._part, name)
        return _Endless(found) if name == "tokenizer" else found
