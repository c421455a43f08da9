"""The commands with an edge model in MLX form."""

from pathlib import Path

import pytest

from tests.cli.conftest import Edgewise
from tests.hub_models import write_mlx_model

QUICK = ("--ctx", "160", "--gpu-layers", "0")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_mlx_model(tmp_path_factory.mktemp("mlx") / "tiny", "llama", bits=8)


def test_doctor_names_engine_and_build(edgewise: Edgewise, folder: Path) -> None:
    told = edgewise.json("doctor", "--edge", str(folder), "--gpu-layers", "0")
    checks = {check["name"]: check for check in told["checks"]}
    assert checks["edge model"]["status"] == "ok"
    assert checks["edge model"]["detail"].startswith("tiny, MLX, 8-bit on cpu, 0.1 M")


def test_it_answers_beside_a_gguf_of_its_vocabulary(
    edgewise: Edgewise, folder: Path, bpe_path: Path
) -> None:
    models = ("--edge", str(folder), "--edge-engine", "mlx", "--cloud", str(bpe_path), *QUICK)
    asking = ("--router", "constant:1", "--threshold", "0.5", "--max-tokens", "8")
    usage = edgewise.json("run", "the cat", *models, *asking)["usage"]
    assert usage["cloud_tokens"] > 0
