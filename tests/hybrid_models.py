"""Random GGUFs whose layers keep a state, or hold a window: recurrent, hybrid and sliding kinds.

What a kind needs is what llama.cpp's `src/models/KIND.cpp` loads. Shapes are numpy's, slowest
dimension first. With the shapes given here a file has a few hundred kilobytes.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

from tests.models import byte_level, finish

KERNEL = 4
"""Ids that a convolution looks at."""

Weights = NDArray[np.float32]
Tensors = Iterator[tuple[str, Weights]]


@dataclass(frozen=True)
class Shape:
    """Sizes. A model has `layers` of them, every `interval`-th with attention where kinds mix."""

    width: int = 64
    ffn: int = 96
    heads: int = 4
    kv_heads: int = 2
    head: int = 16
    state: int = 16
    groups: int = 2
    ranks: int = 4
    layers: int = 4
    interval: int = 2
    window: int = 16
    context: int = 2048

    def attends(self, layer: int) -> bool:
        """Whether a layer of a hybrid has attention."""
        return (layer + 1) % self.interval == 0


@dataclass
class Maker:
    """What the kinds are written with: keys through `writer`, weights at random."""

    writer: gguf.GGUFWriter
    shape: Shape
    rng: np.random.Generator
    std: float = 0.15

    def matrix(self, out: int, width: int) -> Weights:
        return self.normal(out, width)

    def normal(self, *shape: int, std: float | None = None) -> Weights:
        return self.rng.standard_normal(shape, np.float32) * np.float32(std or self.std)

    def between(self, low: float, high: float, *shape: int) -> Weights:
        return self.rng.uniform(low, high, shape).astype(np.float32)

    def attention_keys(self, kv_heads: int | list[int]) -> None:
        shape, writer = self.shape, self.writer
        writer.add_head_count(shape.heads)
        writer.add_head_count_kv(kv_heads)
        writer.add_key_length(shape.head)
        writer.add_value_length(shape.head)
        writer.add_rope_dimension_count(shape.head)

    def mixed_keys(self) -> None:
        """A layer without KV heads is a recurrent one."""
        shape = self.shape
        layers = range(shape.layers)
        self.attention_keys([shape.kv_heads if shape.attends(layer) else 0 for layer in layers])

    def ssm_keys(self, inner: int) -> None:
        self.writer.add_ssm_conv_kernel(KERNEL)
        self.writer.add_ssm_inner_size(inner)
        self.writer.add_ssm_state_size(self.shape.state)
        self.writer.add_ssm_time_step_rank(self.shape.ranks)
        self.writer.add_ssm_group_count(self.shape.groups)

    def norms(self, at: str, *names: str) -> Tensors:
        for name in names:
            yield f"{at}{name}", np.ones(self.shape.width, np.float32)

    def ffn(self, at: str, norm: str = "ffn_norm.weight") -> Tensors:
        shape = self.shape
        yield from self.norms(at, norm)
        yield f"{at}ffn_gate.weight", self.matrix(shape.ffn, shape.width)
        yield f"{at}ffn_up.weight", self.matrix(shape.ffn, shape.width)
        yield f"{at}ffn_down.weight", self.matrix(shape.width, shape.ffn)

    def attention(self, at: str, *, gated: bool = False, normed: bool = False) -> Tensors:
        """`gated`: behind the queries stand as many gates."""
        shape = self.shape
        queries, keys = shape.heads * shape.head, shape.kv_heads * shape.head
        yield f"{at}attn_q.weight", self.matrix(2 * queries if gated else queries, shape.width)
        yield f"{at}attn_k.weight", self.matrix(keys, shape.width)
        yield f"{at}attn_v.weight", self.matrix(keys, shape.width)
        yield f"{at}attn_output.weight", self.matrix(shape.width, queries)
        if normed:
            for name in ("attn_q_norm", "attn_k_norm"):
                yield f"{at}{name}.weight", np.ones(shape.head, np.float32)

    def delta_net(self, at: str) -> Tensors:
        shape = self.shape
        values = shape.state * shape.ranks
        channels = 2 * shape.state * shape.groups + values
        yield f"{at}attn_qkv.weight", self.matrix(channels, shape.width)
        yield f"{at}attn_gate.weight", self.matrix(values, shape.width)
        yield f"{at}ssm_conv1d.weight", self.normal(channels, KERNEL, std=0.5)
        yield f"{at}ssm_dt.bias", self.normal(shape.ranks)
        yield f"{at}ssm_a", -self.between(0.05, 0.5, shape.ranks)
        for name in ("ssm_beta", "ssm_alpha"):
            yield f"{at}{name}.weight", self.matrix(shape.ranks, shape.width)
        yield f"{at}ssm_norm.weight", np.ones(shape.state, np.float32)
        yield f"{at}ssm_out.weight", self.matrix(shape.width, values)

    def mamba2(self, at: str) -> Tensors:
        shape = self.shape
        inner = 2 * shape.width
        channels = inner + 2 * shape.groups * shape.state
        yield f"{at}ssm_in.weight", self.matrix(inner + channels + shape.ranks, shape.width)
        yield f"{at}ssm_conv1d.weight", self.normal(channels, KERNEL, std=0.5)
        yield f"{at}ssm_conv1d.bias", self.normal(channels)
        yield f"{at}ssm_dt.bias", self.normal(shape.ranks)
        yield f"{at}ssm_a", -self.between(0.05, 0.5, shape.ranks, 1)
        yield f"{at}ssm_d", self.normal(shape.ranks, 1)
        norm = np.ones((shape.groups, inner // shape.groups), np.float32)
        yield f"{at}ssm_norm.weight", norm
        yield f"{at}ssm_out.weight", self.matrix(shape.width, inner)

    def short_convolution(self, at: str) -> Tensors:
        width = self.shape.width
        yield f"{at}shortconv.conv.weight", self.normal(width, KERNEL - 1, std=0.5)
        yield f"{at}shortconv.in_proj.weight", self.matrix(3 * width, width)
        yield f"{at}shortconv.out_proj.weight", self.matrix(width, width)


def gemma3(make: Maker) -> Tensors:
    """A window in every layer but each `interval`-th."""
    shape = make.shape
    make.attention_keys(shape.kv_heads)
    make.writer.add_sliding_window(shape.window)
    make.writer.add_sliding_window_pattern([not shape.attends(i) for i in range(shape.layers)])
    for layer in range(shape.layers):
        at = f"blk.{layer}."
        names = ("attn_norm", "post_attention_norm", "post_ffw_norm")
        yield from make.norms(at, *(f"{name}.weight" for name in names))
        yield from make.ffn(at)
        yield from make.attention(at, normed=True)


def qwen35(make: Maker) -> Tensors:
    """Qwen3.5: gated delta nets, and gated attention in each `interval`-th layer."""
    shape = make.shape
    make.attention_keys(shape.kv_heads)
    make.ssm_keys(shape.state * shape.ranks)
    make.writer.add_full_attention_interval(shape.interval)
    make.writer.add_rope_dimension_sections([shape.head // 4, shape.head // 8, shape.head // 8, 0])
    for layer in range(shape.layers):
        at = f"blk.{layer}."
        yield from make.norms(at, "attn_norm.weight")
        yield from make.ffn(at, "post_attention_norm.weight")
        if shape.attends(layer):
            yield from make.attention(at, gated=True, normed=True)
        else:
            yield from make.delta_net(at)


def falcon_h1(make: Maker) -> Tensors:
    """Falcon-H1: Mamba-2 and attention side by side in every layer."""
    make.attention_keys(make.shape.kv_heads)
    make.ssm_keys(2 * make.shape.width)
    for layer in range(make.shape.layers):
        at = f"blk.{layer}."
        yield from make.norms(at, "attn_norm.weight")
        yield from make.ffn(at, "ffn_norm")
        yield from make.attention(at)
        yield from make.mamba2(at)


def lfm2(make: Maker) -> Tensors:
    """LFM2: short convolutions or attention."""
    make.writer.add_shortconv_l_cache(KERNEL - 1)
    make.mixed_keys()
    for layer in range(make.shape.layers):
        at = f"blk.{layer}."
        yield from make.norms(at, "attn_norm.weight")
        yield from make.ffn(at)
        if make.shape.attends(layer):
            yield from make.attention(at, normed=True)
        else:
            yield from make.short_convolution(at)


def rwkv7(make: Maker) -> Tensors:
    """RWKV-7, with one head: only heads of 64 agree between a batch and single ids on a CPU."""
    writer, width, rank = make.writer, make.shape.width, 8
    writer.add_head_count(0)
    writer.add_layer_norm_eps(1e-5)
    writer.add_wkv_head_size(64)
    writer.add_token_shift_count(2)
    for add in ("decay", "iclr", "value_residual_mix", "gate"):
        getattr(writer, f"add_{add}_lora_rank")(rank)
    yield from make.norms("", "token_embd_norm.weight")
    yield "token_embd_norm.bias", make.normal(width)
    yield "output_norm.bias", make.normal(width)
    for layer in range(make.shape.layers):
        yield from _rwkv7_layer(make, f"blk.{layer}.", rank)


def _rwkv7_layer(make: Maker, at: str, rank: int) -> Tensors:
    width = make.shape.width
    for name in ("attn_norm", "attn_norm_2", "time_mix_ln"):
        yield from make.norms(at, f"{name}.weight")
        yield f"{at}{name}.bias", make.normal(width)
    for name in "wavg":
        yield f"{at}time_mix_{name}1.weight", make.matrix(rank, width)
        yield f"{at}time_mix_{name}2.weight", make.matrix(width, rank)
        if name in "av":
            yield f"{at}time_mix_{name}0.weight", make.normal(width)
    # Decays this slow keep the first ids in sight.
    yield f"{at}time_mix_w0.weight", make.between(-6, -3, width)
    yield f"{at}time_mix_lerp_fused.weight", make.between(0, 1, 6, 1, 1, width)
    yield f"{at}channel_mix_lerp_k.weight", make.between(0, 1, 1, 1, width)
    for name in ("k_k", "k_a", "r_k"):
        yield f"{at}time_mix_{name}.weight", make.normal(width)
    for name in ("key", "value", "receptance", "output"):
        yield f"{at}time_mix_{name}.weight", make.matrix(width, width)
    yield f"{at}channel_mix_key.weight", make.matrix(make.shape.ffn, width)
    yield f"{at}channel_mix_value.weight", make.matrix(width, make.shape.ffn)


KINDS: dict[str, Callable[[Maker], Tensors]] = {
    "gemma3": gemma3,
    "qwen35": qwen35,
    "falcon-h1": falcon_h1,
    "lfm2": lfm2,
    "rwkv7": rwkv7,
}
"""By the name that a GGUF has for them (`general.architecture`)."""

HYBRIDS = tuple(kind for kind in KINDS if kind != "gemma3")
"""Those with recurrent layers."""


def write(path: Path, kind: str) -> Path:
    """A model of one of `KINDS`."""
    shape, vocabulary = Shape(), byte_level()
    writer = gguf.GGUFWriter(path, kind)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.ffn)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(vocabulary.tokens))
    make = Maker(writer, shape, np.random.default_rng(0))
    return finish(writer, vocabulary, _all(make, kind, len(vocabulary.tokens)), path)


def _all(make: Maker, kind: str, size: int) -> Tensors:
    yield "token_embd.weight", make.matrix(size, make.shape.width)
    yield from make.norms("", "token_embd_norm.weight" if kind == "lfm2" else "output_norm.weight")
    yield "output.weight", make.matrix(size, make.shape.width)
    yield from KINDS[kind](make)


class HybridPaths:
    """`paths["qwen35"]`: a file of that kind, written when it is asked for first."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __getitem__(self, kind: str) -> Path:
        path = self._folder / f"{kind}.gguf"
        return path if path.exists() else write(path, kind)
