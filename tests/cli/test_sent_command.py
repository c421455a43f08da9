"""`edgewise sent`, and what runs leave for it."""

import json
from pathlib import Path

import pytest

from edgewise.addresses import bundled
from tests.cli.conftest import Edgewise
from tests.llama_server_process import llama_server

QUESTION = "Tell me about copper."


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path / "state" / "edgewise" / "sent.db"


@pytest.mark.deep
def test_a_run_is_shown(edgewise: Edgewise, state: Path, tmp_path: Path) -> None:
    assert "nothing was sent" in edgewise("sent").err
    with llama_server(bundled("cloud")) as engine:
        asked = ("run", QUESTION, "--cloud", engine, "--cloud-share", "0.3", "--max-tokens", "12")
        done = edgewise(*asked, "--sent-file", "out.jsonl", "--json")
        assert done.code == 0, done.err
        shown = edgewise("sent")
    usage = json.loads(done.out)["usage"]["sent"]
    host = engine.removeprefix("http://")
    assert usage["host"] == host
    assert shown.code == 0
    assert host in shown.out
    for name in ("consults", "bytes", "tokens"):
        assert f"{usage[name]:,}" in shown.out
    listed = json.loads(edgewise("sent", "--json").out)
    assert sum(message["bytes"] for message in listed) == usage["bytes"]
    assert b"copper" not in state.read_bytes()
    assert "copper" in (tmp_path / "out.jsonl").read_text()


def test_what_sends_nothing_keeps_nothing(edgewise: Edgewise, state: Path) -> None:
    assert edgewise("run", QUESTION, "--max-tokens", "4").code == 0
    assert edgewise("run", QUESTION, "--max-tokens", "4", "--cloud", "none").code == 0
    assert not state.parent.exists()


def test_a_file_that_is_not_of_counts_is_named(edgewise: Edgewise, state: Path) -> None:
    state.parent.mkdir(parents=True)
    state.write_text("something else, longer than the header of a database\n" * 9)
    told = edgewise("sent")
    assert told.code == 2
    assert str(state) in told.err


def test_a_file_for_payloads_must_be_writable(edgewise: Edgewise) -> None:
    told = edgewise("run", QUESTION, "--sent-file", "no/such/folder.jsonl")
    assert told.code == 2
    assert "no/such/folder.jsonl" in told.err
    assert edgewise("sent", "--limit", "0").code == 2
