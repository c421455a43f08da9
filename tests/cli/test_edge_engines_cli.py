"""The commands with edge models that are no GGUFs: folders for ONNX Runtime and transformers."""

import pytest

from edgewise.addresses import bundled
from pocket.convert.__main__ import convert
from pocket.convert.weights import read
from tests.asked import HARD
from tests.cli.conftest import Edgewise
from tests.installed import require
from tests.onnx_models import require_onnx

pytestmark = pytest.mark.deep

MACHINE = ("--threads", "1", "--gpu-layers", "0")
FORMS = {"onnx": "onnx-hidden", "transformers": "safetensors"}
FEW = ("--limit", "4", "--calibration", "2", "--max-tokens", "32", "--epochs", "1")


@pytest.fixture(scope="module", params=FORMS)
def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, ...]:
    """The bundled edge model for another engine, beside the bundled cloud."""
    if request.param == "onnx":
        require_onnx()
    else:
        require("torch", "transformers")
    folder = tmp_path_factory.mktemp("converted") / f"pocket-{request.param}"
    convert(read(bundled("edge")), FORMS[request.param], folder)
    return ("--edge", str(folder), *MACHINE, "--cloud", "bundled")


def test_the_bundled_router_reads_its_hidden_states(
    edgewise: Edgewise, pair: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    asked = ("run", HARD, *pair, "--router", "bundled", "--cloud-share", "0.2")
    usage = edgewise.json(*asked)["usage"]
    assert usage["cloud_calls"] >= usage["correction_tokens"] > 0
    assert "made on another build of the edge model (llama.cpp, " in caplog.text


def test_train(edgewise: Edgewise, pair: tuple[str, ...], caplog: pytest.LogCaptureFixture) -> None:
    """The router is then of this build, and warns on the GGUF."""
    require("torch")
    training = ("train", "pocketqa", *pair, "--out", "router", "--label", "final", *FEW)
    edgewise(*training)
    for stage in ("fit", "calibrate"):
        edgewise(*training, "--stage", stage)
    caplog.clear()
    edgewise("run", HARD, *pair, "--router", "router")
    assert not caplog.records
    edgewise("run", HARD, "--router", "router")
    assert "made on another build" in caplog.text
