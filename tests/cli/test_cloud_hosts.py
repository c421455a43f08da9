"""No command connects to a cloud that the user's own list does not name."""

import json
import shutil
from pathlib import Path

import pytest

from edgewise.addresses import bundled
from tests.cli.conftest import Edgewise
from tests.visited import visited

COMMANDS = [
    ("run", "Hello"),
    ("chat",),
    ("serve", "--port", "0"),
    ("eval", "pocketqa", "--limit", "1"),
    ("train", "pocketqa", "--out", "r", "--stage", "calibrate", "--limit", "1"),
    ("bench", "link", "--questions", "2"),
]


@pytest.mark.parametrize("named", ["flag", "environment", "file"])
@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_no_command_connects_to_another_host(
    edgewise: Edgewise,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    named: str,
    command: tuple[str, ...],
) -> None:
    """Whoever made the folder cannot lead a command past it."""
    monkeypatch.setenv("EDGEWISE_CLOUD_HOSTS", "good.example")
    flags: tuple[str, ...] = ()
    with visited() as (url, came):
        if named == "file":
            own = f"cloud = '{url}'\ncloud-hosts = '127.0.0.1'\n"
            (tmp_path / "edgewise.toml").write_text(own)
        elif named == "environment":
            monkeypatch.setenv("EDGEWISE_CLOUD", url)
        else:
            flags = ("--cloud", url)
        done = edgewise(*command, *flags, code=2)
    assert came == []
    assert "(good.example)" in done.err
    assert "--cloud-hosts" in done.err


def test_doctor_says_what_to_do_and_connects_nowhere(edgewise: Edgewise) -> None:
    with visited() as (url, came):
        done = edgewise("doctor", "--cloud", url, "--cloud-hosts", "good.example", code=1)
    assert came == []
    assert "good.example" in done.out
    assert "add its host (--cloud-hosts)" in done.out


@pytest.mark.parametrize(
    ("own", "asked", "named"),
    [
        ("cloud = 'none'", "EDGE_KEY=secret", "edge-key"),
        ("cloud = 'none'\nedge-hosts = '192.0.2.1'", "EDGE_KEY=secret", "edge-hosts"),
        ("cloud = 'none'\ntrust = 'a'", "EDGE_KEY=secret", "trust"),
        # What listens on this machine may pass on what the user keeps from clouds.
        *(("", asked, "{url}") for asked in ("CLOUD=none", "CLOUD_HOSTS=a.example", "REDACT=on")),
    ],
)
def test_a_file_leads_neither_key_nor_prompt_to_its_edge(
    edgewise: Edgewise,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    own: str,
    asked: str,
    named: str,
) -> None:
    name, _, value = asked.partition("=")
    monkeypatch.setenv(f"EDGEWISE_{name}", value)
    with visited() as (url, came):
        (tmp_path / "edgewise.toml").write_text(f"edge = '{url}'\n{own}\n")
        assert named.format(url=url) in edgewise.refusal("run", "Hello")
    assert came == []


def test_an_edge_elsewhere_is_not_connected_to(edgewise: Edgewise) -> None:
    away = ("--edge", "http://192.0.2.1:8080", "--cloud", "none")
    assert "--edge-hosts" in edgewise.refusal("run", "Hello", *away)


@pytest.mark.parametrize("url", ["http://10.0.0.7:8080", "http://192.168.1.9", "http://[fe80::1]"])
def test_a_file_names_no_edge_on_another_machine(
    edgewise: Edgewise, tmp_path: Path, url: str
) -> None:
    (tmp_path / "edgewise.toml").write_text(f"edge = '{url}'\n")
    said = edgewise.refusal("run", "Hello")
    assert url in said
    assert "EDGEWISE_EDGE" in said


def test_a_file_names_an_edge_on_this_machine(edgewise: Edgewise, tmp_path: Path) -> None:
    with visited() as (url, came):
        (tmp_path / "edgewise.toml").write_text(f"edge = '{url}'\ncloud = 'none'\n")
        done = edgewise("run", "Hello", code=2)
    assert came
    assert url in done.err


def test_a_download_runs_no_code(
    edgewise: Edgewise, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    downloaded = Path(shutil.copytree(bundled("router"), tmp_path / "cache"))
    card = json.loads((downloaded / "config.json").read_text())
    (downloaded / "config.json").write_text(json.dumps(card | {"kind": "mine.py:Own"}))
    (downloaded / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.setattr("edgewise.opening.checkpoint", lambda name: downloaded)
    edgewise("run", "Hello", "--router", "owner/router", code=2)
    assert not (tmp_path / "ran").exists()
