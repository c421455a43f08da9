"""What contracts with a real vLLM need."""

import os
import subprocess
from pathlib import Path

import pytest

from edgewise.addresses import bundled


@pytest.fixture(scope="session")
def vllm_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled cloud model as vLLM loads it."""
    folder = tmp_path_factory.mktemp("vllm")
    command = [os.environ["VLLM_PYTHON"], str(Path(__file__).parents[1] / "vllm_model.py")]
    subprocess.run([*command, str(bundled("cloud")), str(folder)], check=True)
    return folder
