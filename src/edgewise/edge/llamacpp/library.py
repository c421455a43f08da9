"""llama.cpp's calls, of the library that is installed here; it is loaded when one is first used.

Where somebody installed llama-cpp-python it is that: it was compiled for this processor or its GPU.
Else it is that of edgewise-llama, which `deploy/llama_wheel.py` builds for this processor or for
each kind, or the prebuilt one of xllamacpp, which has what all of them can run.

The last two come without Python, so their C API is declared here as far as it is used, as in
`include/llama.h` of the build that `BUILD` names. A struct that does not match is no error to
ctypes but memory overwritten, so nothing is called before the library has said which build it is.
"""

import ctypes
import os
import platform
import sys
from collections.abc import Sequence
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
"""What the structs that are handed over were written for."""

_MODULES = {NATIVE: "llama_cpp", FITTING: "edgewise_llama", PREBUILT: "xllamacpp"}
"""First come, first used."""

_COMPILE = "pip install 'edgewise[native]'"
# GCC before 13 miscompiles llama.cpp's AMX kernels, and that ends the process.
_WITHOUT_AMX = 'CMAKE_ARGS="-DGGML_NATIVE=OFF -DGGML_AVX512=ON -DGGML_AVX512_VNNI=ON"'
_REPAIR = "pip install --force-reinstall {}=={}"
# No package index has it.
_REBUILD = "pip uninstall edgewise-llama leaves the prebuilt one; make native then builds another"
_WANTED = ("avx2", "fma", "f16c", "bmi2")  # by the prebuilt library on x86-64


class _Library:
    """Loads the library when a call is first asked for. Raises `UsageError` where there is none."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        if "_calls" not in vars(self):
            self._calls = _load(package())
        call = getattr(self._calls, name)
        setattr(self, name, call)
        return call


llama_cpp: Any = _Library()


def package() -> str:
    """The distribution that brings llama.cpp here. Raises `UsageError` where none does."""
    for name, module in _MODULES.items():
        # On Windows xllamacpp's library hands out nothing but its own module.
        if find_spec(module) is not None and (name, sys.platform) != (PREBUILT, "win32"):
            return name
    raise UsageError("llama.cpp is not installed", hint=how_to_compile())


def build() -> str:
    """Which package brings llama.cpp, and in which version. Raises `UsageError`."""
    name = package()
    return f"{name} {_version(name)}"


def how_to_compile() -> str:
    """What to do for a llama.cpp of this machine's own."""
    command = f"{_WITHOUT_AMX} {_COMPILE}" if "amx_tile" in processor() else _COMPILE
    return f"{command} compiles one for this machine"


def is_slower() -> bool:
    """Whether the library leaves instructions unused that this processor has and a build would."""
    said = llama_cpp.llama_print_system_info().decode("utf-8", "replace")
    able = processor()
    return package() == PREBUILT and any(
        instructions in able and f"{name} = 1" not in said
        for instructions, name in (("avx512f", "AVX512"), ("asimddp", "DOTPROD"))
    )


def processor() -> frozenset[str]:
    """What Linux says that the processor can; nothing elsewhere."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return frozenset()
    told = (line.partition(":") for line in lines)
    return next(
        (frozenset(value.split()) for key, _, value in told if key.strip() in _FLAGS), frozenset()
    )


def _load(name: str) -> Any:
    """The calls of a package's library. Raises `UsageError`."""
    if (found := _version(name)) != VERSIONS[name]:
        raise UsageError(
            f"llama.cpp comes with {name} {VERSIONS[name]}, and {found} is installed",
            hint=_how_to_repair(name),
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
        raise _unloaded(name, str(error)) from error


def _how_to_repair(name: str) -> str:
    return _REBUILD if name == FITTING else _REPAIR.format(name, VERSIONS[name])


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "none"


def _library(name: str) -> Path:
    """The library in a package: found, not imported."""
    spec = find_spec(_MODULES[name])
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent
    # Of xllamacpp the build for Python without a lock has a name of its own.
    stem = "*llama." if name == FITTING else "xllamacpp*."
    found = (path for path in folder.glob(f"{stem}*") if path.suffix in _SUFFIXES)
    return next(found, folder / "libllama.so")


def _require_instructions() -> None:
    """It would end the process. Raises `UsageError`."""
    known = processor() if platform.machine() in ("x86_64", "AMD64") else frozenset()
    if known and (missing := [name for name in _WANTED if name not in known]):
        raise UsageError(
            f"The llama.cpp of {PREBUILT} needs a processor with {missing[0]}",
            hint=how_to_compile(),
        )


_SUFFIXES = (".so", ".dylib", ".dll")
_FLAGS = ("flags", "Features")


def _unloaded(name: str, reason: str) -> UsageError:
    hint = _how_to_repair(name)
    if "libgomp" in reason:
        hint = "install OpenMP's runtime, on Debian and Ubuntu: apt-get install libgomp1"
    return UsageError(f"The llama.cpp of {name} cannot be loaded ({reason.rstrip('.')})", hint=hint)


BUILD = {"llama_version": "0.6.0-dev", "ggml_version": "0.26.0"}
"""What the library that the structs were written for says of itself."""

llama_token = llama_pos = llama_seq_id = c_int32
_Tokens = POINTER(llama_token)
_Bytes = POINTER(c_uint8)

llama_log_callback = ctypes.CFUNCTYPE(None, ctypes.c_int, c_char_p, c_void_p)


class llama_batch(Structure):
    _fields_ = (
        ("n_tokens", c_int32),
        ("token", _Tokens),
        ("embd", POINTER(c_float)),
        ("pos", POINTER(llama_pos)),
        ("n_seq_id", POINTER(c_int32)),
        ("seq_id", POINTER(POINTER(llama_seq_id))),
        ("logits", POINTER(c_int8)),
    )


class llama_model_params(Structure):
    _fields_ = (
        ("devices", c_void_p),
        ("tensor_buft_overrides", c_void_p),
        *((name, c_int32) for name in ("n_gpu_layers", "split_mode", "load_mode", "lazy_mode")),
        ("main_gpu", c_int32),
        ("tensor_split", c_void_p),
        ("progress_callback", c_void_p),
        ("progress_callback_user_data", c_void_p),
        ("kv_overrides", c_void_p),
        *((name, c_bool) for name in ("vocab_only", "check_tensors", "use_extra_bufts")),
        *((name, c_bool) for name in ("no_host", "no_alloc", "load_mtp")),
    )


class llama_context_params(Structure):
    _fields_ = (
        *((name, c_uint32) for name in ("n_ctx", "n_batch", "n_ubatch", "n_seq_max", "n_rs_seq")),
        *((name, c_uint32) for name in ("n_outputs_max", "n_outputs_max_per_seq")),
        *((name, c_int32) for name in ("n_threads", "n_threads_batch", "ctx_type")),
        *((name, c_int32) for name in ("rope_scaling_type", "pooling_type", "attention_type")),
        ("flash_attn_type", c_int32),
        *((name, c_float) for name in ("rope_freq_base", "rope_freq_scale", "yarn_ext_factor")),
        *((name, c_float) for name in ("yarn_attn_factor", "yarn_beta_fast", "yarn_beta_slow")),
        ("yarn_orig_ctx", c_uint32),
        ("defrag_thold", c_float),
        ("cb_eval", c_void_p),
        ("cb_eval_user_data", c_void_p),
        ("type_k", c_int32),
        ("type_v", c_int32),
        ("moe_cache_size", c_size_t),
        ("abort_callback", c_void_p),
        ("abort_callback_data", c_void_p),
        *((name, c_bool) for name in ("embeddings", "offload_kqv", "no_perf", "op_offload")),
        *((name, c_bool) for name in ("swa_full", "kv_unified")),
        ("samplers", c_void_p),
        ("n_samplers", c_size_t),
        ("ctx_other", c_void_p),
    )


_CONTEXT_DEFAULTS = {
    "n_ctx": 512,
    "n_batch": 2048,
    "n_ubatch": 512,
    "n_seq_max": 1,
    "pooling_type": -1,
    "yarn_ext_factor": -1.0,
    "defrag_thold": -1.0,
    "type_k": 1,
    "type_v": 1,
    "moe_cache_size": 0,
    "embeddings": False,
    "offload_kqv": True,
    "no_perf": True,
    "op_offload": True,
    "swa_full": True,
    "kv_unified": False,
    "n_samplers": 0,
    "ctx_other": None,
}
"""What says where the fields lie: `type_k` is 1 and `ctx_other` none in this build."""

_MODEL_DEFAULTS = {
    "n_gpu_layers": -1,
    "split_mode": 1,
    "main_gpu": 0,
    "tensor_split": None,
    "vocab_only": False,
    "check_tensors": False,
    "use_extra_bufts": True,
    "no_alloc": False,
}

CALLS: dict[str, tuple[Any, Sequence[Any]]] = {
    "llama_backend_init": (None, ()),
    "llama_batch_free": (None, (llama_batch,)),
    "llama_batch_init": (llama_batch, (c_int32, c_int32, c_int32)),
    "llama_context_default_params": (llama_context_params, ()),
    "llama_decode": (c_int32, (c_void_p, llama_batch)),
    "llama_detokenize": (
        c_int32,
        (c_void_p, _Tokens, c_int32, c_char_p, c_int32, c_bool, c_bool),
    ),
    "llama_free": (None, (c_void_p,)),
    "llama_get_embeddings_ith": (POINTER(c_float), (c_void_p, c_int32)),
    "llama_get_logits_ith": (POINTER(c_float), (c_void_p, c_int32)),
    "llama_get_memory": (c_void_p, (c_void_p,)),
    "llama_init_from_model": (c_void_p, (c_void_p, llama_context_params)),
    "llama_log_set": (None, (llama_log_callback, c_void_p)),
    "llama_memory_seq_pos_max": (llama_pos, (c_void_p, llama_seq_id)),
    "llama_memory_seq_pos_min": (llama_pos, (c_void_p, llama_seq_id)),
    "llama_memory_seq_rm": (c_bool, (c_void_p, llama_seq_id, llama_pos, llama_pos)),
    "llama_model_chat_template": (c_char_p, (c_void_p, c_char_p)),
    "llama_model_default_params": (llama_model_params, ()),
    "llama_model_desc": (c_int32, (c_void_p, c_char_p, c_size_t)),
    "llama_model_free": (None, (c_void_p,)),
    "llama_model_get_vocab": (c_void_p, (c_void_p,)),
    "llama_model_has_decoder": (c_bool, (c_void_p,)),
    "llama_model_has_encoder": (c_bool, (c_void_p,)),
    "llama_model_is_hybrid": (c_bool, (c_void_p,)),
    "llama_model_is_recurrent": (c_bool, (c_void_p,)),
    "llama_model_load_from_file": (c_void_p, (c_char_p, llama_model_params)),
    "llama_model_n_ctx_train": (c_int32, (c_void_p,)),
    "llama_model_n_embd": (c_int32, (c_void_p,)),
    "llama_model_n_params": (c_uint64, (c_void_p,)),
    "llama_model_n_swa": (c_int32, (c_void_p,)),
    "llama_print_system_info": (c_char_p, ()),
    "llama_set_embeddings": (None, (c_void_p, c_bool)),
    "llama_state_seq_get_data_ext": (
        c_size_t,
        (c_void_p, _Bytes, c_size_t, llama_seq_id, c_uint32),
    ),
    "llama_state_seq_get_size_ext": (c_size_t, (c_void_p, llama_seq_id, c_uint32)),
    "llama_state_seq_set_data_ext": (
        c_size_t,
        (c_void_p, _Bytes, c_size_t, llama_seq_id, c_uint32),
    ),
    "llama_supports_gpu_offload": (c_bool, ()),
    "llama_token_to_piece": (
        c_int32,
        (c_void_p, llama_token, c_char_p, c_int32, c_int32, c_bool),
    ),
    "llama_tokenize": (
        c_int32,
        (c_void_p, c_char_p, c_int32, _Tokens, c_int32, c_bool, c_bool),
    ),
    "llama_vocab_bos": (llama_token, (c_void_p,)),
    "llama_vocab_eos": (llama_token, (c_void_p,)),
    "llama_vocab_eot": (llama_token, (c_void_p,)),
    "llama_vocab_get_add_bos": (c_bool, (c_void_p,)),
    "llama_vocab_get_attr": (ctypes.c_int, (c_void_p, llama_token)),
    "llama_vocab_get_text": (c_char_p, (c_void_p, llama_token)),
    "llama_vocab_is_eog": (c_bool, (c_void_p, llama_token)),
    "llama_vocab_n_tokens": (c_int32, (c_void_p,)),
}
"""Each with what it returns and what it takes."""

_CONSTANTS = {
    "LLAMA_POOLING_TYPE_NONE": 0,
}


def load_library(path: Path, *, backends: bool = False) -> SimpleNamespace:
    """The library's calls by name, with structs, callback and constants.

    With `backends` what computes lies beside it, and the best that this processor can run is
    loaded. Raises `OSError` where it cannot be loaded, `UsageError` where it is another build.
    """
    library = ctypes.CDLL(str(path))
    for name, expected in BUILD.items():
        if (said := _said(library, name)) != expected:
            raise UsageError(f"it is another build: {name} is {said!r}, not {expected!r}")
    if missing := [name for name in CALLS if not hasattr(library, name)]:
        raise UsageError(f"it does not export {missing[0]}")
    calls: dict[str, Any] = {}
    for name, (result, arguments) in CALLS.items():
        call = calls[name] = getattr(library, name)
        call.restype, call.argtypes = result, arguments
    _require_defaults(library, "llama_context_default_params", _CONTEXT_DEFAULTS)
    _require_defaults(library, "llama_model_default_params", _MODEL_DEFAULTS)
    if backends:
        _load_backends(library, path.parent)
    types = (llama_token, llama_batch, llama_model_params, llama_context_params)
    return SimpleNamespace(
        **calls,
        **_CONSTANTS,
        **dict(zip(_TYPES, types, strict=True)),
        llama_log_callback=llama_log_callback,
    )


_TYPES = ("llama_token", "llama_batch", "llama_model_params", "llama_context_params")


@llama_log_callback
def _say_nothing(_level: int, _text: bytes, _data: object) -> None:
    """It would name on stderr what it loads."""


def _load_backends(library: ctypes.CDLL, folder: Path) -> None:
    library.llama_log_set(_say_nothing, c_void_p(0))
    library.ggml_backend_load_all_from_path.argtypes = (c_char_p,)
    library.ggml_backend_load_all_from_path(os.fsencode(folder))
    library.ggml_backend_dev_count.restype = c_size_t
    if not library.ggml_backend_dev_count():
        raise UsageError("it has no code that this processor can run")


def _said(library: ctypes.CDLL, name: str) -> str | None:
    if not hasattr(library, name):
        return None
    call = getattr(library, name)
    call.restype, call.argtypes = c_char_p, ()
    return call().decode("utf-8", "replace")


def _require_defaults(library: ctypes.CDLL, name: str, expected: dict[str, Any]) -> None:
    """Whether fields lie where they are looked for. A larger struct finds room for itself."""
    call = getattr(library, name)
    own = call.restype

    class Roomy(Structure):
        _fields_ = (("params", own), ("beyond", c_uint8 * 1024))

    call.restype = Roomy
    params = call().params
    call.restype = own
    for field, value in expected.items():
        if (found := getattr(params, field)) != value:
            raise UsageError(f"it is another build: {name} says {field} = {found}, not {value}")
