"""`LlamaModel`: edge models on llama.cpp, through its C API.

One llama.cpp context serves every session of a model; a session is a llama.cpp sequence. A decode
yields logits and the post-final-norm hidden state together. A prompt is prefilled without logits
and hidden states, except for its last id. Recurrent and hybrid models roll back to checkpoints.
"""

import ctypes
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from edgewise.addresses import resolve
from edgewise.edge.base import EdgeAbilities, EdgeOptions
from edgewise.edge.engine import EngineModel
from edgewise.edge.files import fingerprint_of
from edgewise.edge.llamacpp.cache import LlamaContext, LlamaSequence, examine
from edgewise.edge.llamacpp.library import llama_cpp
from edgewise.edge.llamacpp.load import load_weights, new_context
from edgewise.edge.llamacpp.passes import SharedSlots
from edgewise.edge.llamacpp.tokenizer import LlamaTokenizer
from edgewise.edge.threads import Threads, default_threads
from edgewise.errors import ModelError

_SAMPLING = {
    "temperature": b"general.sampling.temp",
    "top_k": b"general.sampling.top_k",
    "top_p": b"general.sampling.top_p",
    "min_p": b"general.sampling.min_p",
}


def _sampling(model: Any) -> Mapping[str, float]:
    """Return the sampling settings in a GGUF's metadata (`general.sampling.*`) that are numbers."""
    found: dict[str, float] = {}
    text = ctypes.create_string_buffer(64)
    for name, key in _SAMPLING.items():
        if llama_cpp.llama_model_meta_val_str(model, key, text, len(text)) > 0:
            with suppress(ValueError):
                found[name] = float(text.value)
    return found


class LlamaModel(EngineModel):
    """A GGUF model run by llama.cpp in this process. Keyword arguments are `EdgeOptions` fields."""

    engine = "llama.cpp"
    kind_of_slots = SharedSlots

    def _located(self, address: str) -> tuple[Path, str]:
        path = resolve(address, "edge")
        if path.suffix == ".gguf":
            return path, path.stem
        # Ollama and the hub's cache name files after their hashes.
        return path, path.name if path.name == Path(address).name else address

    def _load(self, options: EdgeOptions) -> None:
        self.threads = options.threads or default_threads()
        self._model = load_weights(self.path, options.gpu_layers)
        try:
            self._prepare(options)
        except BaseException:
            llama_cpp.llama_model_free(self._model)
            raise

    def _prepare(self, options: EdgeOptions) -> None:
        trained = llama_cpp.llama_model_n_ctx_train(self._model)
        if trained < 1:
            raise ModelError(f"{str(self.path)!r} declares a context of {trained} tokens.")
        self.context = self._context_for(trained)
        self.hidden_size = int(llama_cpp.llama_model_n_embd(self._model))
        self.parameters = int(llama_cpp.llama_model_n_params(self._model))
        description = ctypes.create_string_buffer(256)
        llama_cpp.llama_model_desc(self._model, description, len(description))
        # Architecture, size, and the type of the weights: "qwen2 0.5B Q4_K - Medium".
        form = description.value.decode("utf-8", "replace").split(" ", 2)[-1]
        self.build = f"llama.cpp, {form}"
        self.sampling = _sampling(self._model)
        self.tokenizer = LlamaTokenizer(self._model)
        self._context = context = self.new_context(options.slots)
        try:
            self.state_size, hidden = examine(context) if context.recurrent else (0, True)
        except BaseException:
            context.close()
            raise
        self._open_slots([LlamaSequence(context, number) for number in range(options.slots)])
        self.abilities = EdgeAbilities(
            hidden=hidden,
            rewinds="checkpoints" if context.recurrent else "anywhere",
            slots=options.slots,
        )

    def fingerprint(self) -> str:
        return fingerprint_of(self.path)

    def _free(self) -> None:
        self._context.close()
        self.tokenizer.close()
        # Last: both of them use its memory.
        llama_cpp.llama_model_free(self._model)

    def new_context(self, sequences: int) -> LlamaContext:
        """Create a llama.cpp context for `sequences` sequences; close it before the model."""
        # Found by each context for itself: they may run at the same time.
        threads = self._options.threads or Threads(self.threads)
        return new_context(
            self._model, self.path, context=self.context, sequences=sequences, threads=threads
        )
