"""A GGUF with the shape of Qwen2.5-0.5B in 4 bits and random weights: real speed, no download.

Other sizes of the family are given by a `Shape`.

python -m benchmarks.random_qwen OUT
"""

import sys
from collections.abc import Iterator
from itertools import chain, islice, product
from pathlib import Path
from typing import NamedTuple

import gguf
import numpy as np
from numpy.typing import NDArray

CONTEXT = 32_768
STD = 0.05
BLANK, LETTERS = "Ġ", "abcdefghijklmnopqrst"
_Q4_0_BYTES, _Q4_0_STD = 18, 4.61  # standard deviation of a uniform draw from -8..7


class Shape(NamedTuple):
    """Sizes of a Qwen2.5; `eos` is the id of the end token. Widths are multiples of 32."""

    hidden: int = 896
    layers: int = 24
    heads: int = 14
    kv_heads: int = 2
    ffn: int = 4864
    vocabulary: int = 151_936
    eos: int = 151_645


Weights = NDArray[np.float32] | NDArray[np.uint8]


def byte_letters() -> list[str]:
    """The letter that byte-level BPE writes for each byte."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return [chr(byte) if byte in shown else chr(256 + hidden.index(byte)) for byte in range(256)]


def vocabulary(shape: Shape) -> list[str]:
    """The 256 bytes, words of up to four letters with the blank before them, the end token.

    Every word merges from the one that it is longer than by a letter, so that any sequence of them
    is its own text's ids.
    """
    lengths = (product(LETTERS, repeat=length) for length in range(1, 5))
    words = (BLANK + "".join(word) for word in chain.from_iterable(lengths))
    ids = [*byte_letters(), *islice(words, shape.vocabulary - 256)]
    ids[shape.eos] = "<|im_end|>"
    return ids


def build(path: Path, *, seed: int = 0, shape: Shape | None = None) -> Path:
    """Write the model to `path`: 284 MB for Qwen2.5-0.5B, the default, in a few seconds."""
    shape = shape or Shape()
    writer = gguf.GGUFWriter(path, "qwen2")
    _describe(writer, shape)
    rng = np.random.default_rng(seed)
    for name, weights in _tensors(rng, shape):
        q4_0 = weights.dtype == np.uint8
        kind = gguf.GGMLQuantizationType.Q4_0 if q4_0 else None
        writer.add_tensor(name, weights, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _describe(writer: gguf.GGUFWriter, shape: Shape) -> None:
    writer.add_name("random-qwen2.5")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_0)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(shape.hidden)
    writer.add_block_count(shape.layers)
    writer.add_feed_forward_length(shape.ffn)
    writer.add_head_count(shape.heads)
    writer.add_head_count_kv(shape.kv_heads)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    tokens = vocabulary(shape)
    kinds = [gguf.TokenType.NORMAL] * shape.vocabulary
    kinds[shape.eos] = gguf.TokenType.CONTROL
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    words = [token for token in tokens[256:] if token.startswith(BLANK)]
    writer.add_token_merges([f"{word[:-1]} {word[-1]}" for word in words])
    writer.add_eos_token_id(shape.eos)
    writer.add_add_bos_token(False)


def _tensors(rng: np.random.Generator, shape: Shape) -> Iterator[tuple[str, Weights]]:
    """The head is tied to `token_embd`, so it has 4 bits too."""
    yield "token_embd.weight", _q4_0(rng, shape.vocabulary, shape.hidden)
    yield "output_norm.weight", np.ones(shape.hidden, np.float32)
    keys = shape.hidden // shape.heads * shape.kv_heads
    for layer in range(shape.layers):
        for name, out, width in (
            ("attn_q", shape.hidden, shape.hidden),
            ("attn_k", keys, shape.hidden),
            ("attn_v", keys, shape.hidden),
            ("attn_output", shape.hidden, shape.hidden),
            ("ffn_gate", shape.ffn, shape.hidden),
            ("ffn_up", shape.ffn, shape.hidden),
            ("ffn_down", shape.hidden, shape.ffn),
        ):
            yield f"blk.{layer}.{name}.weight", _q4_0(rng, out, width)
        for name, size in (("attn_q", shape.hidden), ("attn_k", keys), ("attn_v", keys)):
            bias = rng.standard_normal(size, np.float32) * np.float32(STD)
            yield f"blk.{layer}.{name}.bias", bias
        for name in ("attn_norm", "ffn_norm"):
            yield f"blk.{layer}.{name}.weight", np.ones(shape.hidden, np.float32)


def _q4_0(rng: np.random.Generator, out: int, width: int) -> NDArray[np.uint8]:
    """Random blocks of q4_0: a float16 scale and 32 random nibbles each."""
    blocks = rng.integers(0, 256, (out, width // 32, _Q4_0_BYTES), np.uint8)
    scale = np.array([STD / _Q4_0_STD], np.float16).view(np.uint8)
    blocks[:, :, :2] = scale
    return blocks.reshape(out, -1)


if __name__ == "__main__":
    print(build(Path(sys.argv[1])))
