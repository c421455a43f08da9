"""Loads GGUF files with llama.cpp; for a file that cannot be loaded, `ModelError` says why.

Since llama.cpp may crash on a damaged file, a child process loads each new file first, and computes
a token unless it is large. A file that passed is remembered until it or llama.cpp changes.
"""

import ctypes
import hashlib
import logging
import os
import re
import signal
import sys
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from threading import current_thread, main_thread
from typing import Any, Literal

import msgspec

from edgewise.addresses import bundled, parts_of, user_path
from edgewise.edge.base import PROBES
from edgewise.edge.files import other_form
from edgewise.edge.kv import BATCH
from edgewise.edge.llamacpp.cache import LlamaContext
from edgewise.edge.llamacpp.library import build, llama_cpp
from edgewise.edge.llamacpp.tokenizer import LlamaTokenizer
from edgewise.edge.threads import Threads
from edgewise.errors import ModelError, UsageError
from edgewise.sandbox import Child, ChildEnded

_ERROR = 4  # ggml.h: GGML_LOG_LEVEL_ERROR

_SANDBOX_CONTEXT, _PIECE = 16, 64  # ids of the sandbox's context, and bytes for each piece
# Most bytes of a file with which the child computes a token: larger ones may exceed memory.
_LARGEST_RUN = 4 << 30

_AGAIN, _UPDATE = "download it again", "update Edgewise, which brings llama.cpp"
# Patterns in llama.cpp's log of a refused file, each with what it means and a hint.
_REASONS = (
    (r"mmproj", "is a projector of images, not a language model", "name the model beside it"),
    (r"up to version|ggml type|unknown (model arch|pre-tok)", "is too new or unknown", _UPDATE),
    (r"GGUFv1|endian", "is in an old form", "convert the model again, or download a newer file"),
    (r"file bounds|failed to read|end of file", "is cut off or damaged", _AGAIN),
    (r"alloc|memory", "does not fit in memory", "choose a smaller model, or free memory"),
    (r"split", "is a part of a model", "name the first part, under the name it was published by"),
    (r"", "is damaged or no whole language model", f"{_AGAIN}, or name another file of the model"),
)

_log_tail: deque[str] = deque(maxlen=20)


def _keep_log(level: int, text: bytes, _data: object) -> None:
    if level == _ERROR and text and text.strip():
        _log_tail.append(text.decode("utf-8", "replace").strip())


@cache
def _log_callback() -> Any:
    return llama_cpp.llama_log_callback(_keep_log)


def _engine_log() -> str:
    return _log_tail[0] if _log_tail else "no reason given"


def load_weights(
    path: Path, gpu_layers: int | Literal["auto"] = 0, *, vocabulary_only: bool = False
) -> Any:
    """Load the model in the GGUF at `path`; return llama.cpp's handle, which the caller frees.

    `gpu_layers` is how many layers go to a GPU ("auto": all, if there is one); more than 0 raise
    `UsageError` if llama.cpp is built for CPUs. `vocabulary_only` loads no weights. Raises
    `ModelError` for a file that is no GGUF, or that a child process cannot load.
    """
    with path.open("rb") as file:
        begin = file.read(9)
    if not begin.startswith(b"GGUF"):
        what, hint = other_form(path) or ("", "name a GGUF file or a GGUF repository")
        if begin.endswith(b"{") and len(begin) == 9:  # after a length of eight bytes
            what, hint = "safetensors", "name the folder that it is in, or a GGUF of the model"
        raise ModelError(f"{str(path)!r} is not a GGUF file{what and f': {what}'}", hint=hint)
    # For some damaged or malicious files llama.cpp ends the process, which cannot be caught.
    require_survived(path, vocabulary_only=vocabulary_only)
    layers = _offloaded_layers(gpu_layers)
    return open_weights(path, gpu_layers=layers, vocabulary_only=vocabulary_only)


def open_weights(
    path: Path, *, gpu_layers: int, repack: bool = True, vocabulary_only: bool = False
) -> Any:
    """Load the GGUF at `path` without trying it in a child process; return llama.cpp's handle.

    A damaged file may crash this process. `gpu_layers` of -1 are all layers. `repack` lets
    llama.cpp rearrange weights for the processor. `vocabulary_only` loads no weights. Raises
    `ModelError` if llama.cpp refuses the file, or if the model is not decoder-only.
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
        raise _refused(path, "\n".join(_log_tail), _engine_log())
    if llama_cpp.llama_model_has_encoder(model) or not llama_cpp.llama_model_has_decoder(model):
        llama_cpp.llama_model_free(model)
        raise _no_decoder(path)
    return model


def new_context(
    model: Any, path: Path, *, context: int, sequences: int, threads: int | Threads
) -> LlamaContext:
    """Create a llama.cpp context for `sequences` sequences of `context` ids each.

    The caller closes it. `path` is for errors. `threads` is a number, or the `Threads` that choose
    it for each decode. Raises `ModelError` if memory does not suffice, or if `model` is no decoder.
    """
    params = llama_cpp.llama_context_default_params()
    params.n_ctx = context * sequences
    params.n_batch = params.n_ubatch = min(BATCH, context)
    params.n_seq_max = sequences
    params.kv_unified = False
    params.swa_full = True  # sliding windows hold all ids, so that they can be cut anywhere
    found = threads if isinstance(threads, Threads) else None
    params.n_threads = params.n_threads_batch = found.most if found else threads
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
        # llama.cpp would run such a model without an error: each id alone, as it has no KV cache.
        llama_cpp.llama_free(made)
        raise _no_decoder(path)
    return LlamaContext(made, model, sequences=sequences, threads=found)


def _whole(free: Callable[[Any], None], make: Callable[..., Any], *arguments: object) -> Any:
    """Call llama.cpp's `make`; a Ctrl-C meanwhile is raised afterwards, and the result freed."""
    before = signal.getsignal(signal.SIGINT)
    # Python sets handlers in the main thread alone, and could not put one of C's back.
    if current_thread() is not main_thread() or before is None:
        return make(*arguments)
    # A Ctrl-C would be raised in the log's callback, the only Python that runs, and be lost there.
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


def _refused(path: Path, log: str, why: str) -> ModelError:
    log = log.replace(str(path), "")
    what, hint = next((what, hint) for said, what, hint in _REASONS if re.search(said, log))
    return ModelError(f"{str(path)!r} {what} (llama.cpp: {why})", hint=hint)


def _no_decoder(path: Path) -> ModelError:
    return ModelError(f"{str(path)!r} is not a decoder-only model", hint="choose one that is")


def load_in_child(request: bytes) -> bytes:
    """Load a file; return empty bytes, or why llama.cpp refuses it. Runs in the child process.

    `request` is b"1" (vocabulary only) or b"0", then the path. The reason is a JSON array: message,
    hint and setting of a `ModelError`.
    """
    try:
        _try_out(Path(os.fsdecode(request[1:])), vocabulary_only=request[:1] == b"1")
    except ModelError as error:
        return msgspec.json.encode((error.message, error.hint, error.setting))
    return b""


def _try_out(path: Path, *, vocabulary_only: bool) -> None:
    model = open_weights(path, gpu_layers=0, repack=False, vocabulary_only=vocabulary_only)
    tokenizer = LlamaTokenizer(model)
    size = tokenizer.size
    # A harmful file may end the process only when an id becomes text, or a token is computed.
    # All pieces at once: from Python one by one they take longer than the load.
    ids = (llama_cpp.llama_token * size)(*range(size))
    text = (ctypes.c_char * (_PIECE * size))()
    vocabulary = llama_cpp.llama_model_get_vocab(model)
    llama_cpp.llama_detokenize(vocabulary, ids, size, text, len(text), False, True)
    for word in (*PROBES, *tokenizer.special.values()):
        tokenizer.encode_prompt(word)
    if vocabulary_only:
        return
    context = new_context(model, path, context=_SANDBOX_CONTEXT, sequences=1, threads=1)
    if path.stat().st_size <= _LARGEST_RUN:
        context.put(0, [0, size - 1], 0, last=True)
        context.decode(hidden=True)
        context.row(1, hidden=True)


SECONDS = 60.0
SECONDS_A_BYTE = 1 / (20 << 20)
"""Timeout of loading a file in the child: SECONDS and this for each byte, for a slow disk."""

# Bytes for the check's KV cache and what libraries reserve, beside the file; and of a refusal.
_MEMORY, _REFUSAL = 8 << 30, 1 << 14
_ENVIRONMENT = {
    # Without a GPU, and without a debugger's backtrace.
    "CUDA_VISIBLE_DEVICES": "-1",
    "HIP_VISIBLE_DEVICES": "-1",
    "GGML_NO_BACKTRACE": "1",
}
_PLACE = re.compile(r"^\S*/(?=[\w.-]+:\d+: )")
_log = logging.getLogger(__name__)


def require_survived(path: Path, *, vocabulary_only: bool = False) -> None:
    """Load a file in a child process, unless it ships with Edgewise or passed before.

    With `vocabulary_only`, only the tokenizer is loaded. Raises `ModelError` if a part is missing,
    or if the child dies, takes too long or refuses the file. If none can start, it logs a warning.
    """
    # Edgewise's own files need no test.
    if path.resolve().parent == bundled("edge").resolve().parent:
        return
    # Links stay: in the hub's cache a split model's parts have their names there alone.
    path = path.absolute()
    before = _identity(path, vocabulary_only)
    folder = user_path("cache", "loaded")
    record = folder and folder / before
    with suppress(OSError):
        if record and record.is_file():
            return
    tried = _loads_in_child(path, vocabulary_only)
    # A file that was replaced meanwhile may not be the one that was tried.
    if tried and record and _identity(path, vocabulary_only) == before:
        # Where the record cannot be written, the next start tries again.
        with suppress(OSError):
            record.parent.mkdir(parents=True, exist_ok=True)
            record.write_text(str(path), encoding="utf-8", errors="replace")


def _identity(path: Path, vocabulary_only: bool) -> str:
    """Return a hash of the file's parts and the library's version. `ModelError` if one is gone."""
    held = [build(), *(["vocabulary"] if vocabulary_only else [])]
    for part in (path.with_name(name) for name in parts_of(path.name)):
        try:
            stat = part.stat()
        except OSError as error:
            what = f"{str(part)!r} cannot be read: {error.strerror}"
            raise ModelError(what, hint=_AGAIN) from error
        held.append(f"{part.resolve()} {stat.st_size} {stat.st_mtime_ns} {stat.st_ino}")
    return hashlib.sha256("\n".join(held).encode("utf-8", "surrogateescape")).hexdigest()


def _loads_in_child(path: Path, vocabulary_only: bool) -> bool:
    """Return True if a child loaded the file, False if none can start. Raises `ModelError`."""
    # What lies in the current folder is no module of ours.
    here = Path.cwd()
    folders = [folder for folder in sys.path if folder and Path(folder) != here]
    size = sum(path.with_name(name).stat().st_size for name in parts_of(path.name))
    try:
        child = Child(
            f"{__name__}:load_in_child",
            seconds=SECONDS + size * SECONDS_A_BYTE,
            # A file that cannot be mapped is read.
            memory=_MEMORY + size,
            longest=_REFUSAL,
            folders=[str(Path(__file__).parents[3]), *folders],
            environment=_ENVIRONMENT,
            keep_words=True,
        )
    except OSError as error:
        # Where no process can be started the file is as safe as it was before.
        _log.warning("%r is loaded unchecked: no process can be started (%s)", str(path), error)
        return False
    try:
        reply = child.ask(b"%d" % vocabulary_only + os.fsencode(path))
    except ChildEnded as error:
        raise _ended(path, error) from error
    finally:
        child.end()
    if reply:
        message, hint, setting = msgspec.json.decode(reply, type=tuple[str, str, str | None])
        raise ModelError(message, hint=hint, setting=setting)
    return True


def _ended(path: Path, error: ChildEnded) -> ModelError:
    late, killed = error.why == "time", error.status == -9  # as the system does, out of memory
    ends = "does not end" if late else f"ends with status {error.status}"
    said = f": {_PLACE.sub('', error.words[-1])[:300]}" if error.words else ""
    what, hint = "is damaged, or llama.cpp cannot run it", _AGAIN
    if killed and not late:
        what, hint = "does not fit in memory", "choose a smaller model, or free memory"
    return ModelError(f"{str(path)!r} {what} (loading it {ends}{said})", hint=hint)
