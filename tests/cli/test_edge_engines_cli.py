"""The commands with edge models that are no GGUFs: folders for ONNX Runtime and transformers."""

from pathlib import Path

import pytest

from edgewise.addresses import bundled
from tests.asked import HARD
from tests.cli.conftest import Edgewise
from tests.onnx_models import require_onnx

pytestmark = pytest.mark.deep

MACHINE = ("--threads", "1", "--gpu-layers", "0")
FORMS = {"onnx": "onnx-hidden", "transformers": "safetensors"}
FEW = ("--limit", "8", "--calibration", "4", "--epochs", "4")


class Converted:
    """The bundled edge model for another engine."""

    def __init__(self, engine: str, root: Path) -> None:
        from pocket.convert.__main__ import convert
        from pocket.convert.weights import read

        self.engine = engine
        self.folder = convert(read(bundled("edge")), FORMS[engine], root / f"pocket-{engine}")
        self.edge = ("--edge", str(self.folder), *MACHINE)
        self.pair = (*self.edge, "--cloud", "bundled")


@pytest.fixture(scope="module", params=FORMS)
def converted(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Converted:
    if request.param == "onnx":
        require_onnx()
    else:
        pytest.importorskip("torch")
        pytest.importorskip("transformers")
    return Converted(request.param, tmp_path_factory.mktemp("converted"))


class TestBesideTheBundledCloud:
    def test_the_bundled_router_reads_its_hidden_states(
        self, edgewise: Edgewise, converted: Converted, caplog: pytest.LogCaptureFixture
    ) -> None:
        asked = ("run", HARD, *converted.pair, "--router", "bundled", "--cloud-share", "0.2")
        usage = edgewise.json(*asked)["usage"]
        assert usage["cloud_calls"] >= usage["correction_tokens"] > 0
        assert "made on another build of the edge model (llama.cpp, " in caplog.text

    def test_train(
        self, edgewise: Edgewise, converted: Converted, caplog: pytest.LogCaptureFixture
    ) -> None:
        """The router is then of this build, and warns on the GGUF."""
        pytest.importorskip("torch")
        models = converted.pair
        training = ("train", "pocketqa", *models, "--out", "router", "--label", "final", *FEW)
        edgewise(*training)
        for stage in ("fit", "calibrate"):
            edgewise(*training, "--stage", stage)
        caplog.clear()
        edgewise("run", HARD, *models, "--router", "router")
        assert not caplog.records
        edgewise("run", HARD, "--router", "router")
        assert "made on another build" in caplog.text
