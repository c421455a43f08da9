"""From a hub model's folder to a model of transformers, or to a sentence that says why not.

Weights are safetensors, code is transformers' own: neither pickles nor a download's code are run,
and nothing is asked of the network.
"""

import re
from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import msgspec

from edgewise.edge.hub_files import read_json
from edgewise.edge.hub_weights import count_weights, weight_files
from edgewise.errors import EdgewiseError, ModelError, UsageError

INSTALL = "pip install 'edgewise[transformers]'"
MAX_PARTS = 4096
"""Most layers, or experts of a layer, that a description may have built."""

MAX_BUFFERS = 1 << 28
"""Most numbers in tables that a model computes, where its weights are no more."""

_COUNTED = re.compile(r"layers?$|num_blocks|(num|n)_(\w+_)?experts$")
_CAUSAL = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")


class _Config(msgspec.Struct):
    architectures: list[str] | None = None
    is_encoder_decoder: bool = False
    quantization_config: dict[str, Any] | None = None
    quantization: dict[str, Any] | None = None


class Loaded(NamedTuple):
    """`model` is a `PreTrainedModel`, `config` that of its text part."""

    model: Any
    config: Any
    device: str
    dtype: str


def modules() -> tuple[Any, Any]:
    """torch and transformers. Raises `UsageError`."""
    try:
        torch, transformers = import_module("torch"), import_module("transformers")
    except ImportError as error:
        raise UsageError(
            f"The edge engine transformers needs {error.name}", hint=INSTALL
        ) from error
    return torch, transformers


def load_folder(folder: Path, gpu_layers: int | Literal["auto"]) -> Loaded:
    """Raises `ModelError` or `UsageError`."""
    torch, transformers = modules()
    _check_config(folder)
    files = weight_files(folder)
    held = count_weights(files)
    device = _device(torch, gpu_layers)
    with _explained(folder), quiet(transformers):
        config = transformers.AutoConfig.from_pretrained(folder, **_LOCAL)
        text = config.get_text_config(decoder=True)
        attention = _check_shape(torch, transformers, config, text, folder, held)
        dtype = torch.float32 if device == "cpu" else "auto"
        model, told = transformers.AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            use_safetensors=True,
            attn_implementation=attention,
            output_loading_info=True,
            **_LOCAL,
        )
        if missing := sorted(told["missing_keys"]):
            raise _lacking(folder, ", ".join(missing[:3]))
        model = model.to(device).eval()
    return Loaded(model, text, device, str(model.dtype).removeprefix("torch."))


_LOCAL: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}


def _check_config(folder: Path) -> None:
    path = folder / "config.json"
    config = read_json(path, _Config)
    if config is None:
        raise ModelError(
            f"There is no config.json in {str(folder)!r}",
            hint="name the folder of a model in transformers' form, or a GGUF file",
        )
    for key, count in _counts(read_json(path, dict[str, Any])):
        if count > MAX_PARTS:
            raise ModelError(f"{str(path)!r} has a {key} of {count}, more than {MAX_PARTS}.")
    named = config.architectures or []
    if config.is_encoder_decoder or (named and not any(map(_writes, named))):
        raise ModelError(
            f"{str(folder)!r} holds {', '.join(named) or 'an encoder-decoder'}, which does not "
            "write text from left to right",
            hint="name a causal language model",
        )
    if config.quantization_config or config.quantization:
        kind = (config.quantization_config or {}).get("quant_method") or "in MLX form"
        raise ModelError(
            f"{str(folder)!r} is quantised ({kind}), which Edgewise does not load by transformers",
            hint="name the model's unquantised repository, or a GGUF of it",
        )
    if (folder / "adapter_config.json").exists():
        raise ModelError(
            f"{str(folder)!r} holds an adapter, no whole model",
            hint="merge it into its model first",
        )


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


def _writes(architecture: str) -> bool:
    return architecture.endswith(_CAUSAL)


def _device(torch: Any, gpu_layers: int | Literal["auto"]) -> str:
    """Where the model goes, as a whole."""
    if gpu_layers != "auto" and gpu_layers > 0:
        raise UsageError(
            f"The edge engine transformers puts a whole model on one device, not {gpu_layers} "
            "layers of it",
            hint="leave the layers out for a GPU where there is one, or offload 0 for the CPU",
            setting="gpu_layers",
        )
    found = torch.accelerator.current_accelerator(check_available=True)
    return "cpu" if gpu_layers == 0 or found is None else str(found.type)


def _check_shape(
    torch: Any, transformers: Any, config: Any, text: Any, folder: Path, held: int
) -> str:
    """Build the model without memory, so that no description makes more than the files hold.

    Returns the implementation of attention that it has.
    """
    layers = getattr(text, "num_hidden_layers", None)
    if not isinstance(layers, int) or not 0 < layers <= MAX_PARTS:
        raise ModelError(f"{str(folder)!r} does not say how many layers it has.")
    attention = "sdpa"
    with torch.device("meta"):
        make = transformers.AutoModelForCausalLM.from_config
        try:
            model = make(config, attn_implementation=attention, trust_remote_code=False)
        except ValueError as error:
            if "scaled_dot_product_attention" not in str(error):
                raise
            attention = "eager"
            model = make(config, attn_implementation=attention, trust_remote_code=False)
    wanted = sum(weight.numel() for weight in model.parameters())
    tables = sum(table.numel() for table in model.buffers())
    if wanted > held or tables > max(held, MAX_BUFFERS):
        raise _lacking(folder, f"{held:,} of {max(wanted, tables):,}")
    return attention


def _lacking(folder: Path, what: str) -> ModelError:
    return ModelError(
        f"The safetensors in {str(folder)!r} are not all that its config.json describes ({what})",
        hint="download the model again",
    )


@contextmanager
def _explained(folder: Path) -> Generator[None]:
    """What transformers raises for a folder of no use, as a `ModelError`."""
    try:
        yield
    except (EdgewiseError, KeyboardInterrupt):
        raise
    except Exception as error:
        told = " ".join(str(error).split())[:200].rstrip(".") or type(error).__name__
        raise ModelError(
            f"transformers cannot load {str(folder)!r} without code of the model's own ({told})"
            if "trust_remote_code" in str(error)
            else f"transformers cannot load {str(folder)!r} ({told})",
            hint="update transformers, or name a GGUF of the model",
        ) from error


@contextmanager
def quiet(transformers: Any) -> Generator[None]:
    """Without transformers' progress bars and reports, which the caller's sentences replace."""
    log = transformers.utils.logging
    before, shown = log.get_verbosity(), log.is_progress_bar_enabled()
    log.set_verbosity(log.CRITICAL)
    log.disable_progress_bar()
    try:
        yield
    finally:
        log.set_verbosity(before)
        if shown:
            log.enable_progress_bar()
