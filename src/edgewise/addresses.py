"""Model addresses: from what a user writes to a GGUF file on this disk.

    bundled                      one of the pair that ships with Edgewise
    ./model.gguf                 a file's path, tried before any hub
    owner/repo                   a hub repository: its file in the first of these quantisations
                                 that it has: Q4_K_M, Q4_0, Q4_K_S, Q5_K_M, Q8_0; with none of
                                 them, its first GGUF file by name
    owner/repo:Q4_K_M            ... the file of that quantisation (any case)
    hf://owner/repo@rev/file     ... exactly that file, at that revision

Of files that one name fits the first by name is taken; projectors (mmproj) and importance
matrices (imatrix) never are, unless named in full. Of a split file all parts are fetched.

Downloads go through huggingface_hub, which honours its HF_* variables (HF_ENDPOINT, HF_TOKEN,
HF_HOME, HF_HUB_OFFLINE), resumes a connection that breaks off, verifies the size, and shows
progress. The hub is asked once, for at most 10 s; when it does not answer, what an earlier run
has downloaded is used.
"""

import re
from collections.abc import Generator
from contextlib import contextmanager
from importlib.resources import files
from pathlib import Path
from typing import Literal, NamedTuple

from edgewise.errors import AddressError
from edgewise.model_files import models_among, of_quant, parts_of, preferred

LISTING_SECONDS = 10.0
"""How long the hub may take to say which files a repository has."""

CHECKPOINT = ("config.json", "model.safetensors", "trained_on.txt", "README.md")
"""Files of a router's checkpoint."""

_REPOSITORY = re.compile(
    r"(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+?))?(?::(?P<quant>[\w.-]+))?"
)
_FILE = re.compile(r"hf://(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w.-]+))?(?:/(?P<file>.+))?")
_LARGEST_FILE = 1 << 40
_HASH = re.compile(r"[A-Za-z0-9]+")
_LONGEST_NAME, _LONGEST_PART, _SHOWN, _MOST_PARTS = 1000, 256, 300, 1000


_NO_ANSWER = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What the hub's client raises for replies that are no hub's."""


class _Address(NamedTuple):
    repo: str
    revision: str | None
    quant: str | None
    file: str | None


class _Listing(NamedTuple):
    """GGUF files of a repository; offline, those an earlier run has downloaded."""

    names: list[str]
    online: bool


def bundled(role: Literal["edge", "cloud", "router"]) -> Path:
    """Where a part of the bundled pair lies."""
    name = {"edge": "edge.gguf", "cloud": "cloud.gguf", "router": "router"}[role]
    return Path(str(files("edgewise") / "bundled" / name))


def is_url(address: str) -> bool:
    """Whether `address` is an engine's or a gateway's."""
    return "://" in address and not address.startswith("hf://")


def local_folder(name: str) -> Path | None:
    """The folder that `name` is the path of; None where there is none."""
    try:
        folder = Path(name).expanduser()
        return folder if folder.is_dir() else None
    except (OSError, RuntimeError, ValueError):
        return None


def resolve(address: str, role: Literal["edge", "cloud"]) -> Path:
    """The file that `address` names, downloaded if need be. Raises `AddressError`."""
    if address == "bundled":
        return bundled(role)
    path = _local(address)
    if path is not None:
        return path
    parsed = _parse(address)
    if parsed is None:
        raise AddressError(
            f"There is no file {_short(address)!r}",
            hint="name a path, a hub repository (owner/repo) or 'bundled'",
            setting=role,
        )
    _require_plain(parsed, setting=role)
    return _download(parsed)


def checkpoint(name: str) -> Path | None:
    """The folder of a router: a path, or a hub repository's files, downloaded if need be.

    None where the name is of neither form. Raises `AddressError`.
    """
    import huggingface_hub as hub

    if folder := local_folder(name):
        return folder
    address = _parse(name)
    if address is None or address.quant or address.file:
        return None
    _require_plain(address, setting="router")
    with _explained(address):
        names, problem = _ask_hub(address)
        if problem is not None:
            return Path(
                hub.snapshot_download(
                    address.repo, revision=address.revision, local_files_only=True
                )
            )
        paths = [_fetched(address, name) for name in CHECKPOINT if name in names]
        if len({path.parent for path in paths}) != 1:
            raise AddressError(
                f"{address.repo!r} holds no router, or changed just now",
                hint="try again, or name another",
                setting="router",
            )
        return paths[0].parent


def upload(folder: Path, repo: str, *, private: bool) -> str:
    """Publish a router's checkpoint as a hub repository; returns its address on the web.

    A repository that exists gets a new commit. Raises `AddressError`.
    """
    import huggingface_hub as hub

    address = _Address(repo, None, None, None)
    _require_plain(address, setting=None)
    with _explained(address):
        if hub.get_token() is None:
            raise AddressError(
                "The hub needs to know who publishes",
                hint="set HF_TOKEN to a token that may write, or run hf auth login",
            )
        url = hub.create_repo(repo, private=private, exist_ok=True)
        hub.upload_folder(
            repo_id=repo,
            folder_path=folder,
            allow_patterns=list(CHECKPOINT),
            commit_message="A router trained with Edgewise",
        )
        return str(url)


def dataset_file(repo: str, name: str) -> Path:
    """A file of a hub dataset, downloaded if need be. Raises `AddressError`."""
    import huggingface_hub as hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    address = _Address(repo, None, None, name)
    _require_plain(address, setting="data")
    with _explained(address):
        try:
            return Path(hub.hf_hub_download(repo, name, repo_type="dataset", local_files_only=True))
        except LocalEntryNotFoundError:
            # Once, so that a machine without a network does not wait through retries.
            hub.HfApi().dataset_info(repo, timeout=LISTING_SECONDS)
            return _fetched(address, name, kind="dataset")


def _local(address: str) -> Path | None:
    try:
        path = Path(address).expanduser()
        return path if path.is_file() else None
    except (OSError, RuntimeError, ValueError):
        # No home folder of that name, a name too long for the disk, or one with a null in it.
        return None


def _parse(address: str) -> _Address | None:
    if match := _FILE.fullmatch(address):
        return _Address(match["repo"], match["revision"], None, match["file"])
    if address.endswith(".gguf") or address.startswith((".", "/", "~")):
        return None
    if match := _REPOSITORY.fullmatch(address):
        return _Address(match["repo"], match["revision"], match["quant"], None)
    return None


def _require_plain(address: _Address, *, setting: str | None) -> None:
    """Raise `AddressError` for names that lead elsewhere on a hub, or on this disk."""
    for what, name in (
        ("repository", address.repo),
        ("revision", address.revision),
        ("quantisation", address.quant),
        ("file", address.file),
    ):
        if name is not None and not _is_plain(name):
            raise AddressError(
                f"A {what} of a hub cannot be called {_short(name)!r}",
                hint="check the address",
                setting=setting,
            )


def _is_plain(name: str) -> bool:
    """Whether each part of a path says only where it says it is."""
    parts = name.split("/")
    return (
        len(name) <= _LONGEST_NAME
        and all(part.strip(". ") and len(part) < _LONGEST_PART for part in parts)
        and name.isprintable()
        and not any(letter in name for letter in "\\:")
    )


def _short(name: str) -> str:
    return name if len(name) <= _SHOWN else f"{name[:_SHOWN]}..."


def _download(address: _Address) -> Path:
    with _explained(address):
        listing = _list(address)
        name = address.file or _choose(address, listing)
        if len(parts_of(name)) > _MOST_PARTS:
            raise AddressError(f"{_short(name)!r} says that it has more than {_MOST_PARTS} parts.")
        paths = [_fetched(address, part, online=listing.online) for part in parts_of(name)]
        return paths[0]


def _fetched(address: _Address, name: str, *, online: bool = True, kind: str = "model") -> Path:
    """A repository's file, downloaded if need be. Raises `AddressError`, and what the client does.

    The client names its files after what the hub says in headers, so these are looked at before.
    """
    import huggingface_hub as hub

    if online:
        url = hub.hf_hub_url(address.repo, name, repo_type=kind, revision=address.revision)
        told = hub.get_hf_file_metadata(url, timeout=LISTING_SECONDS)
        hashes = (told.etag or "", told.commit_hash or "")
        if not all(map(_HASH.fullmatch, hashes)) or (told.size or 0) > _LARGEST_FILE:
            raise AddressError(
                f"What the hub says of {_named(address)!r} is not a hub's",
                hint="check HF_ENDPOINT, or name a file on this disk",
            )
    path = hub.hf_hub_download(
        address.repo,
        name,
        repo_type=kind,
        revision=address.revision,
        local_files_only=not online,
    )
    return Path(path)


@contextmanager
def _explained(address: _Address) -> Generator[None]:
    """What the hub's client raises, as an `AddressError`."""
    from httpx2 import HTTPError, InvalidURL
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        yield
    except HFValidationError as error:
        raise AddressError(
            f"{address.repo!r} is no hub repository's name ({_first_line(error)})."
        ) from error
    except LocalEntryNotFoundError as error:
        if isinstance(error.__cause__, HfHubHTTPError):
            raise _explained_answer(address, error.__cause__) from error
        raise _unreachable(address) from error
    except HfHubHTTPError as error:
        raise _explained_answer(address, error) from error
    except (OSError, HTTPError) as error:
        raise AddressError(
            f"The download of {_named(address)!r} failed ({_first_line(error)})", hint="try again"
        ) from error
    except (*_NO_ANSWER, InvalidURL) as error:
        raise AddressError(
            f"What the hub answers for {_named(address)!r} is not a hub's ({_first_line(error)})",
            hint="check HF_ENDPOINT, or name a file on this disk",
        ) from error


def _named(address: _Address) -> str:
    return f"{address.repo}/{address.file}" if address.file else address.repo


def _first_line(error: Exception) -> str:
    told = str(error).strip().partition("\n")[0].rstrip(".")
    return _short(told) if told else type(error).__name__


def _unreachable(address: _Address) -> AddressError:
    from huggingface_hub import constants

    return AddressError(
        f"The hub at {constants.ENDPOINT} cannot be reached and {_named(address)!r} is not in the "
        "local cache",
        hint="connect once, or name a file on this disk",
    )


def _explained_answer(address: _Address, error: Exception) -> AddressError:
    from huggingface_hub.errors import HfHubHTTPError, RevisionNotFoundError

    assert isinstance(error, HfHubHTTPError)
    status = error.response.status_code
    if status in (401, 403):
        return AddressError(
            f"The hub refuses {_named(address)!r} (HTTP {status}): it does not exist or needs "
            "access",
            hint="check the spelling, or set HF_TOKEN to a token that may read it",
        )
    if isinstance(error, RevisionNotFoundError):
        return AddressError(
            f"{address.repo!r} has no revision {address.revision!r} on the hub", hint="check it"
        )
    if status == 404:
        return AddressError(f"The hub has no {_named(address)!r}", hint="check the spelling")
    return AddressError(
        f"The hub answered HTTP {status} for {_named(address)!r}", hint="try again later"
    )


def _list(address: _Address) -> _Listing:
    names, problem = _ask_hub(address)
    if problem is not None:
        return _Listing(_cached(address, problem), online=False)
    return _Listing([name for name in names if name.endswith(".gguf")], online=True)


def _ask_hub(address: _Address) -> tuple[list[str], AddressError | None]:
    """The names of a repository's files, or why there is no telling.

    The hub is asked once, so that a machine without a network does not wait through retries.
    """
    import huggingface_hub as hub
    from httpx2 import HTTPError, InvalidURL
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        model = hub.HfApi().model_info(
            address.repo, revision=address.revision, timeout=LISTING_SECONDS
        )
        names = [file.rfilename for file in model.siblings or []]
        return [name for name in names if isinstance(name, str)], None  # pyright: ignore[reportUnnecessaryIsInstance]
    except HFValidationError:
        raise
    except HfHubHTTPError as error:
        status = error.response.status_code
        if status != 429 and status < 500:
            raise
        return [], _explained_answer(address, error)
    except (OSError, HTTPError, InvalidURL, *_NO_ANSWER):
        # Off line, out of reach, or something in between that answers in the hub's place.
        return [], _unreachable(address)


def _cached(address: _Address, problem: AddressError) -> list[str]:
    import huggingface_hub as hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = Path(
            hub.snapshot_download(address.repo, revision=address.revision, local_files_only=True)
        )
    except LocalEntryNotFoundError as error:
        raise problem from error
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*.gguf")]
    if not names or (address.file is not None and address.file not in names):
        raise problem
    return names


def _choose(address: _Address, listing: _Listing) -> str:
    """The first part of the file that the quantisation names, or of the preferred one."""
    # Others would lead out of the cache's folder.
    firsts = models_among([name for name in listing.names if _is_plain(name)])
    if not firsts:
        raise AddressError(f"{address.repo!r} holds no GGUF file", hint="name a GGUF repository")
    if address.quant is None:
        return preferred(firsts)
    found = of_quant(firsts, address.quant)
    if found is None:
        where = "" if listing.online else " in the local cache, and the hub cannot be reached"
        raise AddressError(
            f"{address.repo!r} has no {address.quant!r}{where}",
            hint=f"it has {_short(', '.join(firsts))}",
        )
    return found
