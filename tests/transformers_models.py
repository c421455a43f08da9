"""Tiny random models in transformers' form, a folder each, with wide weights: text varies."""

from collections.abc import Callable
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


def llama(**more: Any) -> Any:
    """Attention alone."""
    from transformers import LlamaConfig

    return LlamaConfig(**(SHAPE | {"vocab_size": size()} | more))


def gemma3(**more: Any) -> Any:
    """A sliding window in one of two layers."""
    from transformers import Gemma3TextConfig

    kinds = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": WINDOW}
    return Gemma3TextConfig(**(SHAPE | kinds | {"vocab_size": size()} | more))


def lfm2(**more: Any) -> Any:
    """A short convolution beside attention."""
    from transformers import Lfm2Config

    kinds = {"layer_types": ["conv", "full_attention"], "conv_L_cache": 3}
    return Lfm2Config(**(SHAPE | kinds | {"vocab_size": size()} | more))


def qwen3_5(**more: Any) -> Any:
    """A recurrent layer (Gated DeltaNet) beside attention."""
    from transformers import Qwen3_5TextConfig

    kinds = {
        "layer_types": ["linear_attention", "full_attention"],
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 2,
        "linear_key_head_dim": 16,
        "linear_value_head_dim": 16,
    }
    return Qwen3_5TextConfig(**(SHAPE | kinds | {"vocab_size": size()} | more))


CONFIGS: dict[str, Callable[..., Any]] = {
    "llama": llama,
    "gemma3": gemma3,
    "lfm2": lfm2,
    "qwen3_5": qwen3_5,
}


def size() -> int:
    """Ids of the vocabulary."""
    return len(models.byte_level().tokens)


def write_hub_model(folder: Path, config: Any, *, seed: int = 0) -> Path:
    """Random weights, and the tiny byte-level vocabulary."""
    import torch
    from transformers import AutoModelForCausalLM

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return write_tokenizer(folder, models.byte_level())
