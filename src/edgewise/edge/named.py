"""Opens an edge model, or a tokenizer by itself, at an address."""

import weakref
from collections.abc import Callable

from edgewise.addresses import resolve_tokenizer
from edgewise.edge.base import EdgeModel, EdgeOptions, Tokenizer
from edgewise.registry import Registry

SERVER = "server"
"""The edge engine for a model that a server at a URL runs."""

EDGES: Registry[Callable[[str, EdgeOptions], EdgeModel]] = Registry(
    "edge engine",
    "edgewise.edge",
    {
        "llamacpp": "edgewise.edge.llamacpp:LlamaModel",
        "mlx": "edgewise.edge.mlx:MlxModel",
        "onnx": "edgewise.edge.onnx:OnnxModel",
        SERVER: "edgewise.edge.served.model:open_server",
        "transformers": "edgewise.edge.transformers:TransformersModel",
    },
)
"""An engine is called with the model's address as the user wrote it."""


def files_read(engine: str) -> tuple[str, ...]:
    """Ends of the names of a folder's files that an engine reads; its class says so as `reads`."""
    return getattr(EDGES.load(engine), "reads", ())


def open_tokenizer(address: str) -> Tokenizer:
    """The tokenizer in a GGUF, or of a folder or repository with `tokenizer.json`.

    Raises `AddressError`, `ModelError` for a file that holds none, or `UsageError` without the
    library that reads it.
    """
    path = resolve_tokenizer(address)
    if path.is_dir():
        from edgewise.edge.hub.tokenizer import HubTokenizer

        return HubTokenizer(path)
    from edgewise.edge.llamacpp.library import llama_cpp
    from edgewise.edge.llamacpp.load import load_weights
    from edgewise.edge.llamacpp.tokenizer import LlamaTokenizer

    model = load_weights(path, vocabulary_only=True)
    tokenizer = LlamaTokenizer(model)
    # Nobody else holds the model.
    weakref.finalize(tokenizer, llama_cpp.llama_model_free, model).atexit = False
    return tokenizer
