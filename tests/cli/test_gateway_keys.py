"""`edgewise keys`: what it prints, what it keeps, what it refuses."""

import json
import re
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from edgewise.cloud.gateway import GatewayCloud
from edgewise.errors import CloudRefused, CloudUnavailable
from edgewise.keys.keys import Keys, read_keys
from edgewise.prompts import Prompt
from edgewise.sampling import Sampling
from edgewise.testing.scripted_edge import ByteTokenizer
from tests.cli.conftest import Edgewise
from tests.cli.test_gateway_command import process
from tests.doubles.scripted_engine import ScriptedEngine

FILE = ("--keys", "keys.json")
KEYS = Path("keys.json")


def words(told: str) -> str:
    return re.sub(r"\s+", " ", told)


def test_a_key_is_added_shown_and_revoked(edgewise: Edgewise) -> None:
    added = edgewise("keys", "add", "laptop", *FILE, "--tokens-per-day", "5000")
    assert added.code == 0, added.err
    secret = added.out.strip()
    assert "EDGEWISE_CLOUD_KEY" in added.err
    assert Keys(KEYS).find(secret) is not None
    assert secret not in KEYS.read_text()
    listed = edgewise("keys", "list", *FILE)
    assert "laptop" in listed.out
    assert "never" in listed.out
    assert "5,000" in listed.out
    assert secret not in listed.out + listed.err
    assert read_keys(KEYS)[0].sha256 not in listed.out
    # To replace a key: a second one, and then the first is revoked.
    second = edgewise("keys", "add", "laptop 2", *FILE).out.strip()
    assert edgewise("keys", "revoke", "laptop", *FILE).code == 0
    assert Keys(KEYS).find(secret) is None
    assert Keys(KEYS).find(second) is not None


@pytest.mark.parametrize(
    ("told", "least", "most"),
    [
        ("2099-01-31", datetime(2099, 2, 1, tzinfo=UTC), datetime(2099, 2, 1, tzinfo=UTC)),
        ("90d", timedelta(days=89, hours=23), timedelta(days=90)),
        ("12h", timedelta(hours=11), timedelta(hours=12)),
        ("30m", timedelta(minutes=29), timedelta(minutes=30)),
    ],
)
def test_a_key_expires(
    edgewise: Edgewise, told: str, least: datetime | timedelta, most: datetime | timedelta
) -> None:
    assert edgewise("keys", "add", "laptop", *FILE, "--expires", told).code == 0
    expires, now = read_keys(KEYS)[0].expires, datetime.now(UTC)
    assert expires is not None
    first = least if isinstance(least, datetime) else now + least
    last = most if isinstance(most, datetime) else now + most
    assert first <= expires <= last
    listed = edgewise("keys", "list", *FILE)
    assert f"{expires:%Y-%m-%d %H:%M}" in words(listed.out)


def test_an_expired_key_is_shown_as_such(edgewise: Edgewise) -> None:
    edgewise("keys", "add", "laptop", *FILE)
    KEYS.write_text(KEYS.read_text().replace("null", '"2026-01-01T00:00:00Z"'))
    assert "2026-01-01 00:00 (over)" in words(edgewise("keys", "list", *FILE).out)


def test_a_quota_survives_a_kill_and_the_log_names_what_changed(edgewise: Edgewise) -> None:
    add = ("keys", "add", "laptop", *FILE, "--tokens-per-day", "8")
    secret = edgewise(*add).out.strip()
    engine = ScriptedEngine()

    def ask(port: int) -> int:
        cloud = GatewayCloud(f"http://127.0.0.1:{port}", key=secret)
        try:
            cloud.check(ByteTokenizer())
            return len(cloud.open(Prompt((1,))).ask([1], 8, Sampling(), 30).result().ids)
        finally:
            cloud.close()

    try:
        with process("--engine", engine.url, *FILE) as (port, _):
            assert ask(port) == 8
        with process("--engine", engine.url, *FILE) as (port, started):
            with pytest.raises(CloudUnavailable, match="tokens"):
                ask(port)
            edgewise("keys", "revoke", "laptop", *FILE)
            time.sleep(1.0)
            with pytest.raises(CloudRefused):
                ask(port)
            started.kill()
            assert started.stderr is not None
            told = started.stderr.read()
    finally:
        engine.close()
    assert any(
        line["event"] == "keys changed" and line["keys"] == ["laptop"]
        for line in map(json.loads, filter(lambda line: line[0] == "{", told.splitlines()))
    )
    assert "keys.json.limits" in told
    assert secret not in told
