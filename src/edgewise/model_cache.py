"""Models that earlier runs downloaded: what is kept on this disk, how large, and its removal.

The hub's client keeps them (HF_HOME), for every program that asks the hub by it.
"""

import logging
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from edgewise.errors import AddressError
from edgewise.hub_client import HubAddress, explained, hub_address, short
from edgewise.model_files import models_among, of_quant, parts_of

if TYPE_CHECKING:
    from huggingface_hub import CachedFileInfo, DeleteCacheStrategy, HFCacheInfo

_TYPO = 0.8
"""How like a known name one must be to be taken for it, misspelt."""

_Files = dict[str, list["CachedFileInfo"]]
"""Of a repository by name, in every revision that is kept."""


class CachedModel(msgspec.Struct, frozen=True, kw_only=True):
    """A GGUF of a repository, or all that is kept of one that holds none.

    `size` in bytes, `used` in seconds since 1970; `address` loads it, `path` is where it lies.
    """

    address: str
    size: int
    used: float
    path: str


class Removal(NamedTuple):
    """Files to remove and what removes them; `freed` in bytes, of what others hold as well none."""

    names: list[str]
    freed: int
    execute: Callable[[], None]


def cached_models() -> list[CachedModel]:
    """Every model that is kept, by address."""
    found: list[CachedModel] = []
    for repo, files in _repositories(_cache()).items():
        models = models_among([name for name in files if name.endswith(".gguf")])
        for name in models:
            parts = [one for part in parts_of(name) for one in files.get(part, [])]
            found.append(_described(f"hf://{repo}/{name}", parts, parts[0].file_path))
        if not models:
            every = [one for held in files.values() for one in held]
            name, (one, *_) = next(iter(files.items()))
            found.append(_described(repo, every, one.file_path.parents[name.count("/")]))
    return sorted(found, key=lambda one: one.address)


def near(address: str, known: Sequence[str]) -> str | None:
    """What of the `known` or of the folder's models an address may be meant for, misspelt."""
    try:
        here = [path.name for path in Path(address).expanduser().parent.glob("*.gguf")]
    except (OSError, RuntimeError, ValueError):
        here = []
    inside = address[: address.rfind("/") + 1]
    names = [*known, *(inside + name for name in here)]
    return next(iter(get_close_matches(address, names, 1, _TYPO)), None)


@contextmanager
def explained_here(address: HubAddress) -> Generator[None]:
    """As `explained`, with which repository that is kept here may be meant."""
    try:
        with explained(address):
            yield
    except AddressError as error:
        try:
            known = [name for name in _repositories(_cache()) if name != address.repo]
        except OSError:  # A cache that cannot be read is no part of what went wrong.
            known = []
        if close := get_close_matches(address.repo, known, 1, _TYPO):
            error.hint = (
                f"did you mean {close[0]!r}, which is here? Else {error.hint or 'check it'}"
            )
        raise


def removal(address: str) -> Removal:
    """What is kept of `address`: a file, a quantisation, a folder or a whole repository.

    All its revisions. Raises `AddressError` where that is nothing.
    """
    cache, asked = _cache(), hub_address(address)
    if asked and asked.revision:
        raise AddressError(
            f"{short(address)!r} names a revision, and all that are kept are removed together",
            hint="leave it out",
        )
    files = _repositories(cache).get(asked.repo, {}) if asked else {}
    wanted = _named(asked, list(files)) if asked else []
    if not wanted:
        raise AddressError(
            f"Nothing of {short(address)!r} is kept here", hint="the list of models says what is"
        )
    assert cache is not None
    if len(wanted) == len(files):
        hashes = [
            revision.commit_hash
            for repo in cache.repos
            if (repo.repo_type, repo.repo_id) == ("model", asked and asked.repo)
            for revision in repo.revisions
        ]
        plan = cache.delete_revisions(*hashes)
    else:
        plan = cache.delete_files(*(one for name in wanted for one in files[name]))
    paths = [one.file_path for name in wanted for one in files[name]]
    return Removal(wanted, plan.expected_freed_size, partial(_removed, plan, paths))


def _removed(plan: "DeleteCacheStrategy", paths: Sequence[Path]) -> None:
    """Raises `AddressError` where something is still there, of which the client only warns."""
    told = logging.getLogger(plan.__class__.__module__)
    level = told.level
    told.setLevel(logging.CRITICAL)
    try:
        plan.execute()
    finally:
        told.setLevel(level)
    if left := [path for path in paths if path.is_symlink() or path.exists()]:
        raise AddressError(
            f"{str(left[0])!r} could not be removed", hint="check who may write in its folder"
        )


def _cache() -> "HFCacheInfo | None":
    """What the hub's client keeps; None where it never kept anything."""
    import huggingface_hub as hub
    from huggingface_hub.errors import CacheNotFound

    try:
        return hub.scan_cache_dir(hub.constants.HF_HUB_CACHE)
    except (CacheNotFound, ValueError):
        # The latter where a file has the folder's name.
        return None


def _repositories(cache: "HFCacheInfo | None") -> dict[str, _Files]:
    found: dict[str, _Files] = {}
    for repo in cache.repos if cache else ():
        files: _Files = {}
        for revision in sorted(repo.revisions, key=lambda one: one.last_modified, reverse=True):
            for one in revision.files:
                name = one.file_path.relative_to(revision.snapshot_path).as_posix()
                files.setdefault(name, []).append(one)
        if repo.repo_type == "model" and files:
            found[repo.repo_id] = dict(sorted(files.items()))
    return found


def _described(address: str, files: Sequence["CachedFileInfo"], path: Path) -> CachedModel:
    blobs = {one.blob_path: one.size_on_disk for one in files}
    used = max(one.blob_last_accessed for one in files)
    return CachedModel(address=address, size=sum(blobs.values()), used=used, path=str(path))


def _named(asked: HubAddress, names: Sequence[str]) -> list[str]:
    """Those of a repository's files that an address names."""
    if asked.quant:
        models = models_among([name for name in names if name.endswith(".gguf")])
        first = of_quant(models, asked.quant)
        return [name for name in parts_of(first) if name in names] if first else []
    if asked.file:
        inside = f"{asked.file.rstrip('/')}/"
        return [n for n in names if n in parts_of(asked.file) or n.startswith(inside)]
    return list(names)
