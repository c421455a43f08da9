"""From a GGUF file of a plain Llama or Qwen2 to float32 weights as Hugging Face names them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM"}
"""By llama.cpp's name, which is also the `model_type` of both libraries."""

NAMES = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
BIASED = ("attn_q", "attn_k", "attn_v")
"""Of a Qwen2."""

OUTER = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}


@dataclass(frozen=True)
class Vocabulary:
    """What a GGUF says of its tokenizer; `kinds` are `gguf.TokenType`s."""

    model: str
    pre: str
    tokens: list[str]
    kinds: list[int]
    merges: list[str]
    bos: int | None
    eos: int
    pad: int
    template: str | None


@dataclass(frozen=True)
class Source:
    """A model of one of `ARCHITECTURES`; `weights` are those of transformers' class of it.

    A tied head is no weight of its own.
    """

    kind: str
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    context: int
    rope_base: float
    norm_eps: float
    vocabulary: Vocabulary
    weights: dict[str, Floats]

    @property
    def tied(self) -> bool:
        """Whether the head is the embedding matrix."""
        return "lm_head.weight" not in self.weights

    @property
    def head(self) -> Floats:
        """float32[vocabulary, width]."""
        return self.weights["model.embed_tokens.weight" if self.tied else "lm_head.weight"]


def halves(weight: Floats, heads: int) -> Floats:
    """Rows of `weight` [heads * d, width] from llama.cpp's order to that of transformers.

    A rotary pair stands side by side (2i, 2i + 1) in the one, half a head apart (i, i + d / 2) in
    the other.
    """
    rows, width = weight.shape
    paired = weight.reshape(heads, rows // heads // 2, 2, width)
    return np.ascontiguousarray(paired.swapaxes(1, 2).reshape(rows, width))


class Reader(gguf.GGUFReader):
    """Reads the same: each of 100,000 tokens is a view, which of a memmap costs five times more."""

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, np.asarray(value) if name == "data" else value)


def read(path: Path) -> Source:
    """Read `path`, dequantised. Raises `ValueError` for other architectures."""
    reader = Reader(path)
    value = _values(reader)
    kind = str(value("general.architecture"))

    def number(name: str, default: object = None) -> float:
        found = value(f"{kind}.{name}", default)
        if not isinstance(found, (int, float)):
            raise ValueError(f"{str(path)!r} does not say its {name}")
        return found

    tensors = {tensor.name: tensor for tensor in reader.tensors}
    if kind not in ARCHITECTURES or "rope_freqs.weight" in tensors:
        raise ValueError(f"{str(path)!r} is no plain Llama or Qwen2; only those are converted")
    heads, width = int(number("attention.head_count")), int(number("embedding_length"))
    kv_heads = int(number("attention.head_count_kv", heads))
    head_dim = int(number("attention.key_length", width // heads))
    weights: dict[str, Floats] = {}
    for name, tensor in tensors.items():
        weight = np.asarray(gguf.dequantize(tensor.data, tensor.tensor_type), np.float32)
        if kind == "llama" and name.endswith(("attn_q.weight", "attn_k.weight")):
            weight = halves(weight, heads if "attn_q" in name else kv_heads)
        weights[_name(name, kind)] = weight
    return Source(
        kind=kind,
        width=width,
        layers=int(number("block_count")),
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        ffn=int(number("feed_forward_length")),
        context=int(number("context_length")),
        rope_base=float(number("rope.freq_base", 10_000.0)),
        norm_eps=float(number("attention.layer_norm_rms_epsilon")),
        vocabulary=_vocabulary(value),
        weights=weights,
    )


def read_vocabulary(path: Path) -> Vocabulary:
    """The vocabulary alone, of any architecture."""
    return _vocabulary(_values(Reader(path)))


def _values(reader: Reader) -> Callable[..., object]:
    """What a file says under a name, or else a default."""

    def value(name: str, default: object = None) -> object:
        field = reader.fields.get(name)
        return default if field is None else field.contents()

    return value


def _name(name: str, kind: str) -> str:
    """Raises `ValueError` for a weight that a model of this kind has none of."""
    outer, *parts, what = name.split(".")
    biased = BIASED if kind == "qwen2" else ()
    try:
        if what != "weight" and not (what == "bias" and parts[1] in biased):
            raise KeyError(what)
        if outer == "blk":
            layer, part = parts
            return f"model.layers.{int(layer)}.{NAMES[part]}.{what}"
        return f"{OUTER[outer]}.{what}"
    except (KeyError, IndexError, ValueError) as error:
        raise ValueError(f"a plain {kind} has no weight {name!r}") from error


def _vocabulary(value: Callable[..., object]) -> Vocabulary:
    eos = value("tokenizer.ggml.eos_token_id")
    return Vocabulary(
        model=value("tokenizer.ggml.model"),
        pre=value("tokenizer.ggml.pre", ""),
        tokens=value("tokenizer.ggml.tokens"),
        kinds=value("tokenizer.ggml.token_type"),
        merges=value("tokenizer.ggml.merges", []),
        bos=value("tokenizer.ggml.bos_token_id") if value("tokenizer.ggml.add_bos_token") else None,
        eos=eos,
        pad=value("tokenizer.ggml.padding_token_id", eos),
        template=value("tokenizer.chat_template"),
    )
