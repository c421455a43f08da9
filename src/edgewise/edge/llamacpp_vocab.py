"""The tokenizer inside a GGUF, through llama.cpp's own calls."""

import ctypes
from collections.abc import Mapping
from typing import Any

from edgewise.edge.binding import llama_cpp
from edgewise.errors import UsageError

_LONGEST_PIECE = 64
"""Bytes; the few longer pieces are asked for twice."""

_SPECIAL = llama_cpp.LLAMA_TOKEN_ATTR_CONTROL | llama_cpp.LLAMA_TOKEN_ATTR_UNKNOWN


class LlamaTokenizer:
    """Implements `Tokenizer`, for any number of threads. Lives as long as its model."""

    def __init__(self, model: Any) -> None:
        self._vocab = llama_cpp.llama_model_get_vocab(model)
        self.size: int = llama_cpp.llama_vocab_n_tokens(self._vocab)
        self.eos_ids = self._end_ids()
        template = llama_cpp.llama_model_chat_template(model, None)
        self.chat_template = template.decode("utf-8", "replace") if template else None
        self._special: Mapping[int, str] | None = None

    def _end_ids(self) -> frozenset[int]:
        named = {llama_cpp.llama_vocab_eos(self._vocab), llama_cpp.llama_vocab_eot(self._vocab)}
        marked = {i for i in range(self.size) if llama_cpp.llama_vocab_is_eog(self._vocab, i)}
        return frozenset((named | marked) - {-1})

    @property
    def special(self) -> Mapping[int, str]:
        """Control tokens and the unknown token, with their text."""
        if self._special is None:
            kind = llama_cpp.llama_vocab_get_attr
            found = [i for i in range(self.size) if kind(self._vocab, i) & _SPECIAL]
            self._special = {token: self._text(token) for token in found}
        return self._special

    @property
    def bos_id(self) -> int | None:
        """The id that begins a text, None where the model wants none."""
        bos = llama_cpp.llama_vocab_bos(self._vocab)
        return bos if bos >= 0 and llama_cpp.llama_vocab_get_add_bos(self._vocab) else None

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Ids of `text`; with `special`, special tokens written in it become their ids."""
        data = text.encode("utf-8", "surrogatepass")
        room = len(data) + 8
        while True:
            ids = (llama_cpp.llama_token * room)()
            n = llama_cpp.llama_tokenize(self._vocab, data, len(data), ids, room, False, special)
            if n >= 0:
                return list(ids[:n])
            room = -n  # what it needs

    def encode_prompt(self, text: str, *, special: bool = True) -> list[int]:
        """Ids of a whole prompt, behind exactly one BOS where the model wants one."""
        ids = self.encode(text, special=special)
        bos = self.bos_id
        return ids if bos is None or ids[:1] == [bos] else [bos, *ids]

    def piece(self, token: int) -> bytes:
        """The bytes that an id stands for; empty for special tokens and for padding."""
        # llama.cpp aborts the process for an id that it does not know.
        if not 0 <= token < self.size:
            raise UsageError(f"The vocabulary has ids from 0 to {self.size - 1}, not {token}.")
        room = _LONGEST_PIECE
        while True:
            # Of this call alone: ctypes lets other threads in while llama.cpp writes.
            buffer = (ctypes.c_char * room)()
            n = llama_cpp.llama_token_to_piece(self._vocab, token, buffer, room, 0, False)
            if n >= 0:
                return buffer.raw[:n]
            room = -n  # what it needs

    def special_text(self, name: str) -> str:
        """How the special token `bos` or `eos` is written; empty where there is none."""
        call = {"bos": llama_cpp.llama_vocab_bos, "eos": llama_cpp.llama_vocab_eos}[name]
        token = call(self._vocab)
        return self._text(token) if token >= 0 else ""

    def _text(self, token: int) -> str:
        return llama_cpp.llama_vocab_get_text(self._vocab, token).decode("utf-8", "replace")
