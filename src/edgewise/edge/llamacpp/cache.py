"""`LlamaContext` and `LlamaSequence`: a llama.cpp context, and the KV caches of its sequences."""

import ctypes
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgewise.edge.base import Floats, Ids
from edgewise.edge.kv import BATCH
from edgewise.edge.llamacpp.library import llama_cpp
from edgewise.edge.sequence import MEMORY, KvRow, Outputs, SequenceCache, alike
from edgewise.edge.threads import Threads
from edgewise.errors import ModelError

Bytes = NDArray[np.uint8]

_PARTIAL = 1  # llama.h: LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY, what cannot be cut


class LlamaContext:
    """A llama.cpp context (`handle`), which `close` frees, and the batch for its next decode.

    `decodes` counts decodes; the outputs of one are valid until the next. `recurrent`: some layers
    hold only the state after the last id, so rollbacks need checkpoints, copies of that state.
    `room` is the most bytes of one sequence's checkpoints. `idle` has buffers for new checkpoints.
    """

    def __init__(
        self, handle: Any, model: Any, *, sequences: int, threads: Threads | None = None
    ) -> None:
        """Own `handle`, a context of `model`. `threads`, if given, chooses those of each decode."""
        self.handle, self._threads = handle, threads
        self.decodes = 0
        self.recurrent = bool(
            llama_cpp.llama_model_is_recurrent(model) or llama_cpp.llama_model_is_hybrid(model)
        )
        self.memory = llama_cpp.llama_get_memory(handle)
        self.room = MEMORY // sequences
        # For the next checkpoints: a copy into fresh memory takes many times as long.
        self.idle: list[Bytes] = []
        vocabulary = llama_cpp.llama_model_get_vocab(model)
        self._logits = _View(llama_cpp.llama_vocab_n_tokens(vocabulary))
        self._hidden = _View(llama_cpp.llama_model_n_embd(model))
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
        """Put `ids` of sequence number `sequence` into the batch, the first at position `start`.

        The batch keeps its first `at` ids, and drops the others. Outputs are computed for each of
        `ids` with `every`, for the last with `last`, else for none. Returns the last id's index in
        the batch.
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
        """Run the batch, with hidden states if `hidden`. Raises `ModelError` if llama.cpp fails."""
        llama_cpp.llama_set_embeddings(self.handle, hidden)
        # Before it, as a pass that fails may have overwritten the views, too.
        self.decodes += 1
        count, ids = 0, self._batch.n_tokens
        if self._threads is not None:
            count = self._threads.of(ids)
            llama_cpp.llama_set_n_threads(self.handle, count, count)
        begun = time.perf_counter()
        code = llama_cpp.llama_decode(self.handle, self._batch)
        if self._threads is not None:
            self._threads.took(ids, count, time.perf_counter() - begun)
        if code != 0:
            raise ModelError(
                f"llama.cpp could not decode {self._batch.n_tokens} tokens (code {code})",
                hint="lower the context or the number of slots if memory is short",
                setting="ctx",
            )

    def row(self, index: int, *, hidden: bool) -> KvRow:
        """Return the output of the decoded batch's id at `index`, which `put` must have asked for.

        It consists of views into llama.cpp's memory, which are valid until the next decode.
        """
        logits = self._logits.at(llama_cpp.llama_get_logits_ith(self.handle, index))
        if not hidden:
            return KvRow(logits)
        state = self._hidden.at(llama_cpp.llama_get_embeddings_ith(self.handle, index))
        return KvRow(logits, state)

    def close(self) -> None:
        # Views into it are stale from here on.
        self.decodes += 1
        llama_cpp.llama_batch_free(self._batch)
        llama_cpp.llama_free(self.handle)


def _pointer(buffer: Bytes) -> Any:
    return buffer.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))


class _View:
    """The engine's floats as an array."""

    def __init__(self, size: int) -> None:
        self._size, self._address = size, 0
        self._array: Floats = np.empty(0, np.float32)

    def at(self, pointer: Any) -> Floats:
        # They mostly stay where they are, and to wrap them anew costs time with every token.
        address = ctypes.addressof(pointer.contents)
        if address != self._address:
            self._array = np.ctypeslib.as_array(pointer, (self._size,))
            self._address = address
        return self._array


class LlamaSequence(SequenceCache):
    """A llama.cpp sequence's KV cache. `run` returns rows valid until the context's next decode."""

    spacing = 4

    def __init__(self, context: LlamaContext, number: int) -> None:
        """`number` is the sequence's number in the context, from 0."""
        self._context, self._number = context, number
        self.rewinds = "checkpoints" if context.recurrent else "anywhere"
        super().__init__(room=context.room)

    @property
    def decodes(self) -> int:
        return self._context.decodes

    def _begin(self) -> None:
        llama_cpp.llama_memory_seq_rm(self._context.memory, self._number, -1, -1)

    def _compute(self, ids: Sequence[int], outputs: Outputs, *, hidden: bool) -> Sequence[KvRow]:
        return self._computed([(self, ids, outputs)], hidden=hidden)[0]

    @staticmethod
    def run_together(
        runs: Sequence[tuple["LlamaSequence", Sequence[int], Outputs]], *, hidden: bool
    ) -> list[Sequence[KvRow]]:
        """Run several sequences of one context in a single pass; return the rows of each.

        A run is (sequence, new ids, which ids get a row: "none", "last" or "all"). Runs sorted by
        sequence number are fastest. If the pass raises, no sequence keeps its new ids.
        """
        for sequence, _, _ in runs:
            sequence.space()
        try:
            made = LlamaSequence._computed(runs, hidden=hidden)
        except BaseException:
            for sequence, ids, _ in runs:
                sequence._failed(ids)
            raise
        for sequence, ids, _ in runs:
            sequence.ids += ids
        return made

    @staticmethod
    def _computed(
        runs: Sequence[tuple["LlamaSequence", Sequence[int], Outputs]], *, hidden: bool
    ) -> list[Sequence[KvRow]]:
        context, lasts, at = runs[0][0]._context, list[int](), 0
        for sequence, ids, outputs in runs:
            every, last = outputs == "all", outputs == "last"
            start = sequence.length
            at = 1 + context.put(sequence._number, ids, start, every=every, last=last, at=at)
            lasts.append(at - 1)
        context.decode(hidden=hidden)
        made: list[Sequence[KvRow]] = []
        for last, (_, ids, outputs) in zip(lasts, runs, strict=True):
            count = {"none": 0, "last": 1, "all": len(ids)}[outputs]
            made.append([context.row(last - i, hidden=hidden) for i in reversed(range(count))])
        return made

    def _failed(self, ids: Sequence[int]) -> None:
        # What was computed before stays: a Ctrl-C costs no prompt.
        start = self.length
        self.ids += ids[: max(0, self._held() - start)]
        self.back(start)

    def _held(self) -> int:
        return llama_cpp.llama_memory_seq_pos_max(self._context.memory, self._number) + 1

    @property
    def state_size(self) -> int:
        return llama_cpp.llama_state_seq_get_size_ext(self._context.handle, self._number, _PARTIAL)

    def _copy(self) -> Bytes:
        size = self.state_size
        buffer = self._buffer(size)[:size]
        if size != llama_cpp.llama_state_seq_get_data_ext(
            self._context.handle, _pointer(buffer), size, self._number, _PARTIAL
        ):
            self._reuse(buffer)
            raise RuntimeError("llama.cpp did not copy its state")
        return buffer

    def _buffer(self, size: int) -> Bytes:
        idle = self._context.idle
        for index, buffer in enumerate(idle):
            if len(buffer) >= size:
                return idle.pop(index)
        # Too small: one is let go for each that is made, so that their number stays.
        if idle:
            idle.pop()
        return np.empty(size, np.uint8)

    def _reuse(self, state: Bytes) -> None:
        self._context.idle.append(state)

    def _back(self, count: int, state: Bytes | None) -> bool:
        position, context = self.length - count, self._context
        if state is not None and len(state) != llama_cpp.llama_state_seq_set_data_ext(
            context.handle, _pointer(state), len(state), self._number, _PARTIAL
        ):
            return False
        # After it, never before: a cut is refused while the later state stands.
        removed = llama_cpp.llama_memory_seq_rm(context.memory, self._number, position, -1)
        # It is asked, since some models keep less than was to be kept.
        return bool(removed) and self._held() == position


def examine(context: LlamaContext) -> tuple[int, bool]:
    """Run a few ids through a recurrent model; return (bytes of a checkpoint, hidden).

    `hidden` is whether the model returns correct logits together with hidden states. The context
    must be empty, and is empty afterwards. Raises `ModelError` if a decode fails.
    """
    sequence, rows = LlamaSequence(context, 0), list[Floats]()
    # For some hybrids (LFM2) llama.cpp leaves the head out where hidden states are asked for, and
    # returns the logits of an earlier decode: here those of another id.
    for token, hidden in ((0, False), (1, False), (0, True)):
        sequence.clear()
        (row,) = sequence.run([token], "last", hidden=hidden)
        rows.append(row.logits.copy())
    state = sequence.state_size
    sequence.clear()
    return state, alike(rows[0], rows[2])
