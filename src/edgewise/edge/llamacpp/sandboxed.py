"""Load a GGUF file as an edge model would, in a process that may be lost: see `trial`.

    python -m edgewise.edge.llamacpp.sandboxed FILE

Ends with status 0 where the file can be loaded, with `HEARD` where llama.cpp refuses it in words,
and in whatever other way a broken file ends it.
"""

import ctypes
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

from edgewise.edge.base import PROBES
from edgewise.edge.llamacpp.context import LlamaBatch, LlamaContext
from edgewise.edge.llamacpp.library import llama_cpp
from edgewise.edge.llamacpp.load import new_context, open_weights
from edgewise.edge.llamacpp.sandbox import HEARD
from edgewise.edge.llamacpp.tokenizer import LlamaTokenizer
from edgewise.errors import ModelError

CONTEXT = 16
"""Ids."""

LARGEST_RUN = 4 << 30
"""Bytes of the largest file that is asked for a token: a larger one may not fit in memory."""

_MEMORY = 8 << 30
_ROOM = 64


def main(path: Path) -> int:
    """The status to end with."""
    _bound()
    try:
        _load(path)
    except ModelError:
        return HEARD
    return 0


def _bound() -> None:
    """No core file; and a count that is a lie must not take the machine's memory."""
    if sys.platform == "win32":
        return
    import resource

    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_DATA, (_MEMORY, _MEMORY))


def _load(path: Path) -> None:
    model = open_weights(path, gpu_layers=0, repack=False)
    tokenizer = LlamaTokenizer(model)
    _write_every_piece(model, tokenizer.size)
    for text in (*PROBES, *tokenizer.special.values()):
        tokenizer.encode_prompt(text)
    handle = new_context(model, path, context=CONTEXT, sequences=1, threads=1)
    if path.stat().st_size <= LARGEST_RUN:
        width = int(llama_cpp.llama_model_n_embd(model))
        context = LlamaContext(handle, vocabulary=tokenizer.size, hidden_size=width)
        batch = LlamaBatch()
        batch.put([0, tokenizer.size - 1], 0, every=False, last=True)
        context.decode(batch, hidden=True)
        context.row(1, hidden=True)


def _write_every_piece(model: Any, size: int) -> None:
    """All at once: from Python one by one they take longer than the load."""
    vocabulary = llama_cpp.llama_model_get_vocab(model)
    ids = (llama_cpp.llama_token * size)(*range(size))
    text = (ctypes.c_char * (_ROOM * size))()
    llama_cpp.llama_detokenize(vocabulary, ids, size, text, len(text), False, True)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
