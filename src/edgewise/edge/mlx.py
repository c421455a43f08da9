"""Edge models on MLX, through mlx-lm: the extra `edgewise[mlx]`, for Macs with Apple silicon.

A model is a folder with `config.json` and safetensors, in MLX's quantised form or in full. Logits
of every id and the hidden state that its head reads come from one pass. On Linux MLX computes on
the CPU, slowly.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from edgewise.addresses import resolve_folder
from edgewise.edge.base import (
    EdgeAbilities,
    EdgeModel,
    EdgeOptions,
    Floats,
    Marks,
    Needs,
    context_for,
    require_full_windows,
)
from edgewise.edge.hub_config import explained
from edgewise.edge.hub_tokenizer import HubTokenizer
from edgewise.edge.hub_weights import digest_of, weight_files
from edgewise.edge.kv import KvSession
from edgewise.edge.mlx_cache import MlxCache, MlxWeights
from edgewise.edge.mlx_load import load_folder, modules
from edgewise.edge.sequence_cache import MEMORY, SequenceCache
from edgewise.edge.sequence_slot import SequenceSlot
from edgewise.edge.sequence_trial import try_out
from edgewise.edge.slots import BATCH, Slots
from edgewise.errors import UsageError


def open_mlx(address: str, options: EdgeOptions) -> "MlxModel":
    """The edge engine `mlx`: a folder or a hub repository, downloaded if need be."""
    modules()
    folder, name = resolve_folder(address, "mlx")
    return MlxModel(folder, name=name, **msgspec.structs.asdict(options))


class MlxModel(EdgeModel):
    """A model that mlx-lm runs. Implements `EdgeModel`."""

    def __init__(
        self,
        folder: Path,
        *,
        name: str | None = None,
        context: int | None = None,
        threads: int | None = None,
        gpu_layers: int | Literal["auto"] = "auto",
        slots: int = 1,
        keep_prefixes: bool = False,
        swa_full: bool = True,
    ) -> None:
        """Load `folder`; see `EdgeOptions`. The default context is the model's own, at most 4096.

        A model is on one device as a whole: MLX's own choice, or with `gpu_layers` 0 the CPU. MLX
        has no number of threads, so `threads` are refused. Without `swa_full` layers with a sliding
        window hold the window alone, and sessions go back to marks. Raises `ModelError` or
        `UsageError`.
        """
        if slots < 1 or (context is not None and context < 1):
            raise UsageError("A model needs at least 1 slot and a context of at least 1 token.")
        if threads is not None:
            raise UsageError(
                "The edge engine mlx has no number of threads to set",
                hint="leave the threads out",
                setting="threads",
            )
        self.folder, self.name = folder, name or folder.resolve().name
        mx, _ = modules()
        loaded = load_folder(folder, gpu_layers)
        self.context = context_for(self.name, context, loaded.context)
        self.form, self.device = loaded.form, str(loaded.device.type.name)
        self._parameters = loaded.parameters
        with explained(folder, "MLX", "mlx-lm"):
            self._weights = MlxWeights(
                mx, loaded.model, loaded.device, context=self.context, swa_full=swa_full
            )
        require_full_windows(
            self.name, "it has no such layers", swa_full=swa_full or self._weights.windows
        )
        size = self._weights.size

        def new() -> SequenceCache:
            return MlxCache(self._weights, room=MEMORY // slots)

        self.hidden_size, self._abilities, self._marks = try_out(
            new, size, slots=slots, engine="MLX", where=str(folder)
        )
        self._tokenizer = HubTokenizer(folder, size=size)
        self._slots = Slots(new, name=self.name, count=slots, keep_prefixes=keep_prefixes)

    @property
    def tokenizer(self) -> HubTokenizer:
        return self._tokenizer

    @property
    def abilities(self) -> EdgeAbilities:
        return self._abilities

    @property
    def parameters(self) -> int:
        return self._parameters

    @property
    def marks(self) -> Marks | None:
        return self._marks

    @property
    def build(self) -> str:
        return f"MLX, {self.form} on {self.device}"

    @property
    def closed(self) -> bool:
        """Whether the weights are gone."""
        return self._slots.closed

    def session(self, needs: Needs = Needs.NOTHING, *, top: int = 0) -> KvSession:
        return KvSession(self, SequenceSlot(self._slots, engine="MLX", name=self.name), needs, top)

    def fingerprint(self) -> str:
        return digest_of([self.folder / "config.json", *weight_files(self.folder)])

    def embeddings(self) -> Floats:
        found = self._weights.embeddings()
        return super().embeddings() if found is None else found

    def bare_loop(self, prompt: Sequence[int], tokens: int) -> Iterator[int]:
        weights = self._weights
        cache = weights.new_cache()
        for at in range(0, len(prompt) - 1, BATCH):
            weights.run(prompt[at : min(at + BATCH, len(prompt) - 1)], cache, "none")
        token = prompt[-1]
        for _ in range(tokens + 1):
            rows = weights.run([token], cache, "last")
            assert rows is not None
            token = int(rows.logits[-1].argmax())
            yield token

    def close(self) -> None:
        """Free weights and caches; sessions of the model are unusable afterwards."""
        if self._slots.close():
            self._weights.close()

    def __enter__(self) -> "MlxModel":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
