"""A tokenizer by itself, without its model's weights."""

import weakref

from edgewise.addresses import resolve_tokenizer
from edgewise.edge.base import Tokenizer


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
