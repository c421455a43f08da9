"""No command connects to a cloud that the user's own list does not name."""

from pathlib import Path

import pytest

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
