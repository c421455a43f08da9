"""llama.cpp's C API in ctypes, as far as it is used here: for a library that comes without Python.

Names, types and structs are those of `include/llama.h` in the build that `VERSIONS` names. A
struct that does not match is no error to ctypes but memory overwritten, so nothing is called before
the library has said which build it is.
"""

import ctypes
import os
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
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from edgewise.errors import UsageError

VERSIONS = {"llama_version": "0.6.0-dev", "ggml_version": "0.26.0"}
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


def load(path: Path, *, backends: bool = False) -> SimpleNamespace:
    """The library's calls by name, with structs, callback and constants.

    With `backends` what computes lies beside it, and the best that this processor can run is
    loaded. Raises `OSError` where it cannot be loaded, `UsageError` where it is another build.
    """
    library = ctypes.CDLL(str(path))
    for name, expected in VERSIONS.items():
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
