"""A real model's weights in float32 say the same in llama.cpp, ONNX Runtime and transformers.

Each form takes half a gigabyte, so these run where torch is: `make test-training`.
"""

from collections.abc import Sequence
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from edgewise.edge.base import EdgeModel, EdgeOptions, Floats, Needs
from edgewise.edge.llamacpp import LlamaModel
from edgewise.edge.named import EDGES
from edgewise.edge.vocabulary import fingerprint
from edgewise.prompts import Message, prompt_ids
from tests.pocket.float_gguf import write_floats

for needed in ("torch", "transformers", "onnx", "onnxruntime_genai"):
    if find_spec(needed) is None:  # not imported: a run of other tests collects this file
        pytest.skip(f"needs {needed}", allow_module_level=True)

from pocket.convert.__main__ import convert  # noqa: E402
from pocket.convert.weights import read  # noqa: E402
from tests.pocket.test_convert import greedy, read_along  # noqa: E402

FORMS = {"transformers": "safetensors", "onnx": "onnx"}
TALK = [Message("user", "What is the capital of France?")]
CONTEXT = 128

FLOAT_NATS = 0.05
"""Log-probs of the ten likeliest ids, at most, against llama.cpp on the same float32 weights: its
keys and values are float16, the rest is the order of sums. 0.015 was measured."""

PACKED_NATS = 0.3
"""The same on average, against the file in 4 bits: the same weights, but before each of its
matrices llama.cpp rounds activations to 8 bits. 0.12 was measured, and 0.59 at most."""

Rows = list[Floats]


def log_probs(model: EdgeModel, prompt: Sequence[int], answer: Sequence[int]) -> Rows:
    """Of every id after the prompt and after each token but the last."""
    steps = read_along(model, prompt, answer, Needs.LOGITS)
    shifted = [step.logits - step.logits.max() for step in steps]
    return [row - np.log(np.exp(row).sum()) for row in shifted]


def answered(model: EdgeModel, prompt: Sequence[int]) -> list[int]:
    return [step.proposed for step in greedy(model, prompt, Needs.LOGITS)]


def far(left: Rows, right: Rows) -> Floats:
    """Nats between them, for the ten ids that the left holds likeliest: float32[rows, 10]."""
    likeliest = [np.argsort(row)[-10:] for row in left]
    pairs = zip(left, right, likeliest, strict=True)
    return np.array([np.abs(one[ids] - other[ids]) for one, other, ids in pairs])


def test_each_engine_says_what_llama_cpp_says(smollm2_path: Path, tmp_path: Path) -> None:
    floats = write_floats(tmp_path / "float.gguf", smollm2_path)
    with LlamaModel(floats, context=CONTEXT, threads=1, gpu_layers=0) as llama:
        prompt = prompt_ids(llama.tokenizer, TALK)
        answer, vocabulary = answered(llama, prompt), fingerprint(llama.tokenizer)
        text = b"".join(map(llama.tokenizer.piece, answer)).decode()
        unrounded = log_probs(llama, prompt, answer)
    assert text == "The capital of France is Paris."
    with LlamaModel(smollm2_path, context=CONTEXT, threads=1, gpu_layers=0) as llama:
        packed = log_probs(llama, prompt, answer)
    source, options = (
        read(smollm2_path),
        EdgeOptions(context=CONTEXT, threads=1, gpu_layers=0, slots=2),
    )
    for engine, form in FORMS.items():
        folder = convert(source, form, tmp_path / form)
        with closing(EDGES.load(engine)(str(folder), options)) as model:
            assert fingerprint(model.tokenizer) == vocabulary
            assert prompt_ids(model.tokenizer, TALK) == prompt
            assert answered(model, prompt) == answer
            own = log_probs(model, prompt, answer)
        assert far(own, unrounded).max() < FLOAT_NATS
        assert far(own, packed).mean() < PACKED_NATS
