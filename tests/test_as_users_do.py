"""What users meet, from the outside: commands and servers as processes, real files and sockets."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
from openai import OpenAI

from edgewise.addresses import bundled
from edgewise.routers.card import read_card
from edgewise.testing.link import Link, Quality
from tests.gateway.processes import until
from tests.hub import Hub, Repository
from tests.hub import serving as hub_serving
from tests.llama_server_process import llama_server
from tests.server.serving import serving

pytestmark = pytest.mark.deep

QUESTION = "Tell me about copper."

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def edgewise(tmp_path: Path) -> Run:
    """Run `edgewise` in an empty folder; keywords are variables."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.upper().startswith(("HF_", "EDGEWISE_", "HTTP"))
    }

    def run(*arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [sys.executable, "-m", "edgewise", *arguments],
            env=kept | {"HF_HOME": str(tmp_path / "hf")} | variables,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )

    return run


def sentence(done: "subprocess.CompletedProcess[str]") -> str:
    """What a user's mistake is answered with."""
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1), done.stderr
    return done.stderr


def test_a_model_from_a_mirror_then_without_any_network(edgewise: Run) -> None:
    ask = ("run", QUESTION, "--cloud", "none", "--max-tokens", "6", "--json", "--edge")
    files = {"small-Q4_K_M.gguf": bundled("edge").read_bytes()}
    with hub_serving(Hub({"own/small": Repository(files)})) as mirror:
        done = edgewise(*ask, "own/small", HF_ENDPOINT=mirror.endpoint)
        assert done.returncode == 0, done.stderr
        text = json.loads(done.stdout)["text"]
        assert text
        assert mirror.asked("GET", "/resolve/")
        asked = len(mirror.requests)
        offline = {"HF_ENDPOINT": mirror.endpoint, "HF_HUB_OFFLINE": "1"}
        assert json.loads(edgewise(*ask, "own/small", **offline).stdout)["text"] == text
        assert "the local cache" in sentence(edgewise(*ask, "own/other", **offline))
        assert len(mirror.requests) == asked
    # The mirror is gone, and nobody said so.
    done = edgewise(*ask, "own/small", HF_ENDPOINT=mirror.endpoint)
    assert json.loads(done.stdout)["text"] == text


def test_a_plug_that_is_pulled_in_mid_answer() -> None:
    """The answer is whole, says where the cloud was missed, and later ones have it back."""
    with llama_server(bundled("cloud")) as engine:
        link = Link("127.0.0.1", int(engine.rpartition(":")[2]), Quality(round_trip=0.01))
        flags = ("--cloud", link.url, "--router", "constant:1", "--threads", "1")
        with serving(*flags, "--threshold", "0.5", "--speculate", "0") as url:
            client = OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
            tokens = told(client, pulled=link.refuse)
            written = [token["source"] for token in tokens]
            assert set(written[:4]) == {"cloud"}
            assert written[-1] == "edge"
            missed = {token["reason"] for token in tokens if token["source"] == "edge"}
            assert missed <= {"unavailable", "timeout", "circuit_open"}
            assert httpx2.get(f"{url}/health", trust_env=False).json()["cloud_paused"]
            assert {token["source"] for token in told(client)} == {"edge"}
            link.restore()
            until(lambda: "cloud" in {token["source"] for token in told(client)}, "the cloud")
        link.close()


def told(client: OpenAI, *, pulled: Callable[[], None] | None = None) -> list[dict[str, Any]]:
    """An answer's tokens, by who wrote them; the plug is `pulled` behind the fourth."""
    tokens: list[dict[str, Any]] = []
    stream = client.chat.completions.create(
        model="edgewise",
        messages=[{"role": "user", "content": QUESTION}],
        max_tokens=24,
        stream=True,
        extra_body={"edgewise": {"provenance": True}},
    )
    ends = 0
    for chunk in stream:
        ends += bool(chunk.choices and chunk.choices[0].finish_reason)
        more: Any = getattr(chunk, "edgewise", None) or {}
        if token := more.get("token"):
            tokens.append(token)
            if pulled is not None and len(tokens) == 4:
                pulled()
    assert ends == 1
    return tokens


def wrong_router(folder: Path) -> str:
    """The bundled one, as if it had been made for another edge model."""
    made = folder / "router"
    made.mkdir()
    card = msgspec.structs.replace(
        read_card(bundled("router")), edge_fingerprint="0" * 64, behaviour=()
    )
    (made / "config.json").write_bytes(msgspec.json.encode(card))
    weights = bundled("router") / "model.safetensors"
    (made / "model.safetensors").write_bytes(weights.read_bytes())
    return "./router"


def test_a_router_of_another_model(edgewise: Run, tmp_path: Path) -> None:
    """Refused before any token, by each command that would use it, and doctor says what to do."""
    wrong = ("--router", wrong_router(tmp_path))
    for command in (("run", QUESTION), ("serve", "--port", "0")):
        assert "another file" in sentence(edgewise(*command, *wrong, "--threads", "1"))
    done = edgewise("doctor", "--json", *wrong)
    found = {check["name"]: check for check in json.loads(done.stdout)["checks"]}
    assert done.returncode == 1
    assert found["router"]["status"] == "fail"
    assert "another file" in found["router"]["detail"]
    assert found["router"]["fix"]
    assert found["edge model"]["status"] == "ok"


def test_doctor_for_programs(edgewise: Run) -> None:
    """JSON alone on stdout, the same fields in every check, and exit code 0 where all is well."""
    done = edgewise("doctor", "--json", "--threads", "1")
    told = json.loads(done.stdout)
    assert done.returncode == 0, done.stdout
    checks = {check["name"]: check for check in told["checks"]}
    assert all(set(check) == {"name", "status", "detail", "fix"} for check in told["checks"])
    assert {"edge model", "router", "cloud model", "vocabulary", "consult"} <= set(checks)
    assert {check["status"] for check in told["checks"]} <= {"ok", "warn"}
