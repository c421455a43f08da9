"""A Llama-architecture decoder in plain PyTorch, laid out the way llama.cpp reads it.

Rotary pairs are interleaved (2i, 2i+1), so the weights go to GGUF without any permutation, and the
output head is the embedding matrix.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@dataclass(frozen=True)
class Shape:
    """The sizes of one model; `width` and `ffn` are multiples of 32 so that q8_0 blocks fit."""

    vocab: int
    width: int
    layers: int
    heads: int
    ffn: int
    context: int = 512
    rope_base: float = 10_000.0
    norm_eps: float = 1e-5

    @property
    def head_dim(self) -> int:
        return self.width // self.heads


def rotary_table(shape: Shape, length: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines, each float32[length, head_dim / 2]."""
    exponent = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
    angles = torch.outer(torch.arange(length, dtype=torch.float32), shape.rope_base**-exponent)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the interleaved pairs of x [batch, heads, length, head_dim] by their position."""
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


class Block(nn.Module):
    """Pre-norm attention and a SwiGLU feed-forward, both residual."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.attn_norm = nn.RMSNorm(shape.width, eps=shape.norm_eps)
        self.ffn_norm = nn.RMSNorm(shape.width, eps=shape.norm_eps)
        self.attn_q = nn.Linear(shape.width, shape.width, bias=False)
        self.attn_k = nn.Linear(shape.width, shape.width, bias=False)
        self.attn_v = nn.Linear(shape.width, shape.width, bias=False)
        self.attn_output = nn.Linear(shape.width, shape.width, bias=False)
        self.ffn_gate = nn.Linear(shape.width, shape.ffn, bias=False)
        self.ffn_up = nn.Linear(shape.width, shape.ffn, bias=False)
        self.ffn_down = nn.Linear(shape.ffn, shape.width, bias=False)

    def attend(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, width = x.shape
        split = (batch, length, self.shape.heads, self.shape.head_dim)
        q = rotate(self.attn_q(x).view(split).transpose(1, 2), cos, sin)
        k = rotate(self.attn_k(x).view(split).transpose(1, 2), cos, sin)
        v = self.attn_v(x).view(split).transpose(1, 2)
        # Spelled out: compiled, it trains faster on a CPU than the fused kernel and its backward.
        scores = q.to(v.dtype) @ k.to(v.dtype).transpose(2, 3) * self.shape.head_dim**-0.5
        future = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
        mixed = scores.masked_fill(future, -torch.inf).softmax(-1).to(v.dtype) @ v
        return self.attn_output(mixed.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        x = x + self.attend(self.attn_norm(x), cos, sin)
        y = self.ffn_norm(x)
        return x + self.ffn_down(F.silu(self.ffn_gate(y)) * self.ffn_up(y))


class Llama(nn.Module):
    """Token ids int64[batch, length] to hidden states float[batch, length, width]."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.token_embd = nn.Embedding(shape.vocab, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.layers))
        self.output_norm = nn.RMSNorm(shape.width, eps=shape.norm_eps)
        cos, sin = rotary_table(shape, shape.context)
        self.register_buffer("cos", cos, persistent=False)
        self.register_buffer("sin", sin, persistent=False)
        self.reset()

    def reset(self) -> None:
        """Normal initialisation; the matrices that write to the residual stream start smaller."""
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                writes = name.endswith(("attn_output.weight", "ffn_down.weight"))
                scale = (2 * self.shape.layers) ** -0.5 if writes else 1.0
                fan_in = self.shape.width if "token_embd" in name else weight.shape[1]
                nn.init.normal_(weight, std=scale * fan_in**-0.5 * 0.5)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.token_embd(ids)
        cos, sin = self.cos[: ids.shape[1]], self.sin[: ids.shape[1]]
        for block in self.blocks:
            x = block(x, cos, sin)
        return self.output_norm(x)


def cross_entropy(hidden: Tensor, head: Tensor, targets: Tensor) -> Tensor:
    """Mean nats of targets [n] under the head [vocab, width] at hidden states [n, width]."""
    return F.cross_entropy(F.linear(hidden, head).float(), targets)
