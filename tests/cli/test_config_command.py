"""`edgewise config`: what is in force and from where; edgewise.toml edited, its comments kept."""

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from edgewise.settings import NAMES, Settings
from tests.cli.conftest import Edgewise

FILE = """\
# For the laptop.
cloud-share = 0.1  # a tenth

threads = 2
"""


@contextmanager
def umask(mode: int) -> Iterator[None]:
    before = os.umask(mode)
    try:
        yield
    finally:
        os.umask(before)


@contextmanager
def open_to_others(folder: Path, secret: str) -> Iterator[set[str]]:
    """Names of the files in `folder` that held `secret` at any time and that others might read.

    Looked at as often as this process does anything that Python audits.
    """
    found: set[str] = set()
    watched = True

    def look(event: str, _: object) -> None:
        nonlocal watched
        # Not at what is done to look.
        if not watched or not event.startswith(("os.chmod", "os.rename", "os.remove")):
            return
        watched = False
        found.update(
            path.name
            for path in folder.iterdir()
            if path.stat().st_mode & 0o077 and secret in path.read_text()
        )
        watched = True

    sys.addaudithook(look)
    try:
        yield found
        look("os.rename", ())
    finally:
        # A hook stays for ever; one that looks no more does nothing.
        watched = False


def in_force(edgewise: Edgewise) -> dict[str, tuple[object, str]]:
    result = edgewise("config", "--json")
    assert result.code == 0, result.err
    return {one["name"]: (one["value"], one["from"]) for one in json.loads(result.out)}


def test_every_setting_is_told_with_where_it_comes_from(
    edgewise: Edgewise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "edgewise.toml").write_text(FILE)
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
    assert str(tmp_path) in shown.err.replace("\n", "")


@pytest.mark.parametrize("command", [("config",), ("config", "--json"), ("doctor",)])
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
    result = edgewise(*command)
    assert (result.code, result.err.count("\n")) == (2, 1)
    assert "address holds a key" in result.err
    assert "sk-secret" not in result.out + result.err


def test_of_two_halves_one_is_in_force(
    edgewise: Edgewise, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "edgewise.toml").write_text("threshold = 0.5\n")
    monkeypatch.setenv("EDGEWISE_CLOUD_SHARE", "5%")
    found = in_force(edgewise)
    assert found["threshold"] == (None, "default")
    assert found["cloud-share"] == (0.05, "EDGEWISE_CLOUD_SHARE")


def test_the_path_is_told_before_there_is_a_file(edgewise: Edgewise, tmp_path: Path) -> None:
    result = edgewise("config", "path")
    assert result.out == f"{tmp_path / 'edgewise.toml'}\n"
    assert "no such file" in result.err
    (tmp_path / "edgewise.toml").write_text(FILE)
    assert edgewise("config", "path").err == ""


def test_comments_and_order_stay(edgewise: Edgewise, tmp_path: Path) -> None:
    place = tmp_path / "edgewise.toml"
    place.write_text(FILE)
    place.chmod(0o600)
    assert edgewise("config", "set", "cloud_share", "5%").code == 0
    assert edgewise("config", "set", "gpu-layers", "7").code == 0
    assert place.read_text() == FILE.replace("0.1 ", "0.05 ") + "gpu-layers = 7\n"
    assert place.stat().st_mode & 0o777 == 0o600
    assert edgewise("config", "unset", "threads").code == 0
    assert "threads" not in place.read_text()
    assert "# a tenth" in place.read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["edgewise.toml"]


@pytest.mark.parametrize("before", [None, 0o600])
def test_a_key_is_for_its_owners_eyes_at_any_time(
    edgewise: Edgewise, tmp_path: Path, before: int | None
) -> None:
    place = tmp_path / "edgewise.toml"
    if before is not None:
        place.write_text(FILE)
        place.chmod(before)
    with umask(0o022), open_to_others(tmp_path, "sk-secret") as seen:
        assert edgewise("config", "set", "cloud-key", "sk-secret").code == 0
    assert seen == set()
    assert place.stat().st_mode & 0o777 == 0o600


def test_a_file_that_others_may_read_stays_one(edgewise: Edgewise, tmp_path: Path) -> None:
    place = tmp_path / "edgewise.toml"
    place.write_text(FILE)
    place.chmod(0o644)
    assert edgewise("config", "set", "span", "2").code == 0
    assert place.stat().st_mode & 0o777 == 0o644


def test_a_folder_that_cannot_be_written_is_a_sentence(edgewise: Edgewise, tmp_path: Path) -> None:
    (tmp_path / "edgewise.toml").symlink_to(tmp_path / "gone" / "mine.toml")
    result = edgewise("config", "set", "span", "2")
    assert (result.code, result.out) == (2, "")
    assert result.err == "edgewise: edgewise.toml cannot be written: No such file or directory.\n"


def test_a_file_is_made_where_there_is_none(edgewise: Edgewise, tmp_path: Path) -> None:
    for key, value in (("edge", "small.gguf"), ("span", "3"), ("gpu-layers", "auto")):
        assert edgewise("config", "set", key, value).code == 0
    assert (tmp_path / "edgewise.toml").read_text() == (
        'edge = "small.gguf"\nspan = 3\ngpu-layers = "auto"\n'
    )
    assert in_force(edgewise)["span"] == (3, "edgewise.toml")


def test_a_key_that_stands_there_in_two_spellings_is_one(
    edgewise: Edgewise, tmp_path: Path
) -> None:
    place = tmp_path / "edgewise.toml"
    place.write_text("max-tokens = 3\nmax_tokens = 4\n")
    assert edgewise("config", "set", "max-tokens", "5").code == 0
    assert place.read_text() == "max-tokens = 5\n"


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("set", "thread", "2"), "There is no setting 'thread'; did you mean 'threads'?"),
        (("set", "cloud-shar", "5%"), "setting 'cloud-shar'; did you mean 'cloud-share'?"),
        (("set", "threads", "two"), "threads in the arguments is not valid: Expected `int | null`"),
        (("set", "threads", "9999"), "threads must be from 1 to 512, not 9999."),
        (("set", "cloud-share", "much"), "'much'"),
        (("set", "cloud-share", "500%"), "The cloud share must be from 0 to 1, not 5.0; give a"),
        (("set", "temperature", "101"), "temperature must be from 0 to 100, not 101.0."),
        (("set", "span", "0"), "The span must be 1 or more, not 0."),
        (("set", "price", "free"), "neither three numbers nor a file"),
        (("set", "max-cost", "inf"), "max-cost must be 0 or more, not inf."),
        (("set", "redact", "emial"), "redact names no class 'emial'"),
        (("set", "cloud-context", "some"), "cloud-context"),
        (("set", "cloud-engine", "vlm"), "did you mean 'vllm'?"),
        (("set", "edge-engine", "onx"), "did you mean 'onnx'?"),
        (("set", "gpu-layers", "many"), "Invalid enum value 'many'; give auto or a number"),
        (("set", "threshold", "0.5"), "Give a threshold or a cloud share, not both"),
        (("set", "router", "./mine.py:Mine"), "router in edgewise.toml runs code"),
        (("set", "system", "\udcff"), "valid UTF-8"),
        (("set", "cloud-hosts", ","), "cloud-hosts names no host"),
        (("set", "cloud", "https://me:sk-secret@host"), "holds a key"),
        (("set", "cloud", "\udcff"), "valid UTF-8"),
        (("set", "cloud-key", "sk secret"), "has blanks, line breaks or characters that no key"),
        (("set", "seed", "null"), "'null' sets nothing; edgewise config unset seed does that."),
        (("unset", "span"), "edgewise.toml has no span"),
        (("unset", "spam"), "There is no setting 'spam'; did you mean 'span'?"),
    ],
)
def test_what_a_command_would_refuse_is_refused(
    edgewise: Edgewise, tmp_path: Path, arguments: tuple[str, ...], told: str
) -> None:
    (tmp_path / "edgewise.toml").write_text(FILE)
    result = edgewise("config", *arguments)
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert told in result.err
    assert (tmp_path / "edgewise.toml").read_text() == FILE


@pytest.mark.parametrize("arguments", [(), ("set", "span", "2"), ("unset", "span")])
@pytest.mark.parametrize("data", [b"span = = 1\n", b"\xff\xfe", b"# " + b"x" * (65 << 10)])
def test_a_file_that_is_none_is_told_and_left_alone(
    edgewise: Edgewise, tmp_path: Path, arguments: tuple[str, ...], data: bytes
) -> None:
    (tmp_path / "edgewise.toml").write_bytes(data)
    result = edgewise("config", *arguments)
    assert (result.code, result.out, result.err.count("\n")) == (2, "", 1)
    assert "edgewise.toml" in result.err
    assert (tmp_path / "edgewise.toml").read_bytes() == data


def test_what_is_refused_there_can_be_taken_out(edgewise: Edgewise, tmp_path: Path) -> None:
    (tmp_path / "edgewise.toml").write_text("router = './mine.py:Mine'\nspan = 2\n")
    assert "runs code" in edgewise("config").err
    assert edgewise("config", "unset", "router").code == 0
    assert (tmp_path / "edgewise.toml").read_text() == "span = 2\n"


def test_a_link_stays_one(edgewise: Edgewise, tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "mine.toml").write_text("span = 2\n")
    (tmp_path / "edgewise.toml").symlink_to(tmp_path / "kept" / "mine.toml")
    assert edgewise("config", "set", "span", "3").code == 0
    assert (tmp_path / "edgewise.toml").is_symlink()
    assert (tmp_path / "kept" / "mine.toml").read_text() == "span = 3\n"


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("seed", "7"),
        ("max-cost", "1.5"),
        ("max-cost-day", "2.5"),
        ("price", "0.28,0.028,0.42"),
        ("redact", "email,ip=mask"),
        ("redact-words", "Falcon,Acme"),
        ("cloud-context", "2000tokens"),
        ("cloud-hosts", "localhost,10.0.0.1:8080"),
        ("cloud-engine", "vllm"),
        ("cloud-model", "large"),
        ("cloud", "localhost:8080"),
        ("cloud", "./large.gguf"),
        ("router", "entropy"),
        ("max-cloud-tokens", "3"),
        ("on-cloud-error", "raise"),
        ("system", 'Be "brief"\n\\ \x7f'),
    ],
)
def test_settings_are_made_one_by_one_in_any_order(
    edgewise: Edgewise, key: str, value: str
) -> None:
    """What only goes with another one may be set before it."""
    assert edgewise("config", "set", key, value).code == 0
    found, _ = in_force(edgewise)[key]
    assert str(found) == value
