"""The tokenizer inside a GGUF, through llama.cpp's own calls."""

import ctypes
import threading
from collections.abc import Mapping
from typing import Any

from edgewise.edge.llamacpp.library import llama_cpp
from edgewise.errors import UsageError

_LONGEST_PIECE = 64
"""Bytes; the few longer pieces are asked for twice."""

_SPECIAL = 1 << 3 | 1 << 0  # llama.h: LLAMA_TOKEN_ATTR_CONTROL, LLAMA_TOKEN_ATTR_UNKNOWN


class _Life:
    """`with life:` around calls into a vocabulary, which is freed once none is under way."""

    def __init__(self) -> None:
        self._calls, self._over = 0, False
        self._changed = threading.Condition()

    def __enter__(self) -> None:
        with self._changed:
            if self._over:
                raise UsageError("The model is closed", hint="load it again")
            self._calls += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._calls -= 1
            self._changed.notify_all()

    def end(self) -> None:
        """Let no call begin any more, and wait for those under way."""
        with self._changed:
            self._over = True
            self._changed.wait_for(lambda: not self._calls)


class LlamaTokenizer:
    """Implements `Tokenizer`, for any number of threads. Lives as long as its model."""

    def __init__(self, model: Any) -> None:
        self._life = _Life()
        self._vocab = llama_cpp.llama_model_get_vocab(model)
        self.size: int = llama_cpp.llama_vocab_n_tokens(self._vocab)
        self.eos_ids = self._end_ids()
        template = llama_cpp.llama_model_chat_template(model, None)
        self.chat_template = template.decode("utf-8", "replace") if template else None
        self._special: Mapping[int, str] | None = None
        self._pieces: dict[int, bytes] = {}

    def close(self) -> None:
        """Before the model is freed: what is asked later is refused, and not looked up there."""
        self._life.end()
        self._pieces.clear()

    def _end_ids(self) -> frozenset[int]:
        named = {llama_cpp.llama_vocab_eos(self._vocab), llama_cpp.llama_vocab_eot(self._vocab)}
        marked = {i for i in range(self.size) if llama_cpp.llama_vocab_is_eog(self._vocab, i)}
        return frozenset((named | marked) - {-1})

    @property
    def special(self) -> Mapping[int, str]:
        """Control tokens and the unknown token, with their text."""
        if self._special is None:
            kind = llama_cpp.llama_vocab_get_attr
            with self._life:
                found = [i for i in range(self.size) if kind(self._vocab, i) & _SPECIAL]
            self._special = {token: self._text(token) for token in found}
        return self._special

    @property
    def bos_id(self) -> int | None:
        """The id that begins a text, None where the model wants none."""
        with self._life:
            bos = llama_cpp.llama_vocab_bos(self._vocab)
            return bos if bos >= 0 and llama_cpp.llama_vocab_get_add_bos(self._vocab) else None

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Ids of `text`; with `special`, special tokens written in it become their ids.

        User-defined tokens, such as `<think>`, do so in any text: to llama.cpp they are words.
        """
        data = text.encode("utf-8", "surrogatepass")
        room = len(data) + 8
        while True:
            ids = (llama_cpp.llama_token * room)()
            with self._life:
                n = llama_cpp.llama_tokenize(
                    self._vocab, data, len(data), ids, room, False, special
                )
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
        known = self._pieces.get(token)
        return self._read_piece(token) if known is None else known

    def _read_piece(self, token: int) -> bytes:
        # llama.cpp aborts the process for an id that it does not know.
        if not 0 <= token < self.size:
            raise UsageError(f"The vocabulary has ids from 0 to {self.size - 1}, not {token}.")
        room = _LONGEST_PIECE
        while True:
            # Of this call alone: ctypes lets other threads in while llama.cpp writes.
            buffer = (ctypes.c_char * room)()
            with self._life:
                n = llama_cpp.llama_token_to_piece(self._vocab, token, buffer, room, 0, False)
                if n >= 0:
                    piece = self._pieces[token] = buffer.raw[:n]
                    return piece
            room = -n  # what it needs

    def special_text(self, name: str) -> str:
        """How the special token `bos` or `eos` is written; empty where there is none."""
        call = {"bos": llama_cpp.llama_vocab_bos, "eos": llama_cpp.llama_vocab_eos}[name]
        with self._life:
            token = call(self._vocab)
        return self._text(token) if token >= 0 else ""

    def _text(self, token: int) -> str:
        with self._life:
            text = llama_cpp.llama_vocab_get_text(self._vocab, token)
        return text.decode("utf-8", "replace")
