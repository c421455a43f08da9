"""Settings: from flags, else the environment, else `edgewise.toml` in the working folder."""

import codecs
import difflib
import os
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal, get_args

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from edgewise.errors import UsageError

FILE = "edgewise.toml"
PREFIX = "EDGEWISE_"
"""How the environment variable of a setting begins."""
MAX_FILE = 64 << 10
"""Size limit of `edgewise.toml`, in bytes."""

# Settings that exclude each other: a source that gives one drops the other of weaker sources.
_EITHER = {"threshold": "cloud_share", "cloud_share": "threshold"}

# Values with a meaning of their own, unlike paths and names; they may be written in any case.
_WORDS = {
    "edge": ("bundled",),
    "cloud": ("bundled", "none"),
    "router": ("bundled", "auto"),
    "verify": ("auto", "off", "on", "exact"),
    **dict.fromkeys(("edge_engine", "cloud_engine", "gpu_layers"), ("auto",)),
}

# Values that mean the same as no value to commands that do not draw or verify.
_AS_UNSET = {"temperature": 0.0, "verify": "off"}

_OF_SERVE = "api_key"  # an option of `serve`, not a setting; it may be in the environment too
_TYPO = 0.8  # least similarity of an unknown variable to a setting's name to count as a misspelling
_MONEY = Meta(ge=0, le=1e12)

FLAGS, ENVIRONMENT = "the flags", "the environment"


def _about(group: str, description: str, metavar: str, *, rare: bool = False) -> Meta:
    """Return a setting's description for the command line; only `--help-all` shows a `rare` one."""
    return Meta(description=description, extra={"group": group, "metavar": metavar, "rare": rare})


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All settings. Each may be in `edgewise.toml`, unless `cli.options.vetted` refuses it there.

    The `group` in a field's metadata decides which commands accept the setting.
    """

    edge: Annotated[
        str, _about("models", "A GGUF, owner/repo, smollm2, ollama:NAME or a URL.", "MODEL")
    ] = "bundled"
    cloud: Annotated[
        str | None, _about("models", "URL, model or none; repeat it, nearest first.", "MODEL")
    ] = None
    edge_engine: Annotated[
        str, _about("models", "Library that runs the edge model; default: auto.", "NAME", rare=True)
    ] = "auto"
    edge_model: Annotated[
        str | None, _about("models", "Model on the edge server, if it has several.", "NAME")
    ] = None
    edge_tokenizer: Annotated[
        str | None,
        _about("models", "Edge server tokenizer: GGUF, folder or repository.", "MODEL", rare=True),
    ] = None
    edge_hosts: Annotated[
        str | None,
        _about("models", "Allowed edge server hosts, besides private IPs.", "HOSTS", rare=True),
    ] = None
    edge_key: Annotated[
        str | None, _about("key", "Key for the edge server, sent as a bearer token.", "KEY")
    ] = None
    cloud_engine: Annotated[
        str, _about("connection", "API at the cloud's URL; default: auto.", "NAME", rare=True)
    ] = "auto"
    cloud_hosts: Annotated[
        str | None,
        _about("connection", "Allow clouds at these hosts only (a,b).", "HOSTS", rare=True),
    ] = None
    cloud_model: Annotated[
        str | None, _about("connection", "Model at the cloud's URL; default: the first.", "NAME")
    ] = None
    cloud_key: Annotated[
        str | None, _about("key", "Key for the cloud's URL, sent as a bearer token.", "KEY")
    ] = None
    tier_share: Annotated[
        str | float | None,
        _about("tiers", "Token share of each further cloud; default: 1%.", "SHARE", rare=True),
    ] = None
    tier_threshold: Annotated[
        str | float | None,
        _about("tiers", "Uncertainty that asks the next cloud; default: 0.5.", "SCORE", rare=True),
    ] = None
    trust: Annotated[
        str | None,
        _about("tiers", "Trusted hosts (a,b): local text may go there.", "HOSTS", rare=True),
    ] = None
    cloud_tokenizer: Annotated[
        str | None,
        _about("tokenizer", "Cloud tokenizer: GGUF, folder or repository.", "MODEL", rare=True),
    ] = None
    redact: Annotated[
        str | None, _about("privacy", "Replace private words: on, or classes (email,ip).", "KINDS")
    ] = None
    router: Annotated[
        str | None,
        _about("routing", "Folder, entropy, max-prob, margin, ...; default: auto.", "ROUTER"),
    ] = None
    verify: Annotated[
        Literal["auto", "off", "on", "exact"],
        _about("policy", "Cloud reads every token: auto, off, on, exact.", "HOW"),
    ] = "auto"
    cloud_share: Annotated[
        float | None,
        _about("policy", "Share of tokens from the cloud; default: 10%, 5% by a router.", "SHARE"),
    ] = None
    escalate: Annotated[
        float | None,
        _about("routing", "Share of answers a chat API writes whole.", "SHARE", rare=True),
    ] = None
    threshold: Annotated[
        float | None,
        _about("policy", "Ask the cloud at this score; replaces the share.", "SCORE", rare=True),
    ] = None
    max_cloud_tokens: Annotated[
        int | None, _about("policy", "Max cloud tokens in one answer.", "N", rare=True)
    ] = None
    span: Annotated[
        int, _about("policy", "Tokens per consult; words with a text API.", "N", rare=True)
    ] = 1
    speculate: Annotated[
        int,
        _about("policy", "Max draft tokens during a consult; 0: wait.", "N", rare=True),
        Meta(le=256),
    ] = 16
    deadline: Annotated[
        float | None,
        _about("policy", "Timeout of a consult; default: adaptive.", "SECONDS", rare=True),
    ] = None
    on_cloud_error: Annotated[
        Literal["edge", "raise"],
        _about("routing", "Failed consult: use the edge token, or raise.", "edge|raise", rare=True),
    ] = "edge"
    on_edge_error: Annotated[
        Literal["stop", "cloud"],
        _about("routing", "Edge server lost: stop, or continue on cloud.", "stop|cloud", rare=True),
    ] = "stop"
    max_tokens: Annotated[
        Annotated[int, Meta(ge=1, le=1 << 31)] | None,
        _about("sampling", "Max answer tokens; default: fill the context.", "N"),
    ] = None
    temperature: Annotated[
        float | None, _about("sampling", "0 is greedy; default: 0, in chat 0.7.", "T")
    ] = None
    top_p: Annotated[
        float, _about("draws", "Sample from this probability mass; 1: off.", "P", rare=True)
    ] = 1.0
    seed: Annotated[
        Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] | None,
        _about("draws", "Sampling seed; default: 0, random in serve.", "N", rare=True),
    ] = None
    # Upper bounds keep numbers that its C structs would cut short away from llama.cpp.
    ctx: Annotated[
        Annotated[int, Meta(ge=8, le=1 << 24)] | None,
        _about("machine", "Context tokens; default: the model's, at most 4096.", "N"),
    ] = None
    threads: Annotated[
        Annotated[int, Meta(ge=1, le=512)] | None,
        _about("machine", "CPU threads; default: by the cores at hand.", "N", rare=True),
    ] = None
    gpu_layers: Annotated[
        Annotated[int, Meta(ge=-1, le=1 << 16)] | Literal["auto"],
        _about("machine", "Layers on the GPU: auto or a number.", "N", rare=True),
    ] = "auto"
    price: Annotated[
        str | None, _about("costs", "IN,CACHED,OUT per million tokens, or a TOML file.", "PRICE")
    ] = None
    max_cost: Annotated[
        Annotated[float, _MONEY] | None, _about("costs", "Cost limit of one answer.", "MONEY")
    ] = None
    max_cost_day: Annotated[
        Annotated[float, _MONEY] | None,
        _about("costs", "Cost limit of one UTC day, all processes.", "MONEY", rare=True),
    ] = None


NAMES = Settings.__struct_fields__
_DEFAULTS = Settings()
FIELDS = {field.name: field for field in msgspec.structs.fields(Settings)}


def names_in(*groups: str) -> tuple[str, ...]:
    """Return the names of the settings in these groups, such as "models", group by group."""
    by_group: dict[str, list[str]] = {}
    for name, field in FIELDS.items():
        meta: Meta = get_args(field.type)[1]
        assert meta.extra is not None
        by_group.setdefault(meta.extra["group"], []).append(name)
    return tuple(name for group in groups for name in by_group[group])


def load(
    flags: Mapping[str, object],
    *,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> tuple[Settings, dict[str, str]]:
    """Merge the settings from flags, environment and file; return them, and the source of each.

    Flags beat the environment, which beats the file; a threshold drops the cloud share of a weaker
    source, and the other way round. The second value maps the name of each given setting to "the
    flags", "the environment" or "edgewise.toml". Flags of None or [] and empty variables count as
    unset. By default `environment` is the process's, `folder` (of the file) the working folder.
    Raises `UsageError` for an invalid value or unknown name (of a variable: if nearly a setting's).
    """
    merged: dict[str, object] = {}
    places: dict[str, str] = {}
    # From the weakest to the strongest: a later one replaces what is set before.
    sources: list[tuple[Mapping[str, object], str]] = [
        (_from_file((folder or Path()) / FILE), FILE),
        (_from_environment(os.environ if environment is None else environment), ENVIRONMENT),
        ({name: value for name, value in flags.items() if value not in (None, [])}, FLAGS),
    ]
    for source, where in sources:
        # Each by itself, so that an error names the source that is wrong.
        _checked(source, where)
        for name in _EITHER.keys() & source.keys():
            merged.pop(_EITHER[name], None)
        merged.update(source)
        places |= dict.fromkeys(source, where)
    return _checked(merged, "the settings"), {name: places[name] for name in merged}


def settings_of(values: Mapping[str, object]) -> Settings:
    """Return settings from `values` alone. Raises `UsageError` for an unknown or invalid one."""
    for name in values:
        require_known(name, f"There is no setting {name!r}")
    return _checked(values, "the arguments")


def spelled(name: str) -> str:
    """Return a setting's name as files and flags spell it: cloud-share for cloud_share."""
    return name.replace("_", "-")


def variable(name: str) -> str:
    """Return the environment variable of a setting: EDGEWISE_CLOUD_SHARE for cloud_share."""
    return PREFIX + name.upper()


def require_default(chosen: Settings, names: Collection[str], why: str) -> None:
    """Raise `UsageError` if a setting among `names` is not its default; `why` ends the message."""
    for name in names:
        if getattr(chosen, name) != getattr(_DEFAULTS, name):
            raise UsageError(f"{spelled(name)} {why}", hint="leave it out", setting=name)


def require_honoured(
    chosen: Settings, places: Mapping[str, str], refused: Collection[str], reader: str
) -> None:
    """Raise `UsageError` if any of the `refused` settings is set, since `reader` ignores them.

    Default values pass, and so do temperature 0 and verify "off". `reader` is the command that the
    message names; `places` says where each setting came from (see `load`).
    """
    unread = [
        f"{variable(name) if where == ENVIRONMENT else spelled(name)} in {where}"
        for name, where in places.items()
        if name in refused
        and getattr(chosen, name) not in (getattr(_DEFAULTS, name), _AS_UNSET.get(name))
    ]
    if unread:
        which = " and ".join(", ".join(unread).rsplit(", ", 1))
        them = "it" if len(unread) == 1 else "them"
        raise UsageError(f"{reader} does not support {which}", hint=f"remove {them} there")


def file_bytes(path: Path, called: str, *, own: bool = False, most: int = MAX_FILE) -> bytes:
    """Return the bytes of a text file without a byte order mark; UTF-16 with one becomes UTF-8.

    `called` is the file's name in errors. Raises `UsageError` if it cannot be read or is longer
    than `most` bytes, and with `own` if it belongs to another user (root excepted).
    """
    try:
        if path.exists() and not path.is_file():  # a pipe would be read for ever
            raise UsageError(f"{called} is not a file.")
        with path.open("rb") as file:
            # Of what was opened: the path may lead elsewhere by now.
            owner = os.fstat(file.fileno()).st_uid
            content = file.read(most + 1)
    except OSError as error:
        raise UsageError(f"{called} cannot be read: {error.strerror}.") from error
    # Nobody else decides where a user's prompts and key go.
    if own and hasattr(os, "getuid") and owner not in (os.getuid(), 0):
        raise UsageError(
            f"{called} in this folder belongs to another user",
            hint="copy it if you trust it, or run in a folder of your own",
        )
    if len(content) > most:
        raise UsageError(f"{called} has more than {most} bytes", hint="shorten it")
    return unmarked(content)


def unmarked(content: bytes) -> bytes:
    """Return a text file's bytes without a byte order mark; UTF-16 that has one becomes UTF-8."""
    if content.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        # Else the bytes are refused where they are read as UTF-8.
        with suppress(UnicodeDecodeError):
            return content.decode("utf-16").encode()
    return content.removeprefix(codecs.BOM_UTF8)


def _from_file(path: Path) -> dict[str, object]:
    """Return the settings in a TOML file; none if it does not exist. Raises `UsageError`."""
    if not path.is_file():
        return {}
    try:
        content = file_bytes(path, FILE, own=True)
        values: dict[str, object] = msgspec.toml.decode(content, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{FILE} is not valid TOML: {error}.") from error
    for key in values:
        require_known(key.replace("-", "_"), f"{FILE} has the unknown key {key!r}", spelled)
    return {key.replace("-", "_"): value for key, value in values.items()}


def _from_environment(environment: Mapping[str, str]) -> dict[str, object]:
    values: dict[str, object] = {}
    for key, value in environment.items():
        # Compose and CI set a variable to nothing where nobody chose a value.
        if value and key.startswith(PREFIX):
            name = key.removeprefix(PREFIX).lower()
            if name in NAMES:
                values[name] = value
            # Other programs may have variables with this prefix: only a near miss is a mistake.
            elif name != _OF_SERVE and difflib.get_close_matches(name, NAMES, 1, _TYPO):
                require_known(name, f"The environment has the unknown variable {key!r}", variable)
    return values


def require_known(name: str, problem: str, written: Callable[[str], str] = str) -> None:
    """Raise `UsageError` unless `name` is a setting.

    The message is `problem`, then the setting of a similar name, or else all settings. `written`
    gives the spelling of a setting's name in the message.
    """
    if name not in NAMES:
        close = difflib.get_close_matches(name, NAMES, 1)
        known = ", ".join(map(written, NAMES))
        advice = f"did you mean {written(close[0])!r}?" if close else f"known are {known}."
        raise UsageError(f"{problem}; {advice}")


def fraction(text: str, called: str = "The share", setting: str | None = None) -> float:
    """Return the number that a share stands for: 0.05 for "0.05" or "5%".

    Raises `UsageError` if it is no number; its size is not checked. The error's message calls the
    share `called`, and the error's `setting` is `setting`.
    """
    part = text.strip().removesuffix("%")
    try:
        return float(part) / (100 if part != text.strip() else 1)
    except ValueError as error:
        raise UsageError(
            f"{called} is not valid: {text!r} is not a share",
            hint="give a fraction such as 0.05, or 5%",
            setting=setting,
        ) from error


def for_each(settings: Settings, name: str, count: int) -> list[str]:
    """Split the setting `name` at commas: a value for each of `count` clouds, "" for its default.

    None and "auto" stand for "" for each cloud. Raises `UsageError` for another number of values.
    """
    given = getattr(settings, name)
    values = [""] * count if given in (None, "auto") else str(given).split(",")
    if len(values) != count:
        raise UsageError(
            f"{spelled(name)} needs one value per cloud it applies to: {count}, not {len(values)}",
            hint="separate them by commas, nearest cloud first, empty for the default",
            setting=name,
        )
    return [one.strip() for one in values]


def fractions(settings: Settings, name: str, defaults: Sequence[float]) -> list[float]:
    """Return the shares or thresholds in the setting `name`, one for each item of `defaults`.

    One value may hold for all; an empty one in a list stands for its default. Raises `UsageError`.
    """
    given = getattr(settings, name)
    if defaults and given is not None and "," not in str(given):
        settings = replace(settings, **{name: ",".join([str(given)] * len(defaults))})
    parts = for_each(settings, name, len(defaults))
    return [
        fraction(one, spelled(name), name) if one else default
        for one, default in zip(parts, defaults, strict=True)
    ]


def _checked(values: Mapping[str, object], where: str) -> Settings:
    given = dict(values)
    if isinstance(clouds := given.get("cloud"), list | tuple):
        given["cloud"] = ",".join(map(str, clouds))
    for name, words in _WORDS.items():
        if isinstance(value := given.get(name), str) and value.lower() in words:
            given[name] = value.lower()
    for name in ("cloud_share", "escalate"):
        if isinstance(share := given.get(name), str):
            given[name] = fraction(share, f"{spelled(name)} in {where}", name)
    try:
        # Not strict: flags and variables are text.
        chosen = msgspec.convert(given, Settings, strict=False)
    except msgspec.ValidationError as error:
        name = re.search(r"\$\.(\w+)", str(error))
        which = spelled(name[1]) if name else "A setting"
        raise UsageError(
            f"{which} in {where} is not valid: {str(error).split(' - ')[0]}.",
            hint="give auto or a number" if which == "gpu-layers" else None,
            setting=name[1] if name else None,
        ) from error
    if chosen.threshold is not None and chosen.cloud_share is not None:
        raise UsageError(f"Give a threshold or a cloud share, not both (in {where}).")
    return chosen
