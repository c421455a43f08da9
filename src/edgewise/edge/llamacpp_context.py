"""A llama.cpp context and its batch: decodes, rows, and going back."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgewise.edge.base import Ids
from edgewise.edge.binding import llama_cpp
from edgewise.edge.kv import KvRow
from edgewise.edge.llamacpp_load import BATCH
from edgewise.errors import ModelError


class LlamaContext:
    """Owns a context of llama.cpp. `decodes` counts: rows are valid until the next one."""

    def __init__(self, handle: Any, *, vocabulary: int, hidden_size: int) -> None:
        self.handle = handle
        self.decodes = 0
        self._memory = llama_cpp.llama_get_memory(handle)
        self._vocabulary, self._hidden_size = vocabulary, hidden_size

    def decode(self, batch: "LlamaBatch", *, hidden: bool) -> None:
        """Run a batch, with hidden states if wanted. Raises `ModelError`."""
        llama_cpp.llama_set_embeddings(self.handle, hidden)
        self.decodes += 1
        code = llama_cpp.llama_decode(self.handle, batch.struct)
        if code != 0:
            raise ModelError(
                f"llama.cpp could not decode {batch.struct.n_tokens} tokens (code {code})",
                hint="lower the context or the number of slots if memory is short",
                setting="ctx",
            )

    def row(self, index: int, *, hidden: bool) -> KvRow:
        """What the last decode says after the batch's id `index`."""
        logits = llama_cpp.llama_get_logits_ith(self.handle, index)
        row = np.ctypeslib.as_array(logits, (self._vocabulary,))
        if not hidden:
            return KvRow(row)
        pointer = llama_cpp.llama_get_embeddings_ith(self.handle, index)
        return KvRow(row, np.ctypeslib.as_array(pointer, (self._hidden_size,)))

    def forget(self, sequence: int, position: int) -> int:
        """Drop a sequence's ids from `position` on, or all of them; returns how many are left."""
        if llama_cpp.llama_memory_seq_rm(self._memory, sequence, position, -1):
            return position
        # A recurrent model cannot forget its last ids only.
        llama_cpp.llama_memory_seq_rm(self._memory, sequence, -1, -1)
        return 0

    def close(self) -> None:
        llama_cpp.llama_free(self.handle)


class LlamaBatch:
    """Room for the ids of one decode."""

    def __init__(self) -> None:
        self.struct = llama_cpp.llama_batch_init(BATCH, 0, 1)
        for index in range(BATCH):
            self.struct.n_seq_id[index] = 1
        as_array = np.ctypeslib.as_array
        self._tokens: Ids = as_array(self.struct.token, (BATCH,))
        self._positions: Ids = as_array(self.struct.pos, (BATCH,))
        self._wanted: NDArray[np.int8] = as_array(self.struct.logits, (BATCH,))
        self._count = 0

    def belong_to(self, sequence: int) -> None:
        """Every id put from now on is of one sequence."""
        for index in range(BATCH):
            self.struct.seq_id[index][0] = sequence

    def clear(self) -> None:
        """Begin anew."""
        self._count = 0

    def put(self, ids: Sequence[int], start: int, *, every: bool, last: bool) -> int:
        """Add ids from position `start` on, with outputs of `every` one, or of the `last`.

        Returns the index of the last.
        """
        at, count = self._count, len(ids)
        end = self._count = self.struct.n_tokens = at + count
        self._tokens[at:end] = ids
        self._positions[at:end] = np.arange(start, start + count)
        self._wanted[at:end] = every
        if last:
            self._wanted[end - 1] = True
        return end - 1

    def put_of(self, sequence: int, ids: Sequence[int], start: int, *, last: bool) -> int:
        """As `put`, for a batch of several sequences."""
        for index in range(self._count, self._count + len(ids)):
            self.struct.seq_id[index][0] = sequence
        return self.put(ids, start, every=False, last=last)

    def close(self) -> None:
        llama_cpp.llama_batch_free(self.struct)
