"""`TransformersModel`: a causal language model with safetensors, on any device that torch has.

Neither pickles nor code from a download are run, and no network request is made.
"""

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from copy import deepcopy
from inspect import signature
from pathlib import Path
from typing import Any, Literal

import msgspec

from edgewise.addresses import ModelFiles
from edgewise.edge.base import Claim, EdgeOptions
from edgewise.edge.files import damaged, read_json
from edgewise.edge.sequence import MEMORY, KvRow, Outputs, SequenceCache, rows_of
from edgewise.edge.threads import default_threads
from edgewise.errors import ModelError
from edgewise.options.folder import (
    DESCRIPTIONS,
    LACKING,
    MAX_BUFFERS,
    FolderModel,
    count_weights,
    read_config,
    require_one_device,
    weight_files,
    weighted,
)
from edgewise.registry import imported


def load_folder(
    torch: Any, transformers: Any, folder: Path, gpu_layers: int | Literal["auto"]
) -> tuple[Any, Any]:
    """Load the model in `folder`: return its `PreTrainedModel` and the config of its text part.

    `torch` and `transformers` are the modules. `gpu_layers` 0 is for the CPU, "auto" or -1 for a
    GPU, if there is one; a positive number raises `UsageError`. Raises `ModelError` if the folder
    lacks weights, has only pickled or quantised ones, or an index that names files elsewhere.
    """
    files = weight_files(folder)
    _check_config(folder, {path.name for path in files})
    held = count_weights(files)
    require_one_device("transformers", gpu_layers)
    found = torch.accelerator.current_accelerator(check_available=True)
    device = "cpu" if gpu_layers == 0 or found is None else str(found.type)
    with quiet(transformers):
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
            raise damaged(folder, LACKING.format(", ".join(missing[:3])))
        return model.to(device).eval(), config.get_text_config(decoder=True)


_LOCAL: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}


class _Index(msgspec.Struct):
    weight_map: dict[str, str]


def _check_config(folder: Path, weights: set[str]) -> None:
    config = read_config(folder, "transformers'")
    # The library opens whatever an index names: pickles, and files elsewhere.
    for path in folder.iterdir():
        index = read_json(path, _Index) if path.name.casefold().endswith(".index.json") else None
        if index is not None and not weights.issuperset(index.weight_map.values()):
            raise damaged(path, "names weights that are no safetensors of this folder")
    if config.transformers_weights and "index" in str(config.transformers_weights):
        raise damaged(folder / "config.json", "names an index of weights")
    if config.quantization_config or config.quantization:
        kind = (config.quantization_config or {}).get("quant_method") or "in MLX form"
        raise ModelError(
            f"{str(folder)!r} is quantised ({kind}), which Edgewise does not load by transformers",
            hint="name the model's unquantised repository, or a GGUF of it",
        )


def _check_shape(torch: Any, transformers: Any, config: Any, folder: Path, held: int) -> str:
    """Return the attention to use. Raises `ModelError` if the files have too few weights."""
    attention = "sdpa"
    # A model on this device has shapes, and takes no memory.
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
        raise damaged(folder, LACKING.format(f"{held:,} of {max(wanted, tables):,}"))
    return attention


@contextmanager
def quiet(transformers: Any) -> Generator[None]:
    """Silence transformers' progress bars and reports inside the block."""
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


_STATES = (
    "conv_states",
    "recurrent_states",
    "is_conv_states_initialized",
    "is_recurrent_states_initialized",
    "has_previous_state",
)

_State = list[dict[str, Any]]


class TorchCache(SequenceCache):
    """The KV cache of one sequence.

    Attention's keys and values are kept whole, also for sliding windows (their masks hide what lies
    outside), and can be cut anywhere. A recurrent layer holds only its latest state, which cannot
    be cut: `SequenceCache` keeps copies of it, called checkpoints.
    """

    def __init__(self, model: "TransformersModel", *, room: int) -> None:
        self._model = model
        super().__init__(room=room)

    def _begin(self) -> None:
        self._cache, kinds = self._model.new_cache(), self._model.kinds
        copied = {kinds.LinearAttentionLayer, kinds.LinearAttentionAndFullAttentionLayer}
        cut = {kinds.DynamicLayer, kinds.DynamicIndexedLayer, kinds.DummyLayer}
        held = {type(layer) for layer in self._cache.layers}
        if not held or held - copied - cut:
            self.rewinds = "no"
        else:
            self.rewinds = "checkpoints" if held & copied else "anywhere"

    def _compute(self, ids: Sequence[int], outputs: Outputs, *, hidden: bool) -> Sequence[KvRow]:
        logits, seen = self._model.run(ids, self._cache, every=outputs == "all")
        if outputs == "none":
            return ()
        states = None if seen is None or not hidden else seen.float().cpu().numpy()
        return rows_of(logits.float().cpu().numpy(), states)

    @property
    def state_size(self) -> int:
        """Size in bytes of a checkpoint: a copy of all recurrent layers' states."""
        states = [getattr(layer, name) for layer in self._recurrent() for name in _STATES]
        return sum(getattr(x, "nbytes", 0) for state in states for x in state.values())

    def _copy(self) -> _State:
        with self._model.torch.inference_mode():
            return [
                {name: deepcopy(getattr(layer, name)) for name in _STATES}
                for layer in self._recurrent()
            ]

    def _back(self, count: int, state: _State | None) -> bool:
        kinds = self._model.kinds
        for layer in self._cache.layers:
            if type(layer) is kinds.DynamicIndexedLayer:
                layer.crop(-count)
            elif isinstance(layer, kinds.DynamicLayer):
                # Of a layer that is recurrent as well, attention's part alone.
                kinds.DynamicLayer.crop(layer, -count)
        with self._model.torch.inference_mode():
            for layer, held in zip(self._recurrent(), state or (), strict=state is not None):
                for name in _STATES:
                    setattr(layer, name, deepcopy(held[name]))  # each writes its own
        return True

    def _recurrent(self) -> list[Any]:
        return [layer for layer in self._cache.layers if hasattr(layer, "conv_states")]


def _whole(kinds: Any, layer: Any) -> Any:
    """Return a layer cache that keeps all keys and values, in place of one with a window."""
    if type(layer) is kinds.DynamicSlidingWindowLayer:
        return kinds.DynamicLayer()
    if type(layer) is kinds.LinearAttentionAndSlidingWindowAttentionLayer:
        return kinds.LinearAttentionAndFullAttentionLayer(layer.number_of_states)
    return layer


class TransformersModel(FolderModel):
    """An edge model that transformers runs: `network`, a `PreTrainedModel`. Sessions take turns."""

    engine = "transformers"
    reads = (".safetensors", *DESCRIPTIONS)

    @staticmethod
    def claims(files: ModelFiles) -> Claim | None:
        return "shared" if weighted(files) else None

    def _import(self) -> None:
        self.torch, self._library, self.kinds = imported(
            "transformers", "torch", "transformers", "transformers.cache_utils"
        )

    def _load(self, options: EdgeOptions) -> None:
        """Load all layers on a GPU; without one, or with 0 GPU layers, on the CPU in float32."""
        # A core is left to the rest of the machine: a pass waits for its slowest thread.
        self.torch.set_num_threads(options.threads or max(1, default_threads() - 1))
        model, config = load_folder(self.torch, self._library, self.path, options.gpu_layers)
        self.network, self._config = model, config
        dtype = str(model.dtype).removeprefix("torch.")
        self.build = f"transformers, {dtype} on {model.device.type}"
        self.context = self._context_for(getattr(config, "max_position_embeddings", None))
        self.parameters = sum(weight.numel() for weight in model.parameters())
        if not isinstance(size := getattr(config, "vocab_size", None), int) or size < 1:
            raise ModelError(f"{str(self.path)!r} does not say how many ids it has.")
        takes = signature(model.forward).parameters
        self._keeps = "logits_to_keep" in takes
        # Before 5.24 all but a few models had the other name.
        self._takes = "cache" if "cache" in takes else "past_key_values"
        self._seen: Any | None = None
        if (head := model.get_output_embeddings()) is not None:
            # What the head reads is the hidden state after the final norm.
            head.register_forward_pre_hook(self._see)
        with quiet(self._library):
            self._start(lambda: TorchCache(self, room=MEMORY // options.slots), size)

    def _see(self, _module: Any, inputs: tuple[Any, ...]) -> None:
        self._seen = inputs[0]

    def new_cache(self) -> Any:
        """Return an empty `DynamicCache`. Unless attention is chunked, it never drops ids."""
        cache: Any = self.kinds.DynamicCache(config=self._config)
        if "chunked_attention" not in (getattr(self._config, "layer_types", None) or ()):
            cache.layers = [_whole(self.kinds, layer) for layer in cache.layers]
        return cache

    def run(self, ids: Sequence[int], cache: Any, *, every: bool) -> tuple[Any, Any | None]:
        """Run `ids` after those in `cache`, and add them to it; return logits, hidden states.

        Both are torch tensors, [n, vocabulary] and [n, d]. With `every` they have a row for each of
        `ids`, else only that of the last. Hidden states are None if the model does not show them.
        """
        kept: dict[str, Any] = {} if every or not self._keeps else {"logits_to_keep": 1}
        self._seen = None
        with self.torch.inference_mode():
            batch = self.torch.tensor([ids], device=self.network.device)
            kept[self._takes] = cache
            made = self.network(input_ids=batch, use_cache=True, return_dict=True, **kept)
        count = len(ids) if every else 1
        hidden = None if self._seen is None else self._seen[0][-count:]
        return made.logits[0][-count:], hidden

    def _free(self) -> None:
        cuda = self.network.device.type == "cuda"
        del self.network
        self._seen = None
        if cuda:
            self.torch.cuda.empty_cache()
