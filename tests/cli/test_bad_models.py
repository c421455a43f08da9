"""Models that an engine cannot run: one sentence, with the flag that helps."""

import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from edgewise.addresses import bundled
from edgewise.routers.card import read_card
from edgewise_lab.training.publish import save_card
from pocket.convert.__main__ import convert
from pocket.convert.weights import read
from tests.cli.conftest import Edgewise
from tests.hybrid_models import HybridPaths
from tests.models import byte_level, finish, write_byte_level
from tests.onnx_models import require_onnx

SENTENCE = r"edgewise: .+; .+ \((--[a-z-]+)\)\."


def refused(edgewise: Edgewise, *arguments: str, word: str, flag: str) -> None:
    said = edgewise.refusal("run", "hi", "--cloud", "none", "--threads", "1", *arguments)
    assert word in said
    found = re.fullmatch(SENTENCE, said)
    assert found, said
    assert found[1] == flag


def an_encoder(path: Path) -> Path:
    """BERT with random weights: it reads a text as a whole, and writes none."""
    width, rng = 32, np.random.default_rng(0)
    writer, vocabulary = gguf.GGUFWriter(path, "bert"), byte_level()
    counts = {"context_length": 64, "embedding_length": width, "feed_forward_length": width}
    counts |= {"block_count": 1, "attention.head_count": 2}
    for key, count in counts.items():
        writer.add_uint32(f"bert.{key}", count)
    writer.add_layer_norm_eps(1e-5)
    writer.add_causal_attention(False)
    writer.add_token_type_count(2)
    norms = ["token_embd_norm", "blk.0.attn_output_norm", "blk.0.layer_output_norm"]
    layers = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", "ffn_down")
    parts = [f"blk.0.{layer}" for layer in layers]
    rows = {"token_embd": len(vocabulary.tokens), "position_embd": 64, "token_types": 2}
    rows |= dict.fromkeys(parts, width)
    tensors = {f"{name}.weight": (count, width) for name, count in rows.items()}
    tensors |= {f"{norm}.weight": (width,) for norm in norms}
    tensors |= {f"{name}.bias": (width,) for name in [*norms, *parts]}
    made = ((name, rng.standard_normal(shape, np.float32)) for name, shape in tensors.items())
    return finish(writer, vocabulary, made, path)


def of_unknown_type(path: Path) -> Path:
    """Weights quantised in a way that llama.cpp does not know."""
    reader = gguf.GGUFReader(write_byte_level(path), "r+")
    for tensor in reader.tensors:
        tensor.field.parts[4][0] = 77
    reader.data.flush()
    return path


def without_words(path: Path) -> Path:
    """A GGUF that says nothing of its tokenizer."""
    write_byte_level(path)
    path.write_bytes(path.read_bytes().replace(b"tokenizer.ggml", b"elsewhere.ggml"))
    return path


def of_architecture(name: str) -> Callable[[Path], Path]:
    return lambda path: finish(gguf.GGUFWriter(path, name), byte_level(), iter(()), path)


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (an_encoder, "decoder-only"),
        (without_words, "vocab"),
        (of_unknown_type, "update Edgewise"),
        (of_architecture("mamba9"), "update Edgewise"),
        (of_architecture("clip"), "projector"),
        (b"GGUF\x04" + bytes(999), "update Edgewise"),
        (b"GGUF\x01" + bytes(999), "old form"),
        (bundled("edge").read_bytes()[:-1000], "cut off"),
        (b"GGUF\x03\0\0\0", "cut off"),
        (b"", "empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "git lfs pull"),
        (b"\n<!DOCTYPE html><html>", "web page"),
        (b'\x40\0\0\0\0\0\0\0{"__metadata__":{}}', "safetensors"),
        (b"Entry not found", "not a GGUF"),
    ],
    ids=lambda given: given if isinstance(given, str) else "",
)
def test_a_gguf_that_cannot_be_run(edgewise: Edgewise, content: Any, word: str) -> None:
    if isinstance(content, bytes):
        edgewise.write("bad.gguf", content)
    else:
        content(edgewise.folder / "bad.gguf")
    refused(edgewise, "--edge", "bad.gguf", word=word, flag="--edge")


def test_a_graph_of_another_runtime(edgewise: Edgewise, onnx_path: Path, tmp_path: Path) -> None:
    """Its matrices are quantised for a runtime of another kind."""
    require_onnx()
    import onnx

    folder = Path(shutil.copytree(onnx_path, tmp_path / "changed"))
    graph = onnx.load(folder / "model.onnx")
    for node in graph.graph.node:
        if node.op_type == "MatMul":
            node.op_type, node.domain = "MatMulFourBits", "com.microsoft"
    onnx.save(graph, folder / "model.onnx")
    refused(edgewise, "--edge", str(folder), word="MatMulFourBits", flag="--edge")
    assert "(--cloud)" in edgewise.refusal("run", "hi", "--cloud", str(folder))


@pytest.mark.parametrize("form", ["onnx", "lfm2"])
def test_hidden_states_of_none(edgewise: Edgewise, hybrid_paths: HybridPaths, form: str) -> None:
    """A router that reads them is refused, and one that reads none is named."""
    if form == "onnx":
        require_onnx()
        plain, router = convert(read(bundled("edge")), "onnx", edgewise.folder / "plain"), "bundled"
    else:
        save_card(edgewise.folder / "router", read_card(bundled("router")))
        plain, router = hybrid_paths["lfm2"], "./router"
    asked = ("--edge", str(plain), "--router", router)
    refused(edgewise, *asked, word="such as entropy", flag="--router")
