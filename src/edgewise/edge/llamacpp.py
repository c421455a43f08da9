"""Edge models on llama.cpp, through the calls of its C API.

One context serves every session of a model: a session is a llama.cpp sequence. A decode yields
logits and the post-final-norm hidden state together; a prompt is prefilled without hidden states
(and so without the head), its last id with them. Recurrent and hybrid models go back to marks.
"""

import ctypes
import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np

from edgewise.addresses import resolve
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
from edgewise.edge.binding import llama_cpp
from edgewise.edge.kv import KvSession
from edgewise.edge.llamacpp_bare import bare_loop
from edgewise.edge.llamacpp_context import LlamaContext
from edgewise.edge.llamacpp_load import BATCH, default_threads, load_weights, new_context
from edgewise.edge.llamacpp_marks import how_many
from edgewise.edge.llamacpp_recurrent import Recurrence, examine
from edgewise.edge.llamacpp_sequence import LlamaSlot, LlamaSlots
from edgewise.edge.llamacpp_sequences import LlamaSequences, width_for
from edgewise.edge.llamacpp_vocab import LlamaTokenizer
from edgewise.errors import ModelError, UsageError

_SAMPLED_BLOCKS, _BLOCK_BYTES = 64, 65536
_EMBEDDINGS = "token_embd.weight"


def open_gguf(address: str, options: EdgeOptions) -> "LlamaModel":
    """The edge engine `llamacpp`: a GGUF by its address, downloaded if need be."""
    return LlamaModel(resolve(address, "edge"), **msgspec.structs.asdict(options))


class LlamaModel(EdgeModel):
    """A GGUF model. Implements `EdgeModel`."""

    def __init__(
        self,
        path: Path,
        *,
        context: int | None = None,
        threads: int | None = None,
        gpu_layers: int | Literal["auto"] = "auto",
        slots: int = 1,
        keep_prefixes: bool = False,
        swa_full: bool = True,
    ) -> None:
        """Load `path`; see `EdgeOptions`. The default context is the model's own, at most 4096.

        Without `swa_full` layers with a sliding window hold little more than the window: less
        memory, and sessions that go far back read again. Raises `ModelError` or `UsageError`.
        """
        if slots < 1 or (context is not None and context < 1):
            raise UsageError("A model needs at least 1 slot and a context of at least 1 token.")
        self.path = path
        self.name = path.stem
        self.threads = threads or default_threads()
        self._model = load_weights(path, gpu_layers)
        try:
            if not llama_cpp.llama_model_n_swa(self._model):
                require_full_windows(self.name, "it has no such layers", swa_full=swa_full)
            trained = llama_cpp.llama_model_n_ctx_train(self._model)
            if trained < 1:
                raise ModelError(f"{str(path)!r} says of itself that it holds {trained} tokens.")
            self.context = context_for(self.name, context, trained)
            self.hidden_size = int(llama_cpp.llama_model_n_embd(self._model))
            self._tokenizer = LlamaTokenizer(self._model)
            self._swa_full = swa_full
            made = self._new_context(slots)
            try:
                marked = made.recurrent or made.window > 0
                self._recurrence = examine(made) if marked else Recurrence()
            except BaseException:
                made.close()
                raise
            self._slots = LlamaSlots(
                made,
                name=self.name,
                batch=min(BATCH, self.context),
                count=slots,
                keep_prefixes=keep_prefixes,
            )
        except BaseException:
            llama_cpp.llama_model_free(self._model)
            raise
        self._abilities = EdgeAbilities(
            hidden=self._recurrence.hidden,
            rewinds="marks" if marked else "anywhere",
            slots=slots,
        )

    @property
    def tokenizer(self) -> LlamaTokenizer:
        return self._tokenizer

    @property
    def abilities(self) -> EdgeAbilities:
        return self._abilities

    @property
    def parameters(self) -> int:
        return int(llama_cpp.llama_model_n_params(self._model))

    @property
    def marks(self) -> Marks | None:
        if self.abilities.rewinds != "marks":
            return None
        size = self._recurrence.state
        return Marks(how_many(size, self.abilities.slots), size)

    @property
    def closed(self) -> bool:
        """Whether the weights are gone."""
        return self._slots.closed

    @property
    def build(self) -> str:
        if self.closed:
            return "llama.cpp"
        room = ctypes.create_string_buffer(256)
        llama_cpp.llama_model_desc(self._model, room, len(room))
        # Architecture, size, and the type of the weights: "qwen2 0.5B Q4_K - Medium".
        return f"llama.cpp, {room.value.decode('utf-8', 'replace').split(' ', 2)[-1]}"

    def session(self, needs: Needs = Needs.NOTHING, *, top: int = 0) -> KvSession:
        if self.abilities.slots > 1:
            # Another thread's session may decode before this one's step is read.
            needs |= Needs.LOGITS
        return KvSession(self, LlamaSlot(self._slots), needs, top)

    def sequences(self, width: int) -> LlamaSequences:
        width = width_for(width, self.context, self._recurrence.state)
        return LlamaSequences(
            self._new_context(width),
            width=width,
            longest=self.context,
            vocabulary=self.tokenizer.size,
        )

    def fingerprint(self) -> str:
        """SHA-256 over the file's length and 64 evenly spaced blocks of 64 KiB.

        Two quantisations or two trainings differ in every block of weights, and reading 4 MiB
        takes milliseconds where the whole file would take seconds.
        """
        size = self.path.stat().st_size
        digest = hashlib.sha256(str(size).encode())
        with self.path.open("rb") as file:
            last = max(size - _BLOCK_BYTES, 0)
            for index in range(_SAMPLED_BLOCKS):
                file.seek(last * index // (_SAMPLED_BLOCKS - 1))
                digest.update(file.read(_BLOCK_BYTES))
        return digest.hexdigest()

    def embeddings(self) -> Floats:
        try:
            import gguf
        except ImportError as error:
            raise UsageError(
                "Reading embeddings needs gguf", hint="pip install 'edgewise[lab]'"
            ) from error
        for tensor in gguf.GGUFReader(self.path).tensors:
            if tensor.name == _EMBEDDINGS:
                return np.asarray(gguf.dequantize(tensor.data, tensor.tensor_type), np.float32)
        raise UsageError(
            f"{self.name!r} has no tensor {_EMBEDDINGS}",
            hint="leave the input token_embedding out",
            setting="inputs",
        )

    def bare_loop(self, prompt: Sequence[int], tokens: int) -> Iterator[int]:
        return bare_loop(self._slots, prompt, tokens)

    def close(self) -> None:
        """Free weights and caches; sessions of the model are unusable afterwards."""
        if self._slots.close():
            self._tokenizer.close()
            llama_cpp.llama_model_free(self._model)

    def __enter__(self) -> "LlamaModel":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _new_context(self, sequences: int) -> LlamaContext:
        handle = new_context(
            self._model,
            self.path,
            context=self.context,
            sequences=sequences,
            threads=self.threads,
            swa_full=self._swa_full,
        )
        kinds = (llama_cpp.llama_model_is_recurrent, llama_cpp.llama_model_is_hybrid)
        return LlamaContext(
            handle,
            vocabulary=self.tokenizer.size,
            hidden_size=self.hidden_size,
            recurrent=any(is_kind(self._model) for is_kind in kinds),
            window=0 if self._swa_full else llama_cpp.llama_model_n_swa(self._model),
        )
