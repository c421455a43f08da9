"""From a trained model and its tokenizer to a GGUF that llama.cpp loads."""

import json
from pathlib import Path

import gguf
import numpy as np
from gguf.quants import quantize
from tokenizers import Tokenizer

from pocket.model import Llama
from pocket.tokenizer import CHAT_TEMPLATE, END, END_OF_TEXT, PRE_TOKENIZER, SPECIAL


def write_gguf(path: Path, model: Llama, tokenizer: Tokenizer, name: str) -> None:
    """Matrices as q8_0, norms as float32; the head is the embedding matrix."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name(name)
    writer.add_license("apache-2.0")
    _write_shape(writer, model)
    _write_tokenizer(writer, tokenizer)
    for tensor, weight in model.state_dict().items():
        values = weight.detach().float().numpy()
        kind = gguf.GGMLQuantizationType.F32 if values.ndim == 1 else gguf.GGMLQuantizationType.Q8_0
        data = values if values.ndim == 1 else quantize(values, kind)
        writer.add_tensor(_gguf_name(tensor), np.ascontiguousarray(data), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _gguf_name(tensor: str) -> str:
    return tensor.replace("blocks.", "blk.")


def _write_shape(writer: gguf.GGUFWriter, model: Llama) -> None:
    shape = model.shape
    writer.add_context_length(shape.context)
    writer.add_embedding_length(shape.width)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.ffn)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.heads)
    writer.add_rope_dimension_count(shape.head_dim)
    writer.add_rope_freq_base(shape.rope_base)
    writer.add_layer_norm_rms_eps(shape.norm_eps)
    writer.add_vocab_size(shape.vocab)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q8_0)


def _write_tokenizer(writer: gguf.GGUFWriter, tokenizer: Tokenizer) -> None:
    described = json.loads(tokenizer.to_str())
    ids: dict[str, int] = described["model"]["vocab"]
    tokens = sorted(ids, key=ids.__getitem__)
    merges = [" ".join(pair) for pair in described["model"]["merges"]]
    kinds = [
        gguf.TokenType.CONTROL if token in SPECIAL else gguf.TokenType.NORMAL for token in tokens
    ]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(PRE_TOKENIZER)
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    writer.add_eos_token_id(ids[END])
    writer.add_eot_token_id(ids[END])
    writer.add_pad_token_id(ids[END_OF_TEXT])
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)
