"""`edgewise pull`, from a hub on 127.0.0.1; and names that are nearly right."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from huggingface_hub import constants

from edgewise.addresses import bundled
from tests.cli.conftest import Edgewise, Run
from tests.hub import Hub, Repository, serving

SMALL = bundled("edge").read_bytes()


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """A hub, and an empty cache for what it has: that of the processes which `cli` runs."""
    folder = {"config.json": b'{"model_type": "llama"}', "model.safetensors": b"12345678"}
    repositories = {
        "me/tiny-gguf": Repository({"tiny-Q4_K_M.gguf": SMALL, "README.md": b"# Tiny"}),
        "me/folder": Repository(folder),
    }
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hf" / "hub"))
    with serving(Hub(repositories)) as started:
        yield started


@pytest.fixture
def asking(cli: Run, hub: Hub) -> Run:
    """Commands in processes of their own, which ask that hub."""
    return partial(cli, HF_ENDPOINT=hub.endpoint)


def test_what_is_pulled_loads(asking: Run, hub: Hub) -> None:
    hub.cuts = 1  # a download that breaks off goes on
    pulled = asking("pull", "me/tiny-gguf")
    assert pulled.returncode == 0, pulled.stderr
    assert Path(pulled.stdout.strip()).read_bytes() == SMALL
    assert "--edge me/tiny-gguf" in pulled.stderr
    folder = asking("pull", "me/folder")
    assert (Path(folder.stdout.strip()) / "model.safetensors").exists()
    ran = asking("run", "Hello", "--edge", "me/tiny-gguf", "--max-tokens", "2")
    assert ran.returncode == 0, ran.stderr


@pytest.mark.parametrize("model", ["bundled", "http://127.0.0.1:9", "small.gguf"])
def test_what_cannot_be_downloaded_is_said(edgewise: Edgewise, hub: Hub, model: str) -> None:
    result = edgewise("pull", model)
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert repr(model) in result.err
    assert not hub.requests


@pytest.mark.parametrize(
    ("arguments", "meant"),
    [
        (("run", "Hello", "--edge", "bundeld"), "'bundled'"),
        (("run", "Hello", "--router", "entrpy"), "'entropy'"),
        (("run", "Hello", "--cloud", "http://127.0.0.1:9", "--cloud-engine", "vlm"), "'vllm'"),
        (("pul",), "'pull'"),
        (("run", "Hello", "--cloud-shar", "0.1"), "--cloud-share"),
    ],
)
def test_a_name_that_is_nearly_one_is_asked_back(
    edgewise: Edgewise, arguments: tuple[str, ...], meant: str
) -> None:
    assert meant in edgewise(*arguments).err


def test_a_chat_command_that_is_nearly_one_is_asked_back(edgewise: Edgewise) -> None:
    assert "/share" in edgewise("chat", stdin=b"/shar 0.1\n").err
