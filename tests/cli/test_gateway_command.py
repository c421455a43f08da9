"""`edgewise gateway` as a process: keys, TLS, answers through it; and `edgewise keys`."""

import json
import re
import socket
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trustme

from edgewise.addresses import bundled
from edgewise.cloud.base import ConsultRequest
from edgewise.cloud.gateway import GatewayCloud
from edgewise.edge.llamacpp import LlamaModel
from edgewise.errors import CloudError, CloudRefused, CloudRejected, CloudUnavailable
from edgewise.keys.keys import Keys, read_keys
from edgewise.prompts import Prompt
from edgewise.testing.scripted_edge import ByteTokenizer
from tests.asked import HARD
from tests.cli.conftest import Edgewise
from tests.doubles.scripted_engine import ScriptedEngine, reply_to
from tests.gateway.processes import ServerProcess, server, until


def listens(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.deep
def test_the_bundled_gateway_serves_run_and_doctor(edgewise: Edgewise) -> None:
    keys = str(edgewise.folder / "keys.json")
    secret = edgewise("keys", "add", "laptop", "--keys", keys).out.strip()
    edgewise.setenv(EDGEWISE_CLOUD_KEY=secret)
    with server("gateway", "--engine", "bundled", "--keys", keys) as started:
        here = ("--cloud", started.url)
        asks = ("--cloud-share", "0.3", "--on-cloud-error", "raise")
        assert edgewise.json("run", HARD, *here, *asks)["usage"]["cloud_tokens"] > 0
        checked = edgewise("doctor", *here).out
        assert "llama.cpp engine" in checked
        assert "all 4,096 ids" in " ".join(checked.split())
        edgewise("keys", "revoke", "laptop", "--keys", keys)
        until(lambda: "keys changed" in started.told())
        for key in ("ew-wrong", secret):
            edgewise.setenv(EDGEWISE_CLOUD_KEY=key)
            assert "refused the key" in edgewise.refusal("run", "Hello", *here)


def test_a_gateway_runs_a_gguf_itself() -> None:
    machine = ("--ctx", "64", "--threads", "1", "--gpu-layers", "0")
    with (
        server("gateway", "--engine", str(bundled("cloud")), *machine) as started,
        LlamaModel(bundled("edge"), threads=1) as edge,
        closing(GatewayCloud(started.url)) as cloud,
    ):
        cloud.check_vocabulary(edge.tokenizer)
        assert cloud.verifies
        with closing(cloud.open(Prompt((1, 2)))) as session:
            asked = ConsultRequest([1, 2, 3], 0, 60, verify=2)
            assert len(session.ask(asked).result().verified) == 2
            with pytest.raises(CloudRejected):
                session.ask(ConsultRequest([1] * 65, 1, 60)).result()


def test_tls(engine: ScriptedEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    certificate, private_key, trusted = (f"{tmp_path}/{name}.pem" for name in ("c", "k", "ca"))
    issued.cert_chain_pems[0].write_to_path(certificate)
    issued.private_key_pem.write_to_path(private_key)
    authority.cert_pem.write_to_path(trusted)
    files = ("--certificate", certificate, "--private-key", private_key)
    words = ("gateway", "--engine", engine.url, *files)
    with closing(ServerProcess(tmp_path / "told", *words)) as started:
        url = f"https://127.0.0.1:{started.port}"
        monkeypatch.setenv("SSL_CERT_FILE", trusted)
        started.begin()
        until(lambda: listens(started.port), "the gateway")
        with closing(GatewayCloud(url)) as cloud:
            cloud.check_vocabulary(ByteTokenizer())
            completion = cloud.open(Prompt((1,))).ask(ConsultRequest([1], 1, 30)).result()
        assert completion.ids == (reply_to([1]),)
        monkeypatch.delenv("SSL_CERT_FILE")
        other = pytest.raises(CloudError, match="not trusted")
        with closing(GatewayCloud(url)) as stranger, other:
            stranger.check_vocabulary(ByteTokenizer())


FILE = ("--keys", "keys.json")
KEYS = Path("keys.json")


def test_a_key_is_added_shown_and_revoked(edgewise: Edgewise) -> None:
    added = edgewise("keys", "add", "laptop", *FILE, "--tokens-per-day", "5000")
    secret = added.out.strip()
    assert "EDGEWISE_CLOUD_KEY" in added.err
    assert Keys(KEYS).find(secret) is not None
    assert secret not in KEYS.read_text()
    listed = edgewise("keys", "list", *FILE)
    for word in ("laptop", "never", "5,000"):
        assert word in listed.out
    assert secret not in listed.out + listed.err
    assert read_keys(KEYS)[0].sha256 not in listed.out
    # To replace a key: a second one, and then the first is revoked.
    second = edgewise("keys", "add", "laptop 2", *FILE).out.strip()
    edgewise("keys", "revoke", "laptop", *FILE)
    assert Keys(KEYS).find(secret) is None
    assert Keys(KEYS).find(second) is not None


def test_a_key_expires(edgewise: Edgewise) -> None:
    spans = {"90d": timedelta(days=90), "12h": timedelta(hours=12), "30m": timedelta(minutes=30)}
    for told in ("2099-01-31", *spans):
        edgewise("keys", "add", told, *FILE, "--expires", told)
    until, now = {key.name: key.expires for key in read_keys(KEYS)}, datetime.now(UTC)
    assert until["2099-01-31"] == datetime(2099, 2, 1, tzinfo=UTC)
    listed = re.sub(r"\s+", " ", edgewise("keys", "list", *FILE).out)
    for told, span in spans.items():
        expires = until[told]
        assert now + span * 29 / 30 <= expires <= now + span
        assert f"{expires:%Y-%m-%d %H:%M}" in listed
    edgewise("keys", "add", "laptop", *FILE)
    KEYS.write_text(KEYS.read_text().replace("null", '"2026-01-01T00:00:00Z"'))
    listed = re.sub(r"\s+", " ", edgewise("keys", "list", *FILE).out)
    assert "2026-01-01 00:00 (over)" in listed


@pytest.mark.deep
def test_a_quota_survives_a_kill(edgewise: Edgewise, engine: ScriptedEngine) -> None:
    add = ("keys", "add", "laptop", *FILE, "--tokens-per-day", "8")
    secret = edgewise(*add).out.strip()

    def ask(url: str) -> int:
        with closing(GatewayCloud(url, key=secret)) as cloud:
            cloud.check_vocabulary(ByteTokenizer())
            return len(cloud.open(Prompt((1,))).ask(ConsultRequest([1], 8, 30)).result().ids)

    serving = ("gateway", "--engine", engine.url, "--keys", str(KEYS.absolute()))
    with server(*serving) as started:
        assert ask(started.url) == 8
    with server(*serving) as started:
        with pytest.raises(CloudUnavailable, match="tokens"):
            ask(started.url)
        edgewise("keys", "revoke", "laptop", *FILE)
        until(lambda: "keys changed" in started.told())
        with pytest.raises(CloudRefused):
            ask(started.url)
        told = started.told()
    assert any(
        line["event"] == "keys changed" and line["keys"] == ["laptop"]
        for line in map(json.loads, filter(lambda line: line[0] == "{", told.splitlines()))
    )
    assert "keys.json.limits" in told
    assert secret not in told
