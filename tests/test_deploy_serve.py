"""The `serve` of the Compose file, started as it would be, behind its gateway and a real engine."""

import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from edgewise.addresses import bundled
from tests.gateway.processes import lasting_port, until
from tests.llama_server_process import llama_server
from tests.programs import python
from tests.test_deploy import DEPLOY, compose

SERVICES = compose()
GATEWAY, SERVE, PAGE = (SERVICES[name] for name in ("gateway-llama-server", "serve", "open-webui"))


class Place(NamedTuple):
    """Where this machine has what a container finds under a name of its own."""

    folder: Path
    hosts: Mapping[str, str]

    def here(self, words: str) -> str:
        """A command's word, its variables at their defaults."""
        words = re.sub(r"\$\{\w+:-([^}]*)\}", r"\1", words)
        for host, url in self.hosts.items():
            words = words.replace(host, url)
        return re.sub(r"(?<![\w:/.])/(models|keys|tmp)\b", rf"{self.folder}/\1", words)


def environment(service: Mapping[str, Any], place: Place) -> dict[str, str]:
    """What the container has, and nothing of this machine's but where Python is."""
    (file,) = service["env_file"]
    path = place.folder / file["path"]
    lines = path.read_text().splitlines() if path.exists() else []
    own = {name: place.here(value) for name, value in service.get("environment", {}).items()}
    python = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    return {**python, "HOME": "/nowhere", **own, **dict(line.split("=", 1) for line in lines)}


@contextmanager
def started(
    service: Mapping[str, Any], command: str, place: Place, port: int, told: Path
) -> Iterator["subprocess.Popen[bytes]"]:
    """Its command on a port of its own, until its health check is content."""
    words = [place.here(str(word)) for word in service["command"]]
    run = [sys.executable, "-m", "edgewise", *words, "--port", str(port)]
    with told.open("wb") as stderr:
        process = subprocess.Popen(
            run, env=environment(service, place), cwd=place.folder / "tmp", stderr=stderr
        )
    check = [sys.executable, str(DEPLOY / "answers.py"), f"http://127.0.0.1:{port}/health"]

    def well() -> bool:
        assert process.poll() is None, told.read_text()
        return subprocess.run(check, timeout=60).returncode == 0

    try:
        until(well, command)
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str, Path]]:
    """Its URL, its key and what it said; all is set up as the head of the file tells."""
    folder = tmp_path_factory.mktemp("compose")
    for name in ("models", "keys", "tmp"):
        (folder / name).mkdir()
    shutil.copy(bundled("edge"), folder / "models" / "small.gguf")
    ports = lasting_port(), lasting_port()
    keys = str(folder / "keys" / "keys.json")
    made = python("-m", "edgewise", "keys", "add", "serve", "--keys", keys)
    (folder / "serve.env").write_text(
        f"EDGEWISE_CLOUD_KEY={made.stdout.strip()}\nEDGEWISE_API_KEY=sk-own\n"
    )
    with llama_server(bundled("cloud")) as engine:
        hosts = {
            "http://llama-server:8080": engine,
            "http://gateway:8400": f"http://127.0.0.1:{ports[0]}",
        }
        place = Place(folder, hosts)
        with started(GATEWAY, "gateway", place, ports[0], folder / "gateway.log"):
            told = folder / "serve.log"
            with started(SERVE, "serve", place, ports[1], told) as process:
                yield f"http://127.0.0.1:{ports[1]}", "sk-own", told
                process.terminate()
                assert process.wait(60) == 0
    # Neither file of secrets nor model may be written; the rest goes with the container.
    assert stat.S_IMODE((folder / "keys" / "keys.json").stat().st_mode) == 0o600
    assert sorted(path.name for path in (folder / "models").iterdir()) == ["small.gguf"]


@pytest.mark.deep
def test_serve_answers_with_tokens_from_behind_the_gateway(served: tuple[str, str, Path]) -> None:
    """As Open WebUI asks it: the list of models, then a stream with usage."""
    from openai import AuthenticationError, OpenAI

    url, key, told = served
    client = OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)
    assert "edgewise" in [model.id for model in client.models.list()]
    with pytest.raises(AuthenticationError):
        client.copy(api_key="sk-other").models.list()
    chunks = client.chat.completions.create(
        model="edgewise:cloud",
        messages=[{"role": "user", "content": "Tell me about copper."}],
        stream=True,
        stream_options={"include_usage": True},
    )
    *pieces, last = chunks
    assert "".join(chunk.choices[0].delta.content or "" for chunk in pieces)
    assert last.usage is not None
    assert last.usage.model_extra is not None
    assert last.usage.model_extra["edgewise"]["edge_tokens"] == 0
    log = told.with_name("gateway.log").read_text()
    (port,) = re.findall(r'"at": ?"http://[^:]+:(\d+)"', log)
    assert last.usage.model_extra["edgewise"]["sent"]["host"] == f"127.0.0.1:{port}"
    # Nothing is missing in the container, and no warning is left to find there.
    serving, *requests = told.read_text().splitlines()
    assert "serving" in serving
    assert all("[info" in line and "edgewise.requests" in line for line in requests)
    assert key not in told.read_text()
