"""The edge engine `onnx`."""

from edgewise.edge.onnx.model import OnnxModel, import_genai, open_onnx

__all__ = ["OnnxModel", "import_genai", "open_onnx"]
