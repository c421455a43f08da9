"""The C API of the llama.cpp library that is installed, loaded at the first use of a function.

The first of these packages that is installed is used: llama-cpp-python, usually compiled here for
the processor or GPU; edgewise-llama, which `deploy/llama_wheel.py` builds for one processor or for
several kinds; xllamacpp (not on Windows), which is prebuilt for common processors.

The last two are used without their Python code, so the functions are declared here, as in
`include/llama.h` of the releases in `VERSIONS`.
"""

import ctypes
import os
import platform
import sys
from ctypes import (
    POINTER,
    Structure,
    c_bool,
    c_char_p,
    c_float,
    c_int8,
    c_int32,
    c_size_t,
    c_uint8,
    c_uint32,
    c_uint64,
    c_void_p,
)
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from edgewise.errors import UsageError

NATIVE, FITTING, PREBUILT = "llama-cpp-python", "edgewise-llama", "xllamacpp"
VERSIONS = {NATIVE: "0.3.36", FITTING: "2026.10.11549", PREBUILT: "2026.10.11549"}
"""The version of each package whose C structs match those declared here."""

# Python module of each package, in order of preference.
_MODULES = {NATIVE: "llama_cpp", FITTING: "edgewise_llama", PREBUILT: "xllamacpp"}

_COMPILE = "pip install 'edgewise[native]'"
# GCC before 13 miscompiles llama.cpp's AMX kernels, and that ends the process.
_WITHOUT_AMX = 'CMAKE_ARGS="-DGGML_NATIVE=OFF -DGGML_AVX512=ON -DGGML_AVX512_VNNI=ON"'
# No package index has edgewise-llama.
_REBUILD = "pip uninstall edgewise-llama leaves the prebuilt one; make native then builds another"
_WANTED = ("avx2", "fma", "f16c", "bmi2")  # by the prebuilt library on x86-64
_SUFFIXES = (".so", ".dylib", ".dll")


class _Library:
    """Loads the library at the first use of a function. Raises `UsageError` if there is none."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if "_calls" not in vars(self):
            self._calls = _load(package())
        call = getattr(self._calls, name)
        setattr(self, name, call)
        return call


llama_cpp: Any = _Library()
"""llama.cpp's functions, structs and constants, as attributes."""


def package() -> str:
    """Return the name of the package whose llama.cpp is used. `UsageError` if there is none."""
    for name, module in _MODULES.items():
        # On Windows xllamacpp's library hands out nothing but its own module.
        if find_spec(module) is not None and (name, sys.platform) != (PREBUILT, "win32"):
            return name
    raise UsageError("llama.cpp is not installed", hint=how_to_compile())


def build() -> str:
    """Return "NAME VERSION" of the package whose llama.cpp is used. `UsageError` without one."""
    name = package()
    return f"{name} {_version(name)}"


def how_to_compile() -> str:
    """Return the hint "COMMAND compiles one for this machine", where one is a llama.cpp."""
    command = f"{_WITHOUT_AMX} {_COMPILE}" if "amx_tile" in processor() else _COMPILE
    return f"{command} compiles one for this machine"


def processor() -> frozenset[str]:
    """Return the processor's instruction sets, such as "avx2"; an empty set unless on Linux."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset()
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() in ("flags", "Features"):
            return frozenset(value.split())
    return frozenset()


def beyond_prebuilt() -> bool:
    """Return whether the processor has AVX-512 VNNI, which xllamacpp's library does not use."""
    return "avx512_vnni" in processor()


def _load(name: str) -> Any:
    mend = (
        _REBUILD if name == FITTING else f"pip install --force-reinstall {name}=={VERSIONS[name]}"
    )
    # With a struct that does not match, ctypes would overwrite memory without an error.
    if (found := _version(name)) != VERSIONS[name]:
        raise UsageError(
            f"llama.cpp comes with {name} {VERSIONS[name]}, and {found} is installed", hint=mend
        )
    if name == PREBUILT:
        _require_instructions()
    # What llama-cpp-python raises where its library is missing or broken is its own affair.
    causes = Exception if name == NATIVE else (OSError, UsageError)
    try:
        if name == NATIVE:
            return import_module(_MODULES[name])
        return load_library(_library(name), backends=name == FITTING)
    except causes as error:
        reason = str(error).rstrip(".")
        if "libgomp" in reason:
            mend = "install OpenMP's runtime, on Debian and Ubuntu: apt-get install libgomp1"
        what = f"The llama.cpp of {name} cannot be loaded ({reason})"
        raise UsageError(what, hint=mend) from error


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"


def _library(name: str) -> Path:
    """Return the path of the library in a package, which is not imported."""
    spec = find_spec(_MODULES[name])
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent
    # Of xllamacpp the build for Python without a lock has a name of its own.
    stem = "*llama." if name == FITTING else "xllamacpp*."
    found = (path for path in folder.glob(f"{stem}*") if path.suffix in _SUFFIXES)
    return next(found, folder / "libllama.so")


def _require_instructions() -> None:
    """Raise `UsageError` if the processor lacks instructions that the prebuilt library needs."""
    known = processor() if platform.machine() in ("x86_64", "AMD64") else frozenset()
    if known and (missing := [name for name in _WANTED if name not in known]):
        raise UsageError(
            f"The llama.cpp of {PREBUILT} needs a processor with {missing[0]}",
            hint=how_to_compile(),
        )


llama_token = llama_pos = llama_seq_id = c_int32
llama_log_callback = ctypes.CFUNCTYPE(None, c_int32, c_char_p, c_void_p)


def _fields(kind: Any, names: str) -> list[tuple[str, Any]]:
    return [(name, kind) for name in names.split()]


class llama_batch(Structure):
    _fields_ = (
        ("n_tokens", c_int32),
        ("token", POINTER(llama_token)),
        ("embd", POINTER(c_float)),
        ("pos", POINTER(llama_pos)),
        ("n_seq_id", POINTER(c_int32)),
        ("seq_id", POINTER(POINTER(llama_seq_id))),
        ("logits", POINTER(c_int8)),
    )


class llama_model_params(Structure):
    _fields_ = (
        *_fields(c_void_p, "devices tensor_buft_overrides"),
        *_fields(c_int32, "n_gpu_layers split_mode load_mode lazy_mode main_gpu"),
        *_fields(c_void_p, "tensor_split progress_callback progress_callback_user_data"),
        *_fields(c_void_p, "kv_overrides"),
        *_fields(c_bool, "vocab_only check_tensors use_extra_bufts no_host no_alloc load_mtp"),
    )


class llama_context_params(Structure):
    _fields_ = (
        *_fields(c_uint32, "n_ctx n_batch n_ubatch n_seq_max n_rs_seq"),
        *_fields(c_uint32, "n_outputs_max n_outputs_max_per_seq"),
        *_fields(c_int32, "n_threads n_threads_batch ctx_type"),
        *_fields(c_int32, "rope_scaling_type pooling_type attention_type flash_attn_type"),
        *_fields(c_float, "rope_freq_base rope_freq_scale yarn_ext_factor"),
        *_fields(c_float, "yarn_attn_factor yarn_beta_fast yarn_beta_slow"),
        ("yarn_orig_ctx", c_uint32),
        ("defrag_thold", c_float),
        *_fields(c_void_p, "cb_eval cb_eval_user_data"),
        *_fields(c_int32, "type_k type_v"),
        ("moe_cache_size", c_size_t),
        *_fields(c_void_p, "abort_callback abort_callback_data"),
        *_fields(c_bool, "embeddings offload_kqv no_perf op_offload swa_full kv_unified"),
        ("samplers", c_void_p),
        ("n_samplers", c_size_t),
        ("ctx_other", c_void_p),
    )


_KINDS = {
    "void": None,
    "ptr": c_void_p,
    "bool": c_bool,
    "int": c_int32,
    "uint": c_uint32,
    "uint64": c_uint64,
    "size": c_size_t,
    "text": c_char_p,
    "ids": POINTER(llama_token),
    "bytes": POINTER(c_uint8),
    "floats": POINTER(c_float),
    "batch": llama_batch,
    "model_params": llama_model_params,
    "context_params": llama_context_params,
    "log": llama_log_callback,
}

# The C functions that are used: the return type of each, its name, its parameters' types.
_CALLS = """
void llama_backend_init
void llama_batch_free batch
batch llama_batch_init int int int
context_params llama_context_default_params
int llama_decode ptr batch
int llama_detokenize ptr ids int text int bool bool
void llama_free ptr
floats llama_get_embeddings_ith ptr int
floats llama_get_logits_ith ptr int
ptr llama_get_memory ptr
ptr llama_init_from_model ptr context_params
void llama_log_set log ptr
int llama_memory_seq_pos_max ptr int
bool llama_memory_seq_rm ptr int int int
text llama_model_chat_template ptr text
model_params llama_model_default_params
int llama_model_desc ptr text size
void llama_model_free ptr
ptr llama_model_get_vocab ptr
bool llama_model_has_decoder ptr
bool llama_model_has_encoder ptr
bool llama_model_is_hybrid ptr
bool llama_model_is_recurrent ptr
ptr llama_model_load_from_file text model_params
int llama_model_meta_val_str ptr text text size
int llama_model_n_ctx_train ptr
int llama_model_n_embd ptr
uint64 llama_model_n_params ptr
void llama_set_embeddings ptr bool
void llama_set_n_threads ptr int int
size llama_state_seq_get_data_ext ptr bytes size int uint
size llama_state_seq_get_size_ext ptr int uint
size llama_state_seq_set_data_ext ptr bytes size int uint
bool llama_supports_gpu_offload
int llama_token_to_piece ptr int text int int bool
int llama_tokenize ptr text int ids int bool bool
int llama_vocab_bos ptr
int llama_vocab_eos ptr
int llama_vocab_eot ptr
bool llama_vocab_get_add_bos ptr
int llama_vocab_get_attr ptr int
text llama_vocab_get_text ptr int
bool llama_vocab_is_eog ptr int
int llama_vocab_n_tokens ptr
"""


def load_library(path: Path, *, backends: bool = False) -> SimpleNamespace:
    """Load the library at `path`; return its functions, structs and constants as attributes.

    With `backends`, ggml's backends are separate libraries in the same folder, and the best one
    that this processor can run is loaded. Raises `OSError` if the library cannot be loaded,
    `UsageError` if it lacks a function declared here, or if this processor can run no backend.
    """
    library = ctypes.CDLL(str(path))
    calls: dict[str, Any] = {}
    for result, name, *arguments in map(str.split, _CALLS.strip().splitlines()):
        if not hasattr(library, name):
            raise UsageError(f"it does not export {name}")
        call = calls[name] = getattr(library, name)
        call.restype, call.argtypes = _KINDS[result], [_KINDS[one] for one in arguments]
    if backends:
        _load_backends(library, path.parent)
    return SimpleNamespace(
        **calls,
        llama_token=llama_token,
        llama_batch=llama_batch,
        llama_model_params=llama_model_params,
        llama_context_params=llama_context_params,
        llama_log_callback=llama_log_callback,
        LLAMA_POOLING_TYPE_NONE=0,
    )


@llama_log_callback
def _ignore_log(_level: int, _text: bytes, _data: object) -> None:
    """Drop llama.cpp's log."""


def _load_backends(library: ctypes.CDLL, folder: Path) -> None:
    # It would print to stderr which backends it loads.
    library.llama_log_set(_ignore_log, c_void_p(0))
    library.ggml_backend_load_all_from_path.argtypes = (c_char_p,)
    library.ggml_backend_load_all_from_path(os.fsencode(folder))
    library.ggml_backend_dev_count.restype = c_size_t
    if not library.ggml_backend_dev_count():
        raise UsageError("it has no code that this processor can run")
