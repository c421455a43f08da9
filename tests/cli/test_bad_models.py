"""Models that an engine cannot run: one sentence, with the flag or the line that helps."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import gguf
import numpy as np
import pytest

from edgewise.addresses import bundled
from edgewise.routers.card import read_card
from edgewise_lab.training.publish import save_card
from pocket.convert.__main__ import convert
from pocket.convert.weights import read
from tests.cli.conftest import Edgewise
from tests.hub_files import write_tokenizer
from tests.hybrid_models import HybridPaths
from tests.models import byte_level, finish, write_byte_level
from tests.onnx_models import require_onnx

SENTENCE = r"edgewise: [^\n]+; [^\n]+ \((--[a-z-]+)\)\.\n"


class Models(NamedTuple):
    """A good model in each form, to be spoilt; `root` is for what is made of them."""

    root: Path
    onnx: Path
    hybrids: HybridPaths

    def gguf(self) -> Path:
        return write_byte_level(self.root / "small.gguf")

    def hub(self, **config: object) -> Path:
        """Everything of a folder in transformers' form but right weights."""
        from safetensors.numpy import save_file

        folder = write_tokenizer(self.root / "hub", byte_level())
        described = {"model_type": "llama", "architectures": ["LlamaForCausalLM"]} | config
        (folder / "config.json").write_text(json.dumps(described))
        save_file({}, folder / "model.safetensors")
        return folder

    def changed_onnx(self, edit: Callable[[dict[str, Any]], object]) -> Path:
        folder = Path(shutil.copytree(self.onnx, self.root / "changed"))
        path = folder / "genai_config.json"
        config = json.loads(path.read_text())
        edit(config)
        path.write_text(json.dumps(config))
        return folder

    def without(self, folder: Path, name: str) -> Path:
        copy = Path(shutil.copytree(folder, self.root / "without", dirs_exist_ok=True))
        (copy / name).unlink()
        return copy


def an_encoder(models: Models) -> Path:
    """BERT with random weights: it reads a text as a whole, and writes none."""
    path, width, rng = models.root / "encoder.gguf", 32, np.random.default_rng(0)
    writer, vocabulary = gguf.GGUFWriter(path, "bert"), byte_level()
    writer.add_context_length(64)
    writer.add_embedding_length(width)
    writer.add_block_count(1)
    writer.add_feed_forward_length(width)
    writer.add_head_count(2)
    writer.add_layer_norm_eps(1e-5)
    writer.add_causal_attention(False)
    writer.add_token_type_count(2)
    shapes = {
        "token_embd": (len(vocabulary.tokens), width),
        "position_embd": (64, width),
        "token_types": (2, width),
    }
    norms = ["token_embd_norm", "blk.0.attn_output_norm", "blk.0.layer_output_norm"]
    parts = ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", "ffn_down")
    shapes |= dict.fromkeys((f"blk.0.{part}" for part in parts), (width, width))
    tensors = {f"{name}.weight": shape for name, shape in shapes.items()}
    tensors |= {f"{norm}.weight": (width,) for norm in norms}
    biased = [*norms, *(f"blk.0.{part}" for part in parts)]
    tensors |= {f"{name}.bias": (width,) for name in biased}
    made = ((name, rng.standard_normal(shape, np.float32)) for name, shape in tensors.items())
    return finish(writer, vocabulary, made, path)


def of_unknown_type(models: Models) -> Path:
    """Weights quantised in a way that llama.cpp does not know."""
    path = models.gguf()
    reader = gguf.GGUFReader(path, "r+")
    for tensor in reader.tensors:
        tensor.field.parts[4][0] = 77
    reader.data.flush()
    return path


def without_words(models: Models) -> Path:
    """A GGUF that says nothing of its tokenizer."""
    path = models.gguf()
    path.write_bytes(path.read_bytes().replace(b"tokenizer.ggml", b"elsewhere.ggml"))
    return path


def of_another_operator(models: Models) -> Path:
    """A graph whose matrices are quantised for a runtime of another kind."""
    import onnx

    folder = models.changed_onnx(lambda config: None)
    graph = onnx.load(folder / "model.onnx")
    for node in graph.graph.node:
        if node.op_type == "MatMul":
            node.op_type, node.domain = "MatMulFourBits", "com.microsoft"
    onnx.save(graph, folder / "model.onnx")
    return folder


class Case(NamedTuple):
    """What is named, and what is said."""

    make: Callable[[Models], Path]
    told: str
    flags: tuple[str, ...] = ()


LLAMA, GENAI, HUB = (("--edge-engine", name) for name in ("llamacpp", "onnx", "transformers"))
CASES = {
    "llamacpp, a folder": Case(lambda m: m.hub(), "is a folder", LLAMA),
    "llamacpp, a file of words": Case(lambda m: m.hub() / "config.json", "is not a GGUF file"),
    "llamacpp, an encoder": Case(an_encoder, "is not a decoder-only model; choose one that is"),
    "llamacpp, no tokenizer": Case(without_words, "tokenizer|vocab"),
    "llamacpp, another quantisation": Case(of_unknown_type, "is truncated, damaged or of an unkno"),
    "onnx, a folder of safetensors": Case(
        lambda m: m.hub(), "holds no genai_config.json; name a folder that", GENAI
    ),
    "onnx, a GGUF": Case(lambda m: m.gguf(), "There is no folder", GENAI),
    "onnx, an encoder": Case(
        lambda m: m.changed_onnx(lambda c: c["model"].update(encoder={"filename": "e.onnx"})),
        "and no decoder-only language model; choose one that is",
    ),
    "onnx, no tokenizer": Case(
        lambda m: m.without(m.onnx, "tokenizer.json"), "There is no tokenizer.json"
    ),
    "onnx, another quantisation": Case(of_another_operator, "lacks .*MatMulFourBits"),
    "transformers, a folder for ONNX": Case(
        lambda m: m.onnx, "There is no config.json in .*transformers' form, or a GGUF", HUB
    ),
    "transformers, a GGUF": Case(lambda m: m.gguf(), "There is no folder", HUB),
    "transformers, an encoder": Case(
        lambda m: m.hub(architectures=["BertModel"]), "name a causal language model"
    ),
    "transformers, another quantisation": Case(
        lambda m: m.hub(quantization_config={"quant_method": "gptq"}),
        r"is quantised \(gptq\).* or a GGUF of it",
    ),
}


@pytest.fixture
def models(tmp_path: Path, request: pytest.FixtureRequest, hybrid_paths: HybridPaths) -> Models:
    require_onnx()
    onnx_path: Path = request.getfixturevalue("onnx_path")
    (tmp_path / "models").mkdir()
    return Models(tmp_path / "models", onnx_path, hybrid_paths)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_a_sentence_with_its_flag(edgewise: Edgewise, models: Models, case: Case) -> None:
    if "transformers" in case.flags or case.told.startswith(("name a causal", "is quant")):
        pytest.importorskip("transformers")
    told_by_flag(edgewise, "--edge", str(case.make(models)), *case.flags, told=case.told)


def told_by_flag(edgewise: Edgewise, *arguments: str, told: str, flag: str = "--edge") -> None:
    done = edgewise("run", "hi", "--cloud", "none", "--threads", "1", *arguments)
    assert (done.code, done.out) == (2, ""), done.err
    assert re.search(told, done.err), done.err
    found = re.fullmatch(SENTENCE, done.err)
    assert found, done.err
    assert found[1] == flag


def test_hidden_states_of_a_model_without(
    edgewise: Edgewise, models: Models, tmp_path: Path
) -> None:
    """A router that reads them, for LFM2 in llama.cpp and for a folder without them."""
    plain = convert(read(bundled("edge")), "onnx", tmp_path / "plain")
    told = "hands out none; choose one that reads none, such as entropy, or another build"
    reads = ("--router", "bundled")
    told_by_flag(edgewise, "--edge", str(plain), *reads, told=told, flag="--router")
    card = read_card(bundled("router"))
    save_card(tmp_path / "router", card, ())
    lfm2 = ("--edge", str(models.hybrids["lfm2"]), "--router", str(tmp_path / "router"))
    told_by_flag(edgewise, *lfm2, told=told, flag="--router")


def test_a_folder_for_the_cloud(edgewise: Edgewise, models: Models) -> None:
    done = edgewise("run", "hi", "--cloud", str(models.onnx))
    assert done.code == 2
    assert "GGUF" in done.err
    assert "(--cloud)" in done.err


def test_doctor_says_the_same(edgewise: Edgewise, models: Models) -> None:
    done = edgewise("doctor", "--edge", str(models.without(models.onnx, "tokenizer.json")))
    assert done.code == 1
    assert "fix: save the model's fast tokenizer there, or name a GGUF of the model (--edge)" in (
        done.out
    )
