"""A GGUF model in llama.cpp, greedily decoded one id at a time: all that the pilot needs."""

from __future__ import annotations

import ctypes
from pathlib import Path

import llama_cpp
import numpy as np

CONTEXT = 512


class Engine:
    """One model and one sequence; `feed` returns the logits that follow the last id."""

    def __init__(self, path: Path, threads: int = 1) -> None:
        llama_cpp.llama_backend_init()
        self._silence = llama_cpp.llama_log_callback(lambda level, text, data: None)
        llama_cpp.llama_log_set(self._silence, ctypes.c_void_p(0))
        params = llama_cpp.llama_model_default_params()
        params.n_gpu_layers = 0
        self.model = llama_cpp.llama_model_load_from_file(str(path).encode(), params)
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)
        self.size = llama_cpp.llama_vocab_n_tokens(self.vocab)
        self.end = llama_cpp.llama_vocab_eos(self.vocab)
        options = llama_cpp.llama_context_default_params()
        options.n_ctx = options.n_batch = options.n_ubatch = CONTEXT
        options.n_threads = options.n_threads_batch = threads
        self.context = llama_cpp.llama_init_from_model(self.model, options)
        self.memory = llama_cpp.llama_get_memory(self.context)

    def reset(self) -> None:
        llama_cpp.llama_memory_clear(self.memory, True)

    def feed(self, ids: list[int]) -> np.ndarray:
        """Append ids; return a copy of the last logits, float32[vocab]."""
        array = (llama_cpp.llama_token * len(ids))(*ids)
        batch = llama_cpp.llama_batch_get_one(array, len(ids))
        if llama_cpp.llama_decode(self.context, batch):
            raise RuntimeError("llama_decode failed")
        logits = llama_cpp.llama_get_logits_ith(self.context, -1)
        return np.ctypeslib.as_array(logits, (self.size,)).copy()

    def tokenize(self, text: str) -> list[int]:
        """The ids of `text`, with special tokens read as such and none added."""
        raw = text.encode()
        ids = (llama_cpp.llama_token * (len(raw) + 8))()
        count = llama_cpp.llama_tokenize(
            self.vocab, raw, len(raw), ids, len(ids), False, True
        )
        return list(ids[:count])

    def text(self, ids: list[int]) -> str:
        return b"".join(map(self._piece, ids)).decode(errors="replace")

    def _piece(self, token: int) -> bytes:
        buffer = ctypes.create_string_buffer(64)
        size = llama_cpp.llama_token_to_piece(self.vocab, token, buffer, len(buffer), 0, False)
        return buffer.raw[:size]
