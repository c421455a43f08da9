"""Edge models on transformers: any causal language model with safetensors, on any of its devices.

The extra `edgewise[transformers]`. Several times slower than llama.cpp on a CPU, and the same
weights to the last bit: for models that have no GGUF, and for GPUs of every make.
"""

from typing import Any

import numpy as np

from edgewise.addresses import resolve_folder
from edgewise.edge.base import EdgeOptions, Floats
from edgewise.edge.engine import EngineModel, default_threads
from edgewise.edge.hub.folder import DESCRIPTIONS
from edgewise.edge.hub.tokenizer import HubTokenizer
from edgewise.edge.sequence import MEMORY
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

    def _load(self, options: EdgeOptions) -> None:
        """A model is on one device as a whole: a GPU where there is one, or the CPU, in float32.

        With 0 GPU layers it is the CPU. `threads` are torch's, of this process.
        """
        torch, transformers = modules()
        torch.set_num_threads(options.threads or default_threads())
        loaded = load_folder(self.path, options.gpu_layers)
        self.device, self.dtype = loaded.device, loaded.dtype
        trained = getattr(loaded.config, "max_position_embeddings", None)
        known = isinstance(trained, int) and trained > 0
        self.context = self._context_for(trained if known else None)
        self._embeddings: Any = loaded.model.get_input_embeddings()
        self._parameters = sum(weight.numel() for weight in loaded.model.parameters())
        self._weights = Weights(torch, loaded.model, loaded.config)
        size = getattr(loaded.config, "vocab_size", None)
        if not isinstance(size, int) or size < 1:
            raise ModelError(f"{str(self.path)!r} does not say how many ids it has.")

        def new() -> TorchCache:
            return TorchCache(self._weights, room=MEMORY // options.slots)

        with quiet(transformers):
            self._try_out(new, size)
        self._tokenizer = HubTokenizer(self.path, size=size)
        self._open_slots(new)

    @property
    def parameters(self) -> int:
        return self._parameters

    @property
    def build(self) -> str:
        return f"transformers, {self.dtype} on {self.device}"

    def embeddings(self) -> Floats:
        return np.asarray(self._embeddings.weight.detach().float().cpu().numpy(), np.float32)

    def _free(self) -> None:
        self._weights.close()
        del self._embeddings
