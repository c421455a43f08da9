"""What a folder for onnxruntime-genai says of its model, looked at before the library reads it.

Its `genai_config.json` may name libraries for the runtime to load, and files anywhere: such a
folder is refused.
"""

import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from edgewise.edge.hub.folder import read_json
from edgewise.errors import ModelError

CONFIG = "genai_config.json"

_WEIGHTS = re.compile(r"\.onnx|\.data$|\.bin$")
_PLAIN = re.compile(r"[\w-][\w. -]*")
_LIBRARY = re.compile(r"(?i)\.(so|dll|dylib)\b")
_QUALCOMM = re.compile(r"(lib)?Qnn(Htp|Gpu|Cpu)\.(dll|so)")
"""Libraries of the runtime's own that a model for Qualcomm's chips has to name."""

_OTHER_PARTS = ("encoder", "vision", "speech", "embedding", "joiner")


class _Outputs(msgspec.Struct, frozen=True):
    logits: str = "logits"
    hidden_states: str = "hidden_states"


class _Decoder(msgspec.Struct, frozen=True):
    filename: str = ""
    outputs: _Outputs = _Outputs()


class _Model(msgspec.Struct, frozen=True):
    type: str
    vocab_size: int
    context_length: int
    decoder: _Decoder


class _Config(msgspec.Struct, frozen=True):
    model: _Model


class OnnxDescription(msgspec.Struct, frozen=True, kw_only=True):
    """What the config says: sizes in ids, and the names of the graph's outputs."""

    vocabulary: int
    context: int
    logits: str
    hidden: str


def read_onnx_folder(folder: Path) -> OnnxDescription:
    """Read and check `folder`. Raises `ModelError` for what is no language model, or not safe."""
    path = folder / CONFIG
    raw = read_json(path, dict[str, object])
    if raw is None:
        raise ModelError(
            f"{str(folder)!r} holds no {CONFIG}",
            hint="name a folder that onnxruntime-genai's model builder has written",
        )
    for key, value in _strings(raw):
        _check_entry(path, key, value)
    try:
        model = msgspec.convert(raw, _Config).model
    except msgspec.ValidationError as error:
        raise ModelError(
            f"{str(path)!r} is no description of a language model ({error})",
            hint="download the model again",
        ) from error
    described = raw["model"]
    assert isinstance(described, dict)
    others = [part for part in _OTHER_PARTS if part in described]
    if others:
        raise ModelError(
            f"{str(folder)!r} is a model of the kind {model.type!r} with {others[0]!r}, and no "
            "decoder-only language model",
            hint="choose one that is",
        )
    if model.vocab_size < 1 or model.context_length < 1:
        raise ModelError(
            f"{str(path)!r} says of itself that it knows {model.vocab_size} ids and holds "
            f"{model.context_length}",
            hint="download the model again",
        )
    return OnnxDescription(
        vocabulary=model.vocab_size,
        context=model.context_length,
        logits=model.decoder.outputs.logits,
        hidden=model.decoder.outputs.hidden_states,
    )


def build_files(folder: Path) -> list[Path]:
    """What makes a model this very build: the config, the graph and its weights."""
    held = sorted(path for path in folder.iterdir() if path.is_file())
    return [folder / CONFIG, *(path for path in held if _WEIGHTS.search(path.name))]


def _strings(value: object, key: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _strings(inner, str(name))
    elif isinstance(value, list):
        for inner in value:
            yield from _strings(inner, key)
    else:
        yield key, value


def _check_entry(path: Path, key: str, value: object) -> None:
    """Raise `ModelError` for what would run code, write files, or read outside the folder."""
    named = key.casefold()
    text = value if isinstance(value, str) else ""
    runs = "library" in named or bool(_LIBRARY.search(text) and not _QUALCOMM.fullmatch(text))
    writes = named == "enable_profiling" or "optimized_model" in named
    leads = bool(text) and not _PLAIN.fullmatch(text) and re.search("file|path|dir", named)
    if runs or writes or leads:
        does = "loads a library" if runs else "writes files" if writes else "leads elsewhere"
        raise ModelError(
            f"{str(path)!r} has an entry {key!r} that {does}",
            hint="take it out if you trust who made the model",
        )
