"""A hub model's folder: its descriptions and its weights, checked before a library reads them."""

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

import msgspec

from edgewise.errors import EdgewiseError, ModelError, UsageError
from edgewise.settings import unmarked

MAX_CONFIG = 4 << 20
"""Largest description that is read, bytes."""


DESCRIPTIONS = (".json", ".jinja", ".txt")
"""Files beside the weights that an engine may read."""

MAX_HEADER = 100_000_000
"""Most bytes that safetensors has for its names and shapes."""

MAX_PARTS = 4096
"""Most layers, or experts of a layer, that a description may have built."""

MAX_BUFFERS = 1 << 28
"""Most numbers in tables that a model computes, where its weights are no more."""

LACKING = "does not hold all weights that its config.json describes ({})"
"""Error text for a folder without all of its weights."""

_LARGE = (".onnx", ".data", ".safetensors", ".model", "tokenizer.json")
"""Ends of the names of files that Git LFS holds."""

_COUNTED = re.compile(r"layers?$|num_blocks|(num|n)_(\w+_)?experts$")
_BLOCKS, _BLOCK_BYTES = 64, 65536
_CAUSAL = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")


_INSTEAD = (
    (rb"version https://git-lfs", "a Git LFS pointer", "fetch the file itself: git lfs pull"),
    (rb"(?i)\s*<(!doctype|html|\?xml)", "a web page", "download the file, not the page about it"),
    (rb"\Z", "empty", "download it again"),
)
"""How files begin that stand in a model's place: what each is, and what to do."""

_T = TypeVar("_T")


class HubConfig(msgspec.Struct):
    architectures: list[str] | None = None
    model_type: str | None = None
    model_file: Any = None
    transformers_weights: Any = None
    is_encoder_decoder: bool = False
    quantization_config: dict[str, Any] | None = None
    quantization: dict[str, Any] | None = None
    max_position_embeddings: Any = None
    text_config: "HubConfig | None" = None


def read_config(folder: Path, form: str) -> HubConfig:
    """The config of a whole language model. `form` names what is expected. Raises `ModelError`."""
    path = folder / "config.json"
    config = read_json(path, HubConfig)
    if config is None:
        raise ModelError(
            f"There is no config.json in {str(folder)!r}",
            hint=f"name the folder of a model in {form} form, or a GGUF file",
        )
    for key, count in _counts(read_json(path, dict[str, Any])):
        if count > MAX_PARTS:
            raise ModelError(f"{str(path)!r} has a {key} of {count}, more than {MAX_PARTS}.")
    named = config.architectures or []
    if config.is_encoder_decoder or (named and not any(name.endswith(_CAUSAL) for name in named)):
        raise ModelError(
            f"{str(folder)!r} holds {', '.join(named) or 'an encoder-decoder'}, which does not "
            "write text from left to right",
            hint="name a causal language model",
        )
    if (folder / "adapter_config.json").exists():
        raise ModelError(
            f"{str(folder)!r} holds an adapter, not a whole model",
            hint="merge it into its model first",
        )
    return config


def damaged(path: Path, what: str) -> ModelError:
    """Error for a damaged model file or folder; `what` it is or lacks."""
    if other := other_form(path):
        return ModelError(f"{str(path)!r} is {other[0]}", hint=other[1])
    return ModelError(f"{str(path)!r} {what}", hint="download the model again")


def other_form(path: Path) -> tuple[str, str] | None:
    """What was downloaded in a file's place, and what to do; None for any other file."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        begin = file.read(64)
    return next(((what, hint) for form, what, hint in _INSTEAD if re.match(form, begin)), None)


def reason_of(error: BaseException) -> str:
    """A library's error message, shortened."""
    return " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__


def require_one_device(engine: str, gpu_layers: int | Literal["auto"]) -> None:
    """Raise `UsageError` where some layers of a model are to go elsewhere than the others."""
    if gpu_layers != "auto" and gpu_layers > 0:
        raise UsageError(
            f"The edge engine {engine} loads a whole model on one device, so gpu-layers cannot be "
            f"{gpu_layers}",
            hint="leave it out (a GPU, if there is one), or give 0 (the CPU)",
            setting="gpu_layers",
        )


@contextmanager
def explained(folder: Path, engine: str) -> Generator[None]:
    """Turns what the package `engine` raises for an unusable file or folder into a `ModelError`.

    A panic of a library in Rust is no `Exception`.
    """
    try:
        yield
    except (EdgewiseError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        for one in sorted(folder.glob("*")):
            if other_form(one) is not None and one.name.endswith(_LARGE):
                raise damaged(one, "") from error
        without = " without code of the model's own" if "trust_remote_code" in str(error) else ""
        raise ModelError(
            f"{engine} cannot load {str(folder)!r}{without} ({reason_of(error)})",
            hint=f"update {engine}, or name a GGUF of the model",
        ) from error


def _counts(described: object) -> Generator[tuple[str, int]]:
    if isinstance(described, dict):
        for key, value in cast(dict[str, Any], described).items():
            if isinstance(value, int) and _COUNTED.search(key):
                yield key, value
            yield from _counts(value)
    elif isinstance(described, list):
        for value in cast(list[Any], described):
            yield from _counts(value)


def read_bytes(path: Path, most: int = MAX_CONFIG) -> bytes | None:
    """A file without a byte order mark; None if it does not exist. Raises `ModelError`."""
    try:
        if not path.is_file():
            return None
        if path.stat().st_size > most:
            raise damaged(path, f"is larger than {most >> 20} MB")
        return unmarked(path.read_bytes())
    except OSError as error:
        raise ModelError(
            f"{str(path)!r} cannot be read ({error.strerror})", hint="check the model's folder"
        ) from error


def read_json(path: Path, kind: type[_T]) -> _T | None:
    """A file's JSON as a `kind`; None where there is no such file. Raises `ModelError`.

    By Python's `json`: configs of recurrent models have numbers, such as Infinity, that JSON lacks.
    """
    data = read_bytes(path)
    try:
        return None if data is None else msgspec.convert(parsed(data), kind)
    except (msgspec.ValidationError, ValueError, RecursionError) as error:
        raise damaged(
            path, f"is not what a model's folder holds under this name ({error})"
        ) from error


def parsed(data: bytes) -> Any:
    """The JSON of a file. Raises `ValueError` for a key twice: readers differ in which counts."""
    return json.loads(data, object_pairs_hook=_once)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"it has the key {twice[:200]!r} twice")
    return made


def weight_files(folder: Path) -> list[Path]:
    """The safetensors of a folder, by name. Raises `ModelError` for none."""
    found = sorted(path for path in folder.glob("*.safetensors") if path.is_file())
    if not found:
        raise ModelError(
            f"There are no safetensors in {str(folder)!r}",
            hint="name a folder that has some: pickled weights are never loaded",
        )
    return found


def count_weights(files: Sequence[Path]) -> int:
    """Number of parameters in all tensors. Raises `ModelError`."""
    from safetensors import SafetensorError, safe_open

    count = 0
    for path in files:
        try:
            with path.open("rb") as file:  # another parser may read the other of two
                parsed(file.read(min(int.from_bytes(file.read(8), "little"), MAX_HEADER)))
            with safe_open(path, framework="numpy") as tensors:
                shapes = [tensors.get_slice(name).get_shape() for name in tensors.keys()]  # noqa: SIM118
        except (SafetensorError, OSError, ValueError, RecursionError) as error:
            raise damaged(path, f"is truncated or damaged ({str(error)[:200]})") from error
        count += sum(map(math.prod, shapes))
    return count


def digest_of(files: Sequence[Path]) -> str:
    """SHA-256 over names, lengths and a sample of the blocks of each file.

    Two trainings differ in every block of weights, so a sample tells them apart.
    """
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        for block in sampled_blocks(path):
            digest.update(block)
    return digest.hexdigest()


def sampled_blocks(path: Path) -> Iterator[bytes]:
    """64 evenly spaced blocks of 64 KiB: 4 MiB take milliseconds, a whole file seconds."""
    last = max(path.stat().st_size - _BLOCK_BYTES, 0)
    with path.open("rb") as file:
        for index in range(_BLOCKS if last else 1):
            file.seek(last * index // (_BLOCKS - 1))
            yield file.read(_BLOCK_BYTES)
