"""Edge models on transformers: any causal language model with safetensors, on any of its devices.

The extra `edgewise[transformers]`. Several times slower than llama.cpp on a CPU, and the same
weights to the last bit: for models that have no GGUF, and for GPUs of every make. Neither pickles
nor a download's code are run, and nothing is asked of the network.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from importlib import import_module
from inspect import signature
from pathlib import Path
from typing import Any, Literal

from edgewise.addresses import resolve_folder
from edgewise.edge.base import EdgeOptions
from edgewise.edge.engine import EngineModel, default_threads
from edgewise.edge.hub.folder import (
    DESCRIPTIONS,
    MAX_BUFFERS,
    count_weights,
    explained,
    lacking,
    read_config,
    require_one_device,
    weight_files,
)
from edgewise.edge.sequence import MEMORY, KvRow, Outputs, SequenceCache, StateCopy, rows_of
from edgewise.errors import ModelError, UsageError

INSTALL = "pip install 'edgewise[transformers]'"


def modules() -> tuple[Any, Any]:
    """torch and transformers. Raises `UsageError`."""
    try:
        torch, transformers = import_module("torch"), import_module("transformers")
    except ImportError as error:
        raise UsageError(
            f"The edge engine transformers needs {error.name}", hint=INSTALL
        ) from error
    return torch, transformers


def load_folder(
    torch: Any, transformers: Any, folder: Path, gpu_layers: int | Literal["auto"]
) -> tuple[Any, Any]:
    """A `PreTrainedModel`, and the config of its text part. Raises `ModelError` or `UsageError`."""
    _check_quantization(folder)
    held = count_weights(weight_files(folder))
    require_one_device("transformers", gpu_layers)
    found = torch.accelerator.current_accelerator(check_available=True)
    device = "cpu" if gpu_layers == 0 or found is None else str(found.type)
    with explained(folder, "transformers", "transformers"), quiet(transformers):
        config = transformers.AutoConfig.from_pretrained(folder, **_LOCAL)
        attention = _check_shape(torch, transformers, config, folder, held)
        model, report = transformers.AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=torch.float32 if device == "cpu" else "auto",
            use_safetensors=True,
            attn_implementation=attention,
            output_loading_info=True,
            **_LOCAL,
        )
        if missing := sorted(report["missing_keys"]):
            raise lacking(folder, ", ".join(missing[:3]))
        return model.to(device).eval(), config.get_text_config(decoder=True)


_LOCAL: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}


def _check_quantization(folder: Path) -> None:
    config = read_config(folder, "transformers'")
    if config.quantization_config or config.quantization:
        kind = (config.quantization_config or {}).get("quant_method") or "in MLX form"
        raise ModelError(
            f"{str(folder)!r} is quantised ({kind}), which Edgewise does not load by transformers",
            hint="name the model's unquantised repository, or a GGUF of it",
        )


def _check_shape(torch: Any, transformers: Any, config: Any, folder: Path, held: int) -> str:
    """Build the model without memory, so that no description makes more than the files hold.

    Returns the implementation of attention that it has.
    """
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


READS = (".safetensors", *DESCRIPTIONS)
"""Files of a repository that are downloaded."""

_STATES = (
    "conv_states",
    "recurrent_states",
    "is_conv_states_initialized",
    "is_recurrent_states_initialized",
    "has_previous_state",
)

_State = list[dict[str, dict[int, Any]]]


class TorchCache(SequenceCache):
    """What one sequence holds.

    Attention's keys and values are kept whole, in sliding windows too (their masks hide what lies
    outside), and cut anywhere. Recurrent layers hold one state, which is copied.
    """

    def __init__(self, model: "TransformersModel", *, room: int) -> None:
        self._model = model
        super().__init__(room=room)

    def _begin(self) -> None:
        self._cache = self._model.new_cache()
        kinds = {_kind(layer) for layer in self._cache.layers}
        if not kinds or "other" in kinds:
            self.rewinds = "no"
        else:
            self.rewinds = "checkpoints" if "recurrent" in kinds else "anywhere"

    def _compute(self, ids: Sequence[int], outputs: Outputs, *, hidden: bool) -> Sequence[KvRow]:
        logits, seen = self._model.run(ids, self._cache, every=outputs == "all")
        if outputs == "none":
            return ()
        states = None if seen is None or not hidden else seen.float().cpu().numpy()
        return rows_of(logits.float().cpu().numpy(), states)

    def _copy(self) -> StateCopy:
        with self._model.torch.inference_mode():
            state: _State = [
                {name: _copied(getattr(layer, name)) for name in _STATES}
                for layer in self._recurrent()
            ]
        held = [x for layer in state for part in layer.values() for x in part.values()]
        return StateCopy(state, sum(x.nbytes for x in held if hasattr(x, "nbytes")))

    def _back(self, count: int, state: _State | None) -> bool:
        for layer in self._cache.layers:
            if _kind(layer) != "shared":
                _cut(layer, count)
        if state is not None:
            self._put(state)
        return True

    def _put(self, state: _State) -> None:
        with self._model.torch.inference_mode():
            for layer, held in zip(self._recurrent(), state, strict=True):
                for name in _STATES:
                    setattr(layer, name, _copied(held[name]))

    def _recurrent(self) -> list[Any]:
        return [layer for layer in self._cache.layers if hasattr(layer, "conv_states")]


def _whole(layer: Any) -> Any:
    """A layer that keeps all keys and values instead of a window of them."""
    kinds = import_module("transformers.cache_utils")
    if type(layer) is kinds.DynamicSlidingWindowLayer:
        return kinds.DynamicLayer()
    if type(layer) is kinds.LinearAttentionAndSlidingWindowAttentionLayer:
        return kinds.LinearAttentionAndFullAttentionLayer(layer.number_of_states)
    return layer


def _kind(layer: Any) -> str:
    """How a layer rolls back; "other" for one that is not known to."""
    kinds = import_module("transformers.cache_utils")
    return {
        kinds.DynamicLayer: "cut",
        kinds.DynamicIndexedLayer: "cut",
        kinds.DummyLayer: "shared",
        kinds.LinearAttentionLayer: "recurrent",
        kinds.LinearAttentionAndFullAttentionLayer: "recurrent",
    }.get(type(layer), "other")


def _cut(layer: Any, count: int) -> None:
    kinds = import_module("transformers.cache_utils")
    if type(layer) is kinds.DynamicIndexedLayer:
        layer.crop(-count)
    elif isinstance(layer, kinds.DynamicLayer):
        # Of a layer that is recurrent as well, attention's part alone.
        kinds.DynamicLayer.crop(layer, -count)


def _copied(held: dict[int, Any]) -> dict[int, Any]:
    """States are written in place, so each holder has its own."""
    return {key: x.clone() if hasattr(x, "clone") else x for key, x in held.items()}


def open_folder(address: str, options: EdgeOptions) -> "TransformersModel":
    """The edge engine `transformers`: a folder or a hub repository, downloaded if need be."""
    modules()
    folder, name = resolve_folder(address, "transformers", READS)
    return TransformersModel(folder, options, name=name)


class TransformersModel(EngineModel):
    """A model in transformers' form. Implements `EdgeModel`. One run at a time."""

    engine = "transformers"

    def _load(self, options: EdgeOptions) -> None:
        """A model is on one device as a whole: a GPU where there is one, or the CPU, in float32.

        With 0 GPU layers it is the CPU. `threads` are torch's, of this process.
        """
        self.torch, library = modules()
        self.torch.set_num_threads(options.threads or default_threads())
        model, config = load_folder(self.torch, library, self.path, options.gpu_layers)
        self._model, self._config = model, config
        dtype = str(model.dtype).removeprefix("torch.")
        self.build = f"transformers, {dtype} on {model.device.type}"
        trained = getattr(config, "max_position_embeddings", None)
        known = isinstance(trained, int) and trained > 0
        self.context = self._context_for(trained if known else None)
        self.parameters = sum(weight.numel() for weight in model.parameters())
        size = getattr(config, "vocab_size", None)
        if not isinstance(size, int) or size < 1:
            raise ModelError(f"{str(self.path)!r} does not say how many ids it has.")
        self._keeps = "logits_to_keep" in signature(model.forward).parameters
        self._seen: Any | None = None
        head = model.get_output_embeddings()
        if head is not None:
            # What the head reads is the hidden state after the final norm.
            head.register_forward_pre_hook(self._see)
        with quiet(library):
            self._start(lambda: TorchCache(self, room=MEMORY // options.slots), size)

    def _see(self, _module: Any, inputs: tuple[Any, ...]) -> None:
        self._seen = inputs[0]

    def new_cache(self) -> Any:
        """A cache for a new sequence."""
        kinds = import_module("transformers.cache_utils")
        cache: Any = kinds.DynamicCache(config=self._config)
        if "chunked_attention" not in (getattr(self._config, "layer_types", None) or ()):
            cache.layers = [_whole(layer) for layer in cache.layers]
        return cache

    def run(self, ids: Sequence[int], cache: Any, *, every: bool) -> tuple[Any, Any | None]:
        """Compute `ids` behind what the cache holds, with rows for all of them, or for the last.

        Tensors: logits [n, vocabulary]; hidden [n, d], None where the model shows none.
        """
        kept = {} if every or not self._keeps else {"logits_to_keep": 1}
        self._seen = None
        with self.torch.inference_mode():
            batch = self.torch.tensor([ids], device=self._model.device)
            made = self._model(
                input_ids=batch, past_key_values=cache, use_cache=True, return_dict=True, **kept
            )
        count = len(ids) if every else 1
        hidden = None if self._seen is None else self._seen[0][-count:]
        return made.logits[0][-count:], hidden

    def _free(self) -> None:
        cuda = self._model.device.type == "cuda"
        del self._model
        self._seen = None
        if cuda:
            self.torch.cuda.empty_cache()
