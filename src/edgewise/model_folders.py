"""Which engine runs a model's folder, by its files."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, cast

from edgewise.errors import AddressError

MAX_CONFIG = 4 << 20
_Json = dict[str, Any]
_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".ckpt")


def engine_among(
    names: Sequence[str], where: str, config: Path | None, *, library: str | None = None
) -> str:
    """The edge engine for a folder's files; `config` is its `config.json`. Raises `AddressError`.

    MLX's quantisations say so in `config.json`, and the header of what it leaves unquantised does;
    before it is here, the `library` that a hub names.
    """
    if "genai_config.json" in names:
        return "onnx"
    if "config.json" in names and config and any(n.endswith(".safetensors") for n in names):
        written = library == "mlx" or _is_quantised(config) or _is_mlx(config.parent)
        return "mlx" if written else "transformers"
    if ggufs := sorted(name for name in names if name.endswith(".gguf")):
        found, hint = "is a folder", f"name a file in it, such as {ggufs[0]}"
    elif any(name.endswith(_PICKLES) for name in names):
        found = "holds weights in pickles alone, which are never read"
        hint = "name a repository with safetensors, or a GGUF"
    else:
        found = "holds neither genai_config.json nor config.json with safetensors"
        hint = "name a GGUF file, a model's folder or a hub repository of one"
    raise AddressError(f"{where!r} {found}", hint=hint, setting="edge")


def files_of(reads: tuple[str, ...], names: Iterable[str], inside: str) -> list[str]:
    """Files of a folder whose names end as an engine `reads`; `inside` is its path, with a slash.

    `consolidated` safetensors are a second copy of the weights, of another program's.
    """
    held = [name for name in names if name.startswith(inside)]
    return [
        name
        for name in held
        if "/" not in (file := name.removeprefix(inside))
        and file.endswith(reads)
        and not file.startswith("consolidated")
    ]


def _is_quantised(config: Path) -> bool:
    """Whether MLX has."""
    try:
        if config.stat().st_size > MAX_CONFIG:
            return False
        described: object = json.loads(config.read_bytes())
        return isinstance(described, dict) and bool(cast(_Json, described).get("quantization"))
    except (OSError, ValueError, RecursionError):
        return False  # what is wrong with it is the engine's to say


def _is_mlx(folder: Path) -> bool:
    """Whether MLX wrote the safetensors there: their headers name the form."""
    from safetensors import SafetensorError, safe_open

    for path in sorted(folder.glob("model*.safetensors"))[:1]:
        try:
            with safe_open(path, framework="numpy") as opened:
                return (opened.metadata() or {}).get("format") == "mlx"
        except (OSError, SafetensorError, ValueError):
            return False
    return False
