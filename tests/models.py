"""Tiny random GGUF models. Weights are wide (std 0.15) and the head untied, so that text varies."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import gguf
import numpy as np
from numpy.typing import NDArray

from benchmarks.random_qwen import byte_letters

WIDTH, LAYERS, HEADS, FFN, CONTEXT, STD = 64, 2, 4, 128, 256, 0.15
END, TURN, MARKER = "<|endoftext|>", "<|im_end|>", "<|im_start|>"
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MERGES = ("t h", "th e", "i n", "e r", "Ġ the", "Ġ a", "o n", "Ã ©")
OTHER_MERGES = ("s t", "r e", "Ġ re", "a n", "an d", "Ġ and", "o u", "Ã ¨")
PIECES = (
    *("▁the", "the", "▁a", "in", "er", "th", "▁"),
    *"abcdefghijklmnopqrstuvwxyzABCDEFGHIJ0123456789.,?",
)
"""Of the sentencepiece vocabulary, likeliest first; other letters fall back to bytes."""

Array = NDArray[np.float32]
Tensors = Iterator[tuple[str, Array]] | Iterator[tuple[str, Array | NDArray[np.uint8]]]


@dataclass(frozen=True)
class Vocabulary:
    """What a GGUF says of its tokenizer."""

    model: str
    tokens: Sequence[str]
    kinds: Sequence[gguf.TokenType]
    merges: Sequence[str] = ()
    scores: Sequence[float] = ()
    bos: str | None = None
    eos: str = TURN
    template: str | Sequence[Mapping[str, str]] | None = None

    def describe(self, writer: gguf.GGUFWriter) -> None:
        """Add the tokenizer's keys."""
        writer.add_tokenizer_model(self.model)
        if self.merges:
            writer.add_tokenizer_pre("qwen2")
            writer.add_token_merges(list(self.merges))
        writer.add_token_list(list(self.tokens))
        writer.add_token_types(list(self.kinds))
        if self.scores:
            writer.add_token_scores(list(self.scores))
        if self.bos is not None:
            writer.add_bos_token_id(self.tokens.index(self.bos))
        writer.add_add_bos_token(self.bos is not None)
        writer.add_eos_token_id(self.tokens.index(self.eos))
        if self.template is not None:
            writer.add_chat_template(self.template)


def byte_level(merges: Sequence[str] = MERGES) -> Vocabulary:
    """The 256 bytes, what `merges` make of them, and three special tokens (two of them ends)."""
    words = [*byte_letters(), *(merge.replace(" ", "") for merge in merges)]
    special = [END, MARKER, TURN]
    return Vocabulary(
        "gpt2",
        [*words, *special],
        [gguf.TokenType.NORMAL] * len(words) + [gguf.TokenType.CONTROL] * len(special),
        merges=merges,
        template=TEMPLATE,
    )


def qwen(generation: Literal["2.5", "3"]) -> Vocabulary:
    """As the families are: one BPE, and four ids more in the later one where the other pads."""
    plain = byte_level()
    tools = ["<tool_call>", "</tool_call>"]
    thoughts = ["<tool_response>", "</tool_response>", "<think>", "</think>"]
    later = len(thoughts) if generation == "3" else 0
    begun = [*plain.tokens, *tools, *thoughts[:later]]
    padding = len(plain.tokens) + len(tools) + 2 * len(thoughts) - len(begun)
    names = [f"[PAD{len(begun) + number}]" for number in range(padding)]
    defined = [gguf.TokenType.USER_DEFINED] * (len(tools) + later)
    kinds = [*plain.kinds, *defined, *[gguf.TokenType.UNUSED] * padding]
    return replace(plain, tokens=[*begun, *names], kinds=kinds)


def sentencepiece() -> Vocabulary:
    """Pieces with scores, every byte to fall back to, BOS."""
    control = gguf.TokenType.CONTROL
    return Vocabulary(
        "llama",
        ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *PIECES],
        [gguf.TokenType.UNKNOWN, control, control]
        + [gguf.TokenType.BYTE] * 256
        + [gguf.TokenType.NORMAL] * len(PIECES),
        scores=[0.0] * 259 + [-1.0 - index for index in range(len(PIECES))],
        bos="<s>",
        eos="</s>",
    )


def write_byte_level(path: Path, *, seed: int = 0) -> Path:
    """(a) A transformer with byte-level BPE."""
    return write_transformer(path, byte_level(), seed=seed)


def write_with_tools(path: Path, template: str | Sequence[Mapping[str, str]]) -> Path:
    """(a) with another template, or several by name, and room for what it makes of tools."""
    vocabulary = replace(byte_level(), template=template)
    return write_transformer(path, vocabulary, context=4096)


def write_sentencepiece(path: Path, *, seed: int = 1) -> Path:
    """(b) A transformer with a sentencepiece vocabulary."""
    return write_transformer(path, sentencepiece(), seed=seed)


def write_other(path: Path, *, seed: int = 2) -> Path:
    """(c) As (a), with other merges."""
    return write_transformer(path, byte_level(OTHER_MERGES), seed=seed)


def write_packed(path: Path, *, seed: int = 0) -> Path:
    """(a) in 4 bits."""
    return write_transformer(path, byte_level(), seed=seed, packed=True)


def write_transformer(
    path: Path,
    vocabulary: Vocabulary,
    *,
    seed: int = 0,
    packed: bool = False,
    context: int = CONTEXT,
    sampling: Mapping[str, float] | None = None,
) -> Path:
    """A llama with random weights, its matrices in q4_0 if `packed`; `sampling` is metadata."""
    writer = _llama(path, vocabulary, context)
    for name, value in (sampling or {}).items():
        writer.add_float32(f"general.sampling.{name}", value)
    tensors = _transformer(np.random.default_rng(seed), len(vocabulary.tokens))
    return finish(writer, vocabulary, _packed(tensors) if packed else tensors, path)


def write_saying(path: Path, text: str, *, context: int = 4096) -> Path:
    """A llama that answers `text`, whatever it is asked: one token, and the end."""
    plain = byte_level()
    said = "".join(byte_letters()[byte] for byte in text.encode())
    kinds = [*plain.kinds, gguf.TokenType.NORMAL]
    vocabulary = replace(plain, tokens=[*plain.tokens, said], kinds=kinds)
    tensors = {
        name: np.zeros_like(one) if one.ndim == 2 else one
        for name, one in _transformer(np.random.default_rng(0), len(vocabulary.tokens))
    }
    held, head = tensors["token_embd.weight"], tensors["output.weight"]
    held[:, 0] = head[-1, 0] = 1
    held[-1] = np.eye(WIDTH, dtype=np.float32)[1]
    head[vocabulary.tokens.index(TURN), 1] = 1
    return finish(_llama(path, vocabulary, context), vocabulary, iter(tensors.items()), path)


def _llama(path: Path, vocabulary: Vocabulary, context: int) -> gguf.GGUFWriter:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(context)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(HEADS // 2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_vocab_size(len(vocabulary.tokens))
    return writer


def finish(writer: gguf.GGUFWriter, vocabulary: Vocabulary, tensors: Tensors, path: Path) -> Path:
    """Write what was described, and the tensors (bytes are q4_0), to `path`."""
    vocabulary.describe(writer)
    for name, tensor in tensors:
        packed = gguf.GGMLQuantizationType.Q4_0 if tensor.dtype == np.uint8 else None
        writer.add_tensor(name, tensor, raw_dtype=packed)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _random(rng: np.random.Generator, *shape: int) -> Array:
    return rng.standard_normal(shape, np.float32) * np.float32(STD)


def _ends(rng: np.random.Generator, size: int) -> Tensors:
    yield "token_embd.weight", _random(rng, size, WIDTH)
    yield "output_norm.weight", np.ones(WIDTH, np.float32)
    yield "output.weight", _random(rng, size, WIDTH)


def _transformer(rng: np.random.Generator, size: int) -> Tensors:
    yield from _ends(rng, size)
    keys = WIDTH // 2
    for layer in range(LAYERS):
        for name, out, width in (
            ("attn_q", WIDTH, WIDTH),
            ("attn_k", keys, WIDTH),
            ("attn_v", keys, WIDTH),
            ("attn_output", WIDTH, WIDTH),
            ("ffn_gate", FFN, WIDTH),
            ("ffn_up", FFN, WIDTH),
            ("ffn_down", WIDTH, FFN),
        ):
            yield f"blk.{layer}.{name}.weight", _random(rng, out, width)
        for name in ("attn_norm", "ffn_norm"):
            yield f"blk.{layer}.{name}.weight", np.ones(WIDTH, np.float32)


def _packed(tensors: Tensors) -> Iterator[tuple[str, Array | NDArray[np.uint8]]]:
    for name, tensor in tensors:
        q4_0 = gguf.GGMLQuantizationType.Q4_0
        yield name, gguf.quantize(tensor, q4_0) if tensor.ndim == 2 else tensor
