"""What contracts with a real vLLM need."""

from pathlib import Path

import pytest

from edgewise.addresses import bundled
from pocket.convert.__main__ import convert
from pocket.convert.weights import read


@pytest.fixture(scope="session")
def vllm_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled cloud model as vLLM loads it."""
    return convert(read(bundled("cloud")), "safetensors", tmp_path_factory.mktemp("vllm"))
