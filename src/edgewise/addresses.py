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

LISTING_SECONDS = 10.0
"""How long the hub may take to say which files a repository has."""

CHECKPOINT = ("config.json", "model.safetensors", "trained_on.txt", "README.md")
"""Files of a router's checkpoint."""

_REPOSITORY = re.compile(
    r"(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+?))?(?::(?P<quant>[\w.-]+))?"
)
_FILE = re.compile(r"hf://(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w.-]+))?(?:/(?P<file>.+))?")
_PREFERRED = ("Q4_K_M", "Q4_0", "Q4_K_S", "Q5_K_M", "Q8_0")
_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")
_NO_MODEL = re.compile(r"(?i)mmproj|imatrix")


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
            f"There is no file {address!r}",
            hint="name a path, a hub repository (owner/repo) or 'bundled'",
            setting=role,
        )
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
    with _explained(address):
        _, problem = _ask_hub(address)
        return Path(
            hub.snapshot_download(
                address.repo,
                revision=address.revision,
                allow_patterns=list(CHECKPOINT),
                local_files_only=problem is not None,
            )
        )


def upload(folder: Path, repo: str, *, private: bool) -> str:
    """Publish a router's checkpoint as a hub repository; returns its address on the web.

    A repository that exists gets a new commit. Raises `AddressError`.
    """
    import huggingface_hub as hub

    with _explained(_Address(repo, None, None, None)):
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
    with _explained(address):
        try:
            return Path(hub.hf_hub_download(repo, name, repo_type="dataset", local_files_only=True))
        except LocalEntryNotFoundError:
            # Once, so that a machine without a network does not wait through retries.
            hub.HfApi().dataset_info(repo, timeout=LISTING_SECONDS)
            return Path(hub.hf_hub_download(repo, name, repo_type="dataset"))


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


def _download(address: _Address) -> Path:
    import huggingface_hub as hub

    with _explained(address):
        listing = _list(address)
        name = address.file or _choose(address, listing)
        paths = [
            Path(
                hub.hf_hub_download(
                    address.repo,
                    part,
                    revision=address.revision,
                    local_files_only=not listing.online,
                )
            )
            for part in _parts(name)
        ]
        return paths[0]


@contextmanager
def _explained(address: _Address) -> Generator[None]:
    """What the hub's client raises, as an `AddressError`."""
    from httpx2 import TransportError
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
    except (OSError, TransportError) as error:
        raise AddressError(
            f"The download of {_named(address)!r} failed ({_first_line(error)})", hint="try again"
        ) from error


def _named(address: _Address) -> str:
    return f"{address.repo}/{address.file}" if address.file else address.repo


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".")


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
    from httpx2 import TransportError
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        model = hub.HfApi().model_info(
            address.repo, revision=address.revision, timeout=LISTING_SECONDS
        )
        return [file.rfilename for file in model.siblings or []], None
    except HFValidationError:
        raise
    except HfHubHTTPError as error:
        status = error.response.status_code
        if status != 429 and status < 500:
            raise
        return [], _explained_answer(address, error)
    except (OSError, TransportError, LookupError, TypeError, ValueError):
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
    names = sorted(name for name in listing.names if not _NO_MODEL.search(name))
    firsts = [name for name in names if (part := _PART.search(name)) is None or int(part[1]) == 1]
    if not firsts:
        raise AddressError(f"{address.repo!r} holds no GGUF file", hint="name a GGUF repository")
    for quant in [address.quant] if address.quant else _PREFERRED:
        for name in firsts:
            if re.search(rf"(?i)(?:^|[.\-_/]){re.escape(quant)}(?:[.\-/]|$)", name):
                return name
    if address.quant:
        where = "" if listing.online else " in the local cache, and the hub cannot be reached"
        raise AddressError(
            f"{address.repo!r} has no {address.quant!r}{where}",
            hint=f"it has {', '.join(firsts)}",
        )
    return firsts[0]


def _parts(name: str) -> list[str]:
    match = _PART.search(name)
    if not match:
        return [name]
    count = int(match[2])
    stem = name[: match.start()]
    return [f"{stem}-{part:05d}-of-{count:05d}.gguf" for part in range(1, count + 1)]
