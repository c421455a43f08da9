"""Edge models on transformers: any causal language model with safetensors, on any of its devices.

The extra `edgewise[transformers]`. Several times slower than llama.cpp on a CPU, and the same
weights to the last bit: for models that have no GGUF, and for GPUs of every make.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from edgewise.addresses import resolve_folder
from edgewise.edge.base import EdgeOptions, Floats
from edgewise.edge.engine import EngineModel, default_threads, try_out
from edgewise.edge.hub.folder import DESCRIPTIONS, digest_of, weight_files
from edgewise.edge.hub.tokenizer import HubTokenizer
from edgewise.edge.sequence import MEMORY
from edgewise.edge.slots import BATCH
from edgewise.edge.transformers.cache import TorchCache, Weights
from edgewise.edge.transformers.load import load_folder, modules, quiet
from edgewise.errors import ModelError

READS = (".safetensors", *DESCRIPTIONS)
"""Files of a repository that are downloaded."""


def open_folder(address: str, options: EdgeOptions) -> "TransformersModel":
    """The edge engine `transformers`: a folder or a hub repository, downloaded if need be."""
    modules()
    folder, name = resolve_folder(address, "transformers", READS)
    return TransformersModel(folder, options, name=name)


class TransformersModel(EngineModel):
    """A model in transformers' form. Implements `EdgeModel`."""

    engine = "transformers"

    def __init__(
        self,
        path: Path,
        options: EdgeOptions | None = None,
        *,
        name: str | None = None,
        **changes: Any,
    ) -> None:
        """Load the folder `path`; `changes` are fields of `EdgeOptions`.

        A model is on one device as a whole: a GPU where there is one, or with 0 GPU layers the CPU,
        in float32 there. `threads` are torch's, of this process. Raises `ModelError` or
        `UsageError`.
        """
        options = replace(options or EdgeOptions(), **changes)
        super().__init__(path, name or path.resolve().name, options)
        torch, transformers = modules()
        torch.set_num_threads(options.threads or default_threads())
        loaded = load_folder(path, options.gpu_layers)
        self.device, self.dtype = loaded.device, loaded.dtype
        trained = getattr(loaded.config, "max_position_embeddings", None)
        known = isinstance(trained, int) and trained > 0
        self.context = self._context_for(trained if known else None)
        self._embeddings: Any = loaded.model.get_input_embeddings()
        self._parameters = sum(weight.numel() for weight in loaded.model.parameters())
        self._weights = Weights(torch, loaded.model, loaded.config)
        size = getattr(loaded.config, "vocab_size", None)
        if not isinstance(size, int) or size < 1:
            raise ModelError(f"{str(path)!r} does not say how many ids it has.")

        def new() -> TorchCache:
            return TorchCache(self._weights, room=MEMORY // options.slots)

        with quiet(transformers):
            self.hidden_size, self._abilities, self._checkpoints = try_out(
                new, size, slots=options.slots, engine=self.engine, where=str(path)
            )
        self._tokenizer = HubTokenizer(path, size=size)
        self._open_slots(new)

    @property
    def parameters(self) -> int:
        return self._parameters

    @property
    def build(self) -> str:
        return f"transformers, {self.dtype} on {self.device}"

    def fingerprint(self) -> str:
        return digest_of([self.path / "config.json", *weight_files(self.path)])

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

    def _free(self) -> None:
        self._weights.close()
        del self._embeddings
