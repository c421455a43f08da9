"""A model file's first load happens in a process of its own.

llama.cpp ends the process for some files that are damaged or made to harm: nothing in the process
can catch that. So a file that was not loaded before is loaded, and asked for a token, by a child;
how that ends is a sentence here. A file that passed is remembered, and not tried again until it
changes. The bundled files are Edgewise's own and are not tried.
"""

import hashlib
import logging
import os
import re
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import IO, cast

from edgewise.addresses import bundled, parts_of
from edgewise.edge.llamacpp import library as binding
from edgewise.errors import ModelError

HEARD = 3
"""Exit status of a child that was refused by llama.cpp in words: the caller will hear them too."""

KEPT = 256
"""How many files are remembered."""

SECONDS = 60.0
SECONDS_A_BYTE = 1 / (20 << 20)
"""How long loading a file may take: a slow disk's time, and more."""

_TOLD = 1 << 14
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
    if record and _remembered(record):
        return
    status, told = _tried(path)
    if status == 0 and _identity(path) == before:
        if record:
            _remember(record, path)
    elif status not in (0, HEARD):
        raise ModelError(
            f"{str(path)!r} is damaged, or no model that llama.cpp can run ({_end(status, told)})",
            hint="download it again",
        )


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


def _tried(path: Path) -> tuple[int | None, list[str]]:
    """How a child that loads the file ends, and the last lines it says; None where it hangs."""
    limit = SECONDS + path.stat().st_size * SECONDS_A_BYTE
    # -P: what lies in the current folder is no module of ours.
    command = [sys.executable, "-P", "-m", "edgewise.edge.llamacpp.sandboxed", str(path)]
    with _place_for_words() as said:
        try:
            done = subprocess.run(  # noqa: S603
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=said,
                env=_environment(),
                timeout=limit,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return None, _last_lines(said)
        except OSError as error:
            # Where no process can be started the file is as safe as it was before.
            _log.warning("%r is loaded untried: no process can be started (%s)", str(path), error)
            return HEARD, []
        return done.returncode, _last_lines(said)


def _place_for_words() -> IO[bytes]:
    """A file without a name; where there is no room for one a child's status has to do."""
    try:
        return cast(IO[bytes], tempfile.TemporaryFile())
    except OSError:
        return open(os.devnull, "w+b")


def _environment() -> dict[str, str]:
    """Without a GPU, without a debugger's backtrace, with this very Edgewise."""
    source = str(Path(__file__).parents[2])
    paths = [source, *filter(None, [os.environ.get("PYTHONPATH")])]
    hidden = dict.fromkeys(("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"), "-1")
    return {
        **os.environ,
        **hidden,
        "GGML_NO_BACKTRACE": "1",
        "PYTHONPATH": os.pathsep.join(paths),
    }


def _last_lines(said: IO[bytes]) -> list[str]:
    end = said.seek(0, os.SEEK_END)
    said.seek(max(0, end - _TOLD))
    lines = said.read().decode("utf-8", "replace").splitlines()
    return [line.strip() for line in lines if line.strip()]


def _end(status: int | None, told: list[str]) -> str:
    """How the child ended, and why if it said so."""
    if status is None:
        how = "loading it does not end"
    elif status < 0:
        how = f"loading it ends with signal {-status}"
    else:
        how = f"loading it ends with status {status}"
    return f"{how}: {_PLACE.sub('', told[-1])[:300]}" if told else how


def cache_folder(what: str) -> Path | None:
    """Where it is remembered what passed, a file each that is named after its identity.

    None for a user without a home.
    """
    try:
        home = _caches()
    except RuntimeError:
        return None
    return home / "edgewise" / what


def _caches() -> Path:
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
    if sys.platform == "darwin":
        return Path.home() / "Library" / "Caches"
    # By its specification a relative one is none.
    given = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return given if given.is_absolute() else Path.home() / ".cache"


def _remembered(record: Path) -> bool:
    try:
        return record.is_file()
    except OSError:
        return False


def _remember(record: Path, path: Path) -> None:
    # Where that cannot be kept, the next start tries again.
    with suppress(OSError):
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_text(str(path), encoding="utf-8", errors="replace")
        kept = sorted(record.parent.iterdir(), key=lambda one: one.stat().st_mtime_ns)
        for old in kept[:-KEPT]:
            old.unlink(missing_ok=True)
