"""Settings: flag > environment `EDGEWISE_*` > `edgewise.toml` in the working folder > default."""

import difflib
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from edgewise.errors import UsageError

FILE = "edgewise.toml"
PREFIX = "EDGEWISE_"

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
    """Everything that may stand in `edgewise.toml`; the flags have the same names."""

    edge: str = "bundled"
    cloud: str | None = None
    cloud_key: str | None = None
    cloud_engine: Literal["auto", "llama-server", "vllm", "sglang", "gateway"] = "auto"
    edge_engine: str = "auto"
    router: str | None = None
    cloud_share: float | None = None
    threshold: float | None = None
    max_cloud_tokens: int | None = None
    span: int = 1
    run_ahead: int = 16
    deadline: float | None = None
    on_cloud_error: Literal["edge", "raise"] = "edge"
    max_tokens: int = 256
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    system: str | None = None
    ctx: int | None = None
    threads: int | None = None
    gpu_layers: int | Literal["auto"] = "auto"
    slots: int | None = None
    api_key: str | None = None

    def __post_init__(self) -> None:
        for name, (least, most) in _BOUNDS.items():
            value = getattr(self, name)
            if isinstance(value, int) and not least <= value <= most:
                flag = name.replace("_", "-")
                raise UsageError(f"{flag} must be from {least} to {most}, not {value}.")


def load(
    flags: Mapping[str, object],
    *,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Settings:
    """Merge the three sources; flags that are None were not given. Raises `UsageError`.

    A source that names one half of an either-or pair (threshold and cloud share) drops the other
    half of the sources below it.
    """
    merged: dict[str, object] = {}
    sources: list[Mapping[str, object]] = [
        _from_file((folder or Path()) / FILE),
        _from_environment(os.environ if environment is None else environment),
        {name: value for name, value in flags.items() if value is not None},
    ]
    for source, where in zip(sources, (FILE, "the environment", "the flags"), strict=True):
        _converted(source, where)
        if "threshold" in source and "cloud_share" in source:
            raise UsageError(f"Give a threshold or a cloud share, not both (in {where}).")
        if "threshold" in source:
            merged.pop("cloud_share", None)
        if "cloud_share" in source:
            merged.pop("threshold", None)
        merged.update(source)
    return _converted(merged, "the settings")


def _from_file(path: Path) -> dict[str, object]:
    if not path.is_file():
        return {}
    try:
        found: dict[str, object] = msgspec.toml.decode(path.read_bytes(), type=dict[str, object])
    except OSError as error:
        raise UsageError(f"{FILE} cannot be read: {error.strerror}.") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{FILE} is no valid TOML: {error}.") from error
    names = {name.replace("-", "_"): value for name, value in found.items()}
    for name in names:
        _require_known(name, f"{FILE} has the unknown key {name!r}")
    return names


def _from_environment(environment: Mapping[str, str]) -> dict[str, object]:
    found: dict[str, object] = {}
    for variable, value in environment.items():
        if variable.startswith(PREFIX):
            name = variable.removeprefix(PREFIX).lower()
            _require_known(name, f"The environment has the unknown variable {variable!r}")
            found[name] = value
    return found


def _require_known(name: str, problem: str) -> None:
    known = Settings.__struct_fields__
    if name not in known:
        close = difflib.get_close_matches(name, known, 1)
        advice = f"did you mean {close[0]!r}?" if close else f"known are {', '.join(known)}."
        raise UsageError(f"{problem}; {advice}")


def _converted(values: Mapping[str, object], where: str) -> Settings:
    try:
        return msgspec.convert(dict(values), Settings, strict=False)
    except msgspec.ValidationError as error:
        name = re.search(r"\$\.(\w+)", str(error))
        which = name[1].replace("_", "-") if name else "A setting"
        raise UsageError(
            f"{which} in {where} is not valid: {str(error).split(' - ')[0]}."
        ) from error
