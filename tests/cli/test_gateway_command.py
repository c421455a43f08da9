"""`edgewise gateway` as a process: keys, TLS, a graceful end, and answers through it."""

import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
import trustme

from edgewise.cloud.gateway import GatewayCloud
from edgewise.errors import CloudError
from edgewise.prompts import Prompt
from edgewise.sampling import Sampling
from edgewise.testing.scripted_edge import ByteTokenizer
from tests.asked import HARD
from tests.cli.conftest import Run
from tests.doubles.scripted_engine import ScriptedEngine, reply_to
from tests.gateway.processes import until
from tests.server_process import free_port


@contextmanager
def process(*arguments: str, ready: bool = True) -> Iterator[tuple[int, "subprocess.Popen[str]"]]:
    """A gateway on a free port; with `ready` once it says so."""
    port = free_port()
    started = subprocess.Popen(
        [sys.executable, "-m", "edgewise", "gateway", "--port", str(port), *arguments],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        until(lambda: not ready or _ready(port) or started.poll() is not None, "the gateway")
        yield port, started
    finally:
        started.kill()
        started.communicate()


def _ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready") as response:
            return response.status == 200
    except OSError:
        return False


def _listens(port: int) -> bool:
    with socket.socket() as one:
        return one.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.deep
def test_the_bundled_gateway_serves_run_and_doctor(cli: Run, tmp_path: Path) -> None:
    keys = str(tmp_path / "keys.json")
    added = cli("keys", "add", "laptop", "--keys", keys)
    assert added.returncode == 0, added.stderr
    secret = added.stdout.strip()
    with process("--engine", "bundled", "--keys", keys) as (port, _):
        here = ("--cloud", f"http://127.0.0.1:{port}")
        asks = ("--cloud-share", "0.3", "--on-cloud-error", "raise", "--json")
        answer = cli("run", HARD, *here, *asks, EDGEWISE_CLOUD_KEY=secret)
        assert answer.returncode == 0, answer.stderr
        assert json.loads(answer.stdout)["usage"]["cloud_tokens"] > 0
        checked = cli("doctor", *here, EDGEWISE_CLOUD_KEY=secret)
        assert checked.returncode == 0, checked.stdout
        assert "bundled engine" in checked.stdout
        assert "all 4,096 ids" in " ".join(checked.stdout.split())
        wrong = cli("run", "Hello", *here, EDGEWISE_CLOUD_KEY="ew-wrong")
        assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
        assert "refused the key" in wrong.stderr
        assert cli("keys", "revoke", "laptop", "--keys", keys).returncode == 0
        time.sleep(1.0)
        gone = cli("run", "Hello", *here, EDGEWISE_CLOUD_KEY=secret)
        assert (gone.returncode, "refused the key" in gone.stderr) == (2, True)


def test_tls_is_verified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    certificate, private_key, trusted = (tmp_path / name for name in ("c.pem", "k.pem", "ca.pem"))
    issued.cert_chain_pems[0].write_to_path(certificate)
    issued.private_key_pem.write_to_path(private_key)
    authority.cert_pem.write_to_path(trusted)
    engine = ScriptedEngine()
    files = ("--certificate", str(certificate), "--private-key", str(private_key))
    try:
        with process("--engine", engine.url, *files, ready=False) as (port, started):
            url = f"https://127.0.0.1:{port}"
            monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
            until(lambda: started.poll() is not None or _listens(port), "the gateway")
            with closing(GatewayCloud(url)) as cloud:
                cloud.check(ByteTokenizer())
                completion = cloud.open(Prompt((1,))).ask([1], 1, Sampling(), 30).result()
            assert completion.ids == (reply_to([1]),)
            monkeypatch.delenv("SSL_CERT_FILE")
            with (
                closing(GatewayCloud(url)) as stranger,
                pytest.raises(CloudError, match="not trusted"),
            ):
                stranger.check(ByteTokenizer())
    finally:
        engine.close()
