"""From a GGUF file to llama.cpp's model, or to a sentence that says why not."""

import ctypes
import os
import signal
from collections import deque
from collections.abc import Callable
from functools import cache
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any, Literal

from edgewise.edge.base import PROBES
from edgewise.edge.kv import BATCH
from edgewise.edge.llamacpp.context import LlamaContext
from edgewise.edge.llamacpp.library import llama_cpp
from edgewise.edge.llamacpp.sandbox import require_survived
from edgewise.edge.llamacpp.tokenizer import LlamaTokenizer
from edgewise.errors import ModelError, UsageError

_ERROR = 4  # ggml.h: GGML_LOG_LEVEL_ERROR

_TRIAL_CONTEXT, _PIECE = 16, 64
"""Ids of the sandbox's context, and bytes for each piece."""

_LARGEST_RUN = 4 << 30
"""Bytes of the largest file that is asked for a token: a larger one may not fit in memory."""

_log_tail: deque[str] = deque(maxlen=20)


def _keep_log(level: int, text: bytes, _data: object) -> None:
    if level == _ERROR and text:
        _log_tail.append(text.decode("utf-8", "replace").strip())


@cache
def _log_callback() -> Any:
    return llama_cpp.llama_log_callback(_keep_log)


def _engine_log() -> str:
    lines = [line for line in _log_tail if line]
    return lines[0] if lines else "no reason given"


def load_weights(
    path: Path, gpu_layers: int | Literal["auto"] = 0, *, vocabulary_only: bool = False
) -> Any:
    """llama.cpp's model of `path`; the caller frees it. Raises `ModelError` or `UsageError`."""
    _check_file(path)
    require_survived(path)
    layers = _offloaded_layers(gpu_layers)
    return open_weights(path, gpu_layers=layers, vocabulary_only=vocabulary_only)


def open_weights(
    path: Path, *, gpu_layers: int, repack: bool = True, vocabulary_only: bool = False
) -> Any:
    """As `load_weights`, of a file that may end this process; `repack` takes time and memory.

    Raises `ModelError`.
    """
    llama_cpp.llama_log_set(_log_callback(), ctypes.c_void_p(0))
    llama_cpp.llama_backend_init()
    params = llama_cpp.llama_model_default_params()
    params.n_gpu_layers, params.use_extra_bufts = gpu_layers, repack
    params.vocab_only = vocabulary_only
    _log_tail.clear()
    load, free = llama_cpp.llama_model_load_from_file, llama_cpp.llama_model_free
    model = _whole(free, load, os.fsencode(path), params)
    if not model:
        raise ModelError(
            f"{str(path)!r} is truncated, damaged or of an unknown kind "
            f"(llama.cpp: {_engine_log()})",
            hint="download it again",
        )
    try:
        _check_kind(model, path)
    except ModelError:
        llama_cpp.llama_model_free(model)
        raise
    return model


def new_context(model: Any, path: Path, *, context: int, sequences: int, threads: int) -> Any:
    """A llama.cpp context of `sequences` sequences of `context` ids; the caller frees it.

    Layers with a sliding window hold all ids, so that sequences can be cut anywhere.
    """
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = context * sequences
    params.n_batch = params.n_ubatch = min(BATCH, context)
    params.n_seq_max = sequences
    params.kv_unified = False
    params.swa_full = True
    params.n_threads = params.n_threads_batch = threads
    params.embeddings = True
    params.pooling_type = llama_cpp.LLAMA_POOLING_TYPE_NONE
    params.no_perf = True
    _log_tail.clear()
    made = _whole(llama_cpp.llama_free, llama_cpp.llama_init_from_model, model, params)
    if not made:
        raise ModelError(
            f"{str(path)!r} does not fit in memory with a context of {context} ids and "
            f"{sequences} slots (llama.cpp: {_engine_log()})",
            hint="lower the context",
            setting="ctx",
        )
    if not llama_cpp.llama_get_memory(made):
        # It would be run without a word: each id alone, as no text is kept.
        llama_cpp.llama_free(made)
        raise _no_decoder(path)
    return made


def _whole(free: Callable[[Any], None], make: Callable[..., Any], *arguments: object) -> Any:
    """What llama.cpp makes; a Ctrl-C meanwhile is raised behind it, and what was made freed.

    It would be raised in the log's callback, the only Python that runs then, and be lost.
    """
    before = signal.getsignal(signal.SIGINT)
    if current_thread() is not main_thread() or before is None:
        return make(*arguments)
    pressed: list[int] = []
    signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
    try:
        made = make(*arguments)
    finally:
        signal.signal(signal.SIGINT, before)
    if pressed:
        try:
            signal.raise_signal(signal.SIGINT)
        except BaseException:
            if made:
                free(made)
            raise
    return made


def _check_file(path: Path) -> None:
    if not path.is_file():
        raise ModelError(f"There is no file {str(path)!r}", hint="check the path of the model")
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ModelError(
                f"{str(path)!r} is not a GGUF file",
                hint="convert the model with llama.cpp's convert_hf_to_gguf.py or name a GGUF "
                "repository",
            )


def _offloaded_layers(gpu_layers: int | Literal["auto"]) -> int:
    has_gpu = bool(llama_cpp.llama_supports_gpu_offload())
    if gpu_layers == "auto":
        return -1 if has_gpu else 0
    if gpu_layers > 0 and not has_gpu:
        raise UsageError(
            f"{gpu_layers} layers on a GPU need a GPU build of llama.cpp, and this one is for the "
            "CPU",
            hint="install llama-cpp-python with its CUDA or Metal flags, or offload 0 layers",
            setting="gpu_layers",
        )
    return gpu_layers


def _check_kind(model: Any, path: Path) -> None:
    if llama_cpp.llama_model_has_encoder(model) or not llama_cpp.llama_model_has_decoder(model):
        raise _no_decoder(path)


def _no_decoder(path: Path) -> ModelError:
    return ModelError(f"{str(path)!r} is not a decoder-only model", hint="choose one that is")


def load_in_child(path: bytes) -> bytes:
    """Load a file, which may end this process: one byte; none where llama.cpp refuses it in words.

    Every piece is written and a token asked for, as an edge model would.
    """
    try:
        _try_out(Path(os.fsdecode(path)))
    except ModelError:
        return b""
    return b"1"


def _try_out(path: Path) -> None:
    model = open_weights(path, gpu_layers=0, repack=False)
    tokenizer = LlamaTokenizer(model)
    size = tokenizer.size
    # All pieces at once: from Python one by one they take longer than the load.
    ids = (llama_cpp.llama_token * size)(*range(size))
    text = (ctypes.c_char * (_PIECE * size))()
    vocabulary = llama_cpp.llama_model_get_vocab(model)
    llama_cpp.llama_detokenize(vocabulary, ids, size, text, len(text), False, True)
    for word in (*PROBES, *tokenizer.special.values()):
        tokenizer.encode_prompt(word)
    handle = new_context(model, path, context=_TRIAL_CONTEXT, sequences=1, threads=1)
    if path.stat().st_size <= _LARGEST_RUN:
        width = int(llama_cpp.llama_model_n_embd(model))
        context = LlamaContext(handle, vocabulary=size, hidden_size=width)
        context.put(0, [0, size - 1], 0, last=True)
        context.decode(hidden=True)
        context.row(1, hidden=True)
