"""The commands with edge models that are no GGUFs: folders for ONNX Runtime and transformers."""

import json
import sys
from pathlib import Path
from typing import Any

import httpx2
import pytest

from edgewise.addresses import bundled
from tests.asked import HARD
from tests.cli.conftest import Edgewise, Run
from tests.hub import Hub, Repository, serving
from tests.onnx_models import require_onnx
from tests.server.serving import serving as served
from tests.transformers_models import llama, write_hub_model

pytestmark = pytest.mark.deep

QUICK = ("--threads", "1", "--ctx", "160", "--gpu-layers", "0")
MACHINE = ("--threads", "1", "--gpu-layers", "0")
EAGER = ("--router", "entropy", "--threshold", "0.3")
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


def found(edgewise: Edgewise, *arguments: str, stdin: bytes = b"") -> Any:
    """The JSON that a command prints."""
    done = edgewise(*arguments, "--json", stdin=stdin)
    assert done.code == 0, done.err
    return json.loads(done.out)


class TestBesideTheBundledCloud:
    def test_run_consults(self, edgewise: Edgewise, converted: Converted) -> None:
        usage = found(edgewise, "run", HARD, *converted.pair, *EAGER)["usage"]
        assert usage["cloud_calls"] >= usage["correction_tokens"] > 0

    def test_the_bundled_router_reads_its_hidden_states(
        self, edgewise: Edgewise, converted: Converted, caplog: pytest.LogCaptureFixture
    ) -> None:
        asked = ("run", HARD, *converted.pair, "--router", "bundled", "--cloud-share", "0.2")
        done = edgewise(*asked, "--json")
        assert done.code == 0, done.err
        assert json.loads(done.out)["usage"]["cloud_tokens"] > 0
        assert "made on another build of the edge model (llama.cpp, " in caplog.text

    def test_chat(self, edgewise: Edgewise, converted: Converted, tmp_path: Path) -> None:
        lines = f"{HARD}\nAnd iron?\n/save talk.json\n/quit\n".encode()
        done = edgewise("chat", *converted.pair, *EAGER, stdin=lines)
        assert done.code == 0, done.err
        saved = json.loads((tmp_path / "talk.json").read_text())
        assert [answer["whole"] for answer in saved["answers"]] == [True, True]
        sources = [token["source"] for token in saved["answers"][0]["tokens"]]
        assert "cloud" in sources

    def test_serve(self, converted: Converted) -> None:
        asked = {"model": "edgewise", "messages": [{"role": "user", "content": HARD}]}
        with served(*converted.pair, *EAGER) as url:
            reply = httpx2.post(f"{url}/v1/chat/completions", json=asked, timeout=60).json()
        assert reply["choices"][0]["message"]["content"]
        assert reply["usage"]["edgewise"]["cloud_tokens"] > 0

    def test_doctor(self, edgewise: Edgewise, converted: Converted) -> None:
        told = found(edgewise, "doctor", *converted.pair, *EAGER[:2])["checks"]
        checks = {check["name"]: check for check in told}
        assert [one["name"] for one in told if one["status"] == "fail"] == []
        build = {"onnx": "onnxruntime-genai on CPU", "transformers": "transformers, float32 on cpu"}
        start = f"{converted.folder.name}, {build[converted.engine]}, "
        assert checks["edge model"]["detail"].startswith(start)
        assert checks["rewinds"]["detail"].startswith("anywhere: ")
        assert checks["vocabulary"]["detail"].startswith("one, proven: ")
        assert "ms warm" in checks["consult"]["detail"]

    def test_bench_edge(self, edgewise: Edgewise, converted: Converted) -> None:
        few = ("--context", "8", "--tokens", "4")
        speed = found(edgewise, "bench", "edge", *converted.edge, *few)
        assert speed["native_tokens_per_second"] > 0

    def test_eval(self, edgewise: Edgewise, converted: Converted) -> None:
        few = ("--limit", "5", "--calibration", "5", "--no-baselines", "--cloud-share", "0.2")
        told = found(edgewise, "eval", "pocketqa", *converted.pair, "--router", "entropy", *few)
        assert told["accuracy"].keys() == {"edge", "pair", "cloud"}
        assert 0 < told["cloud_share"] < 1

    def test_train(
        self, edgewise: Edgewise, converted: Converted, caplog: pytest.LogCaptureFixture
    ) -> None:
        """In four stages; the router is then of this build, and warns on the GGUF."""
        pytest.importorskip("torch")
        models = converted.pair
        for stage in ("collect", "label", "fit", "calibrate"):
            training = ("--out", "router", "--label", "mismatch", *FEW, "--stage", stage)
            done = edgewise("train", "pocketqa", *models, *training)
            assert done.code == 0, done.err
        caplog.clear()
        assert edgewise("run", HARD, *models, "--router", "router").code == 0
        assert not caplog.records
        assert edgewise("run", HARD, "--router", "router").code == 0
        assert "made on another build" in caplog.text

    def test_a_hub_repository(self, cli: Run, converted: Converted) -> None:
        files = {one.name: one.read_bytes() for one in converted.folder.iterdir()}
        with serving(Hub({"me/pocket": Repository(files)})) as hub:
            pair = ("--edge", "me/pocket", "--cloud", "bundled", *MACHINE, *EAGER)
            done = cli("run", HARD, *pair, "--json", HF_ENDPOINT=hub.endpoint)
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["usage"]["cloud_tokens"] > 0


@pytest.mark.deep
@pytest.mark.parametrize("converted", ["onnx"], indirect=True)
class TestAnotherBuild:
    """Of the model that a router was made for."""

    def test_it_is_calibrated_there_and_warns_no_more(
        self,
        edgewise: Edgewise,
        converted: Converted,
        tmp_path: Path,
        caplog: pytest.LogCaptureFixture,
    ) -> None:
        here = ("train", "pocketqa", "--out", "router", "--kind", "entropy", "--stage", "calibrate")
        made = edgewise(*here, "--calibration", "2")
        assert made.code == 0, made.err
        asked = ("run", HARD, *converted.pair, "--router", "router", "--cloud-share", "0.1")
        assert edgewise(*asked).code == 0
        (warned,) = [message for message in caplog.messages if "router" in message]
        assert warned.startswith("The router was made on another build of the edge model (llama")
        assert warned.endswith("; calibrate it on this build (edgewise train, stage calibrate).")
        again = edgewise(*here, "--calibration", "3", *converted.pair)
        assert again.code == 0, again.err
        caplog.clear()
        assert edgewise(*asked).code == 0
        assert not caplog.messages
        card = json.loads((tmp_path / "router" / "config.json").read_text())
        assert card["build"].startswith(converted.engine)
        assert len(card["thresholds"]) == 7


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random model in transformers' form."""
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    return write_hub_model(tmp_path_factory.mktemp("hub") / "tiny", llama())


def test_it_answers_beside_a_gguf_of_its_vocabulary(
    edgewise: Edgewise, folder: Path, bpe_path: Path
) -> None:
    models = ("--edge", str(folder), "--cloud", str(bpe_path), *QUICK)
    asking = ("--router", "constant:1", "--threshold", "0.5", "--max-tokens", "8", "--json")
    result = edgewise("run", "the cat", *models, *asking)
    assert result.code == 0, result.err
    usage = json.loads(result.out)["usage"]
    assert usage["cloud_tokens"] > 0


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
