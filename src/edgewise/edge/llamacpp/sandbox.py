"""A model file's first load happens in a process of its own.

llama.cpp ends the process for some files that are damaged or made to harm: nothing in the process
can catch that. So a file that was not loaded before is loaded, and asked for a token, by a child;
how that ends is a sentence here. A file that passed is remembered, and not tried again until it
changes. The bundled files are Edgewise's own and are not tried. The child's part is `load_in_child`
of `load.py`.
"""

import hashlib
import logging
import os
import re
import sys
from contextlib import suppress
from pathlib import Path

from edgewise.addresses import bundled, parts_of
from edgewise.edge.llamacpp import library as binding
from edgewise.errors import ModelError
from edgewise.sandbox import Child, ChildEnded

SECONDS = 60.0
SECONDS_A_BYTE = 1 / (20 << 20)
"""How long loading a file may take: a slow disk's time, and more."""

_MEMORY = 8 << 30
_ENVIRONMENT = {
    # Without a GPU, and without a debugger's backtrace.
    "CUDA_VISIBLE_DEVICES": "-1",
    "HIP_VISIBLE_DEVICES": "-1",
    "GGML_NO_BACKTRACE": "1",
}
_PLACE = re.compile(r"^\S*/(?=[\w.-]+:\d+: )")
_log = logging.getLogger(__name__)


def require_survived(path: Path) -> None:
    """Try a file that has not passed yet; raises `ModelError` where the child does not survive."""
    path = path.resolve()
    if path.parent == bundled("edge").resolve().parent:
        return
    before = _identity(path)
    folder = cache_folder("loaded")
    record = folder and folder / before
    with suppress(OSError):
        if record and record.is_file():
            return
    if _loads_in_child(path) and record and _identity(path) == before:
        # Where that cannot be kept, the next start tries again.
        with suppress(OSError):
            record.parent.mkdir(parents=True, exist_ok=True)
            record.write_text(str(path), encoding="utf-8", errors="replace")


def _identity(path: Path) -> str:
    """Changes with the file, its parts and the library. Raises `ModelError`."""
    held = [binding.build()]
    for part in (path.with_name(name) for name in parts_of(path.name)):
        try:
            stat = part.stat()
        except OSError as error:
            raise ModelError(
                f"{str(part)!r} cannot be read: {error.strerror}", hint="download it again"
            ) from error
        held.append(f"{part} {stat.st_size} {stat.st_mtime_ns} {stat.st_ino}")
    return hashlib.sha256("\n".join(held).encode("utf-8", "surrogateescape")).hexdigest()


def _loads_in_child(path: Path) -> bool:
    """Whether a child loads the file; False where llama.cpp refuses it in words, or nobody knows.

    One that is refused in words is refused here in the same words, and not remembered. Raises
    `ModelError` for one that ends the child.
    """
    # What lies in the current folder is no module of ours.
    here = Path.cwd()
    folders = [folder for folder in sys.path if folder and Path(folder) != here]
    try:
        child = Child(
            "edgewise.edge.llamacpp.load:load_in_child",
            seconds=SECONDS + path.stat().st_size * SECONDS_A_BYTE,
            memory=_MEMORY,
            longest=1,
            folders=[str(Path(__file__).parents[3]), *folders],
            environment=_ENVIRONMENT,
            keep_words=True,
        )
    except OSError as error:
        # Where no process can be started the file is as safe as it was before.
        _log.warning("%r is loaded untried: no process can be started (%s)", str(path), error)
        return False
    try:
        return bool(child.ask(os.fsencode(path)))
    except ChildEnded as error:
        raise ModelError(
            f"{str(path)!r} is damaged, or no model that llama.cpp can run ({_end(error)})",
            hint="download it again",
        ) from error
    finally:
        child.end()


def _end(error: ChildEnded) -> str:
    if error.why == "time" or error.status is None:
        how = "loading it does not end"
    elif error.status < 0:
        how = f"loading it ends with signal {-error.status}"
    else:
        how = f"loading it ends with status {error.status}"
    return f"{how}: {_PLACE.sub('', error.words[-1])[:300]}" if error.words else how


def cache_folder(what: str) -> Path | None:
    """Where it is remembered what passed, a file each that is named after its identity.

    None for a user without a home.
    """
    try:
        if sys.platform == "win32":
            caches = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
        elif sys.platform == "darwin":
            caches = Path.home() / "Library" / "Caches"
        else:
            # By its specification a relative one is none.
            given = Path(os.environ.get("XDG_CACHE_HOME", ""))
            caches = given if given.is_absolute() else Path.home() / ".cache"
    except RuntimeError:
        return None
    return caches / "edgewise" / what
