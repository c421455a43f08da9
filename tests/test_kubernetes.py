"""The manifests for Kubernetes: well formed, hardened, and true to what they deploy."""

from typing import Any

import kubernetes_validate
import pytest

from tests.deployment import DEPLOY, manifests, parsed

OLDEST = "1.30"
"""The first that knows everything that is used here."""

WORKLOADS = ("Deployment gateway", "StatefulSet vllm")


def pod(workload: str) -> dict[str, Any]:
    return manifests()[workload]["spec"]["template"]["spec"]


def main(workload: str) -> dict[str, Any]:
    """Its container."""
    (container,) = pod(workload)["containers"]
    return container


@pytest.mark.parametrize("name", manifests())
@pytest.mark.parametrize("version", [OLDEST, kubernetes_validate.latest_version()])
def test_a_manifest_keeps_to_the_schema(name: str, version: str) -> None:
    kubernetes_validate.validate(manifests()[name], version, strict=True)


@pytest.mark.parametrize("workload", [*WORKLOADS, "StatefulSet limits"])
def test_a_pod_may_do_little(workload: str) -> None:
    found = pod(workload)
    assert found["automountServiceAccountToken"] is False
    # Services' names would turn into variables of ours, and VLLM_PORT is one of vLLM's.
    assert found["enableServiceLinks"] is False
    assert found["securityContext"]["runAsNonRoot"] is True
    assert found["securityContext"]["runAsUser"] > 0
    assert found["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in [*found["containers"], *found.get("initContainers", [])]:
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert {"cpu", "memory"} <= set(container["resources"]["requests"])
        assert "memory" in container["resources"]["limits"]
    assert {"readinessProbe", "livenessProbe"} <= set(main(workload))
    labels = manifests()["Namespace edgewise"]["metadata"]["labels"]
    assert labels["pod-security.kubernetes.io/enforce"] == "restricted"


def test_the_gateways_command_names_every_replica() -> None:
    container = main("Deployment gateway")
    options = parsed(container["args"])
    engines = manifests()["StatefulSet vllm"]
    service = manifests()[f"Service {engines['spec']['serviceName']}"]
    assert service["spec"]["clusterIP"] == "None"
    (port,) = service["spec"]["ports"]
    replicas = [
        f"http://vllm-{number}.{service['metadata']['name']}:{port['port']}"
        for number in range(engines["spec"]["replicas"])
    ]
    assert list(options["engine"]) == replicas
    assert [{"name": "devices", "containerPort": options["port"]}] == container["ports"]
    (waiting,) = pod("Deployment gateway")["initContainers"]
    assert waiting["args"] == ["--wait", *(f"{replica}/health" for replica in replicas)]
    dockerfile = (DEPLOY / "Dockerfile").read_text()
    assert f"COPY deploy/answers.py {waiting['command'][1]}" in dockerfile


def test_only_gateways_reach_engines() -> None:
    everybody = manifests()["NetworkPolicy nobody"]["spec"]
    assert everybody == {"podSelector": {}, "policyTypes": ["Ingress", "Egress"]}
    engines = manifests()["StatefulSet vllm"]["spec"]["selector"]
    callers: list[str] = []
    for name, found in manifests().items():
        if found["kind"] == "NetworkPolicy" and found["spec"]["podSelector"] == engines:
            assert "egress" not in found["spec"], name
            for rule in found["spec"]["ingress"]:
                callers += (
                    peer["podSelector"]["matchLabels"]["app.kubernetes.io/name"]
                    for peer in rule["from"]
                )
    assert callers == ["gateway"]
