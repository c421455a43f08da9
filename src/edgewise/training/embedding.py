"""The edge model's input embeddings, read from its GGUF file."""

import numpy as np

from edgewise.edge.base import EdgeModel, Floats
from edgewise.edge.llamacpp import LlamaModel
from edgewise.errors import UsageError

TENSOR = "token_embd.weight"


def embeddings(edge: EdgeModel) -> Floats:
    """float32[vocabulary, d]. Raises `UsageError` where there is no such file or tensor."""
    try:
        import gguf
    except ImportError as error:
        raise UsageError("Reading embeddings needs gguf: pip install 'edgewise[train]'.") from error
    if not isinstance(edge, LlamaModel):
        raise UsageError("The input token_embedding needs an edge model in a GGUF file.")
    for tensor in gguf.GGUFReader(edge.path).tensors:
        if tensor.name == TENSOR:
            return np.asarray(gguf.dequantize(tensor.data, tensor.tensor_type), np.float32)
    raise UsageError(f"{edge.name!r} has no tensor {TENSOR}; leave token_embedding out.")
