"""Finds models that other programs keep on this disk: Ollama, LM Studio, llama.cpp, the hub.

Nothing is written there, and no program is asked: only files are read.
"""

import hashlib
import json
import os
import re
import stat
import struct
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from edgewise.errors import AddressError
from edgewise.hub import first_of, is_gguf, models_among, short

# Other programs' folders may hold anything: a look at them must end soon.
_LARGEST_DESCRIPTION, _MOST_FOLDERS = 1 << 20, 10_000
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_NAME = re.compile(
    r"(?:https?://)?(?:(?:([\w.-]+(?::\d{1,5})?)/)?([\w.-]+)/)?([\w.-]+)(?::([\w.-]+))?"
)
_WEIGHTS, _ADAPTER = (f"application/vnd.ollama.image.{kind}" for kind in ("model", "adapter"))
_PADDING = re.compile(rb"\[PAD\d+\]")
# Type codes of a GGUF's values.
_TEXT, _ARRAY = 8, 9
# Size in bytes of each type of number in a GGUF, by its type code.
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
# A GGUF names its own sizes: a damaged one must not ask for all memory.
_MOST_KEYS, _MOST_TOKENS, _LONGEST_TEXT = 1 << 12, 1 << 20, 1 << 22
_LONGEST_VOCABULARY = 32 << 20
# Hosts of Ollama's own registry, old and new; models of others are named with their host.
_REGISTRIES = ("registry.ollama.ai", "ollama.com")


class DiskModel(NamedTuple):
    """A model that `program` keeps at `path`, of `size` bytes. `address` names it to `--edge`."""

    program: str
    address: str
    size: int
    path: Path


def disk_models() -> list[DiskModel]:
    """Return the GGUF models of Ollama, LM Studio and llama.cpp, sorted by program and address.

    Ollama's models with an adapter or several files are left out.
    """
    found = [
        DiskModel("Ollama", f"ollama:{name}", _size(path), path)
        for name, (path, lacks) in _ollama()
        if not lacks
    ]
    found += [
        DiskModel("LM Studio", f"lmstudio:{name}", size, path) for name, path, size in _lmstudio()
    ]
    for folder in _llama_folders():
        found += [DiskModel("llama.cpp", str(path), size, path) for path, size in _models(folder)]
    return sorted(found)


def vocabulary_of(path: Path) -> str | None:
    """Return a SHA-256 (hex) of a GGUF's tokens without final padding; None if they are unreadable.

    `path` is a GGUF, or a repository's folder in the hub's cache, whose first GGUF is read. The
    hash is not that of `edgewise.edge.vocabulary.fingerprint`.
    """
    if path.is_dir():
        ggufs = models_among(str(path) for path in _files(path, "snapshots/*/*.gguf"))
        return vocabulary_of(Path(ggufs[0])) if ggufs else None
    try:
        with path.open("rb") as file:
            tokens = _tokens(file)
    except (OSError, ValueError, KeyError, struct.error):
        return None
    # Models of one family are padded to different sizes.
    while tokens and _PADDING.fullmatch(tokens[-1]):
        del tokens[-1]
    return hashlib.sha256(b"\0".join(tokens)).hexdigest() if tokens else None


def _tokens(file: BinaryIO) -> list[bytes]:
    """Return the tokens in a GGUF's header. Raises `ValueError`, `KeyError` or `struct.error`."""

    def number(kind: str) -> int:
        return struct.unpack(f"<{kind}", file.read(struct.calcsize(kind)))[0]

    def text() -> bytes:
        return file.read(_bounded(number("Q"), _LONGEST_TEXT))

    if file.read(4) != b"GGUF" or number("I") not in (2, 3):
        raise ValueError("not a GGUF")
    number("Q")  # tensors
    for _ in range(_bounded(number("Q"), _MOST_KEYS)):
        key, kind = text(), number("I")
        element, count = (number("I"), number("Q")) if kind == _ARRAY else (kind, 1)
        if element != _TEXT:
            file.seek(_bounded(count, _MOST_TOKENS) * _SIZES[element], os.SEEK_CUR)
            continue
        texts, left = list[bytes](), _LONGEST_VOCABULARY
        for _ in range(_bounded(count, _MOST_TOKENS)):
            size = int.from_bytes(file.read(8), "little")
            left -= _bounded(size, left)
            texts.append(file.read(size))
        if key == b"tokenizer.ggml.tokens":
            return texts if texts[-1:] != [b""] else []  # the file ends before
    return []


def _bounded(count: int, most: int) -> int:
    if count > most:
        raise ValueError(f"{count} is more than {most}")
    return count


def ollama_file(name: str, *, whole: bool = True) -> Path:
    """Return the path of the GGUF of the Ollama model `name`. `AddressError` if there is none.

    With `whole`, a model that has an adapter or several files raises it, too. Without, an adapter
    is ignored, and of several files the first is taken.
    """
    wanted = _full_name(name)
    if wanted is None:
        raise AddressError(
            f"{short(name)!r} is not an Ollama name", hint="write it as `ollama list` does"
        )
    models = dict(_ollama())
    for shown, (path, more) in models.items():
        if _full_name(shown) == wanted and not (whole and more):
            return path
        if _full_name(shown) == wanted:
            raise AddressError(
                f"Ollama's {short(name)!r} has {more}, which Ollama alone puts together",
                hint="name Ollama's address, http://127.0.0.1:11434, and this model there",
            )
    where = " or ".join(str(folder) for folder in _ollama_folders())
    has = f"it has {short(', '.join(sorted(models)))}" if models else f"looked in {where}"
    raise AddressError(
        f"Ollama has no model {short(name)!r} on this disk",
        hint=f"{has}; `ollama pull {short(name)}` downloads it, OLLAMA_MODELS names another folder",
    )


def _full_name(name: str) -> tuple[str, ...] | None:
    """Return host, owner, model and tag of an Ollama name, with defaults; None if invalid."""
    match = _NAME.fullmatch(name.lower())
    if match is None:
        return None
    host, owner, model, tag = match.groups()
    if host is None or host in _REGISTRIES:
        host = _REGISTRIES[0]
    return host, owner or "library", model, tag or "latest"


def lmstudio_file(name: str) -> Path:
    """Return the path of LM Studio's first GGUF called `name`. `AddressError` if there is none.

    A name is owner/repository/file or owner/repository, in any case. What stands before a slash may
    be left out, and so may -GGUF and .gguf at the name's end.
    """
    wanted, files = _plain_name(name), list(_lmstudio())
    for relative, path, _ in files:
        folder, _, _ = relative.rpartition("/")
        for one in (_plain_name(relative), _plain_name(folder)):
            if f"/{one}".endswith(f"/{wanted}"):
                return path
    names = short(", ".join(relative for relative, _, _ in files))
    has = f"it has {names}" if files else "its folder holds no GGUF file"
    raise AddressError(f"LM Studio has no model {short(name)!r} on this disk", hint=has)


def packaged_file(package: str) -> Path | None:
    """Return the path of a Python package's first GGUF, or None; the package is not imported."""
    found = find_spec(package)
    folders = found.submodule_search_locations if found else None
    return next(iter(sorted(Path(folders[0]).glob("*.gguf"))), None) if folders else None


def blobs_named(sha256: str) -> list[Path]:
    """Return files in Ollama's store and the hub's cache that are named after this hash (hex)."""
    from huggingface_hub.constants import HF_HUB_CACHE

    blobs = [root / "blobs" / f"sha256-{sha256}" for root in _ollama_folders()]
    blobs += _files(Path(HF_HUB_CACHE), f"models--*/blobs/{sha256}")
    return [path for path in blobs if _size(path)]


def _ollama() -> Iterator[tuple[str, tuple[Path, str]]]:
    """Yield each of Ollama's models: its name as in `ollama list`, and the result of `_weights`."""
    for root in _ollama_folders():
        for path in _files(root, "manifest*/*/*/*/*"):
            host, owner, model, tag = path.parts[-4:]
            weights = _weights(root, path)
            if weights is None:
                continue
            names = [f"{model}:{tag}"]
            if host not in _REGISTRIES or owner != "library":
                names.insert(0, owner)
            if host not in _REGISTRIES:
                names.insert(0, host)
            yield "/".join(names), weights


def _weights(root: Path, manifest: Path) -> tuple[Path, str] | None:
    """Return a manifest's first weights file and, in words, what else it has; None without one."""
    try:
        layers: Any = _described(manifest)["layers"]
        digests = {str(one["digest"]): None for one in layers if one["mediaType"] == _WEIGHTS}
        adapted = any(one["mediaType"] == _ADAPTER for one in layers)
    except (KeyError, TypeError):
        return None
    more = "an adapter" if adapted else f"{len(digests)} files" if len(digests) > 1 else ""
    # A manifest comes from elsewhere, and its digest becomes a path.
    digest = _DIGEST.fullmatch(next(iter(digests), ""))
    blob = root / "blobs" / f"sha256-{digest[1]}" if digest else None
    return (blob, more) if blob is not None and _size(blob) else None


def _ollama_folders() -> list[Path]:
    if named := os.environ.get("OLLAMA_MODELS"):
        return [Path(named)]
    # On Linux the service has a user of its own.
    return [_home() / ".ollama" / "models", Path("/usr/share/ollama/.ollama/models")]


def _lmstudio() -> Iterator[tuple[str, Path, int]]:
    for folder in _lmstudio_folders():
        for path, size in _models(folder):
            yield path.relative_to(folder).as_posix(), path, size


def _plain_name(name: str) -> str:
    return name.lower().removesuffix(".gguf").removesuffix("-gguf")


def _lmstudio_folders() -> list[Path]:
    pointer = _small(_home() / ".lmstudio-home-pointer").decode("utf-8", "replace").strip()
    home = Path(pointer) if pointer else _home() / ".lmstudio"
    moved = _described(home / "settings.json").get("downloadsFolder")
    own = [Path(moved)] if isinstance(moved, str) and moved else []
    folders = [*own, home / "models", _home() / ".cache" / "lm-studio" / "models"]
    return list(dict.fromkeys(folder for folder in folders if folder.is_absolute()))


def _llama_folders() -> list[Path]:
    if named := os.environ.get("LLAMA_CACHE"):
        return [Path(named)]
    if sys.platform == "darwin":
        return [_home() / "Library" / "Caches" / "llama.cpp"]
    cache = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
    return [Path(cache or _home() / ".cache") / "llama.cpp"]


def _home() -> Path:
    return Path(os.path.expanduser("~"))


def _models(folder: Path) -> list[tuple[Path, int]]:
    """Return the models in a folder and below it, each with the bytes of all its parts."""
    sizes = Counter[str]()
    with suppress(OSError, ValueError):
        for path in _below(folder):
            sizes[first_of(str(path))] += _size(path)
    return [(Path(name), sizes[name]) for name in models_among(sizes) if _size(Path(name))]


def _below(folder: Path) -> Iterator[Path]:
    """Yield the GGUF files below a folder, following links; each folder is visited once."""
    # Links may lead in a circle.
    seen = set[tuple[int, int]]()
    for at, folders, names in os.walk(folder, followlinks=True):
        here = os.stat(at)
        if (here.st_dev, here.st_ino) in seen or len(seen) == _MOST_FOLDERS:
            folders.clear()
            continue
        seen.add((here.st_dev, here.st_ino))
        folders.sort()
        yield from (Path(at, name) for name in names if is_gguf(name))


def _described(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; empty for any other file."""
    try:
        found: Any = json.loads(_small(path))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _small(path: Path) -> bytes:
    """Return a short regular file's bytes; empty for other files."""
    with suppress(OSError):
        if 0 < _size(path) <= _LARGEST_DESCRIPTION:
            return path.read_bytes()
    return b""


def _files(folder: Path, pattern: str) -> list[Path]:
    """Return the files that match, sorted; none of a folder that may not be read."""
    try:
        return sorted(path for path in folder.glob(pattern) if path.is_file())
    except (OSError, ValueError):
        return []


def _size(path: Path) -> int:
    """Return a file's bytes; 0 if it is gone, may not be read or is no regular file."""
    try:
        found = path.stat()
    except (OSError, ValueError):
        return 0
    # Whoever reads a pipe waits for its writer.
    return found.st_size if stat.S_ISREG(found.st_mode) else 0
