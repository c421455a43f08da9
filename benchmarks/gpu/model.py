"""A Qwen2.5 of random weights: passes over many sessions at once. Needs torch alone.

How long a pass takes does not depend on the weights' values. Kernels are PyTorch's own, on CUDA in
graphs, so that nothing is lost to launching them; an engine with fused kernels is quicker.
"""

import math
import os
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

CONTEXT = 512
"""Ids that every session holds before a pass."""

WIDTHS = (1, 4, 8, 16)
"""Ids of a session in a pass: a decode step, or a block to verify."""

MOST = 64
"""Sessions of a pass with blocks; one with steps may have more."""

PLACES = CONTEXT + max(WIDTHS)
"""Ids that the KV cache of a session has room for."""

STD = 0.002
"""Of the layers' weights; the embedding's is 1. So the model repeats its last token and is sure of
it, and verification sends long blocks."""


class Shape(NamedTuple):
    """Sizes of a Qwen2.5. `tied`: the head is the embedding."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    ffn: int
    vocabulary: int
    tied: bool

    @property
    def head(self) -> int:
        return self.hidden // self.heads

    @property
    def layer(self) -> tuple[tuple[int, ...], ...]:
        """Sizes of a layer's weights, in the order of `_Layer`."""
        d, made = self.hidden, self.hidden + 2 * self.kv_heads * self.head
        return (d,), (made, d), (made,), (d, d), (d,), (2 * self.ffn, d), (d, self.ffn)

    @property
    def parameters(self) -> int:
        tables = self.vocabulary * self.hidden * (1 if self.tied else 2)
        return tables + self.hidden + self.layers * sum(map(math.prod, self.layer))


SHAPES = {
    "tiny": Shape(64, 2, 4, 2, 128, 512, True),
    "0.5b": Shape(896, 24, 14, 2, 4864, 151_936, True),
    "7b": Shape(3584, 28, 28, 4, 18_944, 152_064, False),
    "32b": Shape(5120, 64, 40, 8, 27_648, 152_064, False),
}


class _Layer(NamedTuple):
    """`up` has the gate's rows, then its own."""

    norm: torch.Tensor
    qkv: torch.Tensor
    bias: torch.Tensor
    out: torch.Tensor
    ffn_norm: torch.Tensor
    up: torch.Tensor
    down: torch.Tensor


def free_bytes(device: torch.device) -> int:
    """Free memory of the device, or of the machine where that is the CPU."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(device)[0]
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _normed(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(x, weight.shape, weight, 1e-6)


class Model:
    """Weights, and KV caches of `rows` sessions. bfloat16, and float32 on the CPU.

    `held`: sessions whose caches fit beside the weights in nine tenths of the memory. Raises
    `MemoryError` where the weights do not fit.
    """

    def __init__(self, shape: Shape, device: torch.device, *, rows: int, std: float = STD) -> None:
        self.shape, self.device, self._std = shape, device, std
        self.dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        size, free = self.dtype.itemsize, free_bytes(device)
        session = (shape.layers, 2, shape.kv_heads, PLACES, shape.head)
        # Beside weights and caches: logits of a pass, and what its layers hand on.
        room = 0.9 * free - size * shape.parameters - 8 * MOST * max(WIDTHS) * shape.vocabulary
        self.held = math.floor(room / (size * math.prod(session)))
        if self.held < 1:
            need = f"{shape.parameters / 1e9:.1f}e9 parameters"
            raise MemoryError(f"{need} do not fit in {free / 1e9:.0f} GB")
        self.rows = min(rows, 1 << (self.held.bit_length() - 1))
        self._embedding = self._random(shape.vocabulary, shape.hidden, std=1.0)
        self._head = self._embedding
        if not shape.tied:
            self._head = self._random(shape.vocabulary, shape.hidden)
        self._norm = self._random(shape.hidden)
        self._layers = [
            _Layer(*(self._random(*sizes) for sizes in shape.layer)) for _ in range(shape.layers)
        ]
        self._cache = self._random(session[0], self.rows, *session[1:], std=1.0)
        turns = 1e6 ** -(torch.arange(0, shape.head, 2, device=device).float() / shape.head)
        angles = torch.outer(torch.arange(PLACES, device=device).float(), turns).repeat(1, 2)
        self._cos, self._sin = angles.cos().to(self.dtype), angles.sin().to(self.dtype)
        self._masks: dict[tuple[int, int], torch.Tensor] = {}
        self._passes: dict[tuple[int, int], Callable[[], tuple[torch.Tensor, ...]]] = {}
        self._pool: Any = None

    def _random(self, *sizes: int, std: float | None = None) -> torch.Tensor:
        """Normal deviates; ones for a vector."""
        made = torch.ones(sizes, device=self.device, dtype=self.dtype)
        return made if len(sizes) == 1 else made.normal_(0.0, self._std if std is None else std)

    def sizes(self, width: int) -> Iterator[int]:
        """Sessions of a pass with `width` ids each: 1, 2, 4, ...; of blocks `MOST`."""
        rows = 1
        while rows <= (self.rows if width == 1 else min(self.rows, MOST)):
            yield rows
            rows *= 2

    def run(self, rows: int, width: int) -> float:
        """Seconds of a pass over `width` ids of each of `rows` sessions, results on the host."""
        if (rows, width) not in self._passes:
            self._passes[rows, width] = self._prepared(rows, width)
        begun = time.perf_counter()
        for found in self._passes[rows, width]():
            found.cpu()
        return time.perf_counter() - begun

    def _prepared(self, rows: int, width: int) -> Callable[[], tuple[torch.Tensor, ...]]:
        ids = torch.randint(self.shape.vocabulary, (rows, width), device=self.device)
        if self.device.type != "cuda":
            return lambda: self._results(ids)
        stream = torch.cuda.Stream(self.device)
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):  # kernels are chosen and loaded before the capture
            for _ in range(2):
                self._results(ids)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            found = self._results(ids)
        # Passes run one at a time and are read at once, so that they can share their memory.
        self._pool = graph.pool()

        def replayed(_ids: torch.Tensor = ids) -> tuple[torch.Tensor, ...]:
            graph.replay()
            return found

        return replayed

    def _results(self, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """The id that follows, and what verification needs: log-probs of the given ids over those
        of the likeliest, which are named."""
        logits = self.logits(ids)
        most, likeliest = logits.max(-1)
        if ids.shape[1] == 1:
            return (likeliest,)
        given = logits[:, :-1].gather(2, ids[:, 1:, None])[..., 0]
        return likeliest, given - most[:, :-1]

    def logits(self, ids: torch.Tensor, at: int = CONTEXT) -> torch.Tensor:
        """Read ids [rows, width] at the positions `at` and on: logits [rows, width, vocabulary]."""
        x = F.embedding(ids, self._embedding)
        for layer, cache in zip(self._layers, self._cache, strict=True):
            x = self._layer(x, layer, cache[: len(ids)], at)
        return F.linear(_normed(x, self._norm), self._head)

    def _layer(self, x: torch.Tensor, layer: _Layer, cache: torch.Tensor, at: int) -> torch.Tensor:
        heads, kv, size = self.shape.heads, self.shape.kv_heads, self.shape.head
        rows, width, _ = x.shape
        end = at + width
        made = F.linear(_normed(x, layer.norm), layer.qkv, layer.bias)
        made = made.view(rows, width, heads + 2 * kv, size).transpose(1, 2)
        q, k, v = made.split((heads, kv, kv), 1)
        cache[:, 0, :, at:end] = self._rotated(k, at)
        cache[:, 1, :, at:end] = v
        # Heads that share keys are rows of one query: no copies of the keys.
        q = self._rotated(q, at).reshape(rows, kv, heads // kv * width, size)
        mask = None if width == 1 else self._mask(width, end)
        keys, values = cache[:, 0, :, :end], cache[:, 1, :, :end]
        seen = F.scaled_dot_product_attention(q, keys, values, attn_mask=mask)
        seen = seen.view(rows, heads, width, size).transpose(1, 2)
        x = x + F.linear(seen.reshape(rows, width, -1), layer.out)
        gate, up = F.linear(_normed(x, layer.ffn_norm), layer.up).chunk(2, -1)
        return x + F.linear(F.silu(gate) * up, layer.down)

    def _rotated(self, x: torch.Tensor, at: int) -> torch.Tensor:
        end = at + x.shape[2]
        first, second = x.chunk(2, -1)
        return x * self._cos[at:end] + torch.cat((-second, first), -1) * self._sin[at:end]

    def _mask(self, width: int, end: int) -> torch.Tensor:
        """What a block may not see of itself, for each of the heads that share keys."""
        if (width, end) not in self._masks:
            hidden = torch.full((width, end), -math.inf, device=self.device, dtype=self.dtype)
            group = self.shape.heads // self.shape.kv_heads
            self._masks[width, end] = hidden.triu(end - width + 1).repeat(group, 1)
        return self._masks[width, end]

    def tensors(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The weights by their names in transformers' form."""
        keys = self.shape.kv_heads * self.shape.head
        sizes = (self.shape.hidden, keys, keys)
        yield "model.embed_tokens.weight", self._embedding
        yield "model.norm.weight", self._norm
        if not self.shape.tied:
            yield "lm_head.weight", self._head
        for number, layer in enumerate(self._layers):
            at = f"model.layers.{number}."
            parts = zip("qkv", layer.qkv.split(sizes), layer.bias.split(sizes), strict=True)
            for name, weight, bias in parts:
                yield f"{at}self_attn.{name}_proj.weight", weight
                yield f"{at}self_attn.{name}_proj.bias", bias
            yield f"{at}self_attn.o_proj.weight", layer.out
            gate, up = layer.up.chunk(2)
            yield f"{at}mlp.gate_proj.weight", gate
            yield f"{at}mlp.up_proj.weight", up
            yield f"{at}mlp.down_proj.weight", layer.down
            yield f"{at}input_layernorm.weight", layer.norm
            yield f"{at}post_attention_layernorm.weight", layer.ffn_norm
