"""`edgewise config`: what is in force, and from where."""

import json
from pathlib import Path

import pytest

from edgewise.settings import NAMES, Settings
from tests.cli.conftest import Edgewise, sentence


def in_force(edgewise: Edgewise) -> dict[str, tuple[object, str]]:
    return {one["name"]: (one["value"], one["from"]) for one in edgewise.json("config")}


def test_every_setting_is_told_with_where_it_comes_from(
    edgewise: Edgewise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "edgewise.toml").write_text("cloud-share = 0.1  # a tenth\nthreads = 2\n")
    monkeypatch.setenv("EDGEWISE_THREADS", "1")
    monkeypatch.setenv("EDGEWISE_CLOUD_KEY", "sk-secret")
    found = in_force(edgewise)
    assert [name.replace("-", "_") for name in found] == list(NAMES)
    assert found["cloud-share"] == (0.1, "edgewise.toml")
    assert found["threads"] == (1, "EDGEWISE_THREADS")
    assert found["span"] == (Settings().span, "default")
    assert found["cloud-key"] == ("(set)", "EDGEWISE_CLOUD_KEY")
    shown = edgewise("config")
    assert "sk-secret" not in shown.out + json.dumps(found)
    assert "EDGEWISE_THREADS" in shown.out
    assert str(tmp_path) in shown.err
    usual = {one["name"]: one["default"] for one in edgewise.json("config")}
    assert usual["cloud-share"].startswith("10%")
    assert (usual["router"], usual["threshold"]) == ("auto", "")


@pytest.mark.parametrize("command", [("config",), ("doctor",)])
@pytest.mark.parametrize("by_file", [False, True])
def test_a_key_in_an_address_is_refused_and_not_shown(
    edgewise: Edgewise,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
    by_file: bool,
) -> None:
    if by_file:
        (tmp_path / "edgewise.toml").write_text('cloud = "https://me:sk-secret@host"\n')
    else:
        monkeypatch.setenv("EDGEWISE_CLOUD", "https://me:sk-secret@host")
    result = edgewise(*command, code=2)
    assert "holds a key" in sentence(result)
    assert "sk-secret" not in result.err
