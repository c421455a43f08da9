"""The edge engine `llamacpp`."""

from edgewise.edge.llamacpp.model import LlamaModel, open_gguf

__all__ = ["LlamaModel", "open_gguf"]
