"""Keys: kept as hashes, found in constant time, gone when revoked."""

from pathlib import Path

import pytest

from edgewise.errors import UsageError
from edgewise.gateway import keys
from edgewise.gateway.key_file import ANYBODY, read_keys
from edgewise.gateway.keys import Keys, add_key, revoke_key


def add(path: Path, name: str = "laptop", **limits: float) -> str:
    asked = {"asks_per_second": 50.0, "tokens_per_day": 0, "sessions": 16, **limits}
    return add_key(path, name, **asked)  # type: ignore[arg-type]


def test_a_key_is_kept_as_a_hash(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    secret = add(path)
    assert len(secret) > 40
    assert secret not in path.read_text()
    assert path.stat().st_mode & 0o077 == 0
    found = Keys(path).find(secret)
    assert found is not None
    assert found.name == "laptop"
    for other in ("", secret[:-1], secret + "x", "ew-"):
        assert Keys(path).find(other) is None


def test_a_revoked_key_stops_working(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "CHECK_SECONDS", 0.0)
    path = tmp_path / "keys.json"
    secret, other = add(path), add(path, "phone")
    held = Keys(path)
    key = held.find(secret)
    assert key is not None
    revoke_key(path, "laptop")
    assert held.find(secret) is None
    assert held.find_named(key) is None
    assert held.find(other) is not None
    add(path)  # of the same name, with another secret
    assert held.find(secret) is None
    assert held.find_named(key) is None


def test_a_file_in_the_middle_of_a_change_locks_nobody_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(keys, "CHECK_SECONDS", 0.0)
    path = tmp_path / "keys.json"
    secret = add(path)
    held = Keys(path)
    path.write_text("{")
    assert held.find(secret) is not None
    assert "no file of keys" in caplog.text
    assert secret not in caplog.text


@pytest.mark.parametrize("content", ["", "[]", '{"format": 1}', "\x00\xff"])
def test_what_is_no_file_of_keys(tmp_path: Path, content: str) -> None:
    path = tmp_path / "keys.json"
    path.write_text(content)
    with pytest.raises(UsageError, match="no file of keys"):
        Keys(path)


def test_names_are_there_once(tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    add(path)
    with pytest.raises(UsageError, match="already"):
        add(path)
    with pytest.raises(UsageError, match="no key"):
        revoke_key(path, "phone")
    with pytest.raises(UsageError, match="limits"):
        add(path, "phone", sessions=-1)
    assert [key.name for key in read_keys(path)] == ["laptop"]


def test_without_a_file_everybody_comes_in() -> None:
    assert Keys(None).find("") is ANYBODY
