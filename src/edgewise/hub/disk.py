"""Models that other programs have on this disk: Ollama, LM Studio, llama.cpp, the hub's cache.

Nothing is written there, and no program is asked: only files are read. Names that come from
elsewhere (a manifest's digest) are checked before they become a path.
"""

import hashlib
import json
import os
import re
import struct
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from edgewise.errors import AddressError
from edgewise.hub import is_plain, models_among, parts_of, short

_LARGEST_MANIFEST = 1 << 20
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
_NAME = re.compile(r"(?:[\w.-]+/){0,2}[\w.-]+(?::[\w.-]+)?")
_WEIGHTS = "application/vnd.ollama.image.model"
_PADDING = re.compile(rb"\[PAD\d+\]")
_TEXT, _ARRAY = 8, 9
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of a GGUF's numbers, by their kind."""
_MOST_KEYS, _MOST_TOKENS, _LONGEST_TEXT = 1 << 12, 1 << 20, 1 << 22
_REGISTRIES = ("registry.ollama.ai", "ollama.com")
"""Ollama's own, by its age; models of others are named with their host."""


class DiskModel(NamedTuple):
    """A GGUF of another program: `address` is what `--edge` takes, `size` in bytes."""

    program: str
    address: str
    size: int
    path: Path


def disk_models() -> list[DiskModel]:
    """Every GGUF that Ollama, LM Studio and llama.cpp keep, by program and address."""
    found = [("Ollama", f"ollama:{name}", path) for name, path in _ollama()]
    found += [("LM Studio", f"lmstudio:{name}", path) for name, path in _lmstudio()]
    found += [("llama.cpp", str(path), path) for f in _llama_folders() for path in _ggufs(f)]
    return sorted(DiskModel(program, name, _whole(path), path) for program, name, path in found)


def vocabulary_of(path: Path) -> str | None:
    """A digest of the tokens of a GGUF, or of a cached repository's first; None without any.

    Two models with the same digest most likely share a vocabulary; nothing is loaded for it.
    """
    if path.is_dir():
        ggufs = models_among(str(path) for path in _files(path, "snapshots/*/*.gguf"))
        return vocabulary_of(Path(ggufs[0])) if ggufs else None
    try:
        with path.open("rb") as file:
            tokens = _tokens(file)
    except (OSError, ValueError, KeyError, struct.error):
        return None
    while tokens and _PADDING.fullmatch(tokens[-1]):
        del tokens[-1]
    return hashlib.sha256(b"\0".join(tokens)).hexdigest() if tokens else None


def _tokens(file: BinaryIO) -> list[bytes]:
    """The tokens in a GGUF's header; raises `ValueError` and others for what is not a GGUF."""

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
        texts = [text() for _ in range(_bounded(count, _MOST_TOKENS))]
        if key == b"tokenizer.ggml.tokens":
            return texts
    return []


def _bounded(count: int, most: int) -> int:
    if count > most:
        raise ValueError(f"{count} is more than {most}")
    return count


def ollama_file(name: str) -> Path:
    """The GGUF of Ollama's model `name`, such as qwen3:0.6b. Raises `AddressError`."""
    if not _NAME.fullmatch(name) or not is_plain(name.replace(":", "/")):
        raise AddressError(
            f"{short(name)!r} is not an Ollama name", hint="write it as `ollama list` does"
        )
    wanted = name if ":" in name else f"{name}:latest"
    models = dict(_ollama())
    if wanted in models:
        return models[wanted]
    where = " or ".join(str(folder) for folder in _ollama_folders())
    has = f"it has {short(', '.join(sorted(models)))}" if models else f"looked in {where}"
    raise AddressError(
        f"Ollama has no model {short(name)!r} on this disk",
        hint=f"{has}; `ollama pull {short(name)}` downloads it, OLLAMA_MODELS names another folder",
    )


def lmstudio_file(name: str) -> Path:
    """LM Studio's GGUF by owner/repo/file or any end of it, -GGUF and .gguf left out or not.

    The first of a folder counts. Raises `AddressError`.
    """
    wanted, files = _plain_name(name), dict(_lmstudio())
    for relative, path in files.items():
        folder, _, _ = relative.rpartition("/")
        for one in (_plain_name(relative), _plain_name(folder)):
            if f"/{one}".endswith(f"/{wanted}"):
                return path
    has = f"it has {short(', '.join(files))}" if files else "its folder holds no GGUF file"
    raise AddressError(f"LM Studio has no model {short(name)!r} on this disk", hint=has)


def packaged_file(package: str) -> Path | None:
    """The GGUF that an installed Python package carries; the package is not imported."""
    found = find_spec(package)
    folders = found.submodule_search_locations if found else None
    return next(iter(sorted(Path(folders[0]).glob("*.gguf"))), None) if folders else None


def blobs_named(sha256: str) -> list[Path]:
    """Files of Ollama and of the hub's cache that are named after this hash."""
    from huggingface_hub.constants import HF_HUB_CACHE

    blobs = [root / "blobs" / f"sha256-{sha256}" for root in _ollama_folders()]
    blobs += _files(Path(HF_HUB_CACHE), f"models--*/blobs/{sha256}")
    return [path for path in blobs if _size(path)]


def _ollama() -> Iterator[tuple[str, Path]]:
    """Names as `ollama list` writes them, and the weights; models without a GGUF are left out."""
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


def _weights(root: Path, manifest: Path) -> Path | None:
    """The blob that a manifest names as the model's weights; None for another manifest."""
    try:
        if _size(manifest) > _LARGEST_MANIFEST:
            return None
        described: Any = json.loads(manifest.read_bytes())
        layers = cast(list[dict[str, object]], described["layers"])
        digests = [str(one["digest"]) for one in layers if one["mediaType"] == _WEIGHTS]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
    digest = _DIGEST.fullmatch(digests[0]) if digests else None
    blob = root / "blobs" / f"sha256-{digest[1]}" if digest else None
    return blob if blob is not None and _size(blob) else None


def _ollama_folders() -> list[Path]:
    if named := os.environ.get("OLLAMA_MODELS"):
        return [Path(named)]
    # On Linux the service has a user of its own.
    return [_home() / ".ollama" / "models", Path("/usr/share/ollama/.ollama/models")]


def _lmstudio() -> Iterator[tuple[str, Path]]:
    for folder in _lmstudio_folders():
        for path in _ggufs(folder):
            yield path.relative_to(folder).as_posix(), path


def _plain_name(name: str) -> str:
    return name.lower().removesuffix(".gguf").removesuffix("-gguf")


def _lmstudio_folders() -> list[Path]:
    pointer = _home() / ".lmstudio-home-pointer"
    try:
        home = Path(pointer.read_text(encoding="utf-8").strip())
    except (OSError, ValueError):
        home = _home() / ".lmstudio"
    return [home / "models", _home() / ".cache" / "lm-studio" / "models"]


def _llama_folders() -> list[Path]:
    if named := os.environ.get("LLAMA_CACHE"):
        return [Path(named)]
    if sys.platform == "darwin":
        return [_home() / "Library" / "Caches" / "llama.cpp"]
    cache = os.environ.get("XDG_CACHE_HOME") or os.environ.get("LOCALAPPDATA")
    return [Path(cache or _home() / ".cache") / "llama.cpp"]


def _home() -> Path:
    return Path(os.path.expanduser("~"))


def _ggufs(folder: Path) -> list[Path]:
    """The models in a folder and those below it."""
    return [Path(name) for name in models_among(map(str, _files(folder, "**/*.gguf")))]


def _whole(path: Path) -> int:
    """Bytes of a model, all parts of a split one."""
    return sum(_size(Path(part)) for part in parts_of(str(path)))


def _files(folder: Path, pattern: str) -> list[Path]:
    """The files there, by name; none of a folder that may not be read, such as a service's own."""
    try:
        return sorted(path for path in folder.glob(pattern) if path.is_file())
    except (OSError, ValueError):
        return []


def _size(path: Path) -> int:
    """Bytes of a file; 0 if it is gone, may not be read or is no file."""
    try:
        return path.stat().st_size if path.is_file() else 0
    except (OSError, ValueError):
        return 0
