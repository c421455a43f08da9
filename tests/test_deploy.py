"""The deployment's files name flags, files and ports that exist."""

import re
from pathlib import Path
from typing import Any

import pytest

yaml = pytest.importorskip("yaml")

ROOT = Path(__file__).parents[1]


def services() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())["services"]


def flags() -> set[str]:
    text = (ROOT / "src" / "edgewise" / "cli" / "gateway.py").read_text()
    signature = text[
        text.index("def gateway(") : text.index(") -> None:", text.index("def gateway("))
    ]
    names = re.findall(r"^    (\w+): ", signature, re.MULTILINE)
    return {"--" + name.replace("_", "-") for name in names}


@pytest.mark.parametrize("name", ["gateway-llama-server", "gateway-vllm"])
def test_a_gateways_command_is_one_that_exists(name: str) -> None:
    service = services()[name]
    assert {part for part in service["command"] if part.startswith("--")} <= flags()
    engine = service["command"][service["command"].index("--engine") + 1]
    host, port = re.fullmatch(r"http://([\w-]+):(\d+)", engine).groups()  # type: ignore[union-attr]
    assert port in str(services()[host]["healthcheck"]["test"])
    assert service["depends_on"] == {host: {"condition": "service_healthy"}}
    assert set(service["profiles"]) == set(services()[host]["profiles"])


def test_the_image_installs_what_a_gateway_needs() -> None:
    text = (ROOT / "deploy" / "Dockerfile").read_text()
    assert "'.[gateway]'" in text
    assert "USER edgewise" in text
    for copied in re.findall(r"/src/(\S+\.cmake)", text):
        assert (ROOT / copied).exists()
