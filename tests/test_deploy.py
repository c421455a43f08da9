"""The deployment's files hold what they promise, and name flags, files and ports that exist."""

import fnmatch
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement

from tests.deployment import DEPLOY, ROOT, compose, parsed
from tests.doubles.scripted_engine import ScriptedEngine
from tests.gateway.processes import lasting_port
from tests.gateway.running import gateway

DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
GATEWAYS = {"gateway-llama-server": "llama-server", "gateway-vllm": "vllm"}


def service(name: str) -> dict[str, Any]:
    return compose()["services"][name]


@pytest.mark.parametrize("name", GATEWAYS)
def test_a_gateways_command_is_one_that_exists(name: str) -> None:
    found, engine = service(name), service(GATEWAYS[name])
    options = parsed(found["command"])
    (address,) = options["engine"]
    host, port = re.fullmatch(r"http://([\w-]+):(\d+)", address).groups()  # type: ignore[union-attr]
    assert host == GATEWAYS[name]
    assert port in str(engine["healthcheck"]["test"])
    assert found["depends_on"] == {host: {"condition": "service_healthy"}}
    assert found["profiles"] == engine["profiles"]
    assert found["ports"] == [f"{options['port']}:{options['port']}"]
    assert f"EXPOSE {options['port']}" in DOCKERFILE


@pytest.mark.deep
def test_compose_keeps_to_the_schema() -> None:
    pytest.importorskip("check_jsonschema")
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", "vendor.compose-spec"]
    done = subprocess.run([*command, str(DEPLOY / "compose.yaml")], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("name", compose()["services"])
def test_a_container_may_do_little(name: str) -> None:
    found = service(name)
    assert found["read_only"] is True
    assert found["cap_drop"] == ["ALL"]
    assert found["security_opt"] == ["no-new-privileges:true"]
    assert [place.partition(":")[0] for place in found["tmpfs"]] == ["/tmp"]
    assert "privileged" not in found
    assert "cap_add" not in found
    user = found.get("user") or re.findall(r"^USER (\S+)$", DOCKERFILE, re.MULTILINE)[-1]
    assert int(user.partition(":")[0]) > 0
    assert found["logging"]["options"].keys() >= {"max-size", "max-file"}


def images() -> set[str]:
    return set(re.findall(r"^(\w+_IMAGE)=", (DEPLOY / "images.txt").read_text(), re.MULTILINE))


FAKE_DOCKER = """#!/bin/sh
case "$4" in {refused}) echo "no such manifest" >&2; exit 1;; esac
echo "sha256:$(printf %s "$4" | sha256sum | cut -c -64)"
"""


def digests(folder: Path, *arguments: str, refused: str = "nothing") -> str:
    """Run `deploy/digests.py` in a copy, with a docker that knows all images but one."""
    for name in ("digests.py", "images.txt"):
        (folder / name).write_text((DEPLOY / name).read_text())
    (folder / "kubernetes").mkdir()
    docker = folder / "bin" / "docker"
    docker.parent.mkdir()
    docker.write_text(FAKE_DOCKER.format(refused=refused))
    docker.chmod(0o755)
    paths = os.environ | {"PATH": f"{docker.parent}:{os.environ['PATH']}"}
    command = [sys.executable, str(folder / "digests.py"), *arguments]
    done = subprocess.run(command, env=paths, capture_output=True, text=True)
    assert bool(done.returncode) == bool(done.stderr)
    return done.stderr


def test_digests_are_looked_up_for_every_image(tmp_path: Path) -> None:
    assert digests(tmp_path, "GATEWAY_IMAGE=host:5000/edgewise:0.1.0") == ""
    lines = (tmp_path / "images.env").read_text().splitlines()
    assert {line.partition("=")[0] for line in lines} == images() | {"GATEWAY_IMAGE"}
    assert all(re.search(r"=\S+:\S+@sha256:[0-9a-f]{64}$", line) for line in lines)
    component = (tmp_path / "kubernetes" / "images" / "kustomization.yaml").read_text()
    assert "kind: Component" in component
    assert re.search(r"{name: edgewise, newName: host:5000/edgewise, digest: sha256:", component)
    assert re.search(r"{name: vllm, newName: vllm/vllm-openai, digest: sha256:", component)


def locked(name: str) -> dict[str, list[Requirement]]:
    """The pins of a lock file; each has a version, hashes and nothing else."""
    found: dict[str, list[Requirement]] = {}
    text = (DEPLOY / name).read_text().replace("\\\n", " ")
    for line in text.splitlines():
        pin, *hashes = line.split(" --hash=sha256:")
        assert hashes
        assert all(re.fullmatch(r"[0-9a-f]{64}\s*", one) for one in hashes)
        requirement = Requirement(pin)
        assert re.fullmatch(r"==[^*]+", str(requirement.specifier))
        assert requirement.url is None
        found.setdefault(requirement.name, []).append(requirement)
    return found


@pytest.mark.parametrize(
    ("lock", "wanted"),
    [
        ("requirements.lock", "dependencies"),
        ("requirements.lock", "gateway"),
        ("requirements.lock", "gateway-redis"),
        ("requirements.lock", "serve"),
        ("build.lock", ""),
    ],
)
def test_the_lock_covers_what_is_needed(lock: str, wanted: str) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    if wanted == "dependencies":
        needed = project["project"]["dependencies"]
    elif wanted:
        needed = project["project"]["optional-dependencies"][wanted]
    else:
        lines = (DEPLOY / "build.in").read_text().splitlines()
        needed = [line for line in lines if not line.startswith("#")]
        needed += project["build-system"]["requires"]
    pins = locked(lock)
    for line in needed:
        requirement = Requirement(line)
        if requirement.name == "edgewise":
            continue
        found = pins[requirement.name.replace("_", "-").lower()]
        for pin in found:
            (version,) = pin.specifier
            assert requirement.specifier.contains(version.version), line


def ignored(path: str) -> bool:
    """Whether a path stays out of the build, by the rules of .dockerignore: the last match wins."""
    out = False
    for line in (ROOT / ".dockerignore").read_text().splitlines():
        rule = line.removeprefix("!")
        if rule and not rule.startswith("#") and _matches(path.split("/"), rule.split("/")):
            out = not line.startswith("!")
    return out


def _matches(path: list[str], rule: list[str]) -> bool:
    """Whether a rule matches a path or a folder above it."""
    if not rule:
        return True
    if rule[0] == "**":
        return any(_matches(path[at:], rule[1:]) for at in range(len(path) + 1)) and bool(path)
    return bool(path) and fnmatch.fnmatchcase(path[0], rule[0]) and _matches(path[1:], rule[1:])


SECRETS = """
keys.json keys.json.partial deploy/keys/keys.json deploy/keys/usage.sqlite-wal
deploy/kubernetes/keys.json deploy/engine.env deploy/serve.env deploy/webui.env
deploy/webui/webui.db deploy/edgewise.pem deploy/tls.key .env deploy/models/large.gguf small.gguf
pocket/work/edge.gguf router/model.safetensors results/cell.json .git/config .venv/bin/python
"""


@pytest.mark.parametrize("path", SECRETS.split())
def test_what_may_not_get_into_an_image_does_not(path: str) -> None:
    assert ignored(path)


def answering(*arguments: str, environment: dict[str, str] | None = None) -> int:
    """The exit code of the image's health check."""
    command = [sys.executable, str(DEPLOY / "answers.py"), *arguments]
    return subprocess.run(command, env=os.environ | (environment or {}), timeout=60).returncode


def health_check() -> list[str]:
    """What the image runs, as it stands there."""
    words = DOCKERFILE[DOCKERFILE.index("HEALTHCHECK") :].replace("\\\n", " ")
    return json.loads(re.search(r"CMD (\[.*?\])", words)[1])  # type: ignore[index]


def test_the_health_check_asks_the_gateway() -> None:
    python, script, *urls = health_check()
    assert python.startswith("/opt/edgewise/")
    assert f"COPY deploy/{Path(script).name} {script}" in DOCKERFILE
    assert {url.partition("://")[0] for url in urls} == {"http", "https"}
    engine = ScriptedEngine()
    with gateway([engine.url]) as running:
        here = [re.sub(r"127.0.0.1:8400", running.url.partition("//")[2], url) for url in urls]
        # No proxy is asked for what is on this machine.
        assert answering(*here, environment={"http_proxy": "http://127.0.0.1:1"}) == 0
        assert answering(f"{running.url}/nothing") == 1
    assert answering(*here) == 1
    engine.close()


def test_waiting_ends_when_an_engine_answers() -> None:
    port = lasting_port()
    urls = [f"http://127.0.0.1:{lasting_port()}/health", f"http://127.0.0.1:{port}/health"]
    command = [sys.executable, str(DEPLOY / "answers.py"), "--wait", *urls]
    with subprocess.Popen(command) as waiting:
        with pytest.raises(subprocess.TimeoutExpired):
            waiting.wait(1)
        engine = ScriptedEngine(port=port)
        assert waiting.wait(60) == 0
        engine.close()


def test_the_version_is_that_of_the_changelog() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    first = re.search(r"^## (\S+) \((.+)\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert first
    assert first[1] == version
