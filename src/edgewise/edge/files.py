"""Reads and checks the files in a model's folder before a library is given them."""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from edgewise.errors import EdgewiseError, ModelError, reason_of
from edgewise.settings import unmarked

MAX_CONFIG = 4 << 20
"""Most bytes of a configuration file (such as config.json) that is read."""

# Endings of the names of files that repositories keep in Git LFS.
_LARGE = (".onnx", ".data", ".safetensors", ".model", "tokenizer.json")

# Training changes most weights, so 4 MB tell two models apart; gigabytes take seconds to read.
_BLOCKS, _BLOCK_BYTES = 64, 65536
# Files found instead of a model's: a pattern of their beginning, what they are, a hint.
_INSTEAD = (
    (rb"version https://git-lfs", "a Git LFS pointer", "fetch the file itself: git lfs pull"),
    (rb"(?i)\s*<(!doctype|html|\?xml)", "a web page", "download the file, not the page about it"),
    (rb"\Z", "empty", "download it again"),
)

_T = TypeVar("_T")


def damaged(path: Path, what: str) -> ModelError:
    """Return the error for a damaged model file or folder.

    `what` completes the message "PATH ...", such as "is larger than 4 MB". If the file is
    recognised as something else, such as a Git LFS pointer, the message says that instead.
    """
    if other := other_form(path):
        return ModelError(f"{str(path)!r} is {other[0]}", hint=other[1])
    return ModelError(f"{str(path)!r} {what}", hint="download the model again")


def other_form(path: Path) -> tuple[str, str] | None:
    """Return what a file is instead of a model, such as "a web page", and a hint; else None."""
    if not path.is_file():
        return None
    with path.open("rb") as file:
        begin = file.read(64)
    return next(((what, hint) for form, what, hint in _INSTEAD if re.match(form, begin)), None)


@contextmanager
def explained(folder: Path, engine: str) -> Generator[None]:
    """Context manager: exceptions of the library `engine` reading `folder` become `ModelError`s."""
    try:
        yield
    except (EdgewiseError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    # A panic of Rust code is no `Exception`.
    except BaseException as error:
        for one in sorted(folder.glob("*")):
            if other_form(one) is not None and one.name.endswith(_LARGE):
                raise damaged(one, "") from error
        without = " without code of the model's own" if "trust_remote_code" in str(error) else ""
        raise ModelError(
            f"{engine} cannot load {str(folder)!r}{without} ({reason_of(error)})",
            hint=f"update {engine}, or name a GGUF of the model",
        ) from error


def read_bytes(path: Path, most: int = MAX_CONFIG) -> bytes | None:
    """Return a file's content without a byte order mark; None if there is no such file.

    Raises `ModelError` for a file of more than `most` bytes, or one that cannot be read.
    """
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
    """Return a JSON file as a value of type `kind`; None if there is no such file.

    Raises `ModelError` if the file has more than 4 MiB, cannot be read or is not such JSON.
    """
    data = read_bytes(path)
    try:
        # By Python's `json`: configs of recurrent models hold Infinity, which JSON lacks.
        return None if data is None else msgspec.convert(parsed(data), kind)
    except (msgspec.ValidationError, ValueError, RecursionError) as error:
        what = f"is not what a model's folder holds under this name ({error})"
        raise damaged(path, what) from error


def parsed(data: bytes) -> Any:
    """Parse JSON. Raises `ValueError` if it is invalid, or has the same key twice in an object."""
    return json.loads(data, object_pairs_hook=_once)


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    # Where a key stands twice, a library may read the value that was not checked.
    made = dict(pairs)
    if len(made) < len(pairs):
        twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
        raise ValueError(f"it has the key {twice[:200]!r} twice")
    return made


def digest_of(files: Sequence[Path]) -> str:
    """Return a SHA-256 (hexadecimal) over the names, lengths and parts of the contents of `files`.

    Of a file above 64 KiB, 64 evenly spaced blocks of 64 KiB are read. The files' order matters.
    """
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.name}\0{path.stat().st_size}\0".encode())
        for block in _sampled_blocks(path):
            digest.update(block)
    return digest.hexdigest()


def fingerprint_of(path: Path) -> str:
    """Return a SHA-256 (hexadecimal) over a file's length and up to 64 blocks of 64 KiB of it."""
    digest = hashlib.sha256(str(path.stat().st_size).encode())
    for block in _sampled_blocks(path):
        digest.update(block)
    return digest.hexdigest()


def _sampled_blocks(path: Path) -> Iterator[bytes]:
    """Yield 64 evenly spaced blocks of 64 KiB, of a smaller file its content."""
    last = max(path.stat().st_size - _BLOCK_BYTES, 0)
    with path.open("rb") as file:
        for index in range(_BLOCKS if last else 1):
            file.seek(last * index // (_BLOCKS - 1))
            yield file.read(_BLOCK_BYTES)
