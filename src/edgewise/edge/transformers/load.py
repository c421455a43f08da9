"""From a hub model's folder to a model of transformers, or to a sentence that says why not.

Weights are safetensors, code is transformers' own: neither pickles nor a download's code are run,
and nothing is asked of the network.
"""

from collections.abc import Generator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, NamedTuple

from edgewise.edge.hub.folder import (
    MAX_BUFFERS,
    MAX_PARTS,
    count_weights,
    explained,
    lacking,
    read_config,
    require_one_device,
    weight_files,
)
from edgewise.errors import ModelError, UsageError

INSTALL = "pip install 'edgewise[transformers]'"


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
    _check_quantization(folder)
    files = weight_files(folder)
    held = count_weights(files)
    device = _device(torch, gpu_layers)
    with explained(folder, "transformers", "transformers"), quiet(transformers):
        config = transformers.AutoConfig.from_pretrained(folder, **_LOCAL)
        text = config.get_text_config(decoder=True)
        attention = _check_shape(torch, transformers, config, text, folder, held)
        dtype = torch.float32 if device == "cpu" else "auto"
        model, report = transformers.AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=dtype,
            use_safetensors=True,
            attn_implementation=attention,
            output_loading_info=True,
            **_LOCAL,
        )
        if missing := sorted(report["missing_keys"]):
            raise lacking(folder, ", ".join(missing[:3]))
        model = model.to(device).eval()
    return Loaded(model, text, device, str(model.dtype).removeprefix("torch."))


_LOCAL: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}


def _check_quantization(folder: Path) -> None:
    config = read_config(folder, "transformers'")
    if config.quantization_config or config.quantization:
        kind = (config.quantization_config or {}).get("quant_method") or "in MLX form"
        raise ModelError(
            f"{str(folder)!r} is quantised ({kind}), which Edgewise does not load by transformers",
            hint="name the model's unquantised repository, or a GGUF of it",
        )


def _device(torch: Any, gpu_layers: int | Literal["auto"]) -> str:
    require_one_device("transformers", gpu_layers)
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
        raise lacking(folder, f"{held:,} of {max(wanted, tables):,}")
    return attention


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
