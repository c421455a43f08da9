"""From a folder of weights to a model of mlx-lm, or to a sentence that says why not.

Weights are safetensors, code is mlx-lm's own: a config's `model_file` is never run, and nothing is
asked of the network. Arrays are lazy, so a model is held against its files before it takes memory.
"""

import platform
import re
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeGuard

from edgewise.edge.hub.folder import (
    MAX_BUFFERS,
    count_weights,
    explained,
    lacking,
    read_config,
    read_json,
    require_one_device,
    weight_files,
)
from edgewise.errors import ModelError, UsageError

INSTALL = "pip install 'edgewise[mlx]'"

_BUILDS = (("Darwin", "arm64"), ("Linux", "x86_64"), ("Linux", "aarch64"))
_GROWTH = 8
"""How many times larger than their files weights may become when mlx-lm unpacks them."""

_GROUPS, _BITS = (16, 32, 64, 128), (2, 3, 4, 5, 6, 8)
"""How MLX packs weights. It ends the process where a group or a number has no size."""

_KIND = re.compile(r"[\w-]+")
_ASIDE = "hf_quant_config.json"
"""Where others describe their quantisations; mlx-lm looks there as well."""


class LoadedMlx(NamedTuple):
    """`model` is a module of mlx-lm's; `form` is how its weights are kept, in words."""

    model: Any
    device: Any
    parameters: int
    context: int | None
    form: str


def modules() -> tuple[Any, Any]:
    """mlx.core and mlx_lm. Raises `UsageError`."""
    try:
        with _limits_kept():
            return import_module("mlx.core"), import_module("mlx_lm")
    except ImportError as error:
        here = platform.system(), platform.machine()
        if here not in _BUILDS:
            raise UsageError(
                "The edge engine mlx runs on Macs with Apple silicon and on Linux, not on "
                f"{here[0]} {here[1]}",
                hint="name a GGUF of the model, or choose the edge engine transformers for what is "
                "not quantised",
                setting="edge",
            ) from error
        raise UsageError(
            f"The edge engine mlx needs {error.name or 'mlx'}", hint=INSTALL
        ) from error


def load_folder(folder: Path, gpu_layers: int | Literal["auto"]) -> LoadedMlx:
    """Raises `ModelError` or `UsageError`."""
    mx, _ = modules()
    require_one_device("mlx", gpu_layers)
    config = _checked(folder)
    files = weight_files(folder)
    count_weights(files)
    device = mx.Device(mx.cpu) if gpu_layers == 0 else mx.default_device()
    with explained(folder, "MLX", "mlx-lm"), mx.stream(device):
        library = import_module("mlx_lm.utils")
        # Strict: each weight that is described is in the files, in its shape, and no other.
        model, _ = library.load_model(
            folder,
            lazy=True,
            strict=True,
            get_model_classes=partial(_classes, library),
            trust_remote_code=False,
        )
        arrays = _arrays(mx, model)
        _check_size(folder, model, arrays, sum(path.stat().st_size for path in files))
        # All of them: what is left lazy cannot be computed in another thread.
        mx.eval(arrays)
        form = _form(model, arrays)
        count = int(library.get_total_parameters(model))
    return LoadedMlx(model, device, count, _trained(config), form)


def _checked(folder: Path) -> dict[str, Any]:
    described = read_config(folder, "MLX")
    if described.model_file is not None:
        raise ModelError(
            f"{str(folder)!r} brings code of its own ({str(described.model_file)[:100]!r}), which "
            "is never run",
            hint="name a model of a kind that mlx-lm knows, or a GGUF",
        )
    if not _KIND.fullmatch(described.model_type or ""):
        raise ModelError(
            f"The config.json in {str(folder)!r} does not say of which kind its model is",
            hint="download the model again",
        )
    config = read_json(folder / "config.json", dict[str, Any]) or {}
    read_json(folder / "generation_config.json", dict[str, Any])  # mlx-lm reads it, of any size
    _check_quantization(folder, config)
    return config


def _check_quantization(folder: Path, config: dict[str, Any]) -> None:
    own = config.get("quantization")
    if own is None:
        text = config.get("text_config")
        others = [part.get("quantization_config") for part in (config, text) if _is_json(part)]
        if any(others) or (folder / _ASIDE).exists():
            raise ModelError(
                f"{str(folder)!r} is quantised, and not in MLX form",
                hint="name the model in MLX form, unquantised, or as a GGUF",
            )
        return
    parts = [own, *own.values()] if _is_json(own) else [{"bits": own}]
    for part in filter(_is_json, parts):
        if part.get("group_size", 64) not in _GROUPS or part.get("bits", 4) not in _BITS:
            raise ModelError(
                f"The config.json in {str(folder)!r} names a quantisation that MLX has not",
                hint="download the model again",
            )


def _is_json(value: Any) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def _classes(library: Any, config: dict[str, Any]) -> tuple[Any, Any]:
    """A model's classes as mlx-lm chooses them; a model is made that looks at packed weights."""
    kind, arguments = library._get_classes(config)

    def build(described: Any) -> Any:
        model = kind(described)
        renamed = getattr(model, "sanitize", None)

        def looked_at(weights: dict[str, Any]) -> dict[str, Any]:
            weights = weights if renamed is None else renamed(weights)
            _check_packed(model, weights)
            del model.sanitize
            return weights

        model.sanitize = looked_at
        return model

    return build, arguments


def _check_packed(model: Any, weights: dict[str, Any]) -> None:
    """Raise `ValueError` for weights that are packed otherwise than the model's widths allow."""
    for path, module in model.named_modules():
        scales, packed = (weights.get(f"{path}.{name}") for name in ("scales", "weight"))
        if scales is None or packed is None or "weight" not in module:
            continue
        width, groups = module["weight"].shape[-1], scales.shape[-1] if scales.ndim else 0
        group, left = divmod(width, groups) if groups else (0, 0)
        bits, more = divmod(32 * packed.shape[-1], width) if packed.ndim and width else (0, 0)
        if left or more or group not in _GROUPS or bits not in _BITS:
            raise ValueError(f"{path} is not packed as its width of {width} is")


def _trained(config: dict[str, Any]) -> int | None:
    for described in (config, config.get("text_config")):
        known = described.get("max_position_embeddings") if isinstance(described, dict) else None
        if isinstance(known, int) and known > 0:
            return known
    return None


def _form(model: Any, arrays: list[Any]) -> str:
    largest = max(arrays, key=lambda array: array.nbytes)
    for _, module in model.named_modules():
        if "scales" in module and module["weight"] is largest:
            return f"{module.bits}-bit"
    return str(largest.dtype).rpartition(".")[2]


def _arrays(mx: Any, model: Any) -> list[Any]:
    flat = import_module("mlx.utils").tree_flatten(model)
    return [value for _, value in flat if isinstance(value, mx.array)]


def _check_size(folder: Path, model: Any, arrays: list[Any], held: int) -> None:
    """That no description makes more of the files than they hold, in bytes."""
    flat = import_module("mlx.utils").tree_flatten(model.parameters())
    weights = sum(weight.nbytes for _, weight in flat)
    tables = sum(array.nbytes for array in arrays) - weights
    if weights > _GROWTH * held or tables > max(held, 4 * MAX_BUFFERS):
        raise lacking(folder, f"{held:,} bytes of {max(weights, tables):,}")


@contextmanager
def _limits_kept() -> Generator[None]:
    """When it is first imported mlx-lm sets this process's limits on open files to 2,048, 4,096.

    For good, and in vain where they are lower: a server has more connections than that.
    """
    resource: Any = import_module("resource")
    before = resource.setrlimit
    resource.setrlimit = _nothing
    try:
        yield
    finally:
        resource.setrlimit = before


def _nothing(*_: object) -> None:
    pass
