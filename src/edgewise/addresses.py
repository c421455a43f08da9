"""Model addresses: from what a user writes to a GGUF file on this disk.

    bundled                      one of the pair that ships with Edgewise
    ./model.gguf                 a path, tried before any hub
    owner/repo                   a hub repository: its Q4_K_M, else its smallest 4-bit file or more
    owner/repo:Q4_K_M            ... the file of that quantisation
    hf://owner/repo@rev/file     ... exactly that file, at that revision

Downloads go through huggingface_hub, which honours its HF_* variables (HF_ENDPOINT, HF_TOKEN,
HF_HOME, HF_HUB_OFFLINE), resumes, verifies, and shows progress; a second run needs no network.
"""

import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Literal, NamedTuple

from edgewise.errors import AddressError

_REPOSITORY = re.compile(
    r"(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+?))?(?::(?P<quant>[\w.-]+))?"
)
_FILE = re.compile(r"hf://(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w.-]+))?(?:/(?P<file>.+))?")
_PREFERRED = ("Q4_K_M", "Q4_0", "Q4_K_S", "Q5_K_M", "Q8_0")
_PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")


class _Address(NamedTuple):
    repo: str
    revision: str | None
    quant: str | None
    file: str | None


def bundled(role: Literal["edge", "cloud", "router"]) -> Path:
    """Where a part of the bundled pair lies."""
    name = {"edge": "edge.gguf", "cloud": "cloud.gguf", "router": "router"}[role]
    return Path(str(files("edgewise") / "bundled" / name))


def resolve(address: str, role: Literal["edge", "cloud"]) -> Path:
    """The file that `address` names, downloaded if need be. Raises `AddressError`."""
    if address == "bundled":
        return bundled(role)
    path = Path(address).expanduser()
    if path.exists():
        return path
    parsed = _parse(address)
    if parsed is None:
        raise AddressError(
            f"There is no file {address!r}; name a path, a hub repository (owner/repo) or "
            "'bundled'."
        )
    return _download(parsed)


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
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        name = address.file or _choose(address, _listing(address))
        paths = [
            Path(hub.hf_hub_download(address.repo, part, revision=address.revision))
            for part in _parts(name)
        ]
        return paths[0]
    except LocalEntryNotFoundError as error:
        raise AddressError(
            f"The hub cannot be reached and {address.repo!r} is not in the local cache; connect "
            "once, or name a file on this disk."
        ) from error
    except HFValidationError as error:
        raise AddressError(f"{address.repo!r} is no hub repository's name ({error}).") from error
    except HfHubHTTPError as error:
        raise AddressError(_explain(address, error.response.status_code)) from error


def _explain(address: _Address, status: int) -> str:
    what = f"{address.repo}/{address.file}" if address.file else address.repo
    if status in (401, 403):
        return (
            f"The hub refuses {what!r} (HTTP {status}): it does not exist or needs access; set "
            "HF_TOKEN to a token that may read it."
        )
    if status == 404:
        return f"The hub has no {what!r}; check the spelling and the revision."
    return f"The hub answered HTTP {status} for {what!r}; try again later."


def _listing(address: _Address) -> list[str]:
    """GGUF files of a repository: asked of the hub, or what an earlier run has downloaded."""
    import huggingface_hub as hub
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    try:
        names = hub.HfApi().list_repo_files(address.repo, revision=address.revision)
    except HfHubHTTPError:
        raise
    except (OfflineModeIsEnabled, OSError, _transport_error()) as error:
        names = _cached(address)
        if not names:
            raise AddressError(
                f"The hub cannot be reached and {address.repo!r} is not in the local cache; "
                "connect once, or name a file on this disk."
            ) from error
    return [name for name in names if name.endswith(".gguf")]


def _transport_error() -> type[Exception]:
    """What the hub client's HTTP library raises when there is no connection."""
    import httpx2

    return httpx2.TransportError


def _cached(address: _Address) -> list[str]:
    import huggingface_hub as hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = Path(
            hub.snapshot_download(address.repo, revision=address.revision, local_files_only=True)
        )
    except LocalEntryNotFoundError:
        return []
    return [str(path.relative_to(folder)) for path in folder.rglob("*.gguf")]


def _choose(address: _Address, names: Sequence[str]) -> str:
    """The first part of the file that the quantisation names, or of the preferred one."""
    firsts = [name for name in names if "-of-" not in name or "-00001-of-" in name]
    firsts = [name for name in firsts if "mmproj" not in name.lower()]
    if not firsts:
        raise AddressError(f"{address.repo!r} holds no GGUF file; name a GGUF repository.")
    wanted = [address.quant] if address.quant else list(_PREFERRED)
    for quant in wanted:
        for name in sorted(firsts):
            if re.search(rf"(?i)(?:^|[.\-_/]){re.escape(quant)}(?:[.\-_/]|$)", name):
                return name
    if address.quant:
        listed = ", ".join(sorted(Path(name).name for name in firsts))
        raise AddressError(f"{address.repo!r} has no {address.quant!r}; it has {listed}.")
    return sorted(firsts)[0]


def _parts(name: str) -> list[str]:
    match = _PART.search(name)
    if not match:
        return [name]
    count = int(match[2])
    stem = name[: match.start()]
    return [f"{stem}-{part:05d}-of-{count:05d}.gguf" for part in range(1, count + 1)]
