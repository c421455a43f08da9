"""A model's tokenizer as `tokenizers` keeps it, its weights as transformers and MLX read them."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
from safetensors.numpy import save_file
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers

from pocket.convert.weights import ARCHITECTURES, Source, Vocabulary
from pocket.tokenizer import QWEN2_SPLIT

CUTS = {
    "qwen2": lambda: pre_tokenizers.Split(Regex(QWEN2_SPLIT), "isolated"),
    "smollm": lambda: pre_tokenizers.Digits(individual_digits=True),
}
"""llama.cpp's pre-tokenizers; that of `smollm` leaves the rest to GPT-2's own expression."""


def write_safetensors(folder: Path, source: Source, *, form: str = "pt") -> None:
    """`model.safetensors` and `config.json`; `form` is "pt", or "mlx" as mlx-lm saves its own."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(source.weights, folder / "model.safetensors", metadata={"format": form})
    _write_json(folder / "config.json", _config(source))
    ends = {"eos_token_id": source.vocabulary.eos, "pad_token_id": source.vocabulary.pad}
    _write_json(folder / "generation_config.json", ends)


def write_mlx(folder: Path, source: Source) -> None:
    """The same in MLX form: by the metadata of its weights and its card."""
    write_safetensors(folder, source, form="mlx")
    (folder / "README.md").write_text("---\nlibrary_name: mlx\ntags:\n- mlx\n---\n")


def write_tokenizer(folder: Path, vocabulary: Vocabulary) -> None:
    """`tokenizer.json` and `tokenizer_config.json`. Raises `ValueError` for other kinds."""
    if vocabulary.model != "gpt2" or vocabulary.pre not in CUTS:
        raise ValueError(
            f"only byte-level BPE of the pre-tokenizers {', '.join(CUTS)} is converted, not "
            f"{vocabulary.model!r} of {vocabulary.pre!r}"
        )
    folder.mkdir(parents=True, exist_ok=True)
    plain = (gguf.TokenType.NORMAL, gguf.TokenType.UNUSED)
    ids = {text: token for token, text in enumerate(vocabulary.tokens)}
    merges = [tuple(merge.split(" ")) for merge in vocabulary.merges]
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=merges))
    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=vocabulary.pre == "smollm")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([CUTS[vocabulary.pre](), level])
    tokenizer.decoder = decoders.ByteLevel()
    for token, kind in zip(vocabulary.tokens, vocabulary.kinds, strict=True):
        if kind not in plain:
            special = kind != gguf.TokenType.USER_DEFINED
            tokenizer.add_tokens([AddedToken(token, special=special, normalized=False)])
    tokenizer.save(str(folder / "tokenizer.json"))
    described = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": None if vocabulary.bos is None else vocabulary.tokens[vocabulary.bos],
        "eos_token": vocabulary.tokens[vocabulary.eos],
        "pad_token": vocabulary.tokens[vocabulary.pad],
        "chat_template": vocabulary.template,
        "clean_up_tokenization_spaces": False,
    }
    _write_json(folder / "tokenizer_config.json", described)


def _config(source: Source) -> dict[str, object]:
    """What transformers' config of the model reads, in its older and its newer spelling."""
    vocabulary = source.vocabulary
    return {
        "architectures": [ARCHITECTURES[source.kind]],
        "model_type": source.kind,
        "vocab_size": len(source.head),
        "hidden_size": source.width,
        "intermediate_size": source.ffn,
        "num_hidden_layers": source.layers,
        "num_attention_heads": source.heads,
        "num_key_value_heads": source.kv_heads,
        "head_dim": source.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": source.context,
        "rms_norm_eps": source.norm_eps,
        "rope_theta": source.rope_base,
        "rope_parameters": {"rope_type": "default", "rope_theta": source.rope_base},
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": source.tied,
        "bos_token_id": vocabulary.bos,
        "eos_token_id": vocabulary.eos,
        "pad_token_id": vocabulary.pad,
        "dtype": "float32",
        "torch_dtype": "float32",
    }


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
