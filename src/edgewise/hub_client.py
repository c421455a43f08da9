"""The hub's client: what a repository holds, its files, and what went wrong, in a sentence.

Names that a hub says are looked at before they become names on this disk.
"""

import re
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from edgewise.errors import AddressError

LISTING_SECONDS = 10.0
"""How long the hub may take to say which files a repository has."""

_LARGEST_FILE = 1 << 40
_PASTED = re.compile(
    r"/(?P<repo>[\w.-]+/[\w.-]+)"
    r"(?:/(?:blob|raw|resolve|tree)/(?P<revision>[\w.-]+)(?:/(?P<file>[^?#]+?))?)?/?(?:[?#].*)?"
)
_REPOSITORY = re.compile(
    r"(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+?))?(?::(?P<quant>[\w.-]+))?"
)
_FILE = re.compile(r"hf://(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w.-]+))?(?:/(?P<file>.+))?")
_HASH = re.compile(r"[A-Za-z0-9]+")
_LONGEST_NAME, _LONGEST_PART, _SHOWN = 1000, 256, 300

_NO_ANSWER = (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)
"""What the hub's client raises for replies that are no hub's."""


class HubAddress(NamedTuple):
    repo: str
    revision: str | None
    quant: str | None
    file: str | None


class HubListing(NamedTuple):
    """The names of a repository's files, or why there is no telling (`problem`).

    `library` is what its card names.
    """

    names: list[str]
    problem: AddressError | None = None
    library: str | None = None


def require_plain(address: HubAddress, *, setting: str | None) -> None:
    """Raise `AddressError` for names that lead elsewhere on a hub, or on this disk."""
    for what, name in (
        ("repository", address.repo),
        ("revision", address.revision),
        ("quantisation", address.quant),
        ("file", address.file),
    ):
        if name is not None and not is_plain(name):
            raise AddressError(
                f"A {what} of a hub cannot be called {short(name)!r}",
                hint="check the address",
                setting=setting,
            )


def is_plain(name: str) -> bool:
    """Whether each part of a path says only where it says it is."""
    parts = name.split("/")
    return (
        len(name) <= _LONGEST_NAME
        and all(part.strip(". ") and len(part) < _LONGEST_PART for part in parts)
        and name.isprintable()
        and not any(letter in name for letter in "\\:")
    )


def pasted(address: str) -> str | None:
    """The hf:// address of what a page of the hub shows, by the page's URL; None for another."""
    if not address.startswith(("https://", "http://")):
        return None
    from huggingface_hub.constants import ENDPOINT

    found = _PASTED.fullmatch(address.removeprefix(ENDPOINT))
    if found is None or not address.startswith(ENDPOINT):
        return None
    revision = f"@{found['revision']}" if found["revision"] else ""
    return f"hf://{found['repo']}{revision}" + (f"/{found['file']}" if found["file"] else "")


def hub_address(address: str) -> HubAddress | None:
    """What of the hub an address names; None where it is of no such form."""
    address = pasted(address) or address
    if match := _FILE.fullmatch(address):
        return HubAddress(match["repo"], match["revision"], None, match["file"])
    if address.endswith(".gguf") or address.startswith((".", "/", "~")):
        return None
    if match := _REPOSITORY.fullmatch(address):
        return HubAddress(match["repo"], match["revision"], match["quant"], None)
    return None


def short(name: str) -> str:
    return name if len(name) <= _SHOWN else f"{name[:_SHOWN]}..."


def fetched(
    address: HubAddress,
    name: str,
    *,
    online: bool = True,
    kind: str = "model",
    largest: int = _LARGEST_FILE,
) -> Path:
    """A repository's file, downloaded if need be. Raises `AddressError`, and what the client does.

    One of more than `largest` bytes is not. The client names its files after what the hub says in
    headers, so these are looked at before.
    """
    import huggingface_hub as hub

    if online:
        url = hub.hf_hub_url(address.repo, name, repo_type=kind, revision=address.revision)
        told = hub.get_hf_file_metadata(url, timeout=LISTING_SECONDS)
        hashes = (told.etag or "", told.commit_hash or "")
        if largest < _LARGEST_FILE and not 0 <= (told.size or 0) <= largest:
            raise AddressError(f"{name!r} of {named(address)!r} has more than {largest} bytes")
        if not all(map(_HASH.fullmatch, hashes)) or (told.size or 0) > _LARGEST_FILE:
            raise AddressError(
                f"What the hub says of {named(address)!r} is not a hub's",
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
def explained(address: HubAddress) -> Generator[None]:
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
            raise explained_answer(address, error.__cause__) from error
        raise unreachable(address) from error
    except HfHubHTTPError as error:
        raise explained_answer(address, error) from error
    except (OSError, HTTPError) as error:
        raise AddressError(
            f"The download of {named(address)!r} failed ({_first_line(error)})", hint="try again"
        ) from error
    except (*_NO_ANSWER, InvalidURL) as error:
        raise AddressError(
            f"What the hub answers for {named(address)!r} is not a hub's ({_first_line(error)})",
            hint="check HF_ENDPOINT, or name a file on this disk",
        ) from error


def named(address: HubAddress) -> str:
    return f"{address.repo}/{address.file}" if address.file else address.repo


def _first_line(error: Exception) -> str:
    told = str(error).strip().partition("\n")[0].rstrip(".")
    return short(told) if told else type(error).__name__


def unreachable(address: HubAddress) -> AddressError:
    from huggingface_hub import constants

    return AddressError(
        f"The hub at {constants.ENDPOINT} cannot be reached and {named(address)!r} is not in the "
        "local cache",
        hint="connect once, or name a file on this disk",
    )


def explained_answer(address: HubAddress, error: Exception) -> AddressError:
    from huggingface_hub.errors import HfHubHTTPError, RevisionNotFoundError

    assert isinstance(error, HfHubHTTPError)
    status = error.response.status_code
    if status in (401, 403):
        return AddressError(
            f"The hub refuses {named(address)!r} (HTTP {status}): it does not exist or needs "
            "access",
            hint="check the spelling, or set HF_TOKEN to a token that may read it",
        )
    if isinstance(error, RevisionNotFoundError):
        return AddressError(
            f"{address.repo!r} has no revision {address.revision!r} on the hub", hint="check it"
        )
    if status == 404:
        return AddressError(f"The hub has no {named(address)!r}", hint="check the spelling")
    return AddressError(
        f"The hub answered HTTP {status} for {named(address)!r}", hint="try again later"
    )


_ahead: dict[tuple[str, str | None], HubListing] = {}


def ask_ahead(address: HubAddress) -> HubListing:
    """As `ask_hub`, which will say the same once more without asking the hub."""
    told = _ahead[address.repo, address.revision] = ask_hub(address)
    return told


def ask_hub(address: HubAddress) -> HubListing:
    """What a repository holds.

    The hub is asked once, so that a machine without a network does not wait through retries.
    """
    import huggingface_hub as hub
    from httpx2 import HTTPError, InvalidURL
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    if (told := _ahead.pop((address.repo, address.revision), None)) is not None:
        return told

    try:
        model = hub.HfApi().model_info(
            address.repo, revision=address.revision, timeout=LISTING_SECONDS
        )
        names = [file.rfilename for file in model.siblings or []]
        plain = [name for name in names if isinstance(name, str)]  # pyright: ignore[reportUnnecessaryIsInstance]
        return HubListing(plain, library=model.library_name)
    except HFValidationError:
        raise
    except HfHubHTTPError as error:
        status = error.response.status_code
        if status != 429 and status < 500:
            raise
        return HubListing([], explained_answer(address, error))
    except (OSError, HTTPError, InvalidURL, *_NO_ANSWER):
        # Off line, out of reach, or something in between that answers in the hub's place.
        return HubListing([], unreachable(address))
