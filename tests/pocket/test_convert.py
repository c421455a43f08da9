"""Converted models say what llama.cpp says: one set of weights as ONNX, safetensors and MLX."""

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file

from benchmarks import random_qwen
from benchmarks.random_qwen import Shape
from edgewise.addresses import bundled
from edgewise.edge.base import EdgeModel, Needs, Step
from edgewise.edge.llamacpp import LlamaModel
from edgewise.edge.tokenizer_json import HubTokenizer
from edgewise.edge.vocabulary import fingerprint
from edgewise.options.onnx.model import OnnxModel
from edgewise.prompts import Message, prompt_ids
from edgewise_lab.evaluation.tasks.pocketqa import pocketqa
from pocket.convert.__main__ import convert
from pocket.convert.weights import Source, read
from tests.hybrid_models import HybridPaths
from tests.pocket.float_gguf import write_floats

pytestmark = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("onnx", "onnxruntime_genai", "tokenizers")),
    reason="needs onnxruntime-genai, and onnx to write models",
)

PER_FAMILY, TOKENS = 3, 48
PROMPT = list(range(60, 90))
FLOAT_TOLERANCE = 0.02
"""Of the largest logit, against llama.cpp on float32 weights, whose KV cache is float16; 0.007 was
measured over 60 questions."""


@pytest.fixture(scope="module")
def source() -> Source:
    return read(bundled("edge"))


@pytest.fixture(scope="module")
def onnx(source: Source, tmp_path_factory: pytest.TempPathFactory) -> Iterator[OnnxModel]:
    folder = convert(source, "onnx-hidden", tmp_path_factory.mktemp("converted") / "hidden")
    with OnnxModel(folder, threads=1) as model:
        yield model


@pytest.fixture(scope="module")
def prompts(onnx: OnnxModel) -> list[list[int]]:
    return prompts_for(onnx)


def prompts_for(model: EdgeModel) -> list[list[int]]:
    """Of the bundled questions, some of each family, as the chat template writes them."""
    task = pocketqa("test")
    chosen = task.first(PER_FAMILY * len(task.families)).questions
    return [prompt_ids(model.tokenizer, [Message("user", q.prompt)]) for q in chosen]


@pytest.fixture(scope="module")
def answers(onnx: OnnxModel, prompts: list[list[int]]) -> list[list[Step]]:
    return [greedy(onnx, prompt) for prompt in prompts]


WHOLE = Needs.LOGITS | Needs.HIDDEN


def greedy(model: EdgeModel, prompt: Sequence[int], needs: Needs = WHOLE) -> list[Step]:
    """The steps of a greedy answer, the last one's token an end."""
    steps: list[Step] = []
    with closing(model.session(needs)) as session:
        session.open(prompt)
        while len(steps) < TOKENS:
            steps.append(session.step())
            if steps[-1].proposed in model.tokenizer.eos_ids:
                break
            session.extend([steps[-1].proposed])
    return steps


def read_along(
    model: EdgeModel, prompt: Sequence[int], answer: Sequence[int], needs: Needs = WHOLE
) -> list[Step]:
    """What a model says at each token of another's answer."""
    with closing(model.session(needs)) as session:
        session.open(prompt)
        return [session.step(), *session.steps(answer[:-1])]


def distance(left: Step, right: Step) -> float:
    """Largest difference of two steps' logits, as a share of the largest logit."""
    return float(np.abs(left.logits - right.logits).max() / np.abs(right.logits).max())


def test_greedy_answers_and_logits_are_llama_cpps_on_the_same_floats(
    prompts: list[list[int]], answers: list[list[Step]], tmp_path: Path
) -> None:
    assert_same_floats(prompts, answers, tmp_path)


def assert_same_floats(
    prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[Step]], folder: Path
) -> None:
    """Tokens, logits and hidden states are llama.cpp's on the bundled edge's weights, unrounded."""
    path = write_floats(folder / "float.gguf", bundled("edge"))
    same = 0
    with LlamaModel(path, threads=1, gpu_layers=0) as model:
        for prompt, answer in zip(prompts, answers, strict=True):
            tokens = [step.proposed for step in answer]
            steps = read_along(model, prompt, tokens)
            same += [step.proposed for step in steps] == tokens
            assert max(map(distance, answer, steps)) < FLOAT_TOLERANCE
            for left, right in zip(answer, steps, strict=True):
                np.testing.assert_allclose(
                    left.hidden, right.hidden, rtol=0, atol=0.04 * np.abs(right.hidden).max()
                )
    # A tie within the rounding of the KV cache may fall otherwise, once.
    assert same >= len(prompts) - 1


def test_the_vocabulary_is_the_ggufs(onnx: OnnxModel) -> None:
    with LlamaModel(bundled("edge"), threads=1, gpu_layers=0) as model:
        assert fingerprint(onnx.tokenizer) == fingerprint(model.tokenizer)
        assert onnx.tokenizer.chat_template == model.tokenizer.chat_template
        assert onnx.tokenizer.eos_ids == model.tokenizer.eos_ids
        assert onnx.tokenizer.bos_id == model.tokenizer.bos_id


@pytest.mark.parametrize("form", ["safetensors", "mlx"])
def test_weights_in_hugging_face_form(source: Source, form: str, tmp_path: Path) -> None:
    folder = convert(source, form, tmp_path / form)
    held = load_file(folder / "model.safetensors")
    assert held.keys() == source.weights.keys()
    assert all(np.array_equal(held[name], source.weights[name]) for name in held)
    with safe_open(folder / "model.safetensors", "numpy") as opened:
        assert opened.metadata() == {"format": "mlx" if form == "mlx" else "pt"}
    config = json.loads((folder / "config.json").read_text())
    embeddings = held["model.embed_tokens.weight"]
    assert (config["vocab_size"], config["hidden_size"]) == embeddings.shape
    assert config["tie_word_embeddings"] == ("lm_head.weight" not in held)
    assert HubTokenizer(folder).size == config["vocab_size"]


def test_safetensors_say_in_transformers_what_onnx_says(
    source: Source, prompts: list[list[int]], answers: list[list[Step]], tmp_path: Path
) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    folder = convert(source, "safetensors", tmp_path / "hub")
    how = {"attn_implementation": "eager", "dtype": torch.float32}
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, **how)
    prompt, answer = prompts[0], answers[0]
    whole = torch.tensor([[*prompt, *(step.proposed for step in answer[:-1])]])
    with torch.inference_mode():
        logits = model(whole).logits[0, len(prompt) - 1 :].numpy()
    wanted = np.stack([step.logits for step in answer])
    np.testing.assert_allclose(logits, wanted, rtol=0, atol=1e-3 * np.abs(wanted).max())


def test_a_model_with_a_head_of_its_own_and_grouped_attention(
    bpe_path: Path, tmp_path: Path
) -> None:
    source = read(bpe_path)
    assert not source.tied
    assert source.kv_heads < source.heads
    assert_alike(convert(source, "onnx-hidden", tmp_path / "untied"), bpe_path)


def assert_alike(folder: Path, gguf: Path) -> None:
    """Vocabulary and logits in ONNX are llama.cpp's."""
    with (
        OnnxModel(folder, context=128, threads=1) as onnx,
        LlamaModel(gguf, context=128, threads=1, gpu_layers=0) as llama,
    ):
        assert fingerprint(onnx.tokenizer) == fingerprint(llama.tokenizer)
        answer = greedy(onnx, PROMPT)
        steps = read_along(llama, PROMPT, [step.proposed for step in answer])
        assert max(map(distance, answer, steps)) < FLOAT_TOLERANCE


@pytest.fixture(scope="module")
def qwen_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its queries, keys and values have biases."""
    shape = Shape(hidden=64, layers=2, heads=4, kv_heads=2, ffn=96, vocabulary=300, eos=299)
    return random_qwen.build(tmp_path_factory.mktemp("qwen") / "qwen.gguf", shape=shape)


def test_a_qwen_is_the_same_in_llama_cpp_and_onnx(qwen_path: Path, tmp_path: Path) -> None:
    folder = convert(read(qwen_path), "onnx-hidden", tmp_path / "onnx")
    assert_alike(folder, write_floats(tmp_path / "float.gguf", qwen_path))


def test_what_is_not_converted_says_so(
    bpe_path: Path, spm_path: Path, hybrid_paths: HybridPaths, source: Source, tmp_path: Path
) -> None:
    # A Llama has no biases: without them its logits were wrong.
    bias = {"blk.0.attn_q.bias": np.ones(64, np.float32)}
    biased = write_floats(tmp_path / "biased.gguf", bpe_path, bias)
    with pytest.raises(ValueError, match=r"'blk\.0\.attn_q\.bias'"):
        read(biased)
    with pytest.raises(ValueError, match="only byte-level BPE"):
        convert(read(spm_path), "mlx", tmp_path / "spm")
    with pytest.raises(ValueError, match="no plain Llama"):
        read(hybrid_paths["falcon-h1"])
    strange = replace(source, vocabulary=replace(source.vocabulary, pre="other"))
    with pytest.raises(ValueError, match="'gpt2'"):
        convert(strange, "onnx", tmp_path / "other")
