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
    ("train", "pocketqa", "--out", "r", "--stage", "collect", "--limit", "1"),
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
        done = edgewise(*command, *flags)
    assert came == []
    assert done.code == 2
    assert "(good.example)" in done.err
    assert "--cloud-hosts" in done.err


def test_doctor_says_what_to_do_and_connects_nowhere(edgewise: Edgewise) -> None:
    with visited() as (url, came):
        done = edgewise("doctor", "--cloud", url, "--cloud-hosts", "good.example")
    assert came == []
    assert done.code != 0
    assert "good.example" in done.out
    assert "add its host (--cloud-hosts)" in done.out


@pytest.mark.parametrize(
    ("own", "named"),
    [("", "edge-key"), ("edge-hosts = '192.0.2.1'\n", "edge-hosts"), ("trust = 'a'\n", "trust")],
)
def test_a_file_leads_the_edges_key_nowhere(
    edgewise: Edgewise, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, own: str, named: str
) -> None:
    with visited() as (url, came):
        (tmp_path / "edgewise.toml").write_text(f"edge = '{url}'\ncloud = 'none'\n{own}")
        monkeypatch.setenv("EDGEWISE_EDGE_KEY", "secret")
        done = edgewise("run", "Hello")
    assert came == []
    assert done.code == 2
    assert named in done.err


def test_an_edge_elsewhere_is_not_connected_to(edgewise: Edgewise) -> None:
    done = edgewise("run", "Hello", "--edge", "http://192.0.2.1:8080", "--cloud", "none")
    assert done.code == 2
    assert "--edge-hosts" in done.err


@pytest.mark.parametrize("url", ["http://10.0.0.7:8080", "http://192.168.1.9", "http://[fe80::1]"])
def test_a_file_names_no_edge_on_another_machine(
    edgewise: Edgewise, tmp_path: Path, url: str
) -> None:
    (tmp_path / "edgewise.toml").write_text(f"edge = '{url}'\n")
    done = edgewise("run", "Hello")
    assert done.code == 2
    assert url in done.err
    assert "EDGEWISE_EDGE" in done.err


@pytest.mark.parametrize("asked", ["CLOUD=none", "CLOUD_HOSTS=good.example", "REDACT=on"])
def test_a_file_names_no_edge_where_the_user_keeps_prompts(
    edgewise: Edgewise, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, asked: str
) -> None:
    """What listens on this machine may pass everything on."""
    name, _, value = asked.partition("=")
    monkeypatch.setenv(f"EDGEWISE_{name}", value)
    with visited() as (url, came):
        (tmp_path / "edgewise.toml").write_text(f"edge = '{url}'\n")
        done = edgewise("run", "Hello")
    assert (came, done.code) == ([], 2)
    assert url in done.err


def test_a_file_names_an_edge_on_this_machine(edgewise: Edgewise, tmp_path: Path) -> None:
    with visited() as (url, came):
        (tmp_path / "edgewise.toml").write_text(f"edge = '{url}'\ncloud = 'none'\n")
        done = edgewise("run", "Hello")
    assert came
    assert url in done.err


def test_a_download_runs_no_code_when_it_is_checked(
    edgewise: Edgewise, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    downloaded = Path(shutil.copytree(bundled("router"), tmp_path / "cache"))
    card = json.loads((downloaded / "config.json").read_text())
    (downloaded / "config.json").write_text(json.dumps(card | {"kind": "mine.py:Own"}))
    (downloaded / "mine.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.setattr("edgewise.opening.checkpoint", lambda name: downloaded)
    assert edgewise("router", "check", "owner/router").code == 2
    assert not (tmp_path / "ran").exists()
