"""Settings: flag > environment `EDGEWISE_*` > `edgewise.toml` in the working folder > default."""

import difflib
import logging
import os
import re
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from edgewise.errors import UsageError

_log = logging.getLogger(__name__)

FILE = "edgewise.toml"
PREFIX = "EDGEWISE_"
MAX_FILE = 64 << 10
"""Largest `edgewise.toml`, bytes."""

_EITHER = (("threshold", "cloud_share"), ("cloud_key", "cloud_key_env"))
"""Settings of which a source gives one."""

# An orchestrator tells a container of the services beside it, under their names.
_SERVICE = re.compile(r"(?:\w+_)?(?:SERVICE_HOST|SERVICE_PORT|PORT)(?:_\w+)?")
_TYPO = 0.8
"""How like a setting's name an unknown variable's must be to be taken for it, misspelt."""

FLAGS, ENVIRONMENT = "the flags", "the environment"

# Upper bounds keep numbers that its C structs would cut short away from llama.cpp.
_BOUNDS = {
    "ctx": (8, 1 << 24),
    "threads": (1, 512),
    "slots": (1, 256),
    "max_tokens": (1, 1 << 31),
    "seed": (0, (1 << 63) - 1),
    "run_ahead": (0, 256),
    "gpu_layers": (-1, 1 << 16),
}


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything that may stand in `edgewise.toml`; flags and `Pair`'s keywords are these."""

    edge: Annotated[
        str,
        Meta(description="Edge model: a GGUF file, owner/repo[:QUANT], hf://..., or bundled."),
    ] = "bundled"
    cloud: Annotated[
        str | None,
        Meta(
            description="Cloud model: an engine's URL, a GGUF as for the edge, bundled or none; "
            "default: bundled beside a bundled edge, else none."
        ),
    ] = None
    cloud_key: Annotated[
        str | None, Meta(description="Key for the cloud's URL; it travels as a bearer token.")
    ] = None
    cloud_key_env: Annotated[
        str | None,
        Meta(description="Variable that holds the cloud's key; no edgewise.toml may name it."),
    ] = None
    cloud_model: Annotated[
        str | None,
        Meta(
            description="Which of the models that the cloud's URL serves; default: of vLLM, SGLang "
            "and llama-server the first, elsewhere the only one."
        ),
    ] = None
    cloud_engine: Annotated[
        str,
        Meta(
            description="What answers at the cloud's URL: llama-server, vllm, sglang, gateway, "
            "a dialect of APIs that take text (such as chat), or what a package "
            "adds; auto finds out."
        ),
    ] = "auto"
    cloud_tokenizer: Annotated[
        str | None,
        Meta(
            description="Tokenizer of a cloud at a URL that has another vocabulary than the edge: "
            "a GGUF, a folder with tokenizer.json, or a hub repository of either."
        ),
    ] = None
    cloud_hosts: Annotated[
        str | None,
        Meta(
            description="Hosts that a cloud may be at, with or without a port, separated by "
            "commas; another is refused before any connection."
        ),
    ] = None
    cloud_context: Annotated[
        str | None,
        Meta(
            description="Show the cloud the last messages of a conversation alone, such as 6, or "
            "the last tokens, such as 2000tokens, and always the system message."
        ),
    ] = None
    redact: Annotated[
        str | None,
        Meta(
            description="Private words that the cloud gets placeholders for: on, or some of email, "
            "phone, iban, card, ip, secret and what a package adds, each alone or as =mask, "
            "=local (nothing is sent any more) or =allow, separated by commas; off."
        ),
    ] = None
    redact_words: Annotated[
        str | None,
        Meta(description="Words to redact besides, separated by commas, or @FILE, one a line."),
    ] = None
    push: Annotated[
        Literal["auto", "never"],
        Meta(
            description="Send a gateway prompt and answer ahead of consults (auto), or only what "
            "a consult needs (never)."
        ),
    ] = "auto"
    edge_engine: Annotated[
        str,
        Meta(
            description="What runs the edge model: llamacpp, mlx, onnx, transformers or a "
            "registered engine; auto goes by what lies at its address."
        ),
    ] = "auto"
    router: Annotated[
        str | None,
        Meta(
            description="bundled, max-prob, margin, entropy, random, constant:VALUE, "
            "module:Class, ./file.py:Class, or a checkpoint's folder or hub repository; default: "
            "bundled for the bundled edge, else entropy."
        ),
    ] = None
    cloud_share: Annotated[
        float | None,
        Meta(description="Fraction of the tokens the cloud may write: 0.05 or 5%; default: 5%."),
    ] = None
    threshold: Annotated[
        float | None, Meta(description="Ask the cloud from this score on, instead of a share.")
    ] = None
    max_cloud_tokens: Annotated[
        int | None, Meta(description="Absolute cap on cloud tokens per answer.")
    ] = None
    span: Annotated[
        int,
        Meta(description="Tokens per consult, or words of a cloud with another vocabulary."),
    ] = 1
    run_ahead: Annotated[
        int, Meta(description="Tokens the edge may guess ahead while a consult flies; 0 waits.")
    ] = 16
    redraft: Annotated[
        Literal["exact", "always", "never"],
        Meta(
            description="Read guesses behind a changed token again in one pass, where that is "
            "quicker: where it is exact, always, or never."
        ),
    ] = "exact"
    deadline: Annotated[
        float | None,
        Meta(description="Seconds a consult may take; default: as the latency is, 0.5 to 5."),
    ] = None
    on_cloud_error: Annotated[
        Literal["edge", "raise"],
        Meta(description="When a consult fails: go on with the edge's token, or stop."),
    ] = "edge"
    max_tokens: Annotated[
        int | None, Meta(description="Longest answer, tokens; default: until the context is full.")
    ] = None
    temperature: Annotated[float, Meta(description="0 is greedy.")] = 0.0
    top_k: Annotated[int, Meta(description="Keep the K likeliest; 0 is off.")] = 0
    top_p: Annotated[float, Meta(description="Keep the likeliest up to this mass; 1 is off.")] = 1.0
    min_p: Annotated[float, Meta(description="Drop below this part of the best; 0 is off.")] = 0.0
    seed: Annotated[
        int | None, Meta(description="Seed of the draws; default: 0, in serve another each time.")
    ] = None
    system: Annotated[str | None, Meta(description="System message.")] = None
    ctx: Annotated[
        int | None, Meta(description="Context, tokens; default: the model's, at most 4096.")
    ] = None
    threads: Annotated[int | None, Meta(description="CPU threads; default: all but one.")] = None
    gpu_layers: Annotated[
        int | Literal["auto"], Meta(description="Layers on the GPU: auto or a number.")
    ] = "auto"
    sent_counts: Annotated[
        bool, Meta(description="Keep counts, never text, of what leaves, for edgewise sent.")
    ] = True
    price: Annotated[
        str | None,
        Meta(
            description="What the cloud's tokens cost: IN,CACHED,OUT, money per million, or a TOML "
            "file with input, cached and output."
        ),
    ] = None
    max_cost: Annotated[
        float | None, Meta(description="Most that an answer's consults may cost.")
    ] = None
    max_cost_day: Annotated[
        float | None,
        Meta(description="Most that all consults of a day (UTC) may cost, of every process."),
    ] = None
    allow_dearer: Annotated[
        bool,
        Meta(description="Consult on where that makes an answer dearer than the cloud alone."),
    ] = False
    slots: Annotated[int | None, Meta(description="Answers written at once; default 4.")] = None
    api_key: Annotated[
        str | None, Meta(description="Key that clients need; better in EDGEWISE_API_KEY.")
    ] = None

    def __post_init__(self) -> None:
        for name, (least, most) in _BOUNDS.items():
            value = getattr(self, name)
            if isinstance(value, int) and not least <= value <= most:
                raise UsageError(
                    f"{spelled(name)} must be from {least} to {most}, not {value}.", setting=name
                )


NAMES = Settings.__struct_fields__
_DEFAULTS = Settings()

Vet = Callable[[Settings, Mapping[str, str]], None]
"""Told the settings and, by name, where those that are set were set last; may refuse them."""


def load(
    flags: Mapping[str, object],
    *,
    refused: Collection[str] = (),
    reader: str = "edgewise",
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    file: Path | None = None,
    vet: Vet | None = None,
) -> Settings:
    """Merge the three sources; flags that are None were not given. Raises `UsageError`.

    A `file` of the same form stands between the folder's and the environment. A source that names
    one half of an either-or pair (threshold and cloud share, a key and the variable that holds it)
    drops the other half of the sources below it. What of the result is in `refused` and no default
    is more than `reader`, a command, can honour. `vet` may refuse it.
    """
    merged: dict[str, object] = {}
    places: dict[str, str] = {}
    at = f"./{file}" if str(file) in (FLAGS, ENVIRONMENT) else str(file)  # whatever it is called
    sources: list[tuple[Mapping[str, object], str]] = [
        (_from_file((folder or Path()) / FILE, FILE, own=True), FILE),
        (_from_file(file, at) if file else {}, at),
        (_from_environment(os.environ if environment is None else environment), ENVIRONMENT),
        ({name: value for name, value in flags.items() if value is not None}, FLAGS),
    ]
    for source, where in sources:
        _checked(source, where)
        for one, other in (*_EITHER, *(pair[::-1] for pair in _EITHER)):
            if one in source:
                merged.pop(other, None)
        merged.update(source)
        places |= dict.fromkeys(source, where)
    found = _checked(merged, "the settings")
    _require_honoured(found, {n: places[n] for n in merged if n in refused}, reader)
    if vet is not None:
        vet(found, {name: places[name] for name in merged})
    return found


def settings_of(values: Mapping[str, object]) -> Settings:
    """Settings given in Python: neither file nor environment is read. Raises `UsageError`."""
    for name in values:
        require_known(name, f"There is no setting {name!r}")
    return _checked(values, "the arguments")


def spelled(name: str) -> str:
    """A setting's name as the file and the flags spell it."""
    return name.replace("_", "-")


def variable(name: str) -> str:
    """The environment's name for a setting."""
    return PREFIX + name.upper()


def _require_honoured(found: Settings, refused: Mapping[str, str], reader: str) -> None:
    told = [
        f"{variable(name) if where == ENVIRONMENT else spelled(name)} in {where}"
        for name, where in refused.items()
        if getattr(found, name) != getattr(_DEFAULTS, name)
    ]
    if told:
        which = " and ".join(", ".join(told).rsplit(", ", 1))
        them = "it" if len(told) == 1 else "them"
        raise UsageError(f"{reader} cannot honour {which}", hint=f"take {them} out there")


def file_bytes(path: Path, called: str = FILE) -> bytes:
    """What a file of settings holds, `called` so in errors. Raises `UsageError`."""
    try:
        if path.exists() and not path.is_file():  # a pipe would be read for ever
            raise UsageError(f"{called} is no file.")
        with path.open("rb") as file:
            content = file.read(MAX_FILE + 1)
    except OSError as error:
        raise UsageError(f"{called} cannot be read: {error.strerror}.") from error
    if len(content) > MAX_FILE:
        raise UsageError(f"{called} has more than {MAX_FILE} bytes", hint="shorten it")
    return content


def own_bytes(path: Path) -> bytes:
    """What the folder's file holds; nothing where there is none. Raises `UsageError`, for another
    user's too: nobody else decides where a user's prompts and key go."""
    if not path.is_file():
        return b""
    if hasattr(os, "getuid") and path.stat().st_uid not in (os.getuid(), 0):
        raise UsageError(
            f"{FILE} in this folder belongs to another user",
            hint="copy it if you trust it, or run in a folder of your own",
        )
    return file_bytes(path)


def _from_file(path: Path, called: str, *, own: bool = False) -> dict[str, object]:
    content = own_bytes(path) if own else file_bytes(path, called)
    try:
        found: dict[str, object] = msgspec.toml.decode(content, type=dict[str, object])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{called} is not valid TOML: {error}.") from error
    names = {name.replace("-", "_"): value for name, value in found.items()}
    for name in names:
        require_known(name, f"{called} has the unknown key {name!r}", spelled)
    return names


def _from_environment(environment: Mapping[str, str]) -> dict[str, object]:
    found: dict[str, object] = {}
    for key, value in environment.items():
        if key.startswith(PREFIX):
            name = key.removeprefix(PREFIX).lower()
            if name in NAMES:
                found[name] = value
            elif difflib.get_close_matches(name, NAMES, 1, _TYPO):
                require_known(name, f"The environment has the unknown variable {key!r}", variable)
            elif not _SERVICE.fullmatch(name.upper()):
                _log.warning("%s in the environment is no setting, so nothing reads it.", key)
    return found


def require_known(name: str, problem: str, written: Callable[[str], str] = str) -> None:
    """Raises `UsageError`: the `problem`, and which setting may be meant, as it is `written`."""
    if name not in NAMES:
        close = difflib.get_close_matches(name, NAMES, 1)
        known = ", ".join(map(written, NAMES))
        advice = f"did you mean {written(close[0])!r}?" if close else f"known are {known}."
        raise UsageError(f"{problem}; {advice}")


def fraction(text: str) -> float:
    """The number that a share is written as: 0.05, or 5%. Raises `ValueError`."""
    part = text.strip().removesuffix("%")
    return float(part) / (100 if part != text.strip() else 1)


def _checked(values: Mapping[str, object], where: str) -> Settings:
    given = dict(values)
    share = given.get("cloud_share")
    if isinstance(share, str):
        try:
            given["cloud_share"] = fraction(share)
        except ValueError as error:
            raise UsageError(
                f"cloud-share in {where} is not valid: {share!r} is no share",
                hint="give a fraction such as 0.05, or 5%",
                setting="cloud_share",
            ) from error
    try:
        found = msgspec.convert(given, Settings, strict=False)
    except msgspec.ValidationError as error:
        name = re.search(r"\$\.(\w+)", str(error))
        which = spelled(name[1]) if name else "A setting"
        raise UsageError(
            f"{which} in {where} is not valid: {str(error).split(' - ')[0]}.",
            hint="give auto or a number" if which == "gpu-layers" else None,
            setting=name[1] if name else None,
        ) from error
    if found.threshold is not None and found.cloud_share is not None:
        raise UsageError(f"Give a threshold or a cloud share, not both (in {where}).")
    if found.cloud_key is not None and found.cloud_key_env is not None:
        raise UsageError(
            f"Give the cloud's key or the variable that holds it, not both (in {where})."
        )
    return found
