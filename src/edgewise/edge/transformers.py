"""Edge models on transformers: any causal language model with safetensors, on any of its devices.

The extra `edgewise[transformers]`. Several times slower than llama.cpp on a CPU, and the same
weights to the last bit: for models that have no GGUF, and for GPUs of every make.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

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
from edgewise.edge.hub_tokenizer import HubTokenizer
from edgewise.edge.hub_weights import digest_of, weight_files
from edgewise.edge.kv import KvSession
from edgewise.edge.llamacpp_load import default_threads
from edgewise.edge.sequence_cache import MEMORY, SequenceCache
from edgewise.edge.sequence_slot import SequenceSlot
from edgewise.edge.sequence_trial import try_out
from edgewise.edge.slots import BATCH, Slots
from edgewise.edge.transformers_cache import TorchCache, Weights
from edgewise.edge.transformers_load import load_folder, modules, quiet
from edgewise.errors import ModelError, UsageError


def open_folder(address: str, options: EdgeOptions) -> "TransformersModel":
    """The edge engine `transformers`: a folder or a hub repository, downloaded if need be."""
    modules()
    folder, name = resolve_folder(address, "transformers")
    return TransformersModel(folder, name=name, **msgspec.structs.asdict(options))


class TransformersModel(EdgeModel):
    """A model in transformers' form. Implements `EdgeModel`."""

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

        A model is on one device as a whole: a GPU where there is one, or with `gpu_layers` 0 the
        CPU, in float32 there. `threads` are torch's, of this process. Raises `ModelError` or
        `UsageError`.
        """
        if slots < 1 or (context is not None and context < 1):
            raise UsageError("A model needs at least 1 slot and a context of at least 1 token.")
        self.folder, self.name = folder, name or folder.resolve().name
        require_full_windows(self.name, "transformers keeps all of them whole", swa_full=swa_full)
        torch, _ = modules()
        torch.set_num_threads(threads or default_threads())
        loaded = load_folder(folder, gpu_layers)
        self.device, self.dtype = loaded.device, loaded.dtype
        trained = getattr(loaded.config, "max_position_embeddings", None)
        known = trained if isinstance(trained, int) and trained > 0 else None
        self.context = context_for(self.name, context, known)
        self._embeddings: Any = loaded.model.get_input_embeddings()
        self._parameters = sum(weight.numel() for weight in loaded.model.parameters())
        self._weights = Weights(torch, loaded.model, loaded.config)
        size = getattr(loaded.config, "vocab_size", None)
        if not isinstance(size, int) or size < 1:
            raise ModelError(f"{str(folder)!r} does not say how many ids it has.")

        def new() -> SequenceCache:
            return TorchCache(self._weights, room=MEMORY // slots)

        with quiet(modules()[1]):
            self.hidden_size, self._abilities, self._marks = try_out(
                new, size, slots=slots, engine="transformers", where=str(folder)
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
        return f"transformers, {self.dtype} on {self.device}"

    @property
    def closed(self) -> bool:
        """Whether the weights are gone."""
        return self._slots.closed

    def session(self, needs: Needs = Needs.NOTHING, *, top: int = 0) -> KvSession:
        return KvSession(
            self, SequenceSlot(self._slots, engine="transformers", name=self.name), needs, top
        )

    def fingerprint(self) -> str:
        return digest_of([self.folder / "config.json", *weight_files(self.folder)])

    def embeddings(self) -> Floats:
        return np.asarray(self._embeddings.weight.detach().float().cpu().numpy(), np.float32)

    def bare_loop(self, prompt: Sequence[int], tokens: int) -> Iterator[int]:
        cache, weights = self._weights.new_cache(), self._weights
        for at in range(0, len(prompt) - 1, BATCH):
            weights.run(prompt[at : min(at + BATCH, len(prompt) - 1)], cache, every=False)
        token = prompt[-1]
        for _ in range(tokens + 1):
            rows = weights.run([token], cache, every=False)
            token = int(rows.logits[-1].argmax())
            yield token

    def close(self) -> None:
        """Free weights and caches; sessions of the model are unusable afterwards."""
        if self._slots.close():
            self._weights.close()
            del self._embeddings

    def __enter__(self) -> "TransformersModel":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
