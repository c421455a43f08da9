"""`MlxModel`: an edge model that mlx-lm runs.

A model is a folder with `config.json` and safetensors, in MLX's quantised form or unquantised. Code
that the config names (`model_file`) is never run, and no network request is made. A forward pass
gives the logits after every id, and the hidden state that the model's output layer reads.
"""

import platform
import re
from collections.abc import Generator, Iterable, Sequence
from contextlib import suppress
from copy import deepcopy
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from edgewise.addresses import ModelFiles
from edgewise.edge.base import Claim, EdgeOptions
from edgewise.edge.files import damaged, read_json
from edgewise.edge.sequence import MEMORY, KvRow, Outputs, SequenceCache, rows_of
from edgewise.errors import ModelError, UsageError
from edgewise.options.folder import (
    DESCRIPTIONS,
    LACKING,
    MAX_BUFFERS,
    FolderModel,
    HubConfig,
    count_weights,
    read_config,
    require_one_device,
    weight_files,
    weighted,
)
from edgewise.registry import imported

_BUILDS = (("Darwin", "arm64"), ("Linux", "x86_64"), ("Linux", "aarch64"))
_GROWTH = 8  # most times that mlx-lm may enlarge the weights of a file when it unpacks them

# Group sizes and bits that MLX supports; it ends the whole process for any other.
_GROUPS, _BITS = (16, 32, 64, 128), (2, 3, 4, 5, 6, 8)

_KIND = re.compile(r"[\w-]+")
_ASIDE = "hf_quant_config.json"  # other tools' description of quantisation, which mlx-lm reads too


def modules() -> list[Any]:
    """Return [mlx.core, mlx_lm]. `UsageError` if one is missing or the platform is unsupported."""
    here = platform.system(), platform.machine()
    if here not in _BUILDS:
        raise UsageError(
            "The edge engine mlx runs on Macs with Apple silicon and on Linux, not on "
            f"{here[0]} {here[1]}",
            hint="name a GGUF of the model, or choose the edge engine transformers for what is not "
            "quantised",
            setting="edge",
        )
    # When it is first imported mlx-lm sets this process's limits on open files to 2,048 and 4,096,
    # for good, and in vain where they are lower: a server has more connections than that.
    with patch("resource.setrlimit"):
        return imported("mlx", "mlx.core", "mlx_lm")


def load_folder(mx: Any, folder: Path, device: Any) -> Any:
    """Return the model in `folder`, loaded on MLX's `device`; `mx` is the module mlx.core.

    Raises `ModelError` for a damaged file, no safetensors, or far fewer weights than the config
    describes; what mlx-lm raises, such as `ValueError` for one missing weight, passes through.
    """
    files = weight_files(folder)
    count_weights(files)
    with mx.stream(device):
        library = import_module("mlx_lm.utils")
        # Strict: each weight that is described is in the files, in its shape, and no other.
        model, _ = library.load_model(
            folder,
            # Its size is compared with its files before it takes memory.
            lazy=True,
            strict=True,
            get_model_classes=partial(_classes, library),
            trust_remote_code=False,
        )
        arrays = _arrays(mx, model)
        _check_size(folder, model, arrays, sum(path.stat().st_size for path in files))
        # All of them: what is left lazy cannot be computed in another thread.
        mx.eval(arrays)
    return model


def _is_mlx(config: Path) -> bool:
    """Return whether MLX wrote the model, by its config's quantization or its weights' metadata."""
    from safetensors import SafetensorError, safe_open

    with suppress(ModelError, OSError, SafetensorError):  # the engine says what is wrong with them
        if "quantization" in (read_json(config, dict[str, Any]) or {}):
            return True
        for path in sorted(config.parent.glob("model*.safetensors"))[:1]:
            with safe_open(path, framework="numpy") as opened:
                return (opened.metadata() or {}).get("format") == "mlx"
    return False


def _checked(folder: Path) -> HubConfig:
    config = read_config(folder, "MLX")
    if config.model_file is not None:
        raise ModelError(
            f"{str(folder)!r} brings code of its own ({str(config.model_file)[:100]!r}), which "
            "is never run",
            hint="name a model of a kind that mlx-lm knows, or a GGUF",
        )
    if not _KIND.fullmatch(config.model_type or ""):
        raise damaged(folder / "config.json", "does not say of which kind its model is")
    read_json(folder / "generation_config.json", dict[str, Any])  # mlx-lm reads it, of any size
    _check_quantization(folder, config)
    return config


def _check_quantization(folder: Path, config: HubConfig) -> None:
    if config.quantization is None:
        described = (config, config.text_config or config)
        if any(one.quantization_config for one in described) or (folder / _ASIDE).exists():
            raise ModelError(
                f"{str(folder)!r} is quantised, and not in MLX form",
                hint="name the model in MLX form, unquantised, or as a GGUF",
            )
        return
    for part in (config.quantization, *config.quantization.values()):
        if isinstance(part, dict) and (
            part.get("group_size", 64) not in _GROUPS or part.get("bits", 4) not in _BITS
        ):
            raise damaged(folder / "config.json", "names a quantisation that MLX has not")


def _classes(library: Any, config: dict[str, Any]) -> tuple[Any, Any]:
    """Return a model's classes as mlx-lm chooses them, changed to check packed weights."""
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
    """Raise `ValueError` if weights are not packed as the widths of the model's layers require."""
    for path, module in model.named_modules():
        scales, packed = (weights.get(f"{path}.{name}") for name in ("scales", "weight"))
        if scales is None or packed is None or "weight" not in module:
            continue
        width, groups = module["weight"].shape[-1], scales.shape[-1] if scales.ndim else 0
        group, left = divmod(width, groups) if groups else (0, 0)
        bits, more = divmod(32 * packed.shape[-1], width) if packed.ndim and width else (0, 0)
        # MLX would divide by the size of a group, which may be 0.
        if left or more or group not in _GROUPS or bits not in _BITS:
            raise ValueError(f"{path} is not packed as its width of {width} is")


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
    """Raise `ModelError` if the model is far larger than its files, which have `held` bytes."""
    flat = import_module("mlx.utils").tree_flatten(model.parameters())
    weights = sum(weight.nbytes for _, weight in flat)
    tables = sum(array.nbytes for array in arrays) - weights
    if weights > _GROWTH * held or tables > max(held, 4 * MAX_BUFFERS):
        raise damaged(folder, LACKING.format(f"{held:,} bytes of {max(weights, tables):,}"))


class MlxCache(SequenceCache):
    """The KV cache of one sequence.

    Rollbacks trim attention's keys and values in place. They cannot trim states of recurrent
    layers, nor sliding windows that dropped ids: `SequenceCache` keeps copies of these
    (checkpoints).
    """

    def __init__(self, model: "MlxModel", *, room: int) -> None:
        self._model = model
        super().__init__(room=room)

    def _begin(self) -> None:
        kinds = import_module("mlx_lm.models.cache")
        self._layers = self._model.new_cache()
        parts = list(_parts(kinds, self._layers))
        self._cut = [part for part in parts if _is_cut(kinds, part, self._model.context)]
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
        """Whether any number of last ids can be cut: not with recurrent layers or full windows."""
        return self.rewinds != "no" and all(part.is_trimmable() for part in self._copied)

    def _compute(self, ids: Sequence[int], outputs: Outputs, *, hidden: bool) -> Sequence[KvRow]:
        rows = self._model.run(ids, self._layers, outputs)
        if not rows:
            return ()
        logits, seen = rows
        return rows_of(np.array(logits), None if seen is None or not hidden else np.array(seen))

    @property
    def state_size(self) -> int:
        """Size in bytes of a checkpoint made now: a copy of the states that cannot be trimmed."""
        return sum(part.nbytes for part in self._copied)

    def _copy(self) -> list[Any]:
        return self._states([part.state for part in self._copied])

    def _back(self, count: int, state: list[Any] | None) -> bool:
        with self._model.mx.stream(self._model.device):
            trimmed = self._cut if state is not None else [*self._cut, *self._copied]
            # Checked, as mlx-lm raises nothing if it refuses to trim.
            done = [part.trim(count) == count for part in trimmed]
        if state is not None:
            for part, held in zip(self._copied, self._states(state), strict=True):
                part.state = held
        return all(done)

    def _states(self, states: list[Any]) -> list[Any]:
        """Return a separate copy of states."""
        # Some are written in place.
        with self._model.mx.stream(self._model.device):
            copied = deepcopy(states)
            self._model.mx.eval(copied)
        return copied


def _parts(kinds: Any, layers: Iterable[Any]) -> Generator[Any]:
    for layer in layers:
        if type(layer) is kinds.CacheList:
            yield from _parts(kinds, layer.caches)
        else:
            yield layer


def _is_cut(kinds: Any, part: Any, context: int) -> bool:
    """Return whether a layer's cache holds all ids of a context, so that it can be cut anywhere."""
    if type(part) is kinds.RotatingKVCache:
        return part.max_size > context
    return type(part) in (kinds.KVCache, kinds.ConcatenateKVCache, kinds.QuantizedKVCache)


def _watch(module: Any, see: Any) -> None:
    """Call `see` with what `module` gets as the model's head: the state after the final norm."""
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


class MlxModel(FolderModel):
    """An edge model that mlx-lm runs. Sessions take turns: one forward pass runs at a time."""

    engine = "mlx-lm"
    reads = (".safetensors", *DESCRIPTIONS)

    @staticmethod
    def claims(files: ModelFiles) -> Claim | None:
        if (config := weighted(files)) and (files.library == "mlx" or _is_mlx(config)):
            return "own"
        return None

    def _import(self) -> None:
        self.mx = modules()[0]

    def _load(self, options: EdgeOptions) -> None:
        """Load all layers on one device: MLX's own choice, or with 0 GPU layers the CPU."""
        if options.threads is not None:
            raise UsageError(
                "threads do not apply to the edge engine mlx",
                hint="leave them out",
                setting="threads",
            )
        require_one_device("mlx", options.gpu_layers)
        mx = self.mx
        config = _checked(self.path)
        text = config.text_config or config
        self.context = self._context_for(
            config.max_position_embeddings or text.max_position_embeddings
        )
        self.device = mx.Device(mx.cpu) if options.gpu_layers == 0 else mx.default_device()
        self._model = load_folder(mx, self.path, self.device)
        self.parameters = int(import_module("mlx_lm.utils").get_total_parameters(self._model))
        form = _form(self._model, _arrays(mx, self._model))
        self.build = f"MLX, {form} on {self.device.type.name}"
        self._seen: Any | None = None
        with mx.stream(self.device):
            # Shapes are known before anything is computed.
            size = int(self._model(mx.array([[0]]), cache=self.new_cache()).shape[-1])
            # Input embeddings and head have a row for each id.
            for _, module in self._model.named_modules():
                if "weight" in module and module["weight"].shape[:1] == (size,):
                    _watch(module, self._see)
        self._start(lambda: MlxCache(self, room=MEMORY // options.slots), size)

    def _see(self, entered: Any) -> None:
        self._seen = entered

    def new_cache(self) -> list[Any]:
        """Return an empty cache as mlx-lm makes it: a list with one object for each layer."""
        return import_module("mlx_lm.models.cache").make_prompt_cache(self._model)

    def run(self, ids: Sequence[int], cache: list[Any], outputs: Outputs) -> list[Any]:
        """Run `ids` after those in `cache`, and add them to it; return [logits, hidden states].

        Both are float32 arrays of MLX, [n, vocabulary] and [n, d]. With `outputs` "all" they have a
        row for each of `ids`, with "last" only that of the last id; with "none" the list is empty.
        Hidden states are None if the model does not show them.
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

    def _free(self) -> None:
        del self._model
        self.mx.clear_cache()
