"""The edge engine `llamacpp`."""

from edgewise.edge.llamacpp.model import LlamaModel

__all__ = ["LlamaModel"]
