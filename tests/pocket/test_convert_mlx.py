"""The bundled edge model in MLX form says what llama.cpp says."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from edgewise.addresses import bundled, engine_at
from edgewise.edge.llamacpp import LlamaModel
from edgewise.edge.mlx import MlxModel
from edgewise.edge.vocabulary import fingerprint
from edgewise.prompts import Message, prompt_ids
from edgewise_lab.evaluation.tasks.pocketqa import pocketqa
from pocket.convert.__main__ import convert
from pocket.convert.weights import read
from tests.pocket.float_gguf import write_floats
from tests.pocket.test_convert import (
    FLOAT_TOLERANCE,
    PER_FAMILY,
    distance,
    greedy,
    read_along,
)

pytest.importorskip("mlx_lm", exc_type=ImportError)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return convert(read(bundled("edge")), "mlx", tmp_path_factory.mktemp("converted") / "mlx")


@pytest.fixture(scope="module")
def mlx(folder: Path) -> Iterator[MlxModel]:
    with MlxModel(folder) as model:
        yield model


@pytest.fixture(scope="module")
def answers(mlx: MlxModel) -> list[tuple[list[int], list[int]]]:
    """Prompts of bundled questions, some of each family, and greedy answers' tokens."""
    task = pocketqa("test")
    chosen = [
        question.prompt
        for family in task.families
        for question in [q for q in task.questions if q.family == family][:PER_FAMILY]
    ]
    prompts = [prompt_ids(mlx.tokenizer, [Message("user", prompt)]) for prompt in chosen]
    return [(prompt, [step.proposed for step in greedy(mlx, prompt)]) for prompt in prompts]


def test_what_lies_there_chooses_the_engine(folder: Path) -> None:
    assert engine_at(str(folder)) == "mlx"


def test_tokens_logits_and_hidden_states_are_llama_cpps_on_the_same_floats(
    mlx: MlxModel, answers: list[tuple[list[int], list[int]]], tmp_path: Path
) -> None:
    same = 0
    path = write_floats(tmp_path / "float.gguf", bundled("edge"))
    with LlamaModel(path, threads=1, gpu_layers=0) as llama:
        assert fingerprint(mlx.tokenizer) == fingerprint(llama.tokenizer)
        for prompt, tokens in answers:
            ours, theirs = (read_along(model, prompt, tokens) for model in (mlx, llama))
            same += [step.proposed for step in theirs] == tokens
            assert max(map(distance, ours, theirs)) < FLOAT_TOLERANCE
            for left, right in zip(ours, theirs, strict=True):
                np.testing.assert_allclose(
                    left.hidden, right.hidden, rtol=0, atol=0.04 * np.abs(right.hidden).max()
                )
    # A tie within the rounding of the KV cache may fall otherwise, once.
    assert same >= len(answers) - 1
