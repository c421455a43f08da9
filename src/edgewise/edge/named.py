"""The edge engines by name, the choice of one for a model, and tokenizers without their model."""

import weakref
from collections.abc import Callable, Sequence
from typing import Any

from edgewise.addresses import is_url, model_files, resolve_tokenizer, with_scheme
from edgewise.edge.base import EdgeModel, EdgeOptions, Tokenizer
from edgewise.errors import AddressError, UsageError
from edgewise.hub import is_gguf
from edgewise.registry import Registry

LLAMA_CPP = "llamacpp"

SERVER = "server"
"""Name of the edge engine for a model that a server at a URL runs."""

EDGES: Registry[Callable[[str, EdgeOptions], EdgeModel]] = Registry(
    "edge engine",
    "edgewise.edge",
    {
        LLAMA_CPP: "edgewise.edge.llamacpp:LlamaModel",
        SERVER: "edgewise.edge.served.model:open_server",
    },
)
"""The edge engines by name: functions from an address and `EdgeOptions` to an `EdgeModel`."""

_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")


def engine_at(address: str) -> str:
    """Return the name of the edge engine for the model at `address` (see `edgewise.addresses`).

    It is "server" for a URL, and "llamacpp" for a GGUF or an unknown address. For any other folder
    or hub repository it is the engine whose own format that is, else one that also reads it. Raises
    `AddressError` if there is no such engine, `UsageError` if there are several.
    """
    if is_url(with_scheme(address)):
        return SERVER
    files = model_files(address)
    if files is None:
        return LLAMA_CPP
    claims: dict[str, list[str]] = {}
    for name in EDGES.added():
        engine: Any = EDGES.load(name)
        if hasattr(engine, "claims") and (claim := engine.claims(files)):
            claims.setdefault(claim, []).append(name)
    claiming = claims.get("own") or claims.get("shared") or []
    if not claiming:
        raise _unclaimed(address, files.names)
    if len(claiming) > 1:
        raise UsageError(
            f"{address!r} is claimed by several edge engines: {', '.join(claiming)}",
            hint="name one of them",
            setting="edge_engine",
        )
    return claiming[0]


def _unclaimed(address: str, names: Sequence[str]) -> AddressError:
    if ggufs := sorted(filter(is_gguf, names)):
        problem, hint = "is a folder", f"name a file in it, such as {ggufs[0]}"
    elif any(name.endswith(_PICKLES) for name in names):
        problem = "holds weights in pickles alone, which are never read"
        hint = "name a repository with safetensors, or a GGUF"
    else:
        problem = f"holds nothing that an edge engine reads ({', '.join(EDGES.added())})"
        hint = "name a GGUF file, a model's folder or a hub repository of one"
    return AddressError(f"{address!r} {problem}", hint=hint, setting="edge")


def files_read(engine: str) -> tuple[str, ...]:
    """Return the endings of the names of the files that the engine named `engine` reads.

    They are the attribute `reads` of the engine's class, such as (".safetensors", ".json"); () if
    the class has none. Raises `UsageError` for an unknown engine.
    """
    return getattr(EDGES.load(engine), "reads", ())


def open_tokenizer(address: str) -> Tokenizer:
    """Open the tokenizer of a GGUF, folder or hub repository. Raises `UsageError` if that fails."""
    path = resolve_tokenizer(address)
    if path.is_dir():
        from edgewise.edge.tokenizer_json import HubTokenizer

        return HubTokenizer(path)
    from edgewise.edge.llamacpp.library import llama_cpp
    from edgewise.edge.llamacpp.load import load_weights
    from edgewise.edge.llamacpp.tokenizer import LlamaTokenizer

    model = load_weights(path, vocabulary_only=True)
    tokenizer = LlamaTokenizer(model)
    # Nobody else frees the model.
    weakref.finalize(tokenizer, llama_cpp.llama_model_free, model).atexit = False
    return tokenizer
