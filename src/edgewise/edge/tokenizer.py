"""A tokenizer by itself, without its model's weights."""

import weakref

from edgewise.addresses import resolve_tokenizer, tokenizer_folder
from edgewise.edge.base import Tokenizer

LARGEST = 128 << 20
"""Most that is downloaded of a file that others named, bytes: Gemma's tokenizer has 33 MB."""


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


def open_repository_tokenizer(repository: str) -> Tokenizer:
    """The tokenizer of a hub repository that others named.

    Only its own files are downloaded, where they are small: never weights, never code. Raises
    `AddressError`, or as `open_tokenizer`.
    """
    from edgewise.edge.hub.tokenizer import HubTokenizer

    return HubTokenizer(tokenizer_folder(repository, largest=LARGEST))
