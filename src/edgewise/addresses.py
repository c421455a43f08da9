"""Model addresses: from what a user writes to a GGUF file or a model's folder on this disk.

    bundled                      the edge or the cloud model of the pair that ships with Edgewise
    ./model.gguf                 a file's path; one that could also be an address below, such as
                                 owner/repo, must begin with ./, ../, / or ~
    smollm2, qwen2.5-coder-0.5b  the short name of a model in `edgewise.hub.known`
    ollama:qwen3:0.6b            the file of a model that Ollama has on this disk
    lmstudio:Qwen3-0.6B          ... that LM Studio has
    owner/repo                   a repository on the Hugging Face hub: its file in the first of
                                 these quantisations that it has: Q4_K_M, Q4_0, Q4_K_S, Q5_K_M,
                                 Q8_0; with none of them, its first GGUF file by name
    owner/repo:Q4_K_M            ... the file of that quantisation (any case)
    hf://owner/repo@rev/file     ... exactly that file, at that revision
    ./folder, owner/repo         a model in another form, where there is no GGUF: ONNX
                                 (genai_config.json), transformers' (config.json, safetensors) or
                                 MLX; hf://owner/repo/folder names one inside a repository
    owner/repo/FILE.gguf         that file, where there is no folder `owner` here
    hf.co/owner/repo:Q4_K_M, https://HUB/owner/repo/..., https://ollama.com/library/NAME
                                 an address copied from a page of the hub or of Ollama's library

All but paths, revisions and `hf://` may be written in any case. Of several files that fit a name
the first by name is taken. Projectors (mmproj) and importance matrices (imatrix) are taken only if
named in full. Of a split file all parts are fetched. If the hub does not answer, the files of
earlier downloads are used.
"""

import os
import re
from collections.abc import Callable, Sequence
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple
from urllib.parse import unquote

from edgewise.errors import AddressError
from edgewise.hub import HubAddress, first_of, is_gguf, models_among, parts_of, short

if TYPE_CHECKING:
    from edgewise.hub.client import Repository

Part = Literal["edge", "cloud", "router", "routers"]
Role = Literal["edge", "cloud", "cloud_tokenizer"]

CHECKPOINT = ("config.json", "model.safetensors", "trained_on.txt")
"""The files of a router's checkpoint that are downloaded."""

TOKENIZER = (
    "tokenizer.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "additional_chat_templates/tool_use.jinja",
    "generation_config.json",
    "config.json",
)
"""The files of a tokenizer that are downloaded; the vocabulary comes first."""

_CONFIG = "config.json"

# Four bits are the usual trade of size for quality; eight take twice the memory.
_PREFERRED = ("Q4_K_M", "Q4_0", "Q4_K_S", "Q5_K_M", "Q8_0")
# The largest models on the hub have some two hundred; a name may claim 99,999.
_MOST_PARTS = 1000

_HERE = re.compile(r"(?i)(?:localhost|127(?:\.\d{1,3}){3}|\[::1\]):\d{1,5}(?:/.*)?")
# Servers that listen everywhere print such an address, at which no client can reach them.
_ANYWHERE = re.compile(r"(?i)^(https?://)?(0\.0\.0\.0|\[::\])(?=:\d)")
_ENDPOINT = re.compile(
    r"(?<!/)((/v1)?(/(chat/)?completions|/messages|/responses)?|/v1/(models|embeddings)|/completion"
    r"|/api/(chat|generate|tags|show))/*\Z"
)
_HOST = re.compile(r"[\w.-]+:\d{1,5}(?:/.*)?")
_TAGGED = re.compile(r"[\w.-]+:[\w.-]+")
_PASTED = re.compile(
    r"/(?P<repo>[\w.-]+/[\w.-]+)(?P<quant>:[\w.-]+)?"
    r"(?:/(?:blob|raw|resolve|tree)/(?P<revision>[\w.-]+)(?:/(?P<file>[^?#]+?))?)?/?(?:[?#].*)?"
)
_PAGE = re.compile(
    r"(?i)(?:https?://)?(?:www\.)?(?:(?:huggingface|hf)\.co(?=/)|ollama\.com/(?P<ollama>library/.+))"
)
_REPOSITORY = re.compile(
    r"(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w./-]+?))?(?::(?P<quant>[\w.-]+))?"
)
_FILE = re.compile(r"hf://(?P<repo>[\w.-]+/[\w.-]+)(?:@(?P<revision>[\w.-]+))?(?:/(?P<file>.+))?")
_GGUF = re.compile(r"(?i)(?P<repo>(?P<owner>[\w.-]+)/[\w.-]+)/(?P<file>.+\.gguf)")

# By kind of folder: the variable that names its parent, and that parent's default in the home.
_USER_FOLDERS = {"cache": ("XDG_CACHE_HOME", ".cache"), "state": ("XDG_STATE_HOME", ".local/state")}


def bundled(part: Part) -> Path:
    """Return the path of a part that ships with Edgewise.

    "edge" and "cloud" are the GGUF files of a pair of models. "router" is the folder of this pair's
    router, and "routers" is a folder with one folder for each other router.
    """
    name = part if part.startswith("router") else f"{part}.gguf"
    return Path(str(files("edgewise") / "bundled" / name))


def is_url(address: str) -> bool:
    """Whether `address` is a server's URL; False for hf://... and for a page about a model."""
    return "://" in address and not address.startswith("hf://") and _pasted(address) is None


def with_scheme(address: str) -> str:
    """Return `address`, with `http://` in front of a host and port of this machine (localhost:80).

    These hosts are localhost, 127.x.x.x and [::1]. Before a port 0.0.0.0 and [::], where servers
    listen, are replaced by 127.0.0.1 and [::1].
    """
    if found := _ANYWHERE.match(address):
        here = "127.0.0.1" if found[2].startswith("0") else "[::1]"
        address = f"{found[1] or ''}{here}{address[found.end() :]}"
    # For other hosts the user chooses between http and https: an API key is sent there.
    return f"http://{address}" if _HERE.fullmatch(address) else address


def without_endpoint(url: str) -> str:
    """Return `url` (or a URL's path) without an endpoint at its end, such as /v1 or /v1/models."""
    # Only the end is cut: no parser changes the rest between a check and a connection.
    return _ENDPOINT.sub("", url).rstrip("/")


def each(addresses: str) -> list[str]:
    """Split a comma-separated list of cloud addresses; complete each as `with_scheme` does.

    If the whole text is the path of a file or folder, return a list of this path alone, unchanged.
    """
    if os.path.exists(from_home(addresses)):
        return [addresses]
    return [with_scheme(one.strip()) for one in addresses.split(",")]


def from_home(name: str | Path) -> Path:
    """Return the path with ~ or ~user replaced by that home folder, if there is such a user."""
    return Path(os.path.expanduser(name))


def user_path(kind: Literal["cache", "state"], name: str) -> Path | None:
    """Return the path (not created) of this user's file or folder `name`; None without a home.

    By default it is ~/.cache/edgewise/`name` or ~/.local/state/edgewise/`name`, on Windows too. An
    absolute path in XDG_CACHE_HOME or XDG_STATE_HOME replaces ~/.cache or ~/.local/state.
    """
    variable, folder = _USER_FOLDERS[kind]
    # The XDG specification has relative ones ignored.
    given = Path(os.environ.get(variable, ""))
    # What Path.home() raises without a home.
    with suppress(RuntimeError):
        return (given if given.is_absolute() else Path.home() / folder) / "edgewise" / name
    return None


def is_path(name: str) -> bool:
    """Whether `name` is written as a path (./, ../, ~, absolute), so nothing else can be meant."""
    return name.startswith(("./", "../", "~")) or os.path.isabs(name) or name in (".", "..")


def local_folder(name: str) -> Path | None:
    """Return the path of the folder `name`, with ~ replaced; None if there is no such folder.

    Raises `AddressError` if there is one, but `name` can also mean a model elsewhere (owner/repo).
    """
    return from_home(name) if name and _is(name, Path.is_dir) else None


def hub_address(address: str) -> HubAddress | None:
    """Parse an address on the Hugging Face hub, such as owner/repo; None for any other."""
    address = _pasted(address) or address
    if match := _FILE.fullmatch(address):
        return HubAddress(match["repo"], match["revision"], None, match["file"])
    if address.startswith((".", "/", "~")):
        return None
    if (match := _GGUF.fullmatch(address)) and not local_folder(match["owner"]):
        return HubAddress(match["repo"], None, None, match["file"])
    # Two parts that end so are a path, whose file is missing.
    if is_gguf(address):
        return None
    if match := _REPOSITORY.fullmatch(address.removeprefix("hf://")):
        return HubAddress(match["repo"], match["revision"], match["quant"], None)
    return None


def resolve(address: str, role: Role) -> Path:
    """Return the GGUF file that `address` names, downloaded if need be; of a split file, part 1.

    `role` is the setting with the address, for errors. The address "bundled" is the edge model for
    the role "edge", else the cloud model. Raises `AddressError` if it cannot get the file.
    """
    if address == "bundled":
        return bundled("edge" if role == "edge" else "cloud")
    if path := _file(address):
        # llama.cpp finds the other parts by the first.
        first = path.with_name(first_of(path.name))
        return first if first.is_file() else path
    if local_folder(address):
        raise AddressError(
            f"{short(address)!r} is a folder, and llama.cpp reads a GGUF file",
            hint="name a file" + (", or leave the engine out" if role == "edge" else ""),
            setting=role,
        )
    if path := _by_short_name(address, role):
        return path
    parsed = hub_address(address)
    if parsed is None:
        raise _unknown(address, role)
    repository = _repository(parsed, role)
    parts = parts_of(_chosen(parsed, repository))
    if len(parts) > _MOST_PARTS:
        raise AddressError(f"{short(parts[0])!r} has more than {_MOST_PARTS} parts.")
    paths = [repository.file(part) for part in parts]
    return paths[0]


def _by_short_name(address: str, role: Role) -> Path | None:
    """Return the file of a short name, or of an Ollama or LM Studio name; None for any other."""
    from edgewise.hub import disk, known

    program, _, name = (_pasted(address) or address).partition(":")
    program = program.lower()
    try:
        if address.lower() in known.KNOWN:
            return known.known_file(address.lower())
        if program == "ollama" and name:
            return disk.ollama_file(name, whole=role != "cloud_tokenizer")
        return disk.lmstudio_file(name) if program == "lmstudio" and name else None
    except AddressError as error:
        error.setting = error.setting or role
        raise


def resolve_tokenizer(address: str) -> Path:
    """Return the tokenizer at `address`, a GGUF or folder, downloaded. Raises `AddressError`."""
    if folder := local_folder(address):
        return folder
    path, parsed = _file(address), hub_address(address)
    if path is not None and path.name == TOKENIZER[0]:
        return path.parent
    if path is None and parsed and not parsed.quant and not is_gguf(parsed.file or ""):
        repository, inside, names = _listed(parsed, "cloud_tokenizer")
        if TOKENIZER[0] in names:
            return repository.folder([inside + one for one in TOKENIZER if one in names]) / inside
    return resolve(address, "cloud_tokenizer")


class ModelFiles(NamedTuple):
    """The files of a model that is not GGUF: they show which edge engine can open the model.

    `names` are the files in the model's folder, `config` is the path of its `config.json`, and
    `library` is the hub's `library_name`, such as "transformers" or "mlx".
    """

    names: Sequence[str]
    config: Path | None = None
    library: str | None = None


def model_files(address: str) -> ModelFiles | None:
    """Return the files of the model at `address`; None for a GGUF model or an unknown address.

    From a hub repository only `config.json` is downloaded. Raises `AddressError`.
    """
    if address == "bundled" or _file(address) is not None:
        return None
    if folder := local_folder(address):
        names = [path.name for path in folder.iterdir() if path.is_file()]
        return ModelFiles(names, folder / _CONFIG if _CONFIG in names else None)
    parsed = hub_address(address)
    if parsed is None or parsed.quant or is_gguf(parsed.file or ""):
        return None
    repository, inside, names = _listed(parsed, "edge")
    if parsed.file is None and models_among(names):
        return None
    config = repository.file(inside + _CONFIG) if _CONFIG in names else None
    return ModelFiles(names, config, repository.library)


def resolve_folder(address: str, reads: tuple[str, ...]) -> tuple[Path, str]:
    """Return the path of the folder that holds the model at `address`, and the model's name.

    From a hub repository the files are downloaded whose names end with one of `reads` (but no
    `consolidated*`). The name is that of the folder, or of the repository without its owner. Raises
    `AddressError` if `address` is neither, or if a download fails.
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
    repository, inside, names = _listed(parsed, "edge")
    wanted = [
        inside + name
        for name in names
        if "/" not in name
        and name.endswith(reads)
        and not name.startswith("consolidated")  # a second copy of the weights, for Mistral's own
    ]
    return repository.folder(wanted) / inside, f"{parsed.repo}/{inside}".rstrip("/").split("/")[-1]


def checkpoint(name: str) -> Path | None:
    """Return the folder of the router's checkpoint called `name`, downloaded if need be.

    None unless `name` is a shipped router, a folder or a hub repository. Raises `AddressError`.
    """
    shipped = {one.name: one for one in bundled("routers").iterdir()}
    if folder := shipped.get(name) or local_folder(name):
        return folder
    address = hub_address(name)
    if address is None or address.quant or address.file:
        return None
    repository = _repository(address, "router")
    wanted = [one for one in CHECKPOINT if one in repository.names]
    if not wanted:
        raise AddressError(
            f"{address.repo!r} does not hold a router", hint="name another", setting="router"
        )
    return repository.folder(wanted)


def _chosen(address: HubAddress, repository: "Repository") -> str:
    """Return the name of the file that `address` means, by name, quantisation or preference."""
    if address.file is not None:
        # As people type it; the hub itself tells capitals apart.
        same = [one for one in repository.names if one.lower() == address.file.lower()]
        return address.file if address.file in same or not same else same[0]
    models = models_among(repository.names)
    if not models:
        raise AddressError(
            f"{address.repo!r} does not hold a GGUF file", hint="name a GGUF repository"
        )
    for quant in (address.quant,) if address.quant else _PREFERRED:
        named = re.compile(rf"(?i)(?:^|[.\-_/]){re.escape(quant)}(?:[.\-/]|$)")
        for name in models:
            if named.search(name):
                return name
    if address.quant is None:
        return models[0]
    offline = "" if repository.online else " in the local cache, and the hub cannot be reached"
    raise AddressError(
        f"{address.repo!r} has no {address.quant!r}{offline}",
        hint=f"it has {short(', '.join(models))}",
    )


def _repository(address: HubAddress, setting: str | None) -> "Repository":
    # Imported for an address on the hub only: this may take as long as an answer.
    from edgewise.hub.client import Repository

    return Repository(address, setting=setting)


def _listed(address: HubAddress, setting: str) -> "tuple[Repository, str, list[str]]":
    """Return a repository, the folder in it ("" or with a slash at the end), and its files."""
    repository = _repository(address, setting)
    inside = f"{address.file.rstrip('/')}/" if address.file is not None else ""
    names = [one.removeprefix(inside) for one in repository.names if one.startswith(inside)]
    if inside and not names:
        raise AddressError(
            f"{address.repo!r} has no folder {short(inside[:-1])!r}",
            hint="check the spelling",
            setting=setting,
        )
    return repository, inside, names


def _pasted(address: str) -> str | None:
    """Return the model address for a web page's URL; None for any other address."""
    if page := _PAGE.match(address):
        path = address[page.end() :]
        if page["ollama"]:
            return f"ollama:{page['ollama']}"
    elif address.startswith(("https://", "http://")):
        # A mirror of the hub, if HF_ENDPOINT names one.
        from huggingface_hub.constants import ENDPOINT

        if not address.startswith(ENDPOINT):
            return None
        path = address.removeprefix(ENDPOINT)
    else:
        return None
    if (parts := _PASTED.fullmatch(path)) is None:
        return None
    revision = f"@{parts['revision']}" if parts["revision"] else ""
    file = f"/{unquote(parts['file'])}" if parts["file"] else ""
    return f"hf://{parts['repo']}{parts['quant'] or ''}{revision}{file}"


def _unknown(address: str, role: Role) -> AddressError:
    named, problem = short(address), f"There is no file {short(address)!r}"
    hint = "name a path, a hub repository (owner/repo), ollama:NAME, smollm2 or 'bundled'"
    if role == "edge" and is_url(with_scheme(address)):
        problem = f"{named!r} is an engine's address, and the edge model runs in this process"
        hint = "name the model's file, such as ollama:NAME"
    elif role == "cloud" and _HOST.fullmatch(address):
        problem = f"{named!r} does not say how it is reached"
        hint = f"give https://{named}, or http:// before it in a network of your own"
    elif other := _elsewhere(address) or _beside(address):
        hint = f"did you mean {other!r}? If not: {hint}"
    return AddressError(problem, hint=hint, setting=role)


def _elsewhere(address: str) -> str | None:
    """Return Ollama's or LM Studio's address for a name without prefix, or None if none fits."""
    from edgewise.hub.disk import disk_models

    wanted = address.lower()
    for one in disk_models():
        name = one.address.partition(":")[2].lower()
        if wanted in (name, name.removesuffix(":latest"), name.rpartition("/")[2]):
            return one.address
    return f"ollama:{address}" if _TAGGED.fullmatch(address) else None


def _beside(address: str) -> str | None:
    """Return the existing file or folder whose path differs from `address` in case only."""
    folder, name = os.path.split(address)
    try:
        there = (one for one in os.listdir(from_home(folder or ".")) if one.lower() == name.lower())
    except (OSError, ValueError):
        return None
    found = next(there, None)
    return found and os.path.join(folder, found)


def _file(address: str) -> Path | None:
    return from_home(address) if _is(address, Path.is_file) else None


def _is(address: str, test: Callable[[Path], bool]) -> bool:
    """Return `test` of the path, False for a URL. Raises `AddressError` if it is ambiguous."""
    from edgewise.hub.known import KNOWN

    try:
        found = "://" not in address and test(from_home(address))
    # A name too long for the disk, or one with a null in it.
    except (OSError, ValueError):
        return False
    name = address.lower()
    elsewhere = name in KNOWN or name.startswith(("ollama:", "lmstudio:"))
    # Whoever fills the working folder must not decide what such a name means.
    if found and (elsewhere or hub_address(address)):
        raise AddressError(
            f"{address!r} is a file or folder here, and the name of something elsewhere",
            hint=f"write ./{address} for what is here"
            + (f", hf://{address} for the hub's" if _FILE.fullmatch(f"hf://{address}") else ""),
        )
    return found
