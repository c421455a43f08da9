"""The hub's client: what a repository holds, its files, and what went wrong, in a sentence.

Names that a hub says are looked at before they become names on this disk.
"""

import re
import time
from collections.abc import Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from edgewise.errors import AddressError

if TYPE_CHECKING:
    from httpx2 import Client, Request, Response, SyncByteStream

LISTING_SECONDS = 10.0
"""How long the hub may take to begin to say which files a repository has."""

_LISTING_END = 3 * LISTING_SECONDS
_LARGEST_LISTING = 16 << 20
_LARGEST_FILE = 1 << 40
_PASTED = re.compile(
    r"/(?P<repo>[\w.-]+/[\w.-]+)"
    r"(?:/(?:blob|raw|resolve|tree)/(?P<revision>[\w.-]+)(?:/(?P<file>[^?#]+?))?)?/?(?:[?#].*)?"
)
_REPOSITORY = re.compile(
    r"(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+?))?(?::(?P<quant>[\w.-]+))?"
)
_FILE = re.compile(r"hf://(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w.-]+))?(?:/(?P<file>.+))?")
# What the client makes a file's name of.
_ETAG = re.compile(r'(?:W/)?"?[A-Za-z0-9-]{1,256}"?')
_COMMIT = re.compile(r"[A-Za-z0-9]{1,64}")
_DIGITS = re.compile(r"[0-9]{1,13}")
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


class _Bounds(NamedTuple):
    """What the replies to a call of ours may be: `size` bytes each, `end` of the whole call."""

    size: int
    end: float | None


_bounds: ContextVar[_Bounds | None] = ContextVar("hub_bounds", default=None)


@contextmanager
def bounded(size: int, seconds: float | None = None) -> Generator[None]:
    """Check every reply of the hub that the client acts on here, redirects and retries too.

    A reply may have at most `size` bytes, as it comes, and must end after `seconds`. One that
    would make the client write outside of its cache raises `AddressError`.
    """
    _install()
    end = None if seconds is None else time.monotonic() + seconds
    token = _bounds.set(_Bounds(size, end))
    try:
        yield
    finally:
        _bounds.reset(token)


def listing() -> AbstractContextManager[None]:
    """Check the replies of a hub that lists files."""
    return bounded(_LARGEST_LISTING, _LISTING_END)


@cache
def _install() -> None:
    """Make the hub's client ours: outside of `bounded` it does as before."""
    import huggingface_hub as hub
    from httpx2 import Client

    hooks = hub.get_session().event_hooks

    def client() -> "Client":
        return Client(
            event_hooks={
                "request": [*hooks["request"], _asked_plainly],
                "response": [*hooks["response"], _checked_reply],
            },
            follow_redirects=True,
            timeout=None,
        )

    hub.set_client_factory(client)


def _asked_plainly(request: "Request") -> None:
    """Ask for no compression: a few bytes could become any number."""
    if _bounds.get() is not None:
        request.headers["Accept-Encoding"] = "identity"


def _checked_reply(response: "Response") -> None:
    bounds = _bounds.get()
    if bounds is None:
        return
    said = response.headers
    commit = said.get("X-Repo-Commit")
    etag = said.get("X-Linked-Etag") or said.get("ETag")
    if commit is not None:
        # The client names blobs, snapshots and what is missing after these.
        _require(_COMMIT.fullmatch(commit), f"a commit of {short(commit)!r}")
        _require(etag is None or _ETAG.fullmatch(etag), f"an ETag of {short(etag or '')!r}")
    size = said.get("X-Linked-Size") or said.get("Content-Length") or "0"
    _require(_DIGITS.fullmatch(size), f"a size of {short(size)!r}")
    _require_size(int(size), bounds)
    encoding = said.get("Content-Encoding", "identity")
    _require(encoding == "identity", f"the encoding {short(encoding)!r}, which was not asked for")
    response.stream = _stream(response, bounds)


def _stream(response: "Response", bounds: _Bounds) -> "SyncByteStream":
    from httpx2 import ReadTimeout, SyncByteStream

    stream = response.stream
    assert isinstance(stream, SyncByteStream)

    class Bounded(SyncByteStream):
        def __iter__(self, stream: SyncByteStream = stream) -> Iterator[bytes]:
            read = 0
            for chunk in stream:
                read += len(chunk)
                _require_size(read, bounds)
                if bounds.end is not None and time.monotonic() > bounds.end:
                    raise ReadTimeout("its reply never ends", request=response.request)
                yield chunk

        def close(self, stream: SyncByteStream = stream) -> None:
            stream.close()

    return Bounded()


def _require(good: object, said: str) -> None:
    if not good:
        raise AddressError(
            f"The hub's reply is not a hub's: it has {said}",
            hint="check HF_ENDPOINT, or name a file on this disk",
        )


def _require_size(size: int, bounds: _Bounds) -> None:
    if size > bounds.size:
        raise AddressError(
            f"The hub's reply has more than {bounds.size} bytes",
            hint="check HF_ENDPOINT, or name a file on this disk",
        )


def fetched(
    address: HubAddress,
    name: str,
    *,
    online: bool = True,
    kind: str = "model",
    largest: int = _LARGEST_FILE,
) -> Path:
    """A repository's file of at most `largest` bytes, downloaded if need be.

    Raises `AddressError`, and what the client does.
    """
    import huggingface_hub as hub

    with bounded(largest):
        path = hub.hf_hub_download(
            address.repo,
            name,
            repo_type=kind,
            revision=address.revision,
            local_files_only=not online,
        )
    return _inside_cache(Path(path), name)


def _inside_cache(path: Path, name: str) -> Path:
    """The file of a snapshot. Raises `AddressError` where it lies elsewhere."""
    from huggingface_hub import constants

    cache = Path(constants.HF_HUB_CACHE).resolve()
    repository = path.parents[name.count("/") + 2].resolve()
    found = path.resolve()
    if not any(found.is_relative_to(folder) for folder in (cache, repository)):
        raise AddressError(
            f"{str(path)!r} leads out of the hub's cache, to {str(found)!r}", hint="remove it"
        )
    return path


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
        with listing():
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
