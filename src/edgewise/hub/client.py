"""The model hub, through huggingface_hub: the files of a repository, and errors in one sentence.

The hub's client makes file names of what the hub replies, so each reply is checked before the
client acts on it. Its cache (HF_HOME) is shared with every other program that downloads from the
hub; `hf cache` lists it and removes from it.
"""

import re
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache, lru_cache
from pathlib import Path

import huggingface_hub
from httpx2 import Client, HTTPError, InvalidURL, Request, Response, SyncByteStream
from huggingface_hub import constants
from huggingface_hub.errors import (
    CacheNotFound,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    RevisionNotFoundError,
)

from edgewise.errors import AddressError
from edgewise.hub import HubAddress, is_plain, short
from edgewise.hub.disk import DiskModel

_LISTING_SECONDS = 10.0
"""Until the hub begins to answer which files a repository has."""

_LARGEST_LISTING, _LARGEST_FILE = 16 << 20, 1 << 40
_MOST_FILES = 1000

# The client makes file names of these.
_ETAG = re.compile(r'(?:W/)?"?[A-Za-z0-9-]{1,256}"?')
_COMMIT = re.compile(r"[A-Za-z0-9]{1,64}")
_DIGITS = re.compile(r"[0-9]{1,13}")

_NOT_A_HUB = (
    *(ArithmeticError, AttributeError, InvalidURL, LookupError),
    *(RuntimeError, TypeError, ValueError),
)
"""What the hub's client raises for replies that no hub sends."""

_PARTS = ("repository", "revision", "quantisation", "file")
_CHECK = "check HF_ENDPOINT, or name a file on this disk"


class _NoAnswer(AddressError):
    """The hub did not answer, or answered that it is busy or broken: the cache may do."""


def _require_plain(address: HubAddress, setting: str | None) -> None:
    """Raise `AddressError` for names that lead elsewhere on the hub, or on this disk."""
    for what, name in zip(_PARTS, address, strict=True):
        if name is not None and not is_plain(name):
            raise AddressError(
                f"A {what} of a hub cannot be called {short(name)!r}",
                hint="check the address",
                setting=setting,
            )


class Repository:
    """A repository's files: as the hub lists them, or those in the cache if it does not answer."""

    def __init__(self, address: HubAddress, *, setting: str | None = None) -> None:
        """Ask the hub, once a process. Raises `AddressError`; `setting` names the address."""
        _require_plain(address, setting)
        self._address, self._setting = address, setting
        self.library, self.online = None, True
        try:
            with explained(address):
                self.names, self.library = _listed(address.repo, address.revision)
        except _NoAnswer as problem:
            self.names, self.online = _cached(address, problem), False

    def file(self, name: str, *, largest: int = _LARGEST_FILE, kind: str = "model") -> Path:
        """One file of at most `largest` bytes, downloaded if need be. Raises `AddressError`."""
        with explained(self._address):
            return _fetched(self._address, name, online=self.online, largest=largest, kind=kind)

    def folder(self, names: Sequence[str]) -> Path:
        """The folder of the snapshot that holds all these files. Raises `AddressError`."""
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


def dataset_file(repo: str, name: str) -> Path:
    """A file of a hub dataset, downloaded if need be. Raises `AddressError`."""
    address = HubAddress(repo, None, None, name)
    _require_plain(address, "data")
    with explained(address):
        try:
            return _fetched(address, name, online=False, kind="dataset")
        except LocalEntryNotFoundError:
            with _bounded(_LARGEST_LISTING):
                # Once, so that a machine without a network does not wait through retries.
                huggingface_hub.HfApi().dataset_info(repo, timeout=_LISTING_SECONDS)
            return _fetched(address, name, kind="dataset")


def cached_repositories() -> list[DiskModel]:
    """The model repositories that were downloaded, by name."""
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
def _listed(repo: str, revision: str | None) -> tuple[list[str], str | None]:
    """Names of a repository's files, and the library that its card names."""
    try:
        with _bounded(_LARGEST_LISTING):
            model = huggingface_hub.HfApi().model_info(
                repo, revision=revision, timeout=_LISTING_SECONDS
            )
        names = [file.rfilename for file in model.siblings or []]
    except (HFValidationError, HfHubHTTPError):
        raise
    except (OSError, HTTPError, *_NOT_A_HUB) as error:
        raise _unreachable(repo) from error
    # A name that is not plain would lead out of the cache's folder.
    return [name for name in names if isinstance(name, str) and is_plain(name)], model.library_name  # pyright: ignore[reportUnnecessaryIsInstance]


def _cached(address: HubAddress, problem: _NoAnswer) -> list[str]:
    """Names of the files in the cache; raises the `problem` if there are none."""
    try:
        folder = Path(
            huggingface_hub.snapshot_download(
                address.repo, revision=address.revision, local_files_only=True
            )
        )
    except (HFValidationError, LocalEntryNotFoundError):
        raise problem from None
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
    if not any(address.file is None or name.startswith(address.file) for name in names):
        raise problem
    return sorted(names)


def _fetched(
    address: HubAddress,
    name: str,
    *,
    online: bool = True,
    kind: str = "model",
    largest: int = _LARGEST_FILE,
) -> Path:
    with _bounded(largest):
        path = huggingface_hub.hf_hub_download(
            address.repo,
            name,
            repo_type=kind,
            revision=address.revision,
            local_files_only=not online,
        )
    return _inside_cache(Path(path), name)


def _inside_cache(path: Path, name: str) -> Path:
    """The file of a snapshot. Raises `AddressError` if it lies elsewhere."""
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
    """Check each reply that the hub's client acts on here, those of redirects and retries too.

    Raises `AddressError` for a reply of more than `size` bytes, and for one that would make the
    client write outside of its cache.
    """
    _install()
    token = _largest.set(size)
    try:
        yield
    finally:
        _largest.reset(token)


@cache
def _install() -> None:
    """Add our checks to the client of huggingface_hub. Outside `_bounded` they do nothing."""
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
    """A reply's body of at most `largest` bytes, whatever its headers say."""

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
    """Turn what the hub's client raises into an `AddressError`."""
    named = f"{address.repo}/{address.file}" if address.file else address.repo
    try:
        yield
    except HFValidationError as error:
        raise AddressError(
            f"{address.repo!r} is not a hub repository's name ({_first_line(error)})."
        ) from error
    except LocalEntryNotFoundError as error:
        if isinstance(error.__cause__, HfHubHTTPError):
            raise _refusal(address, named, error.__cause__) from error
        raise _unreachable(named) from error
    except HfHubHTTPError as error:
        raise _refusal(address, named, error) from error
    except (OSError, HTTPError) as error:
        raise AddressError(
            f"The download of {named!r} failed ({_first_line(error)})", hint="try again"
        ) from error
    except _NOT_A_HUB as error:
        raise AddressError(
            f"{constants.ENDPOINT} does not answer as a hub does for {named!r} "
            f"({_first_line(error)})",
            hint=_CHECK,
        ) from error


def _first_line(error: Exception) -> str:
    line = str(error).strip().partition("\n")[0].rstrip(".")
    return short(line) if line else type(error).__name__


def _unreachable(named: str) -> _NoAnswer:
    if constants.is_offline_mode():
        return _NoAnswer(
            f"HF_HUB_OFFLINE forbids to ask the hub, and {named!r} is not in the local cache",
            hint="unset it once, or name a file on this disk",
        )
    return _NoAnswer(
        f"The hub at {constants.ENDPOINT} cannot be reached and {named!r} is not in the local "
        "cache",
        hint="connect once, or name a file on this disk",
    )


def _refusal(address: HubAddress, named: str, error: HfHubHTTPError) -> AddressError:
    status = error.response.status_code
    if status == 429 or status >= 500:
        return _NoAnswer(f"The hub answered HTTP {status} for {named!r}", hint="try again later")
    if status in (401, 403):
        return AddressError(
            f"The hub refuses {named!r} (HTTP {status}): it does not exist or needs access",
            hint="check the spelling, or set HF_TOKEN to a token that may read it",
        )
    if isinstance(error, RevisionNotFoundError):
        return AddressError(
            f"{address.repo!r} has no revision {address.revision!r} on the hub", hint="check it"
        )
    return AddressError(f"The hub has no {named!r} (HTTP {status})", hint="check the spelling")
