"""A tokenizer by itself, without its model's weights."""

import weakref
from contextlib import suppress
from pathlib import Path

from edgewise.addresses import TOKENIZER, resolve_tokenizer
from edgewise.edge.base import Tokenizer
from edgewise.errors import AddressError
from edgewise.hub_client import HubAddress, ask_hub, explained, fetched, require_plain

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
    from edgewise.edge.llamacpp.load import load_vocabulary
    from edgewise.edge.llamacpp.tokenizer import LlamaTokenizer

    model = load_vocabulary(path)
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

    address = HubAddress(repository, None, None, None)
    require_plain(address, setting=None)
    with explained(address):
        return HubTokenizer(_fetched(address))


def _fetched(address: HubAddress) -> Path:
    """The folder that holds a repository's tokenizer, as the hub has it or as it was fetched."""
    from huggingface_hub.errors import LocalEntryNotFoundError

    listed = ask_hub(address)
    if listed.problem is None and TOKENIZER[0] not in listed.names:
        raise AddressError(f"{address.repo!r} has no {TOKENIZER[0]}")
    online = listed.problem is None
    path = fetched(address, TOKENIZER[0], online=online, largest=LARGEST)
    for name in TOKENIZER[1:]:
        if name in listed.names or not online:
            with suppress(LocalEntryNotFoundError):
                fetched(address, name, online=online, largest=LARGEST)
    return path.parent
