"""`edgewise gateway keys`: what it prints, what it keeps, what it refuses."""

import json
import re
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from edgewise.cloud.gateway.cloud import GatewayCloud
from edgewise.errors import CloudRefused, CloudUnavailable
from edgewise.keys.key_file import read_keys
from edgewise.keys.keys import Keys
from edgewise.prompts import Prompt
from edgewise.sampling import Sampling
from edgewise.testing.scripted_edge import ByteTokenizer
from edgewise.testing.scripted_engine import ScriptedEngine
from tests.cli.conftest import Edgewise
from tests.cli.test_gateway_command import process

FILE = ("--keys", "keys.json")
KEYS = Path("keys.json")


def words(told: str) -> str:
    return re.sub(r"\s+", " ", told)


def test_a_key_is_added_shown_rotated_and_revoked(edgewise: Edgewise) -> None:
    added = edgewise("gateway", "keys", "add", "laptop", *FILE, "--tokens-per-day", "5000")
    assert added.code == 0, added.err
    first = added.out.strip()
    assert "EDGEWISE_CLOUD_KEY" in added.err
    rotated = edgewise("gateway", "keys", "rotate", "laptop", *FILE)
    second = rotated.out.strip()
    assert (rotated.code, first == second) == (0, False)
    for secret in (first, second):
        assert Keys(KEYS).find(secret) is not None
        assert secret not in KEYS.read_text()
    left = read_keys(KEYS)[0].retired[0].until - datetime.now(UTC)
    assert timedelta(hours=23) < left <= timedelta(days=1)
    listed = edgewise("gateway", "keys", "list", *FILE)
    assert "laptop" in listed.out
    assert "never, old secret" in words(listed.out)
    assert "5,000" in listed.out
    assert first not in listed.out + listed.err
    assert read_keys(KEYS)[0].sha256 not in listed.out
    assert edgewise("gateway", "keys", "rotate", "laptop", *FILE, "--grace", "0d").code == 0
    assert Keys(KEYS).find(second) is None
    assert edgewise("gateway", "keys", "revoke", "laptop", *FILE).code == 0
    assert read_keys(KEYS) == ()
    assert "laptop" not in edgewise("gateway", "keys", "list", *FILE).out
    lines = Path("keys.json.audit").read_text().splitlines()
    told = [(line["event"], line["key"]) for line in map(json.loads, lines)]
    assert told == [(event, "laptop") for event in ("add", "rotate", "rotate", "revoke")]


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
    assert edgewise("gateway", "keys", "add", "laptop", *FILE, "--expires", told).code == 0
    expires, now = read_keys(KEYS)[0].expires, datetime.now(UTC)
    assert expires is not None
    first = least if isinstance(least, datetime) else now + least
    last = most if isinstance(most, datetime) else now + most
    assert first <= expires <= last
    listed = edgewise("gateway", "keys", "list", *FILE)
    assert f"{expires:%Y-%m-%d %H:%M}" in words(listed.out)


def test_an_expired_key_is_shown_as_such(edgewise: Edgewise) -> None:
    edgewise("gateway", "keys", "add", "laptop", *FILE)
    KEYS.write_text(KEYS.read_text().replace("null", '"2026-01-01T00:00:00Z"'))
    assert "2026-01-01 00:00 (over)" in words(edgewise("gateway", "keys", "list", *FILE).out)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("list", "--keys", "none.json"), "no file of keys 'none.json'"),
        (("list", "--keys", "."), "it is no file"),
        (("list", "--keys", "text"), "no file of keys"),
        (("rotate", "phone", *FILE), "no key 'phone'"),
        (("rotate", "phone", "--keys", "none.json"), "no key 'phone'"),
        (("rotate", "laptop", *FILE, "--grace", "1 day"), "--grace '1 day' is not understood"),
        (("rotate", "laptop", *FILE, "--grace", "-1d"), "--grace '-1d' is not understood"),
        (("add", "x", *FILE, "--expires", "soon"), "a day such as 2027-01-31"),
        (("add", "x", *FILE, "--expires", "2026-02-30"), "is not understood"),
        (("add", "x", *FILE, "--expires", "2020-01-01"), "expired already"),
        (("add", "x", *FILE, "--expires", "0d"), "expired already"),
        (("add", "x", *FILE, "--expires", "9999-12-31"), "is not understood"),
        (("add", "x", *FILE, "--ids-per-second", "-1"), "limits"),
        (("add", "x", *FILE, "--asks-per-second", "nan"), "limits"),
        (("add", "a\x1b[2J", *FILE), "no name for a key"),
        (("add", "a" * 65, *FILE), "1 to 64 printable characters"),
        (("add", "laptop", *FILE), "already"),
        (("add", "x", "--keys", "none/keys.json"), "cannot be written"),
        (("revoke", "phone", *FILE), "no key 'phone'"),
    ],
)
def test_bad_input_is_one_sentence(
    edgewise: Edgewise, arguments: tuple[str, ...], problem: str
) -> None:
    edgewise("gateway", "keys", "add", "laptop", *FILE)
    before = KEYS.read_bytes()
    Path("text").write_text("hello")
    done = edgewise("gateway", "keys", *arguments)
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1), done.err
    assert problem in done.err
    assert "\x1b" not in done.err
    assert KEYS.read_bytes() == before


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("--limits", "memory"), "Limits are those of keys"),
        ((*FILE, "--limits", "http://:s3cret@host"), "cannot be kept at http://"),
        ((*FILE, "--limits", "redis://:s3cret@host:port"), "no address of a Redis"),
        ((*FILE, "--limits", "none/limits"), "No such file"),
        ((*FILE, "--limits", "keys.json"), "not a database"),
    ],
)
def test_limits_that_cannot_be_kept_are_one_sentence(
    edgewise: Edgewise, arguments: tuple[str, ...], problem: str
) -> None:
    edgewise("gateway", "keys", "add", "laptop", *FILE)
    done = edgewise("gateway", "--engine", "bundled", *arguments)
    assert (done.code, done.err.count("\n")) == (2, 1), done.err
    assert problem in done.err
    assert "s3cret" not in done.err


def test_a_quota_survives_a_kill_and_the_log_names_what_changed(edgewise: Edgewise) -> None:
    add = ("gateway", "keys", "add", "laptop", *FILE, "--tokens-per-day", "8")
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
            with pytest.raises(CloudUnavailable, match="tokens of the day"):
                ask(port)
            edgewise("gateway", "keys", "revoke", "laptop", *FILE)
            time.sleep(1.0)
            with pytest.raises(CloudRefused):
                ask(port)
            started.kill()
            assert started.stderr is not None
            told = started.stderr.read()
    finally:
        engine.close()
    assert any(
        line["event"] == "key revoked" and line["key"] == "laptop"
        for line in map(json.loads, filter(lambda line: line[0] == "{", told.splitlines()))
    )
    assert "keys.json.limits" in told
    assert secret not in told
