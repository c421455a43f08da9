"""What edge engines for models in a folder (config.json and safetensors) have in common.

Config and weights are checked before the engine's library reads them. `FolderModel` reads the
tokenizer from `tokenizer.json`, and tests a loaded model by running a few ids.
"""

import math
import re
from abc import abstractmethod
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, Literal, cast

import msgspec

from edgewise.addresses import ModelFiles, resolve_folder
from edgewise.edge.base import Claim, EdgeAbilities
from edgewise.edge.engine import EngineModel
from edgewise.edge.files import damaged, digest_of, parsed, read_json
from edgewise.edge.kv import BATCH
from edgewise.edge.sequence import SequenceCache, alike
from edgewise.edge.tokenizer_json import HubTokenizer
from edgewise.errors import ModelError, UsageError, reason_of

DESCRIPTIONS = (".json", ".jinja", ".txt")
"""File name endings of what an engine may read besides the weights."""

MAX_HEADER = 100_000_000
"""Most bytes of the header of a safetensors file, the limit of its format."""

# A model's layers are made from its config before its weights are compared with them.
MAX_PARTS = 4096
"""Most layers, or experts of a layer, that a config.json may name."""

MAX_BUFFERS = 1 << 28
"""Most numbers in tables that a model computes, such as RoPE's; or as many as its weights have."""

LACKING = "does not hold all weights that its config.json describes ({})"
"""Error text for a folder that lacks some of its weights; the braces are for what is missing."""

PROBED = 6
"""How many ids the test of a loaded model runs."""

_COUNTED = re.compile(r"layers?$|num_blocks|(num|n)_(\w+_)?experts$")
_CAUSAL = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")


class HubConfig(msgspec.Struct):
    """The fields of a model's config.json that are checked.

    `model_file` names code, `transformers_weights` the file of the weights or their index. For
    quantised weights `quantization` is MLX's description, `quantization_config` that of other
    tools. `text_config` holds these fields for the language model in a multimodal model.
    """

    architectures: list[str] | None = None
    model_type: str | None = None
    model_file: Any = None
    transformers_weights: Any = None
    is_encoder_decoder: bool = False
    quantization_config: dict[str, Any] | None = None
    quantization: dict[str, Any] | None = None
    max_position_embeddings: Any = None
    text_config: "HubConfig | None" = None


def read_config(folder: Path, form: str) -> HubConfig:
    """Return the checked config.json of the causal language model in `folder`.

    Errors call the wanted form of model `form`, such as "MLX". Raises `ModelError` if the config is
    missing or invalid; for another kind of model, an adapter, or over `MAX_PARTS` layers or
    experts.
    """
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
            f"{str(folder)!r} holds an adapter, not a whole model",
            hint="merge it into its model first",
        )
    return config


def _counts(described: object) -> Generator[tuple[str, int]]:
    if isinstance(described, dict):
        for key, value in cast(dict[str, Any], described).items():
            if isinstance(value, int) and _COUNTED.search(key):
                yield key, value
            yield from _counts(value)
    elif isinstance(described, list):
        for value in cast(list[Any], described):
            yield from _counts(value)


def require_one_device(engine: str, gpu_layers: int | Literal["auto"]) -> None:
    """Raise `UsageError` if `gpu_layers` is positive: `engine` runs all layers on one device."""
    if gpu_layers != "auto" and gpu_layers > 0:
        raise UsageError(
            f"The edge engine {engine} loads a whole model on one device, so gpu-layers cannot be "
            f"{gpu_layers}",
            hint="leave it out (a GPU, if there is one), or give 0 (the CPU)",
            setting="gpu_layers",
        )


def weighted(files: ModelFiles) -> Path | None:
    """Return the path of a model's config.json if the folder has safetensors, else None."""
    return files.config if any(name.endswith(".safetensors") for name in files.names) else None


def weight_files(folder: Path) -> list[Path]:
    """Return the sorted paths of the safetensors in `folder`. Raises `ModelError` without any."""
    found = sorted(path for path in folder.glob("*.safetensors") if path.is_file())
    if not found:
        raise ModelError(
            f"There are no safetensors in {str(folder)!r}",
            hint="name a folder that has some: pickled weights are never loaded",
        )
    return found


def count_weights(files: Sequence[Path]) -> int:
    """Return how many numbers the tensors of `files` hold. Raises `ModelError` if damaged."""
    from safetensors import SafetensorError, safe_open

    count = 0
    for path in files:
        try:
            with path.open("rb") as file:  # another parser may read the other of two
                parsed(file.read(min(int.from_bytes(file.read(8), "little"), MAX_HEADER)))
            with safe_open(path, framework="numpy") as tensors:
                shapes = [tensors.get_slice(name).get_shape() for name in tensors.keys()]  # noqa: SIM118
        except (SafetensorError, OSError, ValueError, RecursionError) as error:
            raise damaged(path, f"is truncated or damaged ({str(error)[:200]})") from error
        count += sum(map(math.prod, shapes))
    return count


class FolderModel(EngineModel):
    """Base of an edge model in a folder, on this disk or downloaded from the hub."""

    reads: tuple[str, ...]
    """Endings of the names of the files to download."""

    @staticmethod
    @abstractmethod
    def claims(files: ModelFiles) -> Claim | None:
        """Return "own" or "shared" if this engine opens a folder of `files` by default, else None.

        "own": the format is that of the engine's library; "shared": other engines read it as well.
        An engine that returns "own" goes first.
        """

    def _located(self, address: str) -> tuple[Path, str]:
        return resolve_folder(address, self.reads)

    def _start(
        self,
        new: Callable[[], SequenceCache],
        size: int,
        *,
        small: Callable[[], SequenceCache] | None = None,
        turn: int = BATCH,
    ) -> None:
        """Test the model, of `size` logits, with caches from `small` or `new`; open its slots."""
        self.tokenizer = HubTokenizer(self.path, size=size)
        self._try_out(small or new, size, may_stay=small is not None)
        self._open_slots([new() for _ in range(self._options.slots)], turn=turn)

    def _try_out(
        self, new: Callable[[], SequenceCache], size: int, *, may_stay: bool = False
    ) -> None:
        """Run a few ids through new caches, at once, singly and rolled back; set `abilities`."""
        ids = [7 * index % size for index in range(1, PROBED + 1)]
        try:
            rows = new().run(ids, "all", hidden=True)
            cache = new()
            for token in ids[:-1]:
                cache.run([token], "none")
            cache.checkpoint()
            (last,) = cache.run(ids[-1:], "last")
            rewinds, kept = cache.rewinds, cache.back(PROBED - 1)
            (again,) = cache.run(ids[kept:], "last")
        except Exception as error:
            raise self._refused(reason_of(error)) from error
        logits, hidden = rows[-1].logits, rows[-1].hidden
        if len(logits) != size or not alike(logits, last.logits):
            raise self._refused("its cache does not give the same logits")
        if not alike(logits, again.logits) and not may_stay:
            raise self._refused("it does not rewind to the same logits")
        self.hidden_size = 0 if hidden is None else len(hidden)
        self.abilities = EdgeAbilities(
            hidden=hidden is not None,
            rewinds=rewinds if kept and alike(logits, again.logits) else "no",
            batch_logits=len(rows) == PROBED,
            slots=self._options.slots,
        )

    def _refused(self, why: str) -> ModelError:
        return ModelError(
            f"{str(self.path)!r} does not decode step by step in {self.engine} ({why})",
            hint="name a GGUF of the model, or another model",
        )

    def fingerprint(self) -> str:
        """Return a SHA-256, in hex, of the config and of samples of the weights."""
        return digest_of([self.path / "config.json", *weight_files(self.path)])
