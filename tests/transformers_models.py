"""Tiny random models in transformers' form, a folder each, with wide weights: text varies."""

from pathlib import Path
from typing import Any

from tests import models
from tests.hub_files import write_tokenizer

WINDOW = 8

SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "initializer_range": 0.15,
    "tie_word_embeddings": False,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}


LAYERS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {}),
    "gemma3": (
        "Gemma3TextConfig",
        {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": WINDOW},
    ),
    "lfm2": ("Lfm2Config", {"layer_types": ["conv", "full_attention"], "conv_L_cache": 3}),
    "qwen3_5": (
        "Qwen3_5TextConfig",
        {
            "layer_types": ["linear_attention", "full_attention"],
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 2,
            "linear_key_head_dim": 16,
            "linear_value_head_dim": 16,
        },
    ),
}
"""Attention alone; a window in one of two layers; hybrids (a short convolution, Gated DeltaNet)."""


def config(kind: str) -> Any:
    """A model's configuration."""
    import transformers

    name, layers = LAYERS[kind]
    size = len(models.byte_level().tokens)
    return getattr(transformers, name)(**SHAPE, **layers, vocab_size=size)


def write_hub_model(folder: Path, config: Any, *, seed: int = 0) -> Path:
    """Random weights, and the tiny byte-level vocabulary."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return write_tokenizer(folder, models.byte_level())
