"""`edgewise models`: what is on this disk, downloaded from a hub on 127.0.0.1 and removed again."""

import json
import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from edgewise.addresses import bundled
from tests.cli.conftest import Edgewise, Run
from tests.hub import Hub, Repository, serving

SMALL = bundled("edge").read_bytes()
PARTS = {f"large-Q8_0-0000{n}-of-00002.gguf": b"GGUF" + bytes(n) for n in (1, 2)}


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


@pytest.fixture
def asking(cli: Run, hub: Hub) -> Run:
    """Commands in processes of their own, which ask that hub."""
    return partial(cli, HF_ENDPOINT=hub.endpoint)


def listed(edgewise: Edgewise) -> dict[str, dict[str, Any]]:
    result = edgewise("models", "list", "--json")
    assert result.code == 0, result.err
    return {one["address"]: one for one in json.loads(result.out)}


CLOUD = ("run", "Hello", "--cloud", "http://127.0.0.1:9")
SHIPPED = {"bundled", "bundled (cloud)"}


def test_what_ships_is_listed_without_a_cache(edgewise: Edgewise, hub: Hub) -> None:
    found = listed(edgewise)
    assert set(found) == SHIPPED
    assert found["bundled"]["size"] == len(SMALL)
    assert Path(found["bundled"]["path"]) == bundled("edge")
    assert "bundled (cloud)" in edgewise("models", "list").out
    assert not hub.requests


def test_a_model_is_downloaded_listed_and_removed(edgewise: Edgewise, asking: Run) -> None:
    pulled = asking("models", "pull", "me/tiny-gguf")
    assert pulled.returncode == 0, pulled.stderr
    path = Path(pulled.stdout.strip())
    assert path.read_bytes() == SMALL
    assert "--edge me/tiny-gguf" in pulled.stderr
    assert asking("models", "pull", "me/tiny-gguf:q8_0").returncode == 0
    found = listed(edgewise)
    small, large = (f"hf://me/tiny-gguf/{name}" for name in ("tiny-Q4_K_M.gguf", next(iter(PARTS))))
    assert set(found) == {*SHIPPED, small, large}
    assert found[small]["size"] == len(SMALL)
    assert found[large]["size"] == sum(map(len, PARTS.values()))
    assert "582.1 kB" in edgewise("models", "list").out
    # What is listed is what loads it.
    assert asking("run", "Hello", "--edge", small, "--max-tokens", "2").returncode == 0

    refused = edgewise("models", "remove", "me/tiny-gguf", stdin=b"y\n")
    assert refused.code == 2
    assert "3 files, 582.1 kB without being asked, say --yes." in refused.err
    removed = edgewise("models", "remove", "me/tiny-gguf:Q8_0", "--yes")
    assert (removed.code, "2 files, 11 bytes" in removed.err) == (0, True), removed.err
    assert set(listed(edgewise)) == {*SHIPPED, small}
    assert path.exists()
    assert edgewise("models", "remove", "me/tiny-gguf", "--yes").code == 0
    assert set(listed(edgewise)) == SHIPPED
    assert not path.exists()


def test_a_folder_is_one_model(
    edgewise: Edgewise, asking: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    pulled = asking("models", "pull", "me/folder")
    assert pulled.returncode == 0, pulled.stderr
    folder = Path(pulled.stdout.strip())
    assert (folder / "model.safetensors").exists()
    assert listed(edgewise)["me/folder"]["path"] == str(folder)

    def refused(path: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", refused)
        kept = edgewise("models", "remove", "me/folder", "-y")
    assert (kept.code, kept.err.count("\n")) == (2, 1)
    assert "could not be removed; check who may write" in kept.err
    assert edgewise("models", "remove", "me/folder", "-y").code == 0
    assert set(listed(edgewise)) == SHIPPED


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("pull", "bundled"), "is no hub repository"),
        (("pull", "http://127.0.0.1:9"), "is an engine's address"),
        (("pull", "small.gguf"), "is no hub repository"),
        (("remove", "bundled", "--yes"), "is part of Edgewise"),
        (("remove", "me/tiny-gguf", "--yes"), "Nothing of 'me/tiny-gguf' is kept here"),
        (("remove", "../../etc", "--yes"), "is kept here"),
        (("remove", "me/tiny-gguf@v1", "--yes"), "names a revision"),
    ],
)
def test_what_cannot_be_is_said(
    edgewise: Edgewise, hub: Hub, arguments: tuple[str, ...], told: str
) -> None:
    result = edgewise("models", *arguments)
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert told in result.err
    assert not hub.requests


def test_a_name_that_is_nearly_one_is_asked_back(
    edgewise: Edgewise, asking: Run, hub: Hub, tmp_path: Path
) -> None:
    hub.cuts = 1  # a download that breaks off goes on
    assert asking("models", "pull", "me/tiny-gguf").returncode == 0
    near = asking("run", "Hello", "--edge", "me/tiny-ggfu")
    assert near.returncode == 2
    assert "did you mean 'me/tiny-gguf', which is here?" in near.stderr
    (tmp_path / "small.gguf").write_bytes(SMALL)
    for typed, meant in (("smal.gguf", "small.gguf"), ("./smal.gguf", "./small.gguf")):
        assert f"did you mean '{meant}'?" in edgewise("run", "Hello", "--edge", typed).err
    assert "did you mean 'bundled'?" in edgewise("run", "Hello", "--edge", "bundeld").err
    assert "did you mean 'entropy'?" in edgewise("run", "Hello", "--router", "entrpy").err
    assert "did you mean 'gsm8k'?" in edgewise("eval", "gsmk").err
    assert "did you mean 'vllm'?" in edgewise(*CLOUD, "--cloud-engine", "vlm").err


def test_a_command_that_is_nearly_one_is_asked_back(edgewise: Edgewise) -> None:
    assert "Did you mean 'models'?" in edgewise("model").err
    assert "--cloud-share" in edgewise("run", "Hello", "--cloud-shar", "0.1").err
    assert "did you mean /share?" in edgewise("chat", stdin=b"/shar 0.1\n").err
