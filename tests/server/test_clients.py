"""The clients people have, each in a process of its own: docs/clients.md as far as it can run."""

import os
import re
import sys
from pathlib import Path

import pytest

from tests import programs

ROOT = Path(__file__).parents[2]
DOCS = (ROOT / "docs/clients.md").read_text()
LITELLM = os.environ.get("LITELLM_PYTHON")
SHOWN = "http://127.0.0.1:8300"

# Programs of others, each in a process of its own.
pytestmark = pytest.mark.deep


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", DOCS, re.DOTALL)


def run(*command: str, folder: Path | None = None) -> str:
    # Nothing but the server may be asked, not even for a list of prices.
    offline = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "NO_PROXY": "*"}
    return programs.run(*command, folder=folder, **offline).stdout


@pytest.mark.parametrize("code", blocks("python"), ids=lambda code: code.split()[1])
def test_what_the_documentation_shows_works(url: str, tool_url: str, code: str) -> None:
    """What has tools is shown to a model that has some."""
    tools = "get_weather" in code
    said = "copper_is_a_metal" if "copper_is_a_metal" in code else "wine is"
    out = run(python_for(code), "-c", code.replace(SHOWN, tool_url if tools else url))
    assert ("get_weather" if tools else said) in out


def python_for(code: str) -> str:
    """LiteLLM wants an older huggingface_hub than Edgewise, and LlamaIndex an older client of
    OpenAI's, so they live in a place of their own."""
    if "litellm" not in code and "llama_index" not in code:
        return sys.executable
    if LITELLM is None:
        pytest.skip("needs LITELLM_PYTHON, an interpreter with litellm; see make test-litellm")
    return LITELLM


def test_curl_as_shown(url: str) -> None:
    (code,) = [block for block in blocks("sh") if "curl" in block]
    out = run("bash", "-c", code.replace(SHOWN, url))
    assert '"provenance"' not in out
    assert '"source"' in out


def test_the_proxys_configuration_is_one(url: str) -> None:
    (config,) = [block for block in blocks("yaml") if "litellm_params" in block]
    code = f"""
import litellm, yaml
config = yaml.safe_load({config.replace(SHOWN, url)!r})
router = litellm.Router(model_list=config["model_list"])
messages = [{{"role": "user", "content": "Tell me about copper."}}]
print(router.completion(model="edgewise", messages=messages).choices[0].message.content)
"""
    assert "copper" in run(python_for(code), "-c", code)


def test_tools_and_forms_of_openais_client(tool_url: str) -> None:
    run(sys.executable, str(Path(__file__).with_name("tool_clients.py")), tool_url)


DIALECTS = "/v1/(responses|messages)"
GENERATED = {
    "every field": ("--exclude-path-regex", DIALECTS),
    # The same fields in other words: field by field they take a minute.
    "whole requests": ("--include-path-regex", DIALECTS, "--phases", "fuzzing"),
}


@pytest.mark.parametrize("chosen", GENERATED.values(), ids=GENERATED)
def test_no_input_makes_the_server_fail(url: str, tmp_path: Path, chosen: tuple[str, ...]) -> None:
    """Schemathesis over the server's own description, bounded."""
    command = [sys.executable, "-m", "schemathesis.cli", "run", f"{url}/openapi.json", *chosen]
    command += ["--max-examples", "5", "--seed", "1", "--request-timeout", "60"]
    command += ["--checks", "not_a_server_error,response_schema_conformance,"]
    command[-1] += "content_type_conformance,status_code_conformance"
    run(*command, folder=tmp_path)
