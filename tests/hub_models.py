"""Tiny random models as a hub has them, a folder each, with wide weights: text varies.

In transformers' form and in MLX's.
"""

import json
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from tests import models
from tests.hub_files import write_tokenizer

WINDOW = 8

SHAPE: dict[str, Any] = {
    "vocab_size": len(models.byte_level().tokens),
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama"},
    "gemma3": {
        "model_type": "gemma3_text",
        "sliding_window": WINDOW,
        "sliding_window_pattern": 2,
        "query_pre_attn_scalar": 16,
    },
    "qwen3_5": {
        "model_type": "qwen3_5",
        "full_attention_interval": 2,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
        "linear_conv_kernel_dim": 4,
        "rope_parameters": {"rope_theta": 10000.0, "partial_rotary_factor": 0.25},
    },
    "lfm2": {
        "model_type": "lfm2",
        "layer_types": ["conv", "full_attention"],
        "norm_eps": 1e-5,
        "conv_bias": False,
        "conv_L_cache": 3,
        "block_dim": 64,
        "block_multiple_of": 32,
        "block_ffn_dim_multiplier": 1.0,
        "block_auto_adjust_ff_dim": False,
        "block_ff_dim": 96,
    },
}
"""Attention alone; a window in one of two layers; hybrids (Gated DeltaNet, a short convolution)."""


class Folders:
    """`folders("llama")`: a folder of that kind, written when it is asked for first."""

    def __init__(self, root: Path, write: Callable[[Path, str], object]) -> None:
        self._root, self._write = root, write

    def __call__(self, kind: str) -> Path:
        path = self._root / kind
        if not path.exists():
            self._write(path, kind)
        return path


def write_mlx_model(folder: Path, kind: str, *, seed: int = 0, bits: int | None = None) -> Path:
    """Random weights, and the tiny byte-level vocabulary; with `bits` MLX's quantised form."""
    from mlx import core as mx
    from mlx import nn
    from mlx.utils import tree_flatten, tree_map

    config = SHAPE | {"rms_norm_eps": 1e-5} | CONFIGS[kind]
    made, args = import_module("mlx_lm.utils")._get_classes(config)
    mx.random.seed(seed)
    rng = np.random.default_rng(seed)

    def drawn(weight: Any) -> Any:
        wide = 0.15 * rng.standard_normal(weight.shape, np.float32)
        return weight if weight.ndim < 2 else mx.array(wide)

    model = made(args.from_dict(config))
    model.update(tree_map(drawn, model.parameters()))
    if bits is not None:
        config["quantization"] = {"group_size": 32, "bits": bits}
        nn.quantize(model, **config["quantization"])
    write_tokenizer(folder, models.byte_level())
    (folder / "config.json").write_text(json.dumps(config))
    weights = dict(tree_flatten(model.parameters()))
    mx.save_safetensors(str(folder / "model.safetensors"), weights, metadata={"format": "mlx"})
    return folder


def write_hub_model(folder: Path, kind: str, *, seed: int = 0) -> Path:
    """Random weights, and the tiny byte-level vocabulary."""
    import torch
    import transformers

    # Of a kind with images as well, the text's part.
    described = CONFIGS[kind] | ({"model_type": "qwen3_5_text"} if kind == "qwen3_5" else {})
    ends = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"))
    config = transformers.AutoConfig.for_model(**SHAPE, **described, **ends, initializer_range=0.15)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return write_tokenizer(folder, models.byte_level())
