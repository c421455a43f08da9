"""`config.json` of a hub model's folder, looked at before a library builds what it describes."""

import re
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, cast

import msgspec

from edgewise.edge.hub_files import read_json
from edgewise.errors import EdgewiseError, ModelError, UsageError

MAX_PARTS = 4096
"""Most layers, or experts of a layer, that a description may have built."""

MAX_BUFFERS = 1 << 28
"""Most numbers in tables that a model computes, where its weights are no more."""

_COUNTED = re.compile(r"layers?$|num_blocks|(num|n)_(\w+_)?experts$")
_CAUSAL = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")


class HubConfig(msgspec.Struct):
    architectures: list[str] | None = None
    model_type: str | None = None
    model_file: Any = None
    is_encoder_decoder: bool = False
    quantization_config: dict[str, Any] | None = None
    quantization: dict[str, Any] | None = None


def read_config(folder: Path, form: str) -> HubConfig:
    """Raises `ModelError` for what is no whole language model; `form` is what is looked for."""
    path = folder / "config.json"
    config = read_json(path, HubConfig)
    if config is None:
        raise ModelError(
            f"There is no config.json in {str(folder)!r}",
            hint=f"name the folder of a model in {form} form, or a GGUF file",
        )
    for key, count in _counts(read_json(path, dict[str, Any])):
        if count > MAX_PARTS:
            raise ModelError(f"{str(path)!r} has a {key} of {count}, more than {MAX_PARTS}.")
    named = config.architectures or []
    if config.is_encoder_decoder or (named and not any(name.endswith(_CAUSAL) for name in named)):
        raise ModelError(
            f"{str(folder)!r} holds {', '.join(named) or 'an encoder-decoder'}, which does not "
            "write text from left to right",
            hint="name a causal language model",
        )
    if (folder / "adapter_config.json").exists():
        raise ModelError(
            f"{str(folder)!r} holds an adapter, no whole model",
            hint="merge it into its model first",
        )
    return config


def lacking(folder: Path, what: str) -> ModelError:
    """That weights are missing."""
    return ModelError(
        f"The safetensors in {str(folder)!r} are not all that its config.json describes ({what})",
        hint="download the model again",
    )


def told(error: BaseException) -> str:
    """What a library says of its failure, in short."""
    return " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__


def require_one_device(engine: str, gpu_layers: int | Literal["auto"]) -> None:
    """Raise `UsageError` where some layers of a model are to go elsewhere than the others."""
    if gpu_layers != "auto" and gpu_layers > 0:
        raise UsageError(
            f"The edge engine {engine} puts a whole model on one device, not {gpu_layers} layers "
            "of it",
            hint="leave the layers out for a GPU where there is one, or offload 0 for the CPU",
            setting="gpu_layers",
        )


@contextmanager
def explained(folder: Path, engine: str, package: str) -> Generator[None]:
    """What `engine`, of a `package`, raises for a folder of no use, as a `ModelError`."""
    try:
        yield
    except (EdgewiseError, KeyboardInterrupt):
        raise
    except Exception as error:
        without = " without code of the model's own" if "trust_remote_code" in str(error) else ""
        raise ModelError(
            f"{engine} cannot load {str(folder)!r}{without} ({told(error)})",
            hint=f"update {package}, or name a GGUF of the model",
        ) from error


def _counts(described: object) -> Generator[tuple[str, int]]:
    """How many layers and experts a description has, wherever it says so."""
    if isinstance(described, dict):
        for key, value in cast(dict[str, Any], described).items():
            if isinstance(value, int) and _COUNTED.search(key):
                yield key, value
            yield from _counts(value)
    elif isinstance(described, list):
        for value in cast(list[Any], described):
            yield from _counts(value)
