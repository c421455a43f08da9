"""One sequence's cache in transformers.

Attention's keys and values are kept whole, in sliding windows too (their masks hide what lies
outside), and cut anywhere. Recurrent layers hold one state, which is copied.
"""

from collections.abc import Sequence
from importlib import import_module
from typing import Any, NamedTuple

from edgewise.edge.kv import KvRow, Outputs
from edgewise.edge.sequence import SequenceCache, StateCopy, rows_of

_STATES = (
    "conv_states",
    "recurrent_states",
    "is_conv_states_initialized",
    "is_recurrent_states_initialized",
    "has_previous_state",
)

_State = list[dict[str, dict[int, Any]]]


class TorchRows(NamedTuple):
    """Tensors: logits [n, vocabulary]; hidden [n, d], None where the model shows none."""

    logits: Any
    hidden: Any | None


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

    def run(self, ids: Sequence[int], cache: Any, *, every: bool) -> TorchRows:
        """Compute `ids` behind what the cache holds: rows for all of them, or for the last."""
        kept = {} if every or not self._keeps else {"logits_to_keep": 1}
        self._seen = None
        with self.torch.inference_mode():
            batch = self.torch.tensor([ids], device=self._model.device)
            made = self._model(
                input_ids=batch, past_key_values=cache, use_cache=True, return_dict=True, **kept
            )
        count = len(ids) if every else 1
        hidden = None if self._seen is None else self._seen[0][-count:]
        return TorchRows(made.logits[0][-count:], hidden)

    def close(self) -> None:
        """Free the weights."""
        cuda = self._model.device.type == "cuda"
        del self._model
        self._seen = None
        if cuda:
            self.torch.cuda.empty_cache()


class TorchCache(SequenceCache):
    """What one sequence holds."""

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
        rows = self._weights.run(ids, self._cache, every=outputs == "all")
        if outputs == "none":
            return ()
        logits = rows.logits.float().cpu().numpy()
        if not hidden or rows.hidden is None:
            return rows_of(logits, None)
        return rows_of(logits, rows.hidden.float().cpu().numpy())

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
    """How a layer goes back; "other" for one that is not known to."""
    kinds = import_module("transformers.cache_utils")

    return {
        kinds.DynamicLayer: "cut",
        kinds.DynamicIndexedLayer: "cut",
        kinds.DummyLayer: "shared",
        kinds.LinearAttentionLayer: "recurrent",
        kinds.LinearAttentionAndFullAttentionLayer: "recurrent",
    }.get(type(layer), "other")


def _cut(layer: Any, count: int) -> None:
    """Drop the last keys and values of a layer that has some."""
    kinds = import_module("transformers.cache_utils")

    if type(layer) is kinds.DynamicIndexedLayer:
        layer.crop(-count)
    elif isinstance(layer, kinds.DynamicLayer):
        # Of a layer that is recurrent as well, attention's part alone.
        kinds.DynamicLayer.crop(layer, -count)


def _copied(held: dict[int, Any]) -> dict[int, Any]:
    """States are written in place, so each holder has its own."""
    return {key: x.clone() if hasattr(x, "clone") else x for key, x in held.items()}
