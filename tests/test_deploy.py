"""The deployment's files hold what they promise, and name flags, files and ports that exist."""

import json
import os
import re
import subprocess
import sys
import tomllib
from contextlib import closing
from importlib.metadata import distributions
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import kubernetes_validate
import pytest
import typer.main
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from edgewise.cli.app import app
from tests.documents import ROOT
from tests.doubles.scripted_engine import ScriptedEngine
from tests.gateway.processes import lasting_port
from tests.gateway.running import gateway
from tests.installed import require
from tests.programs import python

DEPLOY = ROOT / "deploy"
DOCKERFILE = (DEPLOY / "Dockerfile").read_text()
GATEWAYS = {"gateway-llama-server": "llama-server", "gateway-vllm": "vllm"}
OLDEST = "1.30"
"""The first Kubernetes that knows everything that is used here."""


def compose() -> dict[str, Any]:
    """The compose file's services, its anchors resolved."""
    return yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]


def manifests() -> dict[str, dict[str, Any]]:
    """Every object for Kubernetes, by kind and name."""
    paths = [p for p in (DEPLOY / "kubernetes").rglob("*.yaml") if p.name != "kustomization.yaml"]
    found = [one for path in sorted(paths) for one in yaml.safe_load_all(path.read_text())]
    return {f"{one['kind']} {one['metadata']['name']}": one for one in found}


def parsed(arguments: list[str]) -> dict[str, Any]:
    """What `edgewise gateway` makes of these; fails for a flag that it does not have."""
    assert arguments[0] == "gateway"
    command: Any = typer.main.get_command(app)
    return command.commands["gateway"].make_context("gateway", arguments[1:]).params


@pytest.mark.parametrize("name", GATEWAYS)
def test_a_gateways_command_is_one_that_exists(name: str) -> None:
    found, engine = compose()[name], compose()[GATEWAYS[name]]
    options = parsed(found["command"])
    (address,) = options["engine"]
    host, port = re.fullmatch(r"http://([\w-]+):(\d+)", address).groups()  # type: ignore[union-attr]
    assert host == GATEWAYS[name]
    assert port in str(engine["healthcheck"]["test"])
    assert found["depends_on"] == {host: {"condition": "service_healthy"}}
    assert found["profiles"] == engine["profiles"]
    assert found["ports"] == [f"{options['port']}:{options['port']}"]
    assert f"EXPOSE {options['port']}" in DOCKERFILE


FAKE_DOCKER = """#!/bin/sh
echo "sha256:$(printf %s "$4" | sha256sum | cut -c -64)"
"""


def test_digests_are_looked_up_for_every_image(tmp_path: Path) -> None:
    for name in ("digests.py", "images.txt"):
        (tmp_path / name).write_text((DEPLOY / name).read_text())
    (tmp_path / "kubernetes").mkdir()
    (tmp_path / "docker").write_text(FAKE_DOCKER)
    (tmp_path / "docker").chmod(0o755)
    named = "GATEWAY_IMAGE=host:5000/edgewise:0.1.0"
    python(str(tmp_path / "digests.py"), named, PATH=f"{tmp_path}:{os.environ['PATH']}")
    lines = (tmp_path / "images.env").read_text().splitlines()
    images = re.findall(r"^(\w+_IMAGE)=", (DEPLOY / "images.txt").read_text(), re.MULTILINE)
    assert {line.partition("=")[0] for line in lines} == {*images, "GATEWAY_IMAGE"}
    assert all(re.search(r"=\S+:\S+@sha256:[0-9a-f]{64}$", line) for line in lines)
    component = (tmp_path / "kubernetes" / "images" / "kustomization.yaml").read_text()
    assert re.search(r"{name: edgewise, newName: host:5000/edgewise, digest: sha256:", component)


PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
EXTRAS = PROJECT["optional-dependencies"]
LOCKS = {
    "requirements.lock": ("gateway", "gateway-redis", "serve"),
    "build.lock": (),
    "tests.lock": ("docs", "gateway", "lab", "pocket", "serve", "test", "transformers"),
    "litellm.lock": (),
}
"""The extras of each lock; it has the lines of its `.in` as well."""


def pins(lock: str) -> dict[str, list[Requirement]]:
    """The lines of a lock by name; fails for one that holds no version, or no hash for an image."""
    hashes = "" if lock in ("tests.lock", "litellm.lock") else r"(?: +--hash=sha256:[0-9a-f]{64})+"
    found: dict[str, list[Requirement]] = {}
    for line in (DEPLOY / lock).read_text().replace("\\\n", " ").splitlines():
        pinned = re.fullmatch(rf"([\w.-]+==[\w.]+(?: *; .*?)?){hashes}\s*", line)
        assert pinned, line
        one = Requirement(pinned[1])
        found.setdefault(one.name, []).append(one)
    return found


def versions(held: list[Requirement]) -> set[str]:
    return {each.version for one in held for each in one.specifier}


@pytest.mark.parametrize("lock", LOCKS)
def test_a_lock_pins_all_that_is_needed(lock: str) -> None:
    source = (DEPLOY / lock).with_suffix(".in")
    lines = source.read_text().splitlines() if source.exists() else []
    needed = [*(PROJECT["dependencies"] if LOCKS[lock] else ()), *(x for x in lines if x[0] != "#")]
    needed += [line for extra in LOCKS[lock] for line in EXTRAS[extra]]
    needed += PYPROJECT["build-system"]["requires"] if lock == "build.lock" else ()
    held = pins(lock)
    for asked in map(Requirement, needed):
        if asked.name != "edgewise":
            there = versions(held[canonicalize_name(asked.name)])
            assert all(map(asked.specifier.contains, there)), asked
    # What torch has for a GPU is gigabytes, and no test uses it.
    assert not [name for name in held if name.startswith(("cuda-", "nvidia-", "triton"))]


@pytest.mark.skipif(
    os.environ.get("PIP_CONSTRAINT") != "deploy/tests.lock", reason="installed without the lock"
)
def test_what_is_tested_is_the_lock() -> None:
    installed = {
        canonicalize_name(found.name): found.version.partition("+")[0] for found in distributions()
    }
    for name, held in pins("tests.lock").items():
        for one in held:
            if name in installed and (one.marker is None or one.marker.evaluate()):
                assert one.specifier.contains(installed[name]), name


@pytest.mark.parametrize("extra", ["gateway", "serve"])
def test_a_parser_of_http_has_no_known_hole(extra: str) -> None:
    asked = map(Requirement, [*PROJECT["dependencies"], *EXTRAS[extra]])
    (found,) = (one for one in asked if one.name == "h11")
    assert not found.specifier.contains("0.15.0")


WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
SCHEMAS = {"compose-spec": [DEPLOY / "compose.yaml"], "github-workflows": WORKFLOWS}


@pytest.mark.deep
@pytest.mark.parametrize("schema", SCHEMAS)
def test_files_keep_to_their_schema(schema: str) -> None:
    require("check_jsonschema")
    files = map(str, SCHEMAS[schema])
    python("-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", *files)


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_holds_its_actions(workflow: Path) -> None:
    used = re.findall(r"uses: (.*)", workflow.read_text())
    assert used
    assert all(re.fullmatch(r"[\w/-]+@[0-9a-f]{40} # v[\d.]+", one) for one in used)


SECRETS = """
keys.json keys.json.partial deploy/keys/keys.json deploy/keys/usage.sqlite-wal
deploy/kubernetes/keys.json deploy/engine.env deploy/serve.env deploy/webui.env
deploy/webui/webui.db deploy/edgewise.pem deploy/tls.key .env deploy/models/large.gguf small.gguf
pocket/work/edge.gguf router/model.safetensors results/cell.json .git/config .venv/bin/python
"""


def test_what_may_not_get_into_an_image_does_not() -> None:
    """By the rules of .dockerignore, which stand for paths from the root."""
    pathspec = pytest.importorskip("pathspec")
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    rules = [re.sub("^!?", r"\g<0>/", line) for line in lines if line and line[0] != "#"]
    ignored = pathspec.PathSpec.from_lines("gitignore", rules)
    assert [path for path in SECRETS.split() if not ignored.match_file(path)] == []
    assert not ignored.match_file("src/edgewise/pair.py")


def test_the_health_check_asks_the_gateway() -> None:
    """By what the image runs, as it stands there."""
    words = DOCKERFILE[DOCKERFILE.index("HEALTHCHECK") :].replace("\\\n", " ")
    interpreter, script, *urls = json.loads(re.search(r"CMD (\[.*?\])", words)[1])  # type: ignore[index]
    assert interpreter.startswith("/opt/edgewise/")
    assert f"COPY deploy/{Path(script).name} {script}" in DOCKERFILE
    assert {url.partition("://")[0] for url in urls} == {"http", "https"}

    def code(*asked: str, **variables: str) -> int:
        return python(str(DEPLOY / "answers.py"), *asked, code=None, **variables).returncode

    with closing(ScriptedEngine()) as engine:
        with gateway([engine.url]) as running:
            here = [url.replace("127.0.0.1:8400", urlsplit(running.url).netloc) for url in urls]
            # No proxy is asked for what is on this machine.
            assert code(*here, http_proxy="http://127.0.0.1:1") == 0
            assert code(f"{running.url}/nothing") == 1
        assert code(*here) == 1


@pytest.mark.deep
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


@pytest.mark.parametrize("name", manifests())
@pytest.mark.parametrize("version", [OLDEST, kubernetes_validate.latest_version()])
def test_a_manifest_keeps_to_the_schema(name: str, version: str) -> None:
    kubernetes_validate.validate(manifests()[name], version, strict=True)


def test_the_gateways_command_names_every_replica() -> None:
    objects = manifests()
    pod = objects["Deployment gateway"]["spec"]["template"]["spec"]
    (container,), (waiting,) = pod["containers"], pod["initContainers"]
    options = parsed(container["args"])
    engines = objects["StatefulSet vllm"]["spec"]
    service = objects[f"Service {engines['serviceName']}"]
    assert service["spec"]["clusterIP"] == "None"
    (port,) = service["spec"]["ports"]
    host = f"{service['metadata']['name']}:{port['port']}"
    replicas = [f"http://vllm-{number}.{host}" for number in range(engines["replicas"])]
    assert list(options["engine"]) == replicas
    assert [{"name": "devices", "containerPort": options["port"]}] == container["ports"]
    assert waiting["args"] == ["--wait", *(f"{replica}/health" for replica in replicas)]
    assert f"COPY deploy/answers.py {waiting['command'][1]}" in DOCKERFILE
