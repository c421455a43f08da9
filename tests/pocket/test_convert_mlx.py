"""The bundled edge model in MLX form says what llama.cpp says."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from edgewise.addresses import bundled
from edgewise.edge.llamacpp import LlamaModel
from edgewise.edge.named import engine_at
from edgewise.edge.vocabulary import fingerprint
from edgewise.options.mlx.model import MlxModel
from pocket.convert.__main__ import convert
from pocket.convert.weights import read
from tests.pocket.test_convert import assert_same_floats, greedy, prompts_for

pytest.importorskip("mlx_lm", exc_type=ImportError)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return convert(read(bundled("edge")), "mlx", tmp_path_factory.mktemp("converted") / "mlx")


@pytest.fixture(scope="module")
def mlx(folder: Path) -> Iterator[MlxModel]:
    with MlxModel(folder) as model:
        yield model


def test_what_lies_there_chooses_the_engine(folder: Path) -> None:
    assert engine_at(str(folder)) == "mlx"


def test_tokens_logits_and_hidden_states_are_llama_cpps_on_the_same_floats(
    mlx: MlxModel, tmp_path: Path
) -> None:
    with LlamaModel(bundled("edge"), threads=1, gpu_layers=0) as llama:
        assert fingerprint(mlx.tokenizer) == fingerprint(llama.tokenizer)
    prompts = prompts_for(mlx)
    assert_same_floats(prompts, [greedy(mlx, prompt) for prompt in prompts], tmp_path)
