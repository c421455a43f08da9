"""Whether there can be models for ONNX Runtime here."""

from tests.installed import require


def require_onnx() -> None:
    """Skip without what writes and runs them; none is imported, as Edgewise does that."""
    require("onnx", "onnxruntime_genai", "tokenizers")
