"""Decoding speed of the edge model: Edgewise's whole loop against the bare engine.

Both decode the same few tokens after the same prompt, in short blocks by turns, as a machine's load
changes within seconds. The bare engine runs twice a round: how far it differs from itself is the
smallest loss of speed that can be detected.
"""

import time
from collections.abc import Generator, Sequence
from contextlib import closing
from itertools import cycle, islice, permutations
from statistics import median
from typing import Any, NamedTuple

import msgspec
import numpy as np

from edgewise.edge.base import EdgeModel
from edgewise.edge.engine import EngineModel
from edgewise.edge.kv import Slots
from edgewise.edge.vocabulary import common_prefix
from edgewise.events import Token
from edgewise.loop.decoder import Decoder
from edgewise_lab.evaluation.statistics import median_interval


class Ratio(msgspec.Struct, frozen=True):
    """The loop's speed divided by the bare engine's: median over the rounds, and 95% interval.

    `undetected` is the largest loss that this run could not have detected, as a fraction of the
    bare engine's speed. It comes from comparing the bare engine with itself: that ratio's 95%
    interval reaches this far from 1.
    """

    median: float
    low: float
    high: float
    undetected: float


class Speed(msgspec.Struct, frozen=True):
    """Median speeds of the bare engine (`native`) and of Edgewise's loop (`edgewise`).

    Each wrote `blocks` blocks of `tokens` tokens after a prompt of `context` ids. `ratio`, its 95%
    interval (`ratio_low`, `ratio_high`) and `undetected` are as in `Ratio`, by wall-clock times.
    `processor` is the `Ratio` by this process's CPU times, which other work disturbs less (None
    where the system counts too coarsely for a block). `same_ids`: both wrote the same ids.
    """

    context: int
    blocks: int
    tokens: int
    native_tokens_per_second: float
    edgewise_tokens_per_second: float
    ratio: float
    ratio_low: float
    ratio_high: float
    undetected: float
    processor: Ratio | None
    same_ids: bool


class Block(NamedTuple):
    """Timed tokens in a row: wall-clock and CPU seconds per token; `ids` has an untimed first."""

    seconds: float
    processor: float
    ids: list[int]


def measure(decoder: Decoder, *, context: int, tokens: int, blocks: int) -> Speed:
    """Compare the bare engine with `decoder` over `blocks` rounds of `tokens` tokens each.

    The prompt is `context` random ids; `decoder.edge` must have room for context + tokens + 1. The
    model reads the prompt once if it keeps the KV cache of prefixes, else for every block.
    """
    prompt = random_prompt(decoder.edge, context)
    orders = cycle(permutations(range(3)))
    # The first round warms caches up.
    rounds = [_round(decoder, prompt, tokens, next(orders)) for _ in range(blocks + 1)][1:]
    engine, loop, again = zip(*rounds, strict=True)
    clock = _ratio(*([block.seconds for block in arm] for arm in (engine, loop, again)))
    return Speed(
        context=context,
        blocks=blocks,
        tokens=tokens,
        native_tokens_per_second=1 / median(block.seconds for block in engine),
        edgewise_tokens_per_second=1 / median(block.seconds for block in loop),
        ratio=clock.median,
        ratio_low=clock.low,
        ratio_high=clock.high,
        undetected=clock.undetected,
        processor=_processor(engine, loop, again),
        same_ids=all(one.ids == other.ids for one, other in zip(engine, loop, strict=True)),
    )


def random_prompt(model: EdgeModel, length: int) -> list[int]:
    """Return a prompt of `length` random ids, the same ones each time."""
    rng = np.random.default_rng(0)
    return [int(i) for i in rng.integers(10, model.tokenizer.size // 2, length)]


def _round(
    decoder: Decoder, prompt: Sequence[int], tokens: int, order: Sequence[int]
) -> tuple[Block, Block, Block]:
    """Blocks of the bare engine, of `decoder`, and of the bare engine again, run in `order`."""
    arms = (bare, through, bare)
    found = {number: _block(arms[number](decoder, prompt, tokens), tokens) for number in order}
    return found[0], found[1], found[2]


def _block(ids: Generator[int], tokens: int) -> Block:
    """Time the `tokens` ids after the first, whose own time includes reading the prompt."""
    with closing(ids):
        first = next(ids)
        seconds, processor = time.perf_counter(), time.process_time()
        written = list(islice(ids, tokens))
        processor, seconds = time.process_time() - processor, time.perf_counter() - seconds
    return Block(seconds / tokens, processor / tokens, [first, *written])


def bare(decoder: Decoder, prompt: Sequence[int], tokens: int) -> Generator[int]:
    """Yield `tokens` + 1 ids that the engine alone decodes greedily.

    The time of the first one includes reading the prompt. An `EngineModel` is run directly on one
    of its KV caches, without an `EdgeSession`; any other model through a session.
    """
    edge = decoder.edge
    if isinstance(edge, EngineModel):
        yield from _cached(edge.slots, prompt, tokens)
        return
    with closing(edge.session()) as session:
        session.open(prompt)
        for _ in range(tokens + 1):
            token = session.step().proposed
            yield token
            session.extend([token])


def _cached(slots: Slots, prompt: Sequence[int], tokens: int) -> Generator[int]:
    """Yield ids as `bare`, run on a KV cache of `slots`; the prompt's last id runs alone."""
    last = len(prompt) - 1
    slots.reserve()
    cache = slots.take(prompt)
    try:
        with slots.lock:
            start = cache.back(min(common_prefix(cache.ids, prompt), last))
            for at in range(start, last, slots.batch):
                cache.run(prompt[at : min(at + slots.batch, last)], "none")
        token = prompt[last]
        for _ in range(tokens + 1):
            with slots.lock:
                (row,) = cache.run([token], "last")
                token = int(row.logits.argmax())
            yield token
    finally:
        if not slots.closed:
            with slots.lock:
                cache.prompt = cache.back(last)
        slots.give_back(cache)


def through(decoder: Decoder, prompt: Sequence[int], tokens: int) -> Generator[int]:
    """Yield `tokens` + 1 ids as `bare` does, decoded by Edgewise's whole loop.

    An end-of-sequence token does not end the answer.
    """
    edge: Any = _Endless(decoder.edge)
    endless = Decoder(edge, router=decoder.router, policy=decoder.policy, cloud=decoder.cloud)
    with endless.stream(prompt, max_tokens=tokens + 1) as events:
        for event in events:
            if isinstance(event, Token):
                yield event.id


def _processor(
    engine: Sequence[Block], loop: Sequence[Block], again: Sequence[Block]
) -> Ratio | None:
    if not all(block.processor for block in (*engine, *loop, *again)):
        return None
    return _ratio(*([block.processor for block in arm] for arm in (engine, loop, again)))


def _ratio(engine: Sequence[float], loop: Sequence[float], again: Sequence[float]) -> Ratio:
    """Return the ratio from seconds per token, an item a round; `again`: the engine once more."""
    ratios = [one / other for one, other in zip(engine, loop, strict=True)]
    null = median_interval([one / other for one, other in zip(engine, again, strict=True)])
    return Ratio(median(ratios), *median_interval(ratios), max(abs(end - 1) for end in null))


class _Endless:
    """Wraps an edge model, or its tokenizer, without end tokens, so that the loop never ends."""

    eos_ids = frozenset[int]()

    def __init__(self, part: Any) -> None:
        self._part = part

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._part, name)
        # Kept: what is looked up for each token is to cost what it costs without this.
        setattr(self, name, _Endless(found) if name == "tokenizer" else found)
        return getattr(self, name)
