"""Whether there can be models for ONNX Runtime here."""

from importlib.util import find_spec

import pytest

NEEDED = ("onnx", "onnxruntime_genai", "tokenizers")


def require_onnx() -> None:
    """Skip the test without what writes and runs them; none is imported, as Edgewise does that."""
    for name in NEEDED:
        if find_spec(name) is None:
            pytest.skip(f"needs {name}")
