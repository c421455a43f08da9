"""Keys: kept as hashes, found in constant time, gone when revoked."""

import time
from pathlib import Path

import pytest

from edgewise.errors import UsageError
from edgewise.gateway import keys
from edgewise.gateway.keys import ANYBODY, Key, Keys, add_key, read_keys, revoke_key
from edgewise.gateway.limits import DAY_SECONDS, Limits


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
    assert Limits().wait(ANYBODY) == 0


def key(**limits: float) -> Key:
    return Key(name="k", sha256="", created="", **limits)  # type: ignore[arg-type]


def test_a_rate_is_held() -> None:
    limits, rate = Limits(), 20.0
    begun, allowed = time.monotonic(), 0
    while time.monotonic() - begun < 0.5:
        allowed += limits.wait(key(asks_per_second=rate)) == 0
    burst = rate * 2
    assert burst <= allowed <= burst + rate * 0.5 + 2


def test_a_days_tokens_are_a_promise() -> None:
    limits, thrifty = Limits(), key(tokens_per_day=10, asks_per_second=0.0)
    assert limits.wait(thrifty) == 0
    limits.wrote(thrifty, 10)
    assert DAY_SECONDS - 5 < limits.wait(thrifty) <= DAY_SECONDS
