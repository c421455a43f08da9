"""Edge models on llama.cpp, through the low-level calls of llama-cpp-python.

One context serves every session of a model: a session is a llama.cpp sequence. A decode yields
logits and the post-final-norm hidden state together; a prompt is prefilled without hidden states
(and so without the head), its last id with them.
"""

import ctypes
import hashlib
import os
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from edgewise.edge.base import Floats, Ids, Needs
from edgewise.edge.binding import llama_cpp
from edgewise.edge.fair_lock import FairLock
from edgewise.edge.kv import common_prefix
from edgewise.edge.llamacpp_vocab import LlamaTokenizer
from edgewise.edge.step import LogitsStep
from edgewise.errors import ContextOverflow, ModelError, UsageError

BATCH = 512
TURN = 64
_DEFAULT_CONTEXT = 4096
_SAMPLED_BLOCKS, _BLOCK_BYTES = 64, 65536
_ERROR = 4  # ggml.h: GGML_LOG_LEVEL_ERROR

_log_tail: deque[str] = deque(maxlen=20)


@llama_cpp.llama_log_callback
def _keep_log(level: int, text: bytes, _data: object) -> None:
    if level == _ERROR and text:
        _log_tail.append(text.decode("utf-8", "replace").strip())


def _engine_log() -> str:
    lines = [line for line in _log_tail if line]
    return lines[0] if lines else "no reason given"


class PrefixState(NamedTuple):
    """A saved KV cache: the ids it was computed from and llama.cpp's own serialisation."""

    ids: tuple[int, ...]
    data: NDArray[np.uint8]


def default_threads() -> int:
    """Cores this process may use, less one.

    A decode waits for its slowest thread, so one busy core makes a step that uses all of them
    several times slower; one core is left to the rest of the machine.
    """
    usable = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return max(1, (usable or 2) - 1)


class LlamaModel:
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
    ) -> None:
        """Load `path`.

        `context` is in ids per session (default: the model's own, at most 4096); `slots` is the
        number of sessions that may be open at once. With `keep_prefixes` a closed session's KV
        cache stays until its slot is needed, for a next session that begins alike: a conversation's
        next turn. Without, no answer depends on an earlier one, not even by a rounding error.
        Raises `ModelError` or `UsageError`.
        """
        self.path = path
        self.name = path.stem
        self.slots = slots
        if slots < 1 or (context is not None and context < 1):
            raise UsageError("A model needs at least 1 slot and a context of at least 1 token.")
        _check_file(path)
        llama_cpp.llama_log_set(_keep_log, ctypes.c_void_p(0))
        llama_cpp.llama_backend_init()
        self._model = _load(path, _offloaded_layers(gpu_layers))
        try:
            _check_kind(self._model, path)
            trained = llama_cpp.llama_model_n_ctx_train(self._model)
            self.context = context or min(trained, _DEFAULT_CONTEXT)
            self.threads = threads or default_threads()
            self._context = self.new_context(slots)
        except BaseException:
            llama_cpp.llama_model_free(self._model)
            raise
        self.memory = llama_cpp.llama_get_memory(self._context)
        self.tokenizer = LlamaTokenizer(self._model)
        self.hidden_size: int = llama_cpp.llama_model_n_embd(self._model)
        self.lock = FairLock()
        self.decodes = 0
        self._keep_prefixes = keep_prefixes
        # Longest unused first.
        self._free: dict[int, list[int]] = {sequence: [] for sequence in range(slots)}
        self.closed = False

    def new_context(self, slots: int) -> Any:
        """A llama.cpp context of `slots` sequences over these weights; the caller frees it."""
        params = llama_cpp.llama_context_default_params()
        params.n_ctx = self.context * slots
        params.n_batch = params.n_ubatch = min(BATCH, self.context)
        params.n_seq_max = slots
        params.kv_unified = False
        params.n_threads = params.n_threads_batch = self.threads
        params.embeddings = True
        params.pooling_type = llama_cpp.LLAMA_POOLING_TYPE_NONE
        params.no_perf = True
        _log_tail.clear()
        context = llama_cpp.llama_init_from_model(self._model, params)
        if not context:
            raise ModelError(
                f"{str(self.path)!r} does not fit in memory with a context of {self.context} ids "
                f"and {slots} slots (llama.cpp: {_engine_log()}); lower --ctx."
            )
        return context

    @property
    def handle(self) -> Any:
        """The llama.cpp context, for sessions and for the bare loop of the benchmark."""
        return self._context

    @property
    def parameters(self) -> int:
        """Number of weights."""
        return int(llama_cpp.llama_model_n_params(self._model))

    def session(self, needs: Needs = Needs.NOTHING, *, top: int = 0) -> "LlamaSession":
        """A new session; raises `UsageError` when all slots are taken."""
        with self.lock:
            if not self._free:
                raise UsageError(
                    f"All slots of {self.name!r} are in use; load it with more --slots or close "
                    "one."
                )
            sequence = next(iter(self._free))
            kept = self._free.pop(sequence)
        if self.slots > 1:
            # Another thread's session may decode before this one's step is read.
            needs |= Needs.LOGITS
        return LlamaSession(self, sequence, kept, needs, top)

    def release(self, sequence: int, ids: Sequence[int]) -> None:
        """Take a sequence back from a session; its KV cache holds `ids`."""
        with self.lock:
            if not self.closed:
                if not self._keep_prefixes:
                    llama_cpp.llama_memory_seq_rm(self.memory, sequence, -1, -1)
                self._free[sequence] = list(ids) if self._keep_prefixes else []

    def exchange(
        self, sequence: int, held: Sequence[int], ids: Sequence[int]
    ) -> tuple[int, list[int]]:
        """The sequence that suits `ids` best: `sequence`, which holds `held`, or a free one.

        Returns it with what it holds.
        """
        with self.lock:
            best = max(
                self._free, key=lambda free: common_prefix(self._free[free], ids), default=None
            )
            if best is None or common_prefix(self._free[best], ids) <= common_prefix(held, ids):
                return sequence, list(held)
            found = self._free.pop(best)
            # It was not used after all, so it stays the first to be given away.
            self._free = {sequence: list(held), **self._free}
            return best, found

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

    def close(self) -> None:
        """Free weights and caches; sessions of the model are unusable afterwards."""
        with self.lock:
            if not self.closed:
                self.closed = True
                llama_cpp.llama_free(self._context)
                llama_cpp.llama_model_free(self._model)

    def __enter__(self) -> "LlamaModel":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _check_file(path: Path) -> None:
    if not path.is_file():
        raise ModelError(f"There is no file {str(path)!r}; check the path of the model.")
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ModelError(
                f"{str(path)!r} is not a GGUF file; convert the model with llama.cpp's "
                "convert_hf_to_gguf.py or name a GGUF repository."
            )


def _offloaded_layers(gpu_layers: int | Literal["auto"]) -> int:
    has_gpu = bool(llama_cpp.llama_supports_gpu_offload())
    if gpu_layers == "auto":
        return -1 if has_gpu else 0
    if gpu_layers > 0 and not has_gpu:
        raise UsageError(
            f"--gpu-layers {gpu_layers} needs a GPU build of llama.cpp, and this one is for the "
            "CPU; reinstall llama-cpp-python with its CUDA or Metal flags, or use --gpu-layers 0."
        )
    return gpu_layers


def _load(path: Path, gpu_layers: int) -> Any:
    params = llama_cpp.llama_model_default_params()
    params.n_gpu_layers = gpu_layers
    _log_tail.clear()
    model = llama_cpp.llama_model_load_from_file(os.fsencode(path), params)
    if not model:
        raise ModelError(
            f"{str(path)!r} is truncated, damaged or of an unknown kind "
            f"(llama.cpp: {_engine_log()}); download it again."
        )
    return model


def _check_kind(model: Any, path: Path) -> None:
    if llama_cpp.llama_model_is_recurrent(model) or llama_cpp.llama_model_is_hybrid(model):
        raise ModelError(
            f"{str(path)!r} is a recurrent model, whose state cannot be rewound to an earlier "
            "token; choose a transformer."
        )
    if llama_cpp.llama_model_has_encoder(model) or not llama_cpp.llama_model_has_decoder(model):
        raise ModelError(f"{str(path)!r} is not a decoder-only model; choose one that is.")


class LlamaSession:
    """One sequence of a model's context. Implements `EdgeSession`."""

    def __init__(
        self, model: LlamaModel, sequence: int, held: list[int], needs: Needs, top: int
    ) -> None:
        """`held` is what the sequence's KV cache holds."""
        self._model = model
        self._sequence = sequence
        self._fresh = True
        self._needs = needs
        self._top = top
        self._ids = held
        self._computed = len(held)
        self._last: LogitsStep | None = None
        self._batch = llama_cpp.llama_batch_init(BATCH, 0, 1)
        for index in range(BATCH):
            self._batch.n_seq_id[index] = 1
        self._write_to(sequence)
        as_array = np.ctypeslib.as_array
        self._tokens: Ids = as_array(self._batch.token, (BATCH,))
        self._positions: Ids = as_array(self._batch.pos, (BATCH,))
        self._wanted: NDArray[np.int8] = as_array(self._batch.logits, (BATCH,))
        self._buffer: Floats = np.empty(model.tokenizer.size, np.float32)
        self._closed = False

    @property
    def position(self) -> int:
        return len(self._ids)

    def open(self, ids: Sequence[int]) -> int:
        self._check_open()
        if self._fresh:
            self._fresh = False
            sequence, self._ids = self._model.exchange(self._sequence, self._ids, ids)
            self._computed = len(self._ids)
            self._write_to(sequence)
        shared = common_prefix(self._ids[: self._computed], ids)
        self.rewind(shared)
        self.extend(ids[shared:])
        return shared

    def extend(self, ids: Sequence[int]) -> None:
        self._check_open()
        if not all(0 <= token < self._model.tokenizer.size for token in ids):
            raise UsageError(
                f"{self._model.name!r} has ids from 0 to {self._model.tokenizer.size - 1} only."
            )
        if len(self._ids) + len(ids) > self._model.context:
            raise ContextOverflow(
                f"{len(self._ids) + len(ids)} tokens do not fit in the context of "
                f"{self._model.context}; shorten the prompt or raise --ctx."
            )
        self._ids.extend(ids)

    def step(self) -> LogitsStep:
        self._check_open()
        if not self._ids:
            raise UsageError("A session has no next token before it was opened with ids.")
        if self._computed == len(self._ids):
            if self._last and self._last.position == len(self._ids) and self._last.fresh:
                return self._last
            self._truncate(len(self._ids) - 1)
        while len(self._ids) - self._computed > 1:
            # Sessions take turns, also while one of them reads a long prompt.
            with self._model.lock:
                end = min(len(self._ids) - 1, self._computed + self._turn)
                self._decode(end, hidden=False, outputs=False)
        with self._model.lock:
            self._decode(len(self._ids), hidden=Needs.HIDDEN in self._needs, outputs=True)
            self._last = self._step_at(0, len(self._ids))
        return self._last

    def steps(self, ids: Sequence[int]) -> list[LogitsStep]:
        if not ids:
            return []
        if self._computed < len(self._ids):
            self.step()
        if len(ids) > self._batch_size:
            raise UsageError(f"At most {self._batch_size} steps fit in one batch, not {len(ids)}.")
        start = len(self._ids)
        self.extend(ids)
        with self._model.lock:
            self._decode(len(self._ids), hidden=Needs.HIDDEN in self._needs, outputs=True)
            made = [self._step_at(row, start + row + 1) for row in range(len(ids))]
        self._last = made[-1]
        return made

    def rewind(self, position: int) -> None:
        self._check_open()
        if not 0 <= position <= len(self._ids):
            raise ValueError(f"cannot rewind to {position}: the session holds {len(self._ids)} ids")
        del self._ids[position:]
        self._truncate(min(position, self._computed))

    def save(self) -> PrefixState:
        """Copy the KV cache, to be restored in any session of the same model."""
        self._check_settled()
        with self._model.lock:
            size = llama_cpp.llama_state_seq_get_size(self._model.handle, self._sequence)
            data = np.empty(size, np.uint8)
            llama_cpp.llama_state_seq_get_data(
                self._model.handle, _bytes_pointer(data), size, self._sequence
            )
        return PrefixState(tuple(self._ids), data)

    def restore(self, state: PrefixState) -> None:
        """Replace the KV cache by a saved one."""
        self.rewind(0)
        with self._model.lock:
            read = llama_cpp.llama_state_seq_set_data(
                self._model.handle, _bytes_pointer(state.data), len(state.data), self._sequence
            )
        if not read:
            raise UsageError("The saved prefix was made by another model or another --ctx.")
        self._ids = list(state.ids)
        self._computed = len(self._ids)
        self._last = None

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            llama_cpp.llama_batch_free(self._batch)
            self._model.release(self._sequence, self._ids[: self._computed])

    @property
    def _batch_size(self) -> int:
        return min(BATCH, self._model.context)

    @property
    def _turn(self) -> int:
        """Prompt ids that are computed before another session may decode."""
        return min(TURN if self._model.slots > 1 else BATCH, self._model.context)

    def _write_to(self, sequence: int) -> None:
        self._sequence = sequence
        for index in range(BATCH):
            self._batch.seq_id[index][0] = sequence

    def _check_open(self) -> None:
        if self._closed or self._model.closed:
            raise UsageError("The session or its model is closed; open a new one.")

    def _check_settled(self) -> None:
        self._check_open()
        if self._computed < len(self._ids):
            raise UsageError("A prefix can be saved once its ids are computed; call step() first.")

    def _truncate(self, position: int) -> None:
        if position == self._computed:
            return
        with self._model.lock:
            kept = llama_cpp.llama_memory_seq_rm(self._model.memory, self._sequence, position, -1)
        if not kept:
            raise ModelError(f"{self._model.name!r} cannot rewind its KV cache.")
        self._computed = position

    def _decode(self, end: int, *, hidden: bool, outputs: bool) -> None:
        """Compute ids up to `end`; the caller holds the model's lock."""
        count = end - self._computed
        self._tokens[:count] = self._ids[self._computed : end]
        self._positions[:count] = np.arange(self._computed, end)
        self._wanted[:count] = outputs
        self._batch.n_tokens = count
        llama_cpp.llama_set_embeddings(self._model.handle, hidden)
        self._model.decodes += 1
        code = llama_cpp.llama_decode(self._model.handle, self._batch)
        if code != 0:
            llama_cpp.llama_memory_seq_rm(self._model.memory, self._sequence, self._computed, -1)
            raise ModelError(
                f"llama.cpp could not decode {count} tokens at position {self._computed} "
                f"(code {code}); lower --ctx or --slots if memory is short."
            )
        self._computed = end

    def _step_at(self, row: int, position: int) -> LogitsStep:
        model = self._model
        logits = llama_cpp.llama_get_logits_ith(model.handle, row)
        hidden = None
        if Needs.HIDDEN in self._needs:
            pointer = llama_cpp.llama_get_embeddings_ith(model.handle, row)
            hidden = np.ctypeslib.as_array(pointer, (model.hidden_size,))
        decode = model.decodes
        return LogitsStep(
            position,
            np.ctypeslib.as_array(logits, (model.tokenizer.size,)),
            hidden,
            is_fresh=lambda: model.decodes == decode,
            buffer=self._buffer,
            needs=self._needs,
            top=self._top,
        )


def _bytes_pointer(data: NDArray[np.uint8]) -> Any:
    return data.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
