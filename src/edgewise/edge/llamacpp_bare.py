"""llama.cpp driven bare: what a decoding loop over it is measured against."""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from edgewise.edge.binding import llama_cpp
from edgewise.edge.llamacpp_load import BATCH


def bare_loop(context: Any, size: int, prompt: Sequence[int], tokens: int) -> float:
    """Tokens a second of decode and argmax over `size` logits, in sequence 0; embeddings off."""
    memory = llama_cpp.llama_get_memory(context)
    llama_cpp.llama_memory_seq_rm(memory, 0, -1, -1)
    llama_cpp.llama_set_embeddings(context, False)
    batch = llama_cpp.llama_batch_init(BATCH, 0, 1)
    logits = _decode(context, batch, prompt, 0)
    begun = time.perf_counter()
    for position in range(len(prompt), len(prompt) + tokens):
        token = int(np.ctypeslib.as_array(logits, (size,)).argmax())
        logits = _decode(context, batch, [token], position)
    seconds = time.perf_counter() - begun
    llama_cpp.llama_batch_free(batch)
    llama_cpp.llama_memory_seq_rm(memory, 0, -1, -1)
    return tokens / seconds


def _decode(context: Any, batch: Any, ids: Sequence[int], start: int) -> Any:
    for at in range(0, len(ids), BATCH):
        part = ids[at : at + BATCH]
        batch.n_tokens = len(part)
        for index, token in enumerate(part):
            batch.token[index] = token
            batch.pos[index] = start + at + index
            batch.n_seq_id[index] = 1
            batch.seq_id[index][0] = 0
            batch.logits[index] = index == len(part) - 1
        if llama_cpp.llama_decode(context, batch):
            raise RuntimeError("the bare loop could not decode")
    return llama_cpp.llama_get_logits_ith(context, -1)
