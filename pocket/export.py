"""Write a trained model and its tokenizer as GGUF."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
from tokenizers import Tokenizer

from pocket.model import Llama
from pocket.tokenizer import END_OF_TEXT, Vocabulary

LICENSE = "apache-2.0"


def _add_tokenizer(writer: gguf.GGUFWriter, vocabulary: Vocabulary, tokenizer: Tokenizer) -> None:
    """The section that models of one vocabulary share byte for byte."""
    count = tokenizer.get_vocab_size()
    tokens = [tokenizer.id_to_token(i) for i in range(count)]
    control = set(vocabulary.special)
    types = [gguf.TokenType.CONTROL if t in control else gguf.TokenType.NORMAL for t in tokens]
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(vocabulary.pre)
    writer.add_token_list(tokens)
    writer.add_token_types(types)
    writer.add_token_merges([" ".join(pair) for pair in merges])
    writer.add_eos_token_id(tokenizer.token_to_id(vocabulary.end))
    writer.add_eot_token_id(tokenizer.token_to_id(vocabulary.end))
    writer.add_pad_token_id(tokenizer.token_to_id(END_OF_TEXT))
    writer.add_add_bos_token(False)
    writer.add_chat_template(vocabulary.chat_template)


def _add_shape(writer: gguf.GGUFWriter, model: Llama) -> None:
    shape = model.shape
    writer.add_vocab_size(shape.vocab)
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.ffn)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.heads)
    writer.add_layer_norm_rms_eps(shape.norm_eps)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(shape.rope_base)


def _add_weights(writer: gguf.GGUFWriter, model: Llama, kind: gguf.GGMLQuantizationType) -> None:
    """Matrices in `kind`, norms in float32."""
    for name, weight in model.state_dict().items():
        array = weight.float().cpu().numpy()
        used = kind if array.ndim == 2 else gguf.GGMLQuantizationType.F32
        packed = gguf.quants.quantize(np.ascontiguousarray(array), used)
        writer.add_tensor(name.replace("blocks.", "blk."), packed, raw_dtype=used)


def write(
    path: Path, name: str, model: Llama, vocabulary: Vocabulary, tokenizer: Tokenizer
) -> None:
    """Write `path`; matrices are q8_0."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(name)
    writer.add_license(LICENSE)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)
    _add_shape(writer, model)
    _add_tokenizer(writer, vocabulary, tokenizer)
    _add_weights(writer, model, gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
