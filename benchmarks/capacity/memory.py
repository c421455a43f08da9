"""What limits sessions on a GPU, computed: KV memory, arithmetic, the way to offloaded caches.

A consult makes the engine compute every id that the edge has written since the last one, so a
routed session costs it as many ids a second as a session that it writes alone. What differs is
when: the KV cache of a routed session is needed for a few milliseconds a consult, and a step may
take as long as a consult may, where a session that the engine writes needs its cache at every
step and a step for every token.
"""

import math
from typing import NamedTuple

GB = 1e9


class Model(NamedTuple):
    """A dense transformer; `parameters` as its makers count them."""

    name: str
    parameters: float
    layers: int
    kv_heads: int
    head: int

    def kv_bytes(self, *, element: int = 2) -> int:
        """Of one token: a key and a value for each layer and head, of `element` bytes each."""
        return 2 * self.layers * self.kv_heads * self.head * element


class Gpu(NamedTuple):
    """`usable` is the share of the memory that an engine takes (vLLM's default is about that).

    `flops` a second are what dense matrices reach, `link` is the host's memory. All a second but
    `memory`, bytes.
    """

    memory: float
    usable: float
    bandwidth: float
    flops: float
    link: float

    def times(self, count: int) -> "Gpu":
        """So many as one, by tensor parallelism without loss."""
        return Gpu(self.memory * count, self.usable, *(count * part for part in self[2:]))


QWEN_32B = Model("Qwen2.5-32B", 32.8e9, 64, 8, 128)
QWEN_72B = Model("Qwen2.5-72B", 72.7e9, 80, 8, 128)

H100 = Gpu(80 * GB, 0.9, 3.35e12, 0.4 * 989e12, 50 * GB)
"""By its data sheet, with 40 % of the bf16 peak and 50 GB/s to the host: assumed, not measured."""

WEIGHTS = {"fp16": 16.0, "fp8": 8.0, "4 bits": 4.5}
"""Bits a parameter; scales of groups of four-bit weights included."""


def kv_room(model: Model, gpu: Gpu, bits: float) -> float:
    """Bytes that weights of so many bits leave for KV caches; negative: they do not fit."""
    return gpu.memory * gpu.usable - model.parameters * bits / 8


def held(model: Model, gpu: Gpu, bits: float, tokens: float) -> int:
    """Sessions of so many tokens whose KV caches fit in fp16."""
    return max(0, math.floor(kv_room(model, gpu, bits) / (tokens * model.kv_bytes())))


def computed(model: Model, gpu: Gpu, pace: float, ids: float) -> int:
    """Sessions by arithmetic alone, where each token of an answer costs `ids` computed ids.

    Two operations a parameter and id; the same whoever writes the tokens.
    """
    return math.floor(gpu.flops / (2 * model.parameters * ids * pace))


def streamed(model: Model, gpu: Gpu, bits: float, pace: float, tokens: float, ids: float) -> int:
    """Sessions that the engine writes alone: one step a token, which reads weights and caches."""
    reading = model.parameters * bits / 8 / gpu.bandwidth
    each = tokens * model.kv_bytes() / gpu.bandwidth + 2 * model.parameters * ids / gpu.flops
    return max(0, math.floor((1 / pace - reading) / each))


def offloaded(model: Model, gpu: Gpu, pace: float, tokens: float, share: float) -> int:
    """Sessions whose caches wait in the host's memory and are read from there at each consult."""
    return math.floor(gpu.link / (tokens * model.kv_bytes() * pace * share))


class Limit(NamedTuple):
    """Sessions that are served, and what keeps it from being more."""

    sessions: int
    by: str


class Use(NamedTuple):
    """Sessions of `tokens` each at `pace` tokens a second, `ids` computed for each of them.

    `share` of the tokens are consults.
    """

    tokens: float
    pace: float
    ids: float
    share: float


def cloud_only(model: Model, gpu: Gpu, bits: float, use: Use) -> Limit:
    """Sessions that the engine writes alone, their caches on the GPU."""
    return _least(
        Limit(held(model, gpu, bits, use.tokens), "KV memory"),
        Limit(streamed(model, gpu, bits, use.pace, use.tokens, use.ids), "steps"),
    )


def routed(model: Model, gpu: Gpu, bits: float, use: Use) -> Limit:
    """Sessions that consult, their caches on the GPU."""
    return _least(
        Limit(held(model, gpu, bits, use.tokens), "KV memory"),
        Limit(computed(model, gpu, use.pace, use.ids), "arithmetic"),
    )


def routed_offloaded(model: Model, gpu: Gpu, bits: float, use: Use) -> Limit:
    """Sessions that consult, their caches in the host's memory between consults."""
    if not held(model, gpu, bits, use.tokens):
        return Limit(0, "KV memory")
    return _least(
        Limit(computed(model, gpu, use.pace, use.ids), "arithmetic"),
        Limit(offloaded(model, gpu, use.pace, use.tokens, use.share), "link"),
    )


def _least(*limits: Limit) -> Limit:
    return min(limits, key=lambda limit: limit.sessions)
