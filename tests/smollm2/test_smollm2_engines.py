"""A real model's weights in float32 say the same in llama.cpp, ONNX Runtime and transformers.

Each form takes half a gigabyte, so these run where torch is: `make test-training`.
"""

from collections.abc import Iterator, Sequence
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
from pocket.convert.weights import Source, read  # noqa: E402
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


@pytest.fixture(scope="module")
def source(smollm2_path: Path) -> Source:
    return read(smollm2_path)


@pytest.fixture(scope="module", params=FORMS)
def model(
    request: pytest.FixtureRequest, source: Source, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[EdgeModel]:
    folder = convert(source, FORMS[request.param], tmp_path_factory.mktemp("forms") / "model")
    options = EdgeOptions(context=CONTEXT, threads=1, gpu_layers=0, slots=2)
    with closing(EDGES.load(request.param)(str(folder), options)) as loaded:
        yield loaded


@pytest.fixture(scope="module")
def floats(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_floats(tmp_path_factory.mktemp("floats") / "float.gguf", smollm2_path)


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


def test_it_says_what_llama_cpp_says(model: EdgeModel, floats: Path, smollm2_path: Path) -> None:
    prompt = prompt_ids(model.tokenizer, TALK)
    answer = answered(model, prompt)
    text = b"".join(map(model.tokenizer.piece, answer)).decode()
    assert text == "The capital of France is Paris."
    own = log_probs(model, prompt, answer)
    with LlamaModel(floats, context=CONTEXT, threads=1, gpu_layers=0) as llama:
        assert fingerprint(model.tokenizer) == fingerprint(llama.tokenizer)
        assert answered(llama, prompt) == answer
        assert far(own, log_probs(llama, prompt, answer)).max() < FLOAT_NATS
    with LlamaModel(smollm2_path, context=CONTEXT, threads=1, gpu_layers=0) as packed:
        assert far(own, log_probs(packed, prompt, answer)).mean() < PACKED_NATS
