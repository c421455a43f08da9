"""No command connects to a cloud that the user's own list does not name."""

import json
import shutil
from pathlib import Path

import pytest

from edgewise.addresses import bundled
from tests.cli.conftest import Edgewise
from tests.visited import visited

COMMANDS = [
    "run Hello",
    "chat",
    "serve --port 0",
    "eval pocketqa --limit 1",
    "train pocketqa --out r --stage calibrate --limit 1",
    "bench link --questions 2",
    "doctor",
]


@pytest.mark.parametrize("named", ["flag", "environment", "file"])
@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_connects_to_another_host(edgewise: Edgewise, named: str, command: str) -> None:
    """Whoever made the folder cannot lead a command past it."""
    edgewise.setenv(EDGEWISE_CLOUD_HOSTS="good.example")
    with visited() as (url, came):
        if named == "file":
            edgewise.configure(f"cloud = '{url}'\ncloud-hosts = '127.0.0.1'")
        elif named == "environment":
            edgewise.setenv(EDGEWISE_CLOUD=url)
        flags = ("--cloud", url) if named == "flag" else ()
        done = edgewise(*command.split(), *flags, code=1 if command == "doctor" else 2)
    assert came == []
    said = done.err + done.out
    assert "(good.example)" in said
    assert "--cloud-hosts" in said


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
def test_a_file_leads_to_no_edge(edgewise: Edgewise, own: str, asked: str, named: str) -> None:
    name, _, value = asked.partition("=")
    edgewise.setenv(**{f"EDGEWISE_{name}": value})
    with visited() as (url, came):
        edgewise.configure(f"edge = '{url}'\n{own}")
        assert named.format(url=url) in edgewise.refusal("run", "Hello")
    assert came == []


def test_a_file_names_an_edge_on_this_machine_and_on_no_other(edgewise: Edgewise) -> None:
    away = ("--edge", "http://192.0.2.1:8080", "--cloud", "none")
    assert "--edge-hosts" in edgewise.refusal("run", "Hello", *away)
    for url in ("http://10.0.0.7:8080", "http://192.168.1.9", "http://[fe80::1]"):
        edgewise.configure(f"edge = '{url}'")
        said = edgewise.refusal("run", "Hello")
        assert url in said
        assert "EDGEWISE_EDGE" in said
    with visited() as (url, came):
        edgewise.configure(f"edge = '{url}'\ncloud = 'none'")
        done = edgewise("run", "Hello", code=2)
    assert came
    assert url in done.err


def test_a_download_runs_no_code(edgewise: Edgewise, monkeypatch: pytest.MonkeyPatch) -> None:
    downloaded = Path(shutil.copytree(bundled("router"), edgewise.folder / "cache"))
    card = json.loads((downloaded / "config.json").read_text())
    (downloaded / "config.json").write_text(json.dumps(card | {"kind": "mine.py:Own"}))
    (downloaded / "mine.py").write_text(f"open({str(edgewise.folder / 'ran')!r}, 'w')")
    monkeypatch.setattr("edgewise.opening.checkpoint", lambda name: downloaded)
    edgewise("run", "Hello", "--router", "owner/router", code=2)
    assert not (edgewise.folder / "ran").exists()
