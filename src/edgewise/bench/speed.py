"""Edge decoding speed: the whole loop against the engine driven bare."""

import time
from collections.abc import Sequence
from statistics import median
from typing import Any

import msgspec
import numpy as np

from edgewise.edge.base import EdgeModel, Needs
from edgewise.edge.binding import llama_cpp
from edgewise.edge.llamacpp import LlamaModel
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

    `decoder.edge` must be a `LlamaModel` with room for context + tokens. The order of the two
    alternates from block to block.
    """
    model = decoder.edge
    assert isinstance(model, LlamaModel)
    rng = np.random.default_rng(0)
    prompt = [int(i) for i in rng.integers(10, model.tokenizer.size // 2, context)]
    native: list[float] = []
    through: list[float] = []
    for block in range(blocks + 1):
        runs = [(native, lambda: bare_loop(model, prompt, tokens))]
        runs.append((through, lambda: _through(decoder, prompt, tokens)))
        for rates, run in runs if block % 2 else runs[::-1]:
            rate = run()
            if block:  # the first block warms caches up
                rates.append(rate)
    ratios = [b / a for a, b in zip(native, through, strict=True)]
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


def bare_loop(model: LlamaModel, prompt: Sequence[int], tokens: int) -> float:
    """Tokens per second of decode and argmax alone, embeddings off."""
    context, size = model.handle, model.tokenizer.size
    llama_cpp.llama_memory_seq_rm(model.memory, 0, -1, -1)
    llama_cpp.llama_set_embeddings(context, False)
    batch = llama_cpp.llama_batch_init(512, 0, 1)
    logits = _decode(context, batch, prompt, 0)
    begun = time.perf_counter()
    for position in range(len(prompt), len(prompt) + tokens):
        token = int(np.ctypeslib.as_array(logits, (size,)).argmax())
        logits = _decode(context, batch, [token], position)
    seconds = time.perf_counter() - begun
    llama_cpp.llama_batch_free(batch)
    llama_cpp.llama_memory_seq_rm(model.memory, 0, -1, -1)
    return tokens / seconds


def _decode(context: Any, batch: Any, ids: Sequence[int], start: int) -> Any:
    for at in range(0, len(ids), 512):
        part = ids[at : at + 512]
        batch.n_tokens = len(part)
        for index, token in enumerate(part):
            batch.token[index] = token
            batch.pos[index] = start + at + index
            batch.n_seq_id[index] = 1
            batch.seq_id[index][0] = 0
            batch.logits[index] = index == len(part) - 1
        if llama_cpp.llama_decode(context, batch):
            raise RuntimeError("the bare loop could not decode")
    return llama_cpp.llama_get_logits_ith(context, -1)


def _through(decoder: Decoder, prompt: Sequence[int], tokens: int) -> float:
    """Tokens per second after the first token, which pays for the prompt."""
    with decoder.stream(prompt, max_tokens=tokens + 1) as events:
        seconds = [event.seconds for event in events if isinstance(event, Token)]
    return (len(seconds) - 1) / sum(seconds[1:])
