"""Bad input ends in one sentence on stderr, nothing on stdout, and exit code 2."""

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import msgspec
import pytest

from edgewise.addresses import bundled
from edgewise.routers.card import read_card
from tests.hub import running
from tests.llama_server_process import free_port

Run = Callable[..., "subprocess.CompletedProcess[str]"]
NOBODY = "http://127.0.0.1:9"


@pytest.fixture
def cli(tmp_path: Path) -> Run:
    """The command in a process of its own, in an empty folder, with no settings around."""

    def run(
        *arguments: str, stdin: str = "", **variables: str
    ) -> "subprocess.CompletedProcess[str]":
        clean = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "EDGEWISE_"))}
        clean |= {"HF_HOME": str(tmp_path / "hf"), "HF_ENDPOINT": NOBODY}
        return subprocess.run(
            [sys.executable, "-m", "edgewise", *arguments],
            input=stdin,
            env=clean | variables,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run


def refused(done: "subprocess.CompletedProcess[str]", sentence: str) -> None:
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stderr.startswith("edgewise: ")
    assert sentence in done.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["hi", "--edge", "gone.gguf"], "no file 'gone.gguf'"),
        (["hi", "--edge", "text.gguf"], "not a GGUF file"),
        (["hi", "--edge", "cut.gguf"], "truncated"),
        (["hi", "--edge", "folder"], "no file"),
        (["hi", "--cloud", NOBODY], "cannot be reached"),
        (["hi", "--cloud", "gone.gguf"], "no file"),
        (["hi", "--cloud", "ftp://127.0.0.1"], "no http"),
        (["hi", "--edge", "owner/repo"], "hub cannot be reached"),
        (["hi", "--router", "nonsense"], "no router 'nonsense'"),
        (["hi", "--router", "folder"], "no router in"),
        (["hi", "--router", "constant:7"], "from 0 to 1"),
        (["hi", "--cloud-share", "1.5"], "from 0 to 1"),
        (["hi", "--cloud-share", "-0.1"], "from 0 to 1"),
        (["hi", "--cloud-share", "nan"], "from 0 to 1"),
        (["hi", "--cloud-share", "lots"], "lots"),
        (["hi", "--threshold", "2"], "from 0 to 1"),
        (["hi", "--threshold", "0.5", "--cloud-share", "0.1"], "not both"),
        (["hi", "--max-tokens", "-3"], "1 or more"),
        (["hi", "--max-tokens", "0"], "1 or more"),
        (["hi", "--max-cloud-tokens", "-1"], "0 or more"),
        (["hi", "--span", "0"], "1 or more"),
        (["hi", "--deadline", "0"], "deadline"),
        (["hi", "--temperature", "-1"], "temperature"),
        (["hi", "--seed", "-1"], "seed"),
        (["hi", "--stop", ""], "stop string"),
        (["hi", "--on-cloud-error", "panic"], "panic"),
        (["hi", "--gpu-layers", "many"], "gpu-layers"),
        (["hi", "--threads", "0"], "threads"),
        (["hi", "--ctx", "1"], "ctx"),
        (["hi", "--nonsense"], "--nonsense"),
        (["hi", "--trace", "folder"], "cannot be written"),
        (["hi", "--system", "x", "--no-template"], "--no-template"),
        (["a long prompt " * 50, "--ctx", "64"], "do not fit in the context"),
        ([""], "prompt is empty"),
        (["  \n"], "prompt is empty"),
        ([], "prompt is empty"),
        (["hi", "there"], "there"),
    ],
)
def test_run(cli: Run, tmp_path: Path, arguments: list[str], sentence: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "text.gguf").write_text("hello")
    (tmp_path / "cut.gguf").write_bytes(bundled("edge").read_bytes()[:200_000])
    refused(cli("run", *arguments), sentence)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nonsense"], "nonsense"),
        (["--nonsense"], "--nonsense"),
        (["demo", "--questions", "0"], "--questions"),
        (["demo", "--questions", "100000"], "--questions"),
        (["demo", "--cloud-share", "0.9"], "calibrated"),
        (["bench", "edge", "--blocks", "1"], "5 blocks"),
    ],
)
def test_other_commands(cli: Run, arguments: list[str], sentence: str) -> None:
    refused(cli(*arguments), sentence)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("cloud-shar = 0.1", "did you mean 'cloud_share'"),
        ("cloud-share = 'x'", "cloud-share"),
        ("cloud-share = 3.0", "from 0 to 1"),
        ("= 3", "no valid TOML"),
        ("threshold = 0.1\ncloud-share = 0.1", "not both"),
    ],
)
def test_the_settings_file(cli: Run, tmp_path: Path, text: str, sentence: str) -> None:
    (tmp_path / "edgewise.toml").write_text(text)
    refused(cli("run", "hi"), sentence)


def test_an_unknown_variable(cli: Run) -> None:
    refused(cli("run", "hi", EDGEWISE_CLOUD_SHARES="0.1"), "did you mean 'cloud_share'")


def test_an_unknown_quantisation(cli: Run) -> None:
    with running() as hub:
        hub.repositories = {"o/m": {"m-Q4_0.gguf": b"GGUF"}}
        refused(cli("run", "hi", "--edge", "o/m:Q3_K", HF_ENDPOINT=hub.url), "it has m-Q4_0.gguf")


def test_a_cloud_model_with_another_vocabulary(cli: Run, other_path: Path) -> None:
    refused(cli("run", "hi", "--cloud", str(other_path)), "different vocabularies")


def test_a_router_made_for_another_edge_model(cli: Run, tmp_path: Path, bpe_path: Path) -> None:
    card = read_card(bundled("router"))
    changed = msgspec.structs.replace(card, edge_fingerprint="0" * 64)
    (tmp_path / "config.json").write_bytes(msgspec.json.encode(changed))
    refused(cli("run", "hi", "--router", str(tmp_path)), "another file")
    router = str(bundled("router"))
    refused(cli("run", "hi", "--edge", str(bpe_path), "--router", router), "another tokenizer")


class _Refusing(BaseHTTPRequestHandler):
    def _answer(self) -> None:
        self.send_response(401)
        self.end_headers()

    do_GET = do_POST = _answer

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def refusing_engine() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Refusing) as engine:
        thread = threading.Thread(target=engine.serve_forever, args=(0.02,))
        thread.start()
        yield f"http://127.0.0.1:{engine.server_address[1]}"
        engine.shutdown()
        thread.join()


def test_a_wrong_key(cli: Run, refusing_engine: str) -> None:
    done = cli("run", "hi", "--cloud", refusing_engine, EDGEWISE_CLOUD_KEY="sk-wrong")
    refused(done, "refused the key")
    assert "sk-wrong" not in done.stderr


def test_a_port_nobody_listens_on(cli: Run) -> None:
    refused(cli("run", "hi", "--cloud", f"http://127.0.0.1:{free_port()}"), "check the address")
