"""Keys: kept as hashes, found in constant time, gone when revoked or expired."""

import os
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from edgewise.errors import UsageError
from edgewise.keys import keys
from edgewise.keys.keys import Keys, add_key, read_keys, revoke_key
from tests.gateway.conftest import Told


def add(path: Path, name: str = "laptop", **limits: Any) -> str:
    asked = {"consults_per_second": 50.0, "tokens_per_day": 0, "sessions": 16, **limits}
    return add_key(path, name, **asked)


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a file of keys, which is looked at whenever a key is looked up."""
    monkeypatch.setattr(keys, "CHECK_SECONDS", 0.0)
    return tmp_path / "keys.json"


def changes(told: Told) -> list[list[str]]:
    """Names of keys that were added, edited or revoked, or have expired, in the order of looks."""
    return [entry["keys"] for entry in told if entry["event"] == "keys changed"]


def edit(path: Path, **fields: Any) -> None:
    """The first key of a file, by hand."""
    found = msgspec.json.decode(path.read_bytes())
    found["keys"][0] |= fields
    path.write_bytes(msgspec.json.encode(found))


def name_of(held: Keys, secret: str) -> str:
    """Of a key that is in force."""
    key = held.find(secret)
    assert key is not None
    return key.name


def test_a_key_is_kept_as_a_hash(path: Path) -> None:
    secret = add(path)
    assert len(secret) > 40
    assert secret not in path.read_text()
    assert path.stat().st_mode & 0o077 == 0
    assert name_of(Keys(path), secret) == "laptop"
    for other in ("", secret[:-1], secret + "x", "ew-", "\u00e9\u20ac"):
        assert Keys(path).find(other) is None


def test_a_change_holds_for_who_is_here_already(path: Path) -> None:
    secret, other = add(path), add(path, "phone")
    held = Keys(path)
    key = held.find(secret)
    assert key is not None
    edit(path, consults_per_second=3)
    now = held.current(key)
    assert now is not None
    assert now.consults_per_second == 3
    revoke_key(path, "laptop")
    assert held.find(secret) is None
    assert held.current(key) is None
    assert held.find(other) is not None
    add(path)  # of the same name, with another secret
    assert held.find(secret) is None
    assert held.current(key) is None


@pytest.mark.parametrize("content", [b"{", b"", b"\xff", b'{"format": 1, "keys": [{}]}', None])
def test_a_broken_file_locks_nobody_out(path: Path, content: bytes | None, told: Told) -> None:
    secret, held = add(path), Keys(path)
    whole = path.read_bytes()
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    for _ in range(3):
        assert held.find(secret) is not None
    (line,) = told
    assert (line["event"], line["log_level"]) == ("keys not read", "warning")
    assert secret not in str(line)
    # It is in force again once it is whole.
    path.write_bytes(whole.replace(b"laptop", b"tablet"))
    assert name_of(held, secret) == "tablet"


@pytest.mark.parametrize("how", ["in place", "renamed", "linked"])
def test_a_change_is_seen_however_it_is_made(path: Path, how: str) -> None:
    """Of the same size and at the same time, too."""
    secret, real, other = add(path), path, path.with_name("other.json")
    if how == "linked":  # as Kubernetes mounts a secret
        real = path.rename(path.with_name("first.json"))
        path.symlink_to(real.name)
    held = Keys(path)
    assert held.find(secret) is not None
    stat, target = real.stat(), real if how == "in place" else other
    target.write_bytes(real.read_bytes().replace(b"laptop", b"tablet"))
    os.utime(target, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    if how == "renamed":
        other.replace(path)
    if how == "linked":
        path.unlink()
        path.symlink_to(other.name)
    assert name_of(held, secret) == "tablet"


def test_an_expired_key_stops_working(path: Path, told: Told) -> None:
    now = datetime.now(UTC)
    secret = add(path, expires=now + timedelta(days=1))
    add(path, "phone", expires=now + timedelta(days=3))
    held = Keys(path, clock=lambda: now)
    key = held.find(secret)
    assert key is not None
    before = held.refresh()
    assert held.refresh() == before
    now += timedelta(days=2)
    assert held.find(secret) is None
    assert held.current(key) is None
    assert held.refresh() != before
    assert changes(told) == [["laptop"]]


def test_a_running_gateway_says_what_changed_by_name(path: Path, told: Told) -> None:
    secret = add(path)
    held = Keys(path)
    added = add(path, "phone")
    held.find(secret)
    revoke_key(path, "laptop")
    held.find(secret)
    edit(path, sessions=1)
    held.find(secret)
    assert changes(told) == [["phone"], ["laptop"], ["phone"]]
    for one in (secret, added, *(key.sha256 for key in read_keys(path))):
        assert one not in str(told)


ADD = """
import sys
from pathlib import Path
from edgewise.keys.keys import add_key
for number in range(8):
    add_key(
        Path(sys.argv[1]), f"{sys.argv[2]} {number}",
        consults_per_second=1, tokens_per_day=1, sessions=1,
    )
"""


def test_changes_at_once_lose_nothing(path: Path) -> None:
    adding = [subprocess.Popen([sys.executable, "-c", ADD, str(path), str(n)]) for n in range(2)]
    assert [one.wait() for one in adding] == [0, 0]
    assert len(read_keys(path)) == 16


def test_a_file_keeps_its_mode_its_owner_and_who_it_is_linked_to(path: Path) -> None:
    """Keys added by root are still read by the gateway's own user."""
    add(path)
    path.chmod(0o640)
    if os.getuid() == 0:  # only root gives files away
        os.chown(path, 10001, 10002)
    owner = path.stat()[4:6]
    real = path.rename(path.with_name("real.json"))
    path.symlink_to(real)
    add(path, "phone")
    assert path.is_symlink()
    assert real.stat().st_mode & 0o777 == 0o640
    assert real.stat()[4:6] == owner
    real.chmod(0o644)
    revoke_key(path, "phone")
    assert real.stat().st_mode & 0o777 == 0o640


GOOD = {"name": "a", "sha256": "0" * 64, "created": "2026-01-01"}
BAD_KEYS: dict[str, dict[str, Any]] = {
    "two of a name": {},
    "a limit that is no limit": {"tokens_per_days": 5},
    "an endless limit": {"consults_per_second": 1e300},
    "a hash of other letters": {"sha256": "\u00e9" * 64},
    "no hash": {"sha256": ""},
    "a name that moves the cursor": {"name": "a\x1b[2J"},
    "no name": {"name": ""},
    "an expiry without a zone": {"expires": "2027-01-01T00:00:00"},
}


@pytest.mark.parametrize("which", BAD_KEYS)
def test_bad_keys_are_a_sentence(path: Path, which: str) -> None:
    found = [GOOD] * 2 if which == "two of a name" else [GOOD | BAD_KEYS[which]]
    path.write_bytes(msgspec.json.encode({"format": 1, "keys": found}))
    with pytest.raises(UsageError, match=r"keys\.json"):
        Keys(path)


@pytest.mark.parametrize("make", [lambda path: None, os.mkfifo, os.mkdir])
def test_what_is_no_file_is_not_read(path: Path, make: Callable[[Path], None]) -> None:
    make(path)
    with pytest.raises(UsageError, match=r"keys\.json"):
        Keys(path)
