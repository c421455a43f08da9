"""`LlamaTokenizer`: the tokenizer inside a GGUF, through llama.cpp's C API."""

import ctypes
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Any

from edgewise.edge.llamacpp.library import llama_cpp
from edgewise.errors import UsageError

_LONGEST_PIECE = 64  # bytes; the few longer pieces are asked for twice
_SPECIAL = 1 << 3 | 1 << 0  # llama.h: LLAMA_TOKEN_ATTR_CONTROL, LLAMA_TOKEN_ATTR_UNKNOWN


class LlamaTokenizer:
    """The tokenizer of a GGUF. Implements `Tokenizer`; any number of threads may use it."""

    def __init__(self, model: Any) -> None:
        self._handle = llama_cpp.llama_model_get_vocab(model)
        self._lock, self._closed = threading.Lock(), False
        self.size: int = llama_cpp.llama_vocab_n_tokens(self._handle)
        named = {llama_cpp.llama_vocab_eos(self._handle), llama_cpp.llama_vocab_eot(self._handle)}
        marked = {i for i in range(self.size) if llama_cpp.llama_vocab_is_eog(self._handle, i)}
        self.eos_ids = frozenset((named | marked) - {-1})
        self.chat_template, self.tool_template = (
            found.decode("utf-8", "replace") if found else None
            for found in (
                llama_cpp.llama_model_chat_template(model, name) for name in (None, b"tool_use")
            )
        )
        self._special: Mapping[int, str] | None = None
        self._pieces: dict[int, bytes] = {}

    def close(self) -> None:
        """Let the model be freed; later calls that need llama.cpp raise `UsageError`."""
        with self._lock:
            self._closed = True
            self._pieces.clear()

    @contextmanager
    def _vocabulary(self) -> Generator[Any]:
        """Yield the vocabulary. Raises `UsageError` if it is freed already."""
        # Held while it is used, as another thread may close the model.
        with self._lock:
            if self._closed:
                raise UsageError("The model is closed", hint="load it again")
            yield self._handle

    @property
    def special(self) -> Mapping[int, str]:
        if self._special is None:
            kind = llama_cpp.llama_vocab_get_attr
            with self._vocabulary() as vocabulary:
                found = [i for i in range(self.size) if kind(vocabulary, i) & _SPECIAL]
            self._special = {token: self._text(token) for token in found}
        return self._special

    @property
    def bos_id(self) -> int | None:
        """The id that begins a prompt (BOS); None if the model wants none."""
        with self._vocabulary() as vocabulary:
            bos = llama_cpp.llama_vocab_bos(vocabulary)
            return bos if bos >= 0 and llama_cpp.llama_vocab_get_add_bos(vocabulary) else None

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Return the ids of `text`; with `special`, special tokens written in it become their ids.

        llama.cpp's user-defined tokens, such as `<think>`, become their ids in any text.
        """
        data = text.encode("utf-8", "surrogatepass")
        room = len(data) + 8
        while True:
            ids = (llama_cpp.llama_token * room)()
            with self._vocabulary() as vocabulary:
                n = llama_cpp.llama_tokenize(vocabulary, data, len(data), ids, room, False, special)
            if n >= 0:
                return list(ids[:n])
            room = -n  # what it needs

    def encode_prompt(self, text: str, *, special: bool = True) -> list[int]:
        ids = self.encode(text, special=special)
        bos = self.bos_id
        return ids if bos is None or ids[:1] == [bos] else [bos, *ids]

    def piece(self, token: int) -> bytes:
        known = self._pieces.get(token)
        return self._read_piece(token) if known is None else known

    def _read_piece(self, token: int) -> bytes:
        # llama.cpp aborts the process for an id that it does not know.
        if not 0 <= token < self.size:
            raise UsageError(f"The vocabulary has ids from 0 to {self.size - 1}, not {token}.")
        room = _LONGEST_PIECE
        while True:
            buffer = (ctypes.c_char * room)()
            with self._vocabulary() as vocabulary:
                n = llama_cpp.llama_token_to_piece(vocabulary, token, buffer, room, 0, False)
                if n >= 0:
                    piece = self._pieces[token] = buffer.raw[:n]
                    return piece
            room = -n  # what it needs

    def special_text(self, name: str) -> str:
        call = {"bos": llama_cpp.llama_vocab_bos, "eos": llama_cpp.llama_vocab_eos}[name]
        with self._vocabulary() as vocabulary:
            token = call(vocabulary)
        return self._text(token) if token >= 0 else ""

    def _text(self, token: int) -> str:
        with self._vocabulary() as vocabulary:
            text = llama_cpp.llama_vocab_get_text(vocabulary, token)
        return text.decode("utf-8", "replace")
