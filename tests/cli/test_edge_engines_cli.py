"""The commands with an edge model that is no GGUF: a folder in transformers' form."""

import json
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import Edgewise
from tests.transformers_models import llama, write_hub_model

pytest.importorskip("torch")
pytest.importorskip("transformers")

QUICK = ("--threads", "1", "--ctx", "160", "--gpu-layers", "0")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_hub_model(tmp_path_factory.mktemp("hub") / "tiny", llama())


def test_doctor_names_engine_and_build(edgewise: Edgewise, folder: Path) -> None:
    result = edgewise("doctor", "--edge", str(folder), "--json")
    checks = {check["name"]: check for check in json.loads(result.out)["checks"]}
    assert checks["edge model"]["status"] == "ok"
    assert checks["edge model"]["detail"].startswith("tiny, transformers, float32 on cpu, 0.1 M")
    assert checks["token round trip"]["status"] == "ok"


def test_it_answers_beside_a_gguf_of_its_vocabulary(
    edgewise: Edgewise, folder: Path, bpe_path: Path
) -> None:
    models = ("--edge", str(folder), "--cloud", str(bpe_path), *QUICK)
    asking = ("--router", "constant:1", "--threshold", "0.5", "--max-tokens", "8", "--json")
    result = edgewise("run", "the cat", *models, *asking)
    assert result.code == 0, result.err
    usage = json.loads(result.out)["usage"]
    assert usage["cloud_tokens"] > 0


def test_it_is_measured_against_its_own_loop(edgewise: Edgewise, folder: Path) -> None:
    few = ("--context", "8", "--tokens", "4", "--json", "--threads", "1", "--gpu-layers", "0")
    result = edgewise("bench", "edge", "--edge", str(folder), *few)
    assert result.code == 0, result.err
    assert json.loads(result.out)["native_tokens_per_second"] > 0


def test_a_conversation(edgewise: Edgewise, folder: Path) -> None:
    models = ("--edge", str(folder), "--cloud", "none", *QUICK)
    result = edgewise("chat", *models, "--max-tokens", "4", stdin=b"the cat\nthe hat\n/quit\n")
    assert result.code == 0, result.err


@pytest.mark.parametrize("missing", ["torch", "transformers"])
def test_without_the_extra(
    edgewise: Edgewise, folder: Path, monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    monkeypatch.setitem(sys.modules, missing, None)
    result = edgewise("run", "hi", "--edge", str(folder), "--cloud", "none")
    assert result.code == 2
    assert f"needs {missing}; pip install 'edgewise[transformers]'" in result.err


def test_a_folder_of_something_else(edgewise: Edgewise, tmp_path: Path) -> None:
    result = edgewise("run", "hi", "--edge", str(tmp_path), "--cloud", "none")
    assert result.code == 2
    assert "holds neither genai_config.json nor config.json with safetensors" in result.err
    assert "--edge" in result.err
