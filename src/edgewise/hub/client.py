"""`Repository`: downloads from the model hub, by huggingface_hub, with errors of one sentence.

The library's cache (HF_HOME) is shared with other programs; the command `hf cache` manages it.
"""

import errno
import re
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from functools import cache, lru_cache
from pathlib import Path
from typing import Literal

from httpx2 import Client, HTTPError, InvalidURL, Request, Response, SyncByteStream

from edgewise.errors import AddressError
from edgewise.hub import HubAddress, is_plain, short
from edgewise.hub.disk import DiskModel

try:
    import huggingface_hub
    from huggingface_hub import constants
    from huggingface_hub.errors import (
        CacheNotFound,
        HfHubHTTPError,
        HFValidationError,
        LocalEntryNotFoundError,
    )
except ValueError as error:  # a number of the environment's that is none
    raise AddressError(
        f"The hub's client cannot start ({error})",
        hint="check the variables that begin with HF_, or name a file on this disk",
    ) from error

_LISTING_SECONDS = 10.0  # timeout of the hub's list of a repository's files

_LARGEST_LISTING, _LARGEST_FILE = 16 << 20, 1 << 40
# A listing comes from outside; the largest models have some two hundred parts.
_MOST_FILES = 1000
_OF_THE_DISK = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EROFS, errno.ENOTDIR)

# The client makes file names of these.
_ETAG = re.compile(r'(?:W/)?"?[A-Za-z0-9-]{1,256}"?')
_COMMIT = re.compile(r"[A-Za-z0-9]{1,64}")
_DIGITS = re.compile(r"[0-9]{1,13}")

# Exceptions of the library when the hub is unreachable or sends an invalid reply.
_FAILURES = (
    *(OSError, HTTPError, ImportError),
    *(ArithmeticError, AttributeError, InvalidURL, LookupError),
    *(RuntimeError, TypeError, ValueError),
)

Kind = Literal["model", "dataset"]

_PARTS = ("repository", "revision", "quantisation", "file")
_CHECK = "check HF_ENDPOINT, or name a file on this disk"


class _NoAnswer(AddressError):
    """The hub did not answer, is busy or broken, or the disk failed; the cache is listed then."""


def _require_plain(address: HubAddress, setting: str | None) -> None:
    """Raise `AddressError` for names that would lead elsewhere on the hub or on this disk."""
    for what, name in zip(_PARTS, address, strict=True):
        if name is not None and not is_plain(name):
            raise AddressError(
                f"A {what} of a hub cannot be called {short(name)!r}",
                hint="check the address",
                setting=setting,
            )


class Repository:
    """A hub repository's files, as the hub lists them; if it does not answer, those in the cache.

    `names` are the files' names. `library` is the library (such as mlx) that the hub names for the
    model, or None. `online` is whether the hub answered.
    """

    def __init__(
        self, address: HubAddress, *, setting: str | None = None, kind: Kind = "model"
    ) -> None:
        """List the files; a process asks the hub once for each repository and revision.

        `setting` is the setting with the address, for errors. Raises `AddressError`.
        """
        _require_plain(address, setting)
        self._address, self._setting, self._kind = address, setting, kind
        self.library, self.online = None, True
        try:
            with explained(address):
                self.names, self.library = _listed(address.repo, address.revision, kind)
        except _NoAnswer as problem:
            self.names, self.online = _cached(address, kind, problem), False

    def file(self, name: str, *, largest: int = _LARGEST_FILE) -> Path:
        """Return the path of the file `name` in the cache, after downloading it if need be.

        Raises `AddressError` if the download fails, or has more than `largest` bytes.
        """
        # A client that no proxy lets start is none, and what is here needs none.
        with explained(self._address), _bounded(largest) if self.online else nullcontext():
            path = huggingface_hub.hf_hub_download(
                self._address.repo,
                name,
                repo_type=self._kind,
                revision=self._address.revision,
                local_files_only=not self.online,
            )
        return _inside_cache(Path(path), name)

    def folder(self, names: Sequence[str]) -> Path:
        """Download the files `names` to the cache; return the folder that holds them.

        Raises `AddressError` if that fails, for 0 or over 1000 names, or if the repository changed.
        """
        if not 0 < len(names) <= _MOST_FILES:
            raise AddressError(
                f"{self._address.repo!r} has {len(names)} files for this, not 1 to {_MOST_FILES}",
                hint="name another repository",
                setting=self._setting,
            )
        paths = {name: self.file(name) for name in names}
        roots = {path.parents[name.count("/")] for name, path in paths.items()}
        if len(roots) != 1:
            raise AddressError(
                f"{self._address.repo!r} changed just now", hint="try again", setting=self._setting
            )
        return roots.pop()


def cached_repositories() -> list[DiskModel]:
    """Return the hub cache's model repositories that have a downloaded revision, sorted by name."""
    try:
        kept = huggingface_hub.scan_cache_dir(constants.HF_HUB_CACHE)
    except (CacheNotFound, ValueError):  # a file has the folder's name
        return []
    return sorted(
        DiskModel("hub", one.repo_id, one.size_on_disk, one.repo_path)
        for one in kept.repos
        if one.repo_type == "model" and one.revisions
    )


@lru_cache
def _listed(repo: str, revision: str | None, kind: Kind) -> tuple[list[str], str | None]:
    """Return the names of a repository's files, and the library that a model's card names."""
    api = huggingface_hub.HfApi()
    ask = api.model_info if kind == "model" else api.dataset_info
    with _bounded(_LARGEST_LISTING):
        info = ask(repo, revision=revision, timeout=_LISTING_SECONDS)
    names = [file.rfilename for file in info.siblings or []]
    # A name that is not plain would lead out of the cache's folder.
    plain = [name for name in names if isinstance(name, str) and is_plain(name)]  # pyright: ignore[reportUnnecessaryIsInstance]
    return plain, getattr(info, "library_name", None)


def _cached(address: HubAddress, kind: Kind, problem: _NoAnswer) -> list[str]:
    """Return the names of the cached files; raise `problem` if none begins with `address.file`."""
    try:
        folder = Path(
            huggingface_hub.snapshot_download(
                address.repo, repo_type=kind, revision=address.revision, local_files_only=True
            )
        )
    except (HFValidationError, LocalEntryNotFoundError):
        raise problem from None
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    if not any(address.file is None or name.startswith(address.file) for name in names):
        raise problem
    return sorted(names)


def _inside_cache(path: Path, name: str) -> Path:
    """Return the path if it is in the hub's cache; raise `AddressError` if it leads elsewhere."""
    repository = path.parents[name.count("/") + 2].resolve()
    real = path.resolve()
    if not any(map(real.is_relative_to, (Path(constants.HF_HUB_CACHE).resolve(), repository))):
        raise AddressError(
            f"{str(path)!r} leads out of the hub's cache, to {str(real)!r}", hint="remove it"
        )
    return path


_largest: ContextVar[int | None] = ContextVar("largest_reply", default=None)


@contextmanager
def _bounded(size: int) -> Generator[None]:
    """Check each reply in the block: `AddressError` if it is unsafe or has over `size` bytes."""
    _install()
    token = _largest.set(size)
    try:
        yield
    finally:
        _largest.reset(token)


@cache
def _install() -> None:
    """Add our checks to huggingface_hub's HTTP client; outside `_bounded` they do nothing."""
    hooks = huggingface_hub.get_session().event_hooks

    def client() -> Client:
        return Client(
            event_hooks={
                "request": [*hooks["request"], _ask_plainly],
                "response": [*hooks["response"], _check_reply],
            },
            follow_redirects=True,
            timeout=None,
        )

    huggingface_hub.set_client_factory(client)


def _ask_plainly(request: Request) -> None:
    if _largest.get() is not None:
        # A compressed reply of a few bytes could become any number of bytes.
        request.headers["Accept-Encoding"] = "identity"


def _check_reply(response: Response) -> None:
    largest = _largest.get()
    if largest is None:
        return
    headers = response.headers
    commit = headers.get("X-Repo-Commit")
    etag = headers.get("X-Linked-Etag") or headers.get("ETag")
    if commit is not None:
        # The client names blobs, snapshots and missing files after these.
        _require(_COMMIT.fullmatch(commit), f"has the commit {short(commit)!r}")
        _require(etag is None or _ETAG.fullmatch(etag), f"has the ETag {short(etag or '')!r}")
    size = headers.get("X-Linked-Size") or headers.get("Content-Length") or "0"
    _require(_DIGITS.fullmatch(size), f"has the size {short(size)!r}")
    _require(int(size) <= largest, f"has more than {largest} bytes")
    encoding = headers.get("Content-Encoding", "identity")
    _require(encoding == "identity", f"has the encoding {short(encoding)!r}")
    assert isinstance(response.stream, SyncByteStream)
    response.stream = _Bounded(response.stream, largest)


class _Bounded(SyncByteStream):
    """A reply's body that raises `AddressError` beyond `largest` bytes, whatever headers say."""

    def __init__(self, stream: SyncByteStream, largest: int) -> None:
        self._stream, self._largest = stream, largest

    def __iter__(self) -> Iterator[bytes]:
        read = 0
        for chunk in self._stream:
            read += len(chunk)
            _require(read <= self._largest, f"has more than {self._largest} bytes")
            yield chunk

    def close(self) -> None:
        self._stream.close()


def _require(good: object, problem: str) -> None:
    if not good:
        sent = f"The hub at {constants.ENDPOINT} sent a reply that {problem}"
        raise AddressError(sent, hint=_CHECK)


@contextmanager
def explained(address: HubAddress) -> Generator[None]:
    """Context manager: exceptions of huggingface_hub about `address` become an `AddressError`."""
    named = f"{address.repo}/{address.file}" if address.file else address.repo
    try:
        yield
    except HfHubHTTPError as error:
        raise _refusal(address, named, error) from error
    except _FAILURES as error:
        if isinstance(error.__cause__, HfHubHTTPError):
            raise _refusal(address, named, error.__cause__) from error
        reason = short(str(error).strip().partition("\n")[0].rstrip(".")) or type(error).__name__
        if isinstance(error, OSError) and error.errno in _OF_THE_DISK:
            here = f"The files of {named!r} cannot be read or written on this disk ({reason})"
            raise _NoAnswer(here, hint="make room, or set HF_HOME to another folder") from error
        raise _NoAnswer(
            f"The hub at {constants.ENDPOINT} cannot be used for {named!r}, and the local cache "
            f"does not have it ({reason})",
            hint="connect and try again, check HF_ENDPOINT, or name a file on this disk",
        ) from error


def _refusal(address: HubAddress, named: str, error: HfHubHTTPError) -> AddressError:
    status = error.response.status_code
    if status == 429 or status >= 500:
        return _NoAnswer(f"The hub answered HTTP {status} for {named!r}", hint="try again later")
    at = f" at the revision {address.revision!r}" if address.revision else ""
    return AddressError(
        f"The hub refuses {named!r}{at} (HTTP {status}): it does not exist or needs access",
        hint="check the spelling, or set HF_TOKEN to a token that may read it",
    )
