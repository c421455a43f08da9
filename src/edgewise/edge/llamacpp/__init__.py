"""The edge engine `llamacpp`: GGUF models, run by llama.cpp in this process."""

from edgewise.edge.llamacpp.model import LlamaModel

__all__ = ["LlamaModel"]
