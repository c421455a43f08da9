"""A llama.cpp context and its batch: decodes, rows, cuts, and copies of a sequence's state."""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgewise.edge.base import Floats, Ids
from edgewise.edge.kv import KvRow
from edgewise.edge.llamacpp.library import llama_cpp
from edgewise.edge.slots import BATCH
from edgewise.errors import ModelError

Bytes = NDArray[np.uint8]

_PARTIAL = 1  # llama.h: LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY, what cannot be cut


class LlamaContext:
    """Owns a context of llama.cpp. `decodes` counts: rows are valid until the next one."""

    def __init__(
        self, handle: Any, *, vocabulary: int, hidden_size: int, recurrent: bool = False
    ) -> None:
        """`recurrent` where layers hold one state, that after the last id."""
        self.handle = handle
        self.decodes = 0
        self.recurrent = recurrent
        self._memory = llama_cpp.llama_get_memory(handle)
        self._logits, self._hidden = _View(vocabulary), _View(hidden_size)

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
        logits = self._logits.at(llama_cpp.llama_get_logits_ith(self.handle, index))
        if not hidden:
            return KvRow(logits)
        state = self._hidden.at(llama_cpp.llama_get_embeddings_ith(self.handle, index))
        return KvRow(logits, state)

    def forget(self, sequence: int, position: int) -> int:
        """Drop a sequence's ids from `position` on, or all of them; returns how many are left."""
        if self.cut(sequence, position):
            return position
        llama_cpp.llama_memory_seq_rm(self._memory, sequence, -1, -1)
        return 0

    def cut(self, sequence: int, position: int) -> bool:
        """Drop a sequence's ids from `position` on; False where that cannot be done."""
        if self.recurrent and self.length(sequence) > position:
            return False
        return bool(llama_cpp.llama_memory_seq_rm(self._memory, sequence, position, -1))

    def length(self, sequence: int) -> int:
        """How many ids a sequence holds."""
        return llama_cpp.llama_memory_seq_pos_max(self._memory, sequence) + 1

    def state_size(self, sequence: int) -> int:
        """Bytes of what `save_state` would copy."""
        return llama_cpp.llama_state_seq_get_size_ext(self.handle, sequence, _PARTIAL)

    def save_state(self, sequence: int, buffer: Bytes, size: int) -> bool:
        """Copy what cannot be cut of a sequence, `size` bytes; whether that was done."""
        return size == llama_cpp.llama_state_seq_get_data_ext(
            self.handle, _pointer(buffer), size, sequence, _PARTIAL
        )

    def load_state(self, sequence: int, buffer: Bytes, size: int, position: int) -> bool:
        """Go back to a state that was saved at `position`; False where only `forget` is left."""
        read = llama_cpp.llama_state_seq_set_data_ext(
            self.handle, _pointer(buffer), size, sequence, _PARTIAL
        )
        # After it, never before: a cut is refused while the later state stands.
        return (
            read == size
            and bool(llama_cpp.llama_memory_seq_rm(self._memory, sequence, position, -1))
            and self.length(sequence) == position
        )

    def close(self) -> None:
        llama_cpp.llama_free(self.handle)


def _pointer(buffer: Bytes) -> Any:
    return buffer.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))


class _View:
    """The engine's floats as an array, made anew only where they lie elsewhere than before."""

    def __init__(self, size: int) -> None:
        self._size, self._address = size, 0
        self._array: Floats = np.empty(0, np.float32)

    def at(self, pointer: Any) -> Floats:
        address = ctypes.addressof(pointer.contents)
        if address != self._address:
            self._array = np.ctypeslib.as_array(pointer, (self._size,))
            self._address = address
        return self._array


class LlamaBatch:
    """Room for the ids of one decode, of `sequence` unless `put_of` says otherwise."""

    def __init__(self, sequence: int = 0) -> None:
        self.struct = llama_cpp.llama_batch_init(BATCH, 0, 1)
        for index in range(BATCH):
            self.struct.n_seq_id[index] = 1
            self.struct.seq_id[index][0] = sequence
        as_array = np.ctypeslib.as_array
        self._tokens: Ids = as_array(self.struct.token, (BATCH,))
        self._positions: Ids = as_array(self.struct.pos, (BATCH,))
        self._wanted: NDArray[np.int8] = as_array(self.struct.logits, (BATCH,))
        self._count = 0

    def clear(self) -> None:
        """Begin anew with `put_of`."""
        self._count = 0

    def put(self, ids: Sequence[int], start: int, *, every: bool, last: bool, at: int = 0) -> int:
        """Ids from position `start` on, with outputs of `every` one, or of the `last`.

        The batch has nothing else behind the index `at`. Returns the index of the last.
        """
        count = len(ids)
        end = self.struct.n_tokens = at + count
        if count == 1:
            self._tokens[at], self._positions[at] = ids[0], start
            self._wanted[at] = every or last
            return at
        self._tokens[at:end] = ids
        self._positions[at:end] = np.arange(start, start + count)
        self._wanted[at:end] = every
        if last:
            self._wanted[end - 1] = True
        return end - 1

    def put_of(self, sequence: int, ids: Sequence[int], start: int, *, last: bool) -> int:
        """As `put`, behind the ids that the batch has, of whichever sequence."""
        at, self._count = self._count, self._count + len(ids)
        for index in range(at, self._count):
            self.struct.seq_id[index][0] = sequence
        return self.put(ids, start, every=False, last=last, at=at)

    def close(self) -> None:
        llama_cpp.llama_batch_free(self.struct)
