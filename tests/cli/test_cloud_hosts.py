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
    assert "none of the hosts that are allowed (good.example)" in done.err
    assert "--cloud-hosts" in done.err


@pytest.mark.parametrize("widened", [False, True])
def test_a_models_file_leads_to_no_other_host(
    edgewise: Edgewise, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, widened: bool
) -> None:
    """Nor does the second of two models, where the first is as it should be."""
    monkeypatch.setenv("EDGEWISE_CLOUD_HOSTS", "good.example")
    with visited() as (url, came):
        wider = "cloud-hosts = '127.0.0.1'\n" if widened else ""
        (tmp_path / "a.toml").write_text("cloud = 'none'\n")
        (tmp_path / "b.toml").write_text(f"cloud = '{url}'\n{wider}")
        models = ("--model", "a=a.toml", "--model", "b=b.toml")
        done = edgewise("serve", "--port", "0", "--threads", "1", *models)
    assert came == []
    assert done.code == 2
    assert "(good.example)" in done.err


def test_doctor_says_what_to_do_and_connects_nowhere(edgewise: Edgewise) -> None:
    with visited() as (url, came):
        done = edgewise("doctor", "--cloud", url, "--cloud-hosts", "good.example")
    assert came == []
    assert done.code != 0
    assert "none of the hosts" in done.out
    assert "add its host (--cloud-hosts)" in done.out


def test_a_list_that_is_none_is_a_sentence(edgewise: Edgewise) -> None:
    done = edgewise("run", "Hello", "--cloud-hosts", "http://a/")
    assert done.code == 2
    assert "cloud-hosts" in done.err
    assert "'http://a/'" in done.err


@pytest.mark.parametrize("own", ["", "edge-hosts = '192.0.2.1'\n"])
def test_a_file_leads_the_edges_key_nowhere(
    edgewise: Edgewise, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, own: str
) -> None:
    with visited() as (url, came):
        (tmp_path / "edgewise.toml").write_text(f"edge = '{url}'\ncloud = 'none'\n{own}")
        monkeypatch.setenv("EDGEWISE_EDGE_KEY", "secret")
        done = edgewise("run", "Hello")
    assert came == []
    assert done.code == 2
    assert "edge-key" in done.err


def test_an_edge_elsewhere_is_not_connected_to(edgewise: Edgewise) -> None:
    done = edgewise("run", "Hello", "--edge", "http://192.0.2.1:8080", "--cloud", "none")
    assert done.code == 2
    assert "--edge-hosts" in done.err
