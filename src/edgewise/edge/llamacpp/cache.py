"""A llama.cpp context, its batch, and its sequences: the caches of sessions."""

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgewise.edge.base import Floats, Ids
from edgewise.edge.kv import BATCH
from edgewise.edge.llamacpp.library import llama_cpp
from edgewise.edge.sequence import MEMORY, MOST, KvRow, Outputs, SequenceCache, StateCopy
from edgewise.errors import ModelError

Bytes = NDArray[np.uint8]

_PARTIAL = 1  # llama.h: LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY, what cannot be cut


class LlamaContext:
    """Owns a context of llama.cpp, and room for the ids of a decode.

    `decodes` counts: rows are valid until the next one.
    """

    def __init__(
        self, handle: Any, *, vocabulary: int, hidden_size: int, recurrent: bool = False
    ) -> None:
        """`recurrent` where layers hold one state, that after the last id."""
        self.handle = handle
        self.decodes = 0
        self.recurrent = recurrent
        self._memory = llama_cpp.llama_get_memory(handle)
        self._logits, self._hidden = _View(vocabulary), _View(hidden_size)
        self._batch = llama_cpp.llama_batch_init(BATCH, 0, 1)
        for index in range(BATCH):
            self._batch.n_seq_id[index] = 1
        as_array = np.ctypeslib.as_array
        self._tokens: Ids = as_array(self._batch.token, (BATCH,))
        self._positions: Ids = as_array(self._batch.pos, (BATCH,))
        self._wanted: NDArray[np.int8] = as_array(self._batch.logits, (BATCH,))

    def put(
        self,
        sequence: int,
        ids: Sequence[int],
        start: int,
        *,
        every: bool = False,
        last: bool = False,
        at: int = 0,
    ) -> int:
        """Ids of the next decode from position `start` on, with rows of `every` one, or the `last`.

        The batch ends with them, behind `at` ids that were put before. Returns the last's index.
        """
        end = self._batch.n_tokens = at + len(ids)
        for index in range(at, end):
            self._batch.seq_id[index][0] = sequence
        if len(ids) == 1:
            self._tokens[at], self._positions[at] = ids[0], start
        else:
            self._tokens[at:end] = ids
            self._positions[at:end] = np.arange(start, start + len(ids))
        self._wanted[at:end] = every
        self._wanted[end - 1] = every or last
        return end - 1

    def decode(self, *, hidden: bool) -> None:
        """Run what was put, with hidden states if wanted. Raises `ModelError`."""
        llama_cpp.llama_set_embeddings(self.handle, hidden)
        self.decodes += 1
        code = llama_cpp.llama_decode(self.handle, self._batch)
        if code != 0:
            raise ModelError(
                f"llama.cpp could not decode {self._batch.n_tokens} tokens (code {code})",
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

    def clear(self, sequence: int) -> None:
        """Drop all ids of a sequence."""
        llama_cpp.llama_memory_seq_rm(self._memory, sequence, -1, -1)

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
        # Views into it are stale from here on.
        self.decodes += 1
        llama_cpp.llama_batch_free(self._batch)
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


_CLOSE = 1e-2
"""How far logits with and without hidden states may lie apart, of the largest."""


class LlamaSequence(SequenceCache):
    """One sequence of a context. Rows are views, valid until the context's next decode."""

    spacing = 4

    def __init__(
        self,
        context: LlamaContext,
        number: int,
        *,
        idle: list[Bytes],
        room: int = MEMORY,
        most: int = MOST,
    ) -> None:
        """`idle` are buffers to use again: a copy into fresh memory takes many times as long."""
        self._context, self._number, self._idle = context, number, idle
        self.rewinds = "checkpoints" if context.recurrent else "anywhere"
        super().__init__(room=room, most=most)

    @property
    def decodes(self) -> int:
        return self._context.decodes

    def _begin(self) -> None:
        self._context.clear(self._number)

    def _compute(self, ids: Sequence[int], outputs: Outputs, *, hidden: bool) -> Sequence[KvRow]:
        context, every = self._context, outputs == "all"
        last = context.put(self._number, ids, self.length, every=every, last=outputs == "last")
        context.decode(hidden=hidden)
        if outputs == "none":
            return ()
        if not every:
            return (context.row(last, hidden=hidden),)
        return [context.row(index, hidden=hidden) for index in range(last + 1)]

    def _failed(self) -> None:
        # What was computed before stays: a Ctrl-C costs no prompt.
        start = self.length
        self.count()
        self.back(start)

    def count(self) -> None:
        """Know of ids that were computed by others than `run`."""
        self.length = max(self.length, self._context.length(self._number))

    def _size(self) -> int:
        return self._context.state_size(self._number)

    def _copy(self) -> StateCopy:
        size = self._size()
        buffer = self._buffer(size)
        if not self._context.save_state(self._number, buffer, size):
            self._idle.append(buffer)
            raise RuntimeError("llama.cpp did not copy its state")
        return StateCopy(buffer, size)

    def _buffer(self, size: int) -> Bytes:
        for index, buffer in enumerate(self._idle):
            if len(buffer) >= size:
                return self._idle.pop(index)
        if self._idle:
            self._idle.pop()
        return np.empty(size, np.uint8)

    def _reuse(self, state: Bytes) -> None:
        self._idle.append(state)

    def _back(self, count: int, state: Any | None) -> bool:
        position = self.length - count
        if state is None:
            return self._context.cut(self._number, position)
        size = self._copies[position].size
        return self._context.load_state(self._number, state, size, position)


def sequences_in(context: LlamaContext, count: int, *, most: int = MOST) -> list[LlamaSequence]:
    """All sequences of a context, which share the room for checkpoints."""
    idle: list[Bytes] = []
    return [
        LlamaSequence(context, number, idle=idle, room=MEMORY // count, most=most)
        for number in range(count)
    ]


def examine(context: LlamaContext) -> tuple[int, bool]:
    """Run a few ids through a recurrent model. The context is empty before and after.

    Returns the bytes of a checkpoint, and whether it hands out hidden states: llama.cpp leaves the
    head out of some hybrids (LFM2) when it does, and in the place of the logits stands what an
    earlier decode left there. Raises `ModelError`.
    """
    rows: list[Floats] = []
    for token, hidden in ((0, False), (1, False), (0, True)):
        context.clear(0)
        context.put(0, [token], 0, last=True)
        context.decode(hidden=hidden)
        rows.append(context.row(0, hidden=False).logits.copy())
    state = context.state_size(0)
    context.clear(0)
    plain, _, beside = rows
    right = np.allclose(beside, plain, rtol=0, atol=_CLOSE * float(np.abs(plain).max()))
    return state, bool(right)
