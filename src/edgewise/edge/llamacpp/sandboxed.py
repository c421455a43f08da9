"""Load a GGUF file as an edge model would, in a child process that may be lost: see `sandbox`."""

import ctypes
import os
from pathlib import Path
from typing import Any

from edgewise.edge.base import PROBES
from edgewise.edge.llamacpp.context import LlamaBatch, LlamaContext
from edgewise.edge.llamacpp.library import llama_cpp
from edgewise.edge.llamacpp.load import new_context, open_weights
from edgewise.edge.llamacpp.tokenizer import LlamaTokenizer
from edgewise.errors import ModelError

CONTEXT = 16
"""Ids."""

LARGEST_RUN = 4 << 30
"""Bytes of the largest file that is asked for a token: a larger one may not fit in memory."""

_ROOM = 64


def load(path: bytes) -> bytes:
    """One byte where the file can be loaded; none where llama.cpp refuses it in words."""
    try:
        _load(Path(os.fsdecode(path)))
    except ModelError:
        return b""
    return b"1"


def _load(path: Path) -> None:
    model = open_weights(path, gpu_layers=0, repack=False)
    tokenizer = LlamaTokenizer(model)
    _write_every_piece(model, tokenizer.size)
    for text in (*PROBES, *tokenizer.special.values()):
        tokenizer.encode_prompt(text)
    handle = new_context(model, path, context=CONTEXT, sequences=1, threads=1)
    if path.stat().st_size <= LARGEST_RUN:
        width = int(llama_cpp.llama_model_n_embd(model))
        context = LlamaContext(handle, vocabulary=tokenizer.size, hidden_size=width)
        batch = LlamaBatch()
        batch.put([0, tokenizer.size - 1], 0, every=False, last=True)
        context.decode(batch, hidden=True)
        context.row(1, hidden=True)


def _write_every_piece(model: Any, size: int) -> None:
    """All at once: from Python one by one they take longer than the load."""
    vocabulary = llama_cpp.llama_model_get_vocab(model)
    ids = (llama_cpp.llama_token * size)(*range(size))
    text = (ctypes.c_char * (_ROOM * size))()
    llama_cpp.llama_detokenize(vocabulary, ids, size, text, len(text), False, True)
