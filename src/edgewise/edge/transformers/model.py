"""Edge models on transformers: any causal language model with safetensors, on any of its devices.

The extra `edgewise[transformers]`. Several times slower than llama.cpp on a CPU, and the same
weights to the last bit: for models that have no GGUF, and for GPUs of every make.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import Any

from edgewise.addresses import resolve_folder
from edgewise.edge.base import EdgeOptions
from edgewise.edge.engine import EngineModel, default_threads
from edgewise.edge.hub.folder import DESCRIPTIONS
from edgewise.edge.hub.tokenizer import HubTokenizer
from edgewise.edge.sequence import MEMORY, KvRow, Outputs, SequenceCache, StateCopy, rows_of
from edgewise.edge.transformers.load import load_folder, modules, quiet
from edgewise.errors import ModelError

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


class Weights:
    """A loaded model, run on ids. One run at a time."""

    def __init__(self, torch: Any, model: Any, config: Any) -> None:
        from inspect import signature

        self.torch, self._model, self._config = torch, model, config
        self._keeps = "logits_to_keep" in signature(model.forward).parameters
        self._seen: Any | None = None
        head = model.get_output_embeddings()
        if head is not None:
            # What the head reads is the hidden state after the final norm.
            head.register_forward_pre_hook(self._see)

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

    def close(self) -> None:
        """Free the weights."""
        cuda = self._model.device.type == "cuda"
        del self._model
        self._seen = None
        if cuda:
            self.torch.cuda.empty_cache()


class TorchCache(SequenceCache):
    """What one sequence holds.

    Attention's keys and values are kept whole, in sliding windows too (their masks hide what lies
    outside), and cut anywhere. Recurrent layers hold one state, which is copied.
    """

    def __init__(self, weights: Weights, *, room: int) -> None:
        self._weights = weights
        super().__init__(room=room)

    def _begin(self) -> None:
        self._cache = self._weights.new_cache()
        kinds = {_kind(layer) for layer in self._cache.layers}
        if not kinds or "other" in kinds:
            self.rewinds = "no"
        else:
            self.rewinds = "checkpoints" if "recurrent" in kinds else "anywhere"

    def _compute(self, ids: Sequence[int], outputs: Outputs, *, hidden: bool) -> Sequence[KvRow]:
        logits, seen = self._weights.run(ids, self._cache, every=outputs == "all")
        if outputs == "none":
            return ()
        states = None if seen is None or not hidden else seen.float().cpu().numpy()
        return rows_of(logits.float().cpu().numpy(), states)

    def _copy(self) -> StateCopy:
        with self._weights.torch.inference_mode():
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
        with self._weights.torch.inference_mode():
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
    """A model in transformers' form. Implements `EdgeModel`."""

    engine = "transformers"

    def _load(self, options: EdgeOptions) -> None:
        """A model is on one device as a whole: a GPU where there is one, or the CPU, in float32.

        With 0 GPU layers it is the CPU. `threads` are torch's, of this process.
        """
        torch, transformers = modules()
        torch.set_num_threads(options.threads or default_threads())
        loaded = load_folder(self.path, options.gpu_layers)
        self.build = f"transformers, {loaded.dtype} on {loaded.device}"
        trained = getattr(loaded.config, "max_position_embeddings", None)
        known = isinstance(trained, int) and trained > 0
        self.context = self._context_for(trained if known else None)
        self.parameters = sum(weight.numel() for weight in loaded.model.parameters())
        self._weights = Weights(torch, loaded.model, loaded.config)
        size = getattr(loaded.config, "vocab_size", None)
        if not isinstance(size, int) or size < 1:
            raise ModelError(f"{str(self.path)!r} does not say how many ids it has.")

        def new() -> TorchCache:
            return TorchCache(self._weights, room=MEMORY // options.slots)

        with quiet(transformers):
            self._try_out(new, size)
        self.tokenizer = HubTokenizer(self.path, size=size)
        self._open_slots(new)

    def _free(self) -> None:
        self._weights.close()
