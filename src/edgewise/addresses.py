"""Model addresses: from what a user writes to a GGUF file or a model's folder on this disk.

    bundled                      one of the pair that ships with Edgewise
    bundled:mid                  ... and a larger edge model beside it
    bundled:other                ... and a cloud model of another vocabulary
    ./model.gguf                 a file's path, tried before any hub
    owner/repo                   a hub repository: its file in the first of these quantisations
                                 that it has: Q4_K_M, Q4_0, Q4_K_S, Q5_K_M, Q8_0; with none of
                                 them, its first GGUF file by name
    owner/repo:Q4_K_M            ... the file of that quantisation (any case)
    hf://owner/repo@rev/file     ... exactly that file, at that revision
    ./folder, owner/repo         a model in another form, where there is no GGUF: ONNX
                                 (genai_config.json), transformers' (config.json, safetensors) or
                                 MLX; hf://owner/repo/folder names one inside a repository
    https://HUB/owner/repo/...   what a page of the hub shows, as its URL is copied from a browser

Of files that one name fits the first by name is taken; projectors (mmproj) and importance matrices
(imatrix) never are, unless named in full. Of a split file all parts are fetched.

Downloads go through huggingface_hub, which honours its HF_* variables (HF_ENDPOINT, HF_TOKEN,
HF_HOME, HF_HUB_OFFLINE), resumes a connection that breaks off, verifies the size, and shows
progress. The hub is asked once, for at most 10 s; when it does not answer, what an earlier run
has downloaded is used.
"""

import os
import re
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Literal, NamedTuple

from edgewise.errors import AddressError
from edgewise.hub_client import (
    LISTING_SECONDS,
    HubAddress,
    HubListing,
    ask_ahead,
    ask_hub,
    fetched,
    hub_address,
    is_plain,
    listing,
    pasted,
    require_plain,
    short,
)
from edgewise.model_cache import explained_here, near
from edgewise.model_files import models_among, of_quant, parts_of, preferred
from edgewise.model_folders import engine_among, files_of

Part = Literal["edge", "mid", "cloud", "other", "router"]

BESIDE: dict[str, Part] = {"bundled:mid": "mid", "bundled:other": "other"}
"""Models beside the bundled pair, by address."""

CHECKPOINT = ("config.json", "model.safetensors", "trained_on.txt", "README.md")
"""Files of a router's checkpoint."""

TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
    "config.json",
)
"""Files of a tokenizer, the vocabulary first."""

_MOST_PARTS = 1000
_HERE = re.compile(r"(?:localhost|127(?:\.\d{1,3}){3}|\[::1\]):\d{1,5}(?:/.*)?")
_HOST = re.compile(r"[\w.-]+:\d{1,5}(?:/.*)?")


class _Listing(NamedTuple):
    """GGUF files of a repository; offline, those an earlier run has downloaded."""

    names: list[str]
    online: bool


def bundled(part: Part) -> Path:
    """Where a part of the bundled pair, or a model beside it, lies."""
    name = part if part == "router" else f"{part}.gguf"
    return Path(str(files("edgewise") / "bundled" / name))


def is_url(address: str) -> bool:
    """Whether `address` is an engine's or a gateway's."""
    return "://" in address and not address.startswith("hf://") and pasted(address) is None


def meant(address: str) -> str:
    """A cloud's address, where localhost:8080 is a URL; elsewhere a key travels, so it says how."""
    return f"http://{address}" if _HERE.fullmatch(address) and not _local(address) else address


def from_home(name: str | Path) -> Path:
    """The path, ~ and ~user being home folders; as it is where there is no such user."""
    return Path(os.path.expanduser(name))


def local_folder(name: str) -> Path | None:
    """The folder that `name` is the path of; None where there is none."""
    try:
        folder = from_home(name)
        return folder if name and folder.is_dir() else None
    except (OSError, ValueError):
        return None


def resolve(address: str, role: Literal["edge", "cloud", "cloud_tokenizer"]) -> Path:
    """The file that `address` names, downloaded if need be. Raises `AddressError`."""
    if address == "bundled" or address in BESIDE:
        return bundled(BESIDE.get(address, "edge" if role == "edge" else "cloud"))
    if path := _local(address):
        return path
    if local_folder(address):
        raise AddressError(
            f"{short(address)!r} is a folder, where llama.cpp reads a GGUF file",
            hint="name a file" + (", or leave the engine out" if role == "edge" else ""),
            setting=role,
        )
    parsed = hub_address(address)
    if parsed is None:
        raise _unknown(address, role)
    require_plain(parsed, setting=role)
    return _download(parsed)


def _unknown(address: str, role: Literal["edge", "cloud", "cloud_tokenizer"]) -> AddressError:
    named, problem = short(address), f"There is no file {short(address)!r}"
    if _is_link(address):
        return AddressError(
            f"{named!r} is a link to a file that does not exist",
            hint="correct it, or name a file",
            setting=role,
        )
    hint = "name a path, a hub repository (owner/repo) or 'bundled'"
    if close := near(address, ["bundled", *BESIDE]):
        hint = f"did you mean {close!r}? If not: {hint}"
    if role == "edge" and is_url(meant(address)):
        problem = f"{named!r} is an engine's address, and the edge model runs in this process"
    elif role == "cloud" and _HOST.fullmatch(address):
        problem = f"{named!r} does not say how it is reached"
        hint = f"give https://{named}, or http:// before it in a network of your own"
    return AddressError(problem, hint=hint, setting=role)


def resolve_tokenizer(address: str) -> Path:
    """The GGUF file, or the folder with `tokenizer.json`, that `address` names for a tokenizer.

    Of a repository with a `tokenizer.json` nothing but the tokenizer's files is downloaded. Raises
    `AddressError`.
    """
    if folder := local_folder(address):
        return folder
    path = _local(address)
    if path is not None and path.name == TOKENIZER[0]:
        return path.parent
    parsed = hub_address(address)
    if path is None and parsed and not parsed.quant and not (parsed.file or "").endswith(".gguf"):
        require_plain(parsed, setting="cloud_tokenizer")
        with explained_here(parsed):
            listed, online = _all_names(parsed)
            names = listed.names
            inside = _inside(parsed, names)
            wanted = [inside + name for name in TOKENIZER if inside + name in names]
            if wanted and wanted[0] == inside + TOKENIZER[0]:
                paths = [fetched(parsed, name, online=online) for name in wanted]
                if len({one.parent for one in paths}) == 1:
                    return paths[0].parent
    return resolve(address, "cloud_tokenizer")


def engine_at(address: str) -> str:
    """The edge engine for what lies at `address`, by its files. Raises `AddressError`.

    A GGUF is llama.cpp's, `genai_config.json` ONNX Runtime's; `config.json` with safetensors is
    transformers', or MLX's where they say so.
    """
    if address.partition(":")[0] == "bundled" or _local(address) is not None:
        return "llamacpp"
    if folder := local_folder(address):
        names = [path.name for path in folder.iterdir() if path.is_file()]
        return engine_among(names, address, folder / "config.json")
    parsed = hub_address(address)
    if parsed is None or parsed.quant or (parsed.file or "").endswith(".gguf"):
        return "llamacpp"
    require_plain(parsed, setting="edge")
    with explained_here(parsed):
        listed, online = _all_names(parsed, ahead=True)
        names = listed.names
        if parsed.file is None and models_among([n for n in names if n.endswith(".gguf")]):
            return "llamacpp"
        inside = _inside(parsed, names)
        config = f"{inside}config.json"
        path = fetched(parsed, config, online=online) if config in names else None
        held = [name.removeprefix(inside) for name in names if name.startswith(inside)]
        return engine_among(held, address, path, library=listed.library)


def resolve_folder(address: str, engine: str, reads: tuple[str, ...]) -> tuple[Path, str]:
    """The folder of a model for `engine`, downloaded if need be, and what to call the model.

    Of a repository the files that the engine `reads`, by the ends of their names, are fetched.
    Raises `AddressError`.
    """
    if folder := local_folder(address):
        return folder, folder.resolve().name
    parsed = hub_address(address)
    if parsed is None or parsed.quant:
        raise AddressError(
            f"There is no folder {short(address)!r}",
            hint="name a folder or a hub repository (owner/repo)",
            setting="edge",
        )
    require_plain(parsed, setting="edge")
    with explained_here(parsed):
        listed, online = _all_names(parsed)
        names = listed.names
        inside = _inside(parsed, names)
        wanted = [name for name in files_of(reads, names, inside) if is_plain(name)]
        if not wanted or len(wanted) > _MOST_PARTS:
            raise AddressError(
                f"{short(address)!r} has {len(wanted)} files for the edge engine {engine}, not 1 "
                f"to {_MOST_PARTS}",
                hint="name another repository, or leave the engine out",
                setting="edge",
            )
        roots = {_root(fetched(parsed, name, online=online), name) for name in wanted}
    if len(roots) != 1:
        raise AddressError(f"{parsed.repo!r} changed just now", hint="try again", setting="edge")
    return roots.pop() / inside, f"{parsed.repo}/{inside}".rstrip("/").rpartition("/")[2]


def _inside(address: HubAddress, names: Sequence[str]) -> str:
    """The folder of a repository that an address names, with its slash; empty for the root."""
    if address.file is None:
        return ""
    inside = f"{address.file.rstrip('/')}/"
    if not any(name.startswith(inside) for name in names):
        raise AddressError(
            f"{address.repo!r} has no folder {short(address.file)!r}",
            hint="check the spelling",
            setting="edge",
        )
    return inside


def _root(path: Path, name: str) -> Path:
    """The folder of a repository's snapshot that holds `name` as `path`."""
    return path.parents[name.count("/")]


def _all_names(address: HubAddress, *, ahead: bool = False) -> tuple[HubListing, bool]:
    """Files of a repository, and whether the hub says so; else those downloaded before.

    With `ahead` whoever asks next is told the same.
    """
    listed = ask_ahead(address) if ahead else ask_hub(address)
    if listed.problem is None:
        return listed, True
    folder = _snapshot(address, listed.problem)
    return HubListing([path.relative_to(folder).as_posix() for path in folder.rglob("*")]), False


def checkpoint(name: str) -> Path | None:
    """The folder of a router: a path, or a hub repository's files, downloaded if need be.

    None where the name is of neither form. Raises `AddressError`.
    """
    import huggingface_hub as hub

    if folder := local_folder(name):
        return folder
    address = hub_address(name)
    if address is None or address.quant or address.file:
        return None
    require_plain(address, setting="router")
    with explained_here(address):
        listed = ask_hub(address)
        if listed.problem is not None:
            return Path(
                hub.snapshot_download(
                    address.repo, revision=address.revision, local_files_only=True
                )
            )
        paths = [fetched(address, name) for name in CHECKPOINT if name in listed.names]
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

    address = HubAddress(repo, None, None, None)
    require_plain(address, setting=None)
    with explained_here(address):
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

    address = HubAddress(repo, None, None, name)
    require_plain(address, setting="data")
    with explained_here(address):
        try:
            return Path(hub.hf_hub_download(repo, name, repo_type="dataset", local_files_only=True))
        except LocalEntryNotFoundError:
            # Once, so that a machine without a network does not wait through retries.
            with listing():
                hub.HfApi().dataset_info(repo, timeout=LISTING_SECONDS)
            return fetched(address, name, kind="dataset")


def _is_link(address: str) -> bool:
    try:
        return from_home(address).is_symlink()
    except (OSError, ValueError):
        return False


def _local(address: str) -> Path | None:
    try:
        path = from_home(address)
        return path if path.is_file() else None
    except (OSError, ValueError):
        # A name too long for the disk, or one with a null in it.
        return None


def _download(address: HubAddress) -> Path:
    with explained_here(address):
        listing = _list(address)
        name = address.file or _choose(address, listing)
        if len(parts_of(name)) > _MOST_PARTS:
            raise AddressError(f"{short(name)!r} says that it has more than {_MOST_PARTS} parts.")
        paths = [fetched(address, part, online=listing.online) for part in parts_of(name)]
        return paths[0]


def _list(address: HubAddress) -> _Listing:
    listed = ask_hub(address)
    if listed.problem is not None:
        return _Listing(_cached(address, listed.problem), online=False)
    return _Listing([name for name in listed.names if name.endswith(".gguf")], online=True)


def _cached(address: HubAddress, problem: AddressError) -> list[str]:
    folder = _snapshot(address, problem)
    names = [path.relative_to(folder).as_posix() for path in folder.rglob("*.gguf")]
    if not names or (address.file is not None and address.file not in names):
        raise problem
    return names


def _snapshot(address: HubAddress, problem: AddressError) -> Path:
    """What an earlier run has downloaded; raises `problem` where that is nothing."""
    import huggingface_hub as hub
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(
            hub.snapshot_download(address.repo, revision=address.revision, local_files_only=True)
        )
    except LocalEntryNotFoundError as error:
        raise problem from error


def _choose(address: HubAddress, listing: _Listing) -> str:
    """The first part of the file that the quantisation names, or of the preferred one."""
    # Others would lead out of the cache's folder.
    firsts = models_among([name for name in listing.names if is_plain(name)])
    if not firsts:
        raise AddressError(f"{address.repo!r} holds no GGUF file", hint="name a GGUF repository")
    if address.quant is None:
        return preferred(firsts)
    found = of_quant(firsts, address.quant)
    if found is None:
        where = "" if listing.online else " in the local cache, and the hub cannot be reached"
        raise AddressError(
            f"{address.repo!r} has no {address.quant!r}{where}",
            hint=f"it has {short(', '.join(firsts))}",
        )
    return found
