"""Small files of a hub model's folder: JSON and text, never larger than they may be."""

import json
from pathlib import Path
from typing import TypeVar

import msgspec

from edgewise.errors import ModelError

MAX_CONFIG = 4 << 20
"""Largest description that is read, bytes."""

_T = TypeVar("_T")


def read_bytes(path: Path, most: int = MAX_CONFIG) -> bytes | None:
    """What a file holds; None where there is none. Raises `ModelError`."""
    try:
        if not path.is_file():
            return None
        if path.stat().st_size > most:
            raise ModelError(
                f"{str(path)!r} is larger than {most >> 20} MB", hint="download the model again"
            )
        return path.read_bytes()
    except OSError as error:
        raise ModelError(
            f"{str(path)!r} cannot be read ({error.strerror})", hint="check the model's folder"
        ) from error


def read_json(path: Path, kind: type[_T], most: int = MAX_CONFIG) -> _T | None:
    """A file's JSON as a `kind`; None where there is no such file. Raises `ModelError`."""
    data = read_bytes(path, most)
    if data is None:
        return None
    try:
        return _decoded(data, kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ModelError(
            f"{str(path)!r} is not what a model's folder holds under this name ({error})",
            hint="download the model again",
        ) from error


def _decoded(data: bytes, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(data, type=kind)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        # Python writes numbers that JSON has not, as in the configs of recurrent models.
        if b"Infinity" not in data and b"NaN" not in data:
            raise
        return msgspec.convert(json.loads(data), kind)
