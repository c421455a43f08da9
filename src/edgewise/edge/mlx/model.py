"""Edge models on MLX, through mlx-lm: the extra `edgewise[mlx]`, for Macs with Apple silicon.

A model is a folder with `config.json` and safetensors, in MLX's quantised form or in full. Logits
of every id and the hidden state that its head reads come from one pass. On Linux MLX computes on
the CPU, slowly.
"""

from collections.abc import Generator, Iterable, Sequence
from copy import deepcopy
from importlib import import_module
from typing import Any

import numpy as np

from edgewise.addresses import resolve_folder
from edgewise.edge.base import EdgeOptions
from edgewise.edge.engine import EngineModel
from edgewise.edge.hub.folder import DESCRIPTIONS, explained
from edgewise.edge.hub.tokenizer import HubTokenizer
from edgewise.edge.mlx.load import load_folder, modules
from edgewise.edge.sequence import MEMORY, KvRow, Outputs, SequenceCache, StateCopy, rows_of
from edgewise.errors import UsageError

READS = (".safetensors", *DESCRIPTIONS)
"""Files of a repository that are downloaded."""


class MlxWeights:
    """A loaded model, run on ids. One run at a time."""

    def __init__(self, mx: Any, model: Any, device: Any, *, context: int) -> None:
        self.mx, self.device, self.context = mx, device, context
        self._model = model
        self._seen: Any | None = None
        with mx.stream(device):
            # Shapes are known before anything is computed.
            self.size = int(model(mx.array([[0]]), cache=self.new_cache()).shape[-1])
        for module in self.tables():
            _watch(module, self._see)

    def _see(self, entered: Any) -> None:
        self._seen = entered

    def tables(self) -> list[Any]:
        """The modules with a row for each id: input embeddings and head."""
        return [
            module
            for _, module in self._model.named_modules()
            if "weight" in module and module["weight"].shape[:1] == (self.size,)
        ]

    def new_cache(self) -> list[Any]:
        """Caches for a new sequence, one a layer."""
        return import_module("mlx_lm.models.cache").make_prompt_cache(self._model)

    def run(self, ids: Sequence[int], cache: list[Any], outputs: Outputs) -> list[Any]:
        """Compute `ids` behind what the cache holds, with rows for all of them, the last, or none.

        Logits [n, vocabulary] and hidden states [n, d], float32 of MLX; the second is None where
        the model shows none, and nothing is returned without outputs.
        """
        mx = self.mx
        with mx.stream(self.device):
            made = self._model(mx.array([list(ids)]), cache=cache)
            seen, self._seen = self._seen, None
            rows: list[Any] = []
            if outputs != "none":
                first = -len(ids) if outputs == "all" else -1
                wanted = [None if x is None else x[0, first:] for x in (made, seen)]
                rows = [None if x is None else x.astype(mx.float32) for x in wanted]
            # What is left lazy cannot be computed in another thread, and holds what it is made of.
            mx.eval(rows, [layer.state for layer in cache])
        return rows

    def close(self) -> None:
        """Free the weights."""
        del self._model
        self.mx.clear_cache()


class MlxCache(SequenceCache):
    """What one sequence holds.

    Attention's keys and values are trimmed, with a check: mlx-lm raises nothing for a trim that it
    refuses. The state of recurrent layers, and of windows that have moved on, is copied.
    """

    def __init__(self, weights: MlxWeights, *, room: int) -> None:
        self._weights = weights
        super().__init__(room=room)

    def _begin(self) -> None:
        kinds = import_module("mlx_lm.models.cache")
        self._layers = self._weights.new_cache()
        parts = list(_parts(kinds, self._layers))
        self._cut = [part for part in parts if _is_cut(kinds, part, self._weights.context)]
        self._copied = [
            part
            for part in parts
            if type(part) in (kinds.ArraysCache, kinds.RotatingKVCache) and part not in self._cut
        ]
        if not 0 < len(parts) == len(self._cut) + len(self._copied):
            self.rewinds = "no"
        else:
            self.rewinds = "checkpoints" if self._copied else "anywhere"

    @property
    def cuttable(self) -> bool:
        """A window can be cut until it has moved on."""
        return self.rewinds != "no" and all(part.is_trimmable() for part in self._copied)

    def _compute(self, ids: Sequence[int], outputs: Outputs, *, hidden: bool) -> Sequence[KvRow]:
        rows = self._weights.run(ids, self._layers, outputs)
        if not rows:
            return ()
        logits, seen = rows
        return rows_of(np.array(logits), None if seen is None or not hidden else np.array(seen))

    def _copy(self) -> StateCopy:
        state = self._states([part.state for part in self._copied])
        return StateCopy(state, sum(part.nbytes for part in self._copied))

    def _back(self, count: int, state: list[Any] | None) -> bool:
        with self._weights.mx.stream(self._weights.device):
            trimmed = self._cut if state is not None else [*self._cut, *self._copied]
            done = [part.trim(count) == count for part in trimmed]
        if state is not None:
            for part, held in zip(self._copied, self._states(state), strict=True):
                part.state = held
        return all(done)

    def _states(self, states: list[Any]) -> list[Any]:
        """Copies of its own for each holder, since some are written in place."""
        with self._weights.mx.stream(self._weights.device):
            copied = deepcopy(states)
            self._weights.mx.eval(copied)
        return copied


def _parts(kinds: Any, layers: Iterable[Any]) -> Generator[Any]:
    for layer in layers:
        if type(layer) is kinds.CacheList:
            yield from _parts(kinds, layer.caches)
        else:
            yield layer


def _is_cut(kinds: Any, part: Any, context: int) -> bool:
    """Whether a layer's cache holds all ids of a context, and is cut anywhere."""
    if type(part) is kinds.RotatingKVCache:
        return part.max_size > context
    return type(part) in (kinds.KVCache, kinds.ConcatenateKVCache, kinds.QuantizedKVCache)


def _watch(module: Any, see: Any) -> None:
    """Call `see` with what a module reads where it is the head: the state after the final norm."""
    kind: Any = type(module)
    tied = hasattr(kind, "as_linear")

    class Watched(kind):
        def __call__(self, entered: Any) -> Any:
            if not tied:
                see(entered)
            return super().__call__(entered)

        def as_linear(self, entered: Any) -> Any:
            see(entered)
            return super().as_linear(entered)

    module.__class__ = Watched


def open_mlx(address: str, options: EdgeOptions) -> "MlxModel":
    """The edge engine `mlx`: a folder or a hub repository, downloaded if need be."""
    modules()
    folder, name = resolve_folder(address, "mlx", READS)
    return MlxModel(folder, options, name=name)


class MlxModel(EngineModel):
    """A model that mlx-lm runs. Implements `EdgeModel`."""

    engine = "MLX"

    def _load(self, options: EdgeOptions) -> None:
        """A model is on one device as a whole: MLX's own choice, or with 0 GPU layers the CPU."""
        if options.threads is not None:
            raise UsageError(
                "The edge engine mlx has no number of threads to set",
                hint="leave the threads out",
                setting="threads",
            )
        mx, _ = modules()
        loaded = load_folder(self.path, options.gpu_layers)
        self.context = self._context_for(loaded.context)
        self.parameters = loaded.parameters
        self.build = f"MLX, {loaded.form} on {loaded.device.type.name}"
        with explained(self.path, "MLX", "mlx-lm"):
            self._weights = MlxWeights(mx, loaded.model, loaded.device, context=self.context)
        size = self._weights.size

        def new() -> MlxCache:
            return MlxCache(self._weights, room=MEMORY // options.slots)

        self._try_out(new, size)
        self.tokenizer = HubTokenizer(self.path, size=size)
        self._open_slots(new)

    def _free(self) -> None:
        self._weights.close()
