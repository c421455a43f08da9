"""The tokenizer inside a GGUF, through llama.cpp's own calls."""

import ctypes
import hashlib
from typing import Any

from edgewise.edge.base import PROBES
from edgewise.edge.binding import llama_cpp

_LONGEST_PIECE = 512
_UNUSED = llama_cpp.LLAMA_TOKEN_ATTR_UNUSED


class LlamaTokenizer:
    """Implements `Tokenizer`. Lives as long as its model."""

    def __init__(self, model: Any) -> None:
        self._vocab = llama_cpp.llama_model_get_vocab(model)
        self.size: int = llama_cpp.llama_vocab_n_tokens(self._vocab)
        self.eos_ids = self._end_ids()
        template = llama_cpp.llama_model_chat_template(model, None)
        self.chat_template = template.decode("utf-8", "replace") if template else None
        self._pieces: dict[int, bytes] = {}
        self._buffer = ctypes.create_string_buffer(_LONGEST_PIECE)
        self._fingerprint: str | None = None

    def _end_ids(self) -> frozenset[int]:
        named = {llama_cpp.llama_vocab_eos(self._vocab), llama_cpp.llama_vocab_eot(self._vocab)}
        marked = {i for i in range(self.size) if llama_cpp.llama_vocab_is_eog(self._vocab, i)}
        return frozenset((named | marked) - {-1})

    @property
    def bos_id(self) -> int | None:
        """The id that begins a text, None where the model wants none."""
        bos = llama_cpp.llama_vocab_bos(self._vocab)
        return bos if bos >= 0 and llama_cpp.llama_vocab_get_add_bos(self._vocab) else None

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Ids of `text`; with `special`, special tokens written in it become their ids."""
        data = text.encode("utf-8", "surrogatepass")
        room = len(data) + 8
        ids = (llama_cpp.llama_token * room)()
        count = llama_cpp.llama_tokenize(self._vocab, data, len(data), ids, room, False, special)
        return list(ids[:count])

    def encode_prompt(self, text: str, *, special: bool = True) -> list[int]:
        """Ids of a whole prompt, behind exactly one BOS where the model wants one."""
        ids = self.encode(text, special=special)
        bos = self.bos_id
        return ids if bos is None or ids[:1] == [bos] else [bos, *ids]

    def piece(self, token: int) -> bytes:
        """The bytes that an id stands for; empty for control tokens."""
        known = self._pieces.get(token)
        if known is None:
            count = llama_cpp.llama_token_to_piece(
                self._vocab, token, self._buffer, _LONGEST_PIECE, 0, False
            )
            known = self._pieces[token] = self._buffer.raw[: max(count, 0)]
        return known

    def special_text(self, name: str) -> str:
        """How the special token `bos` or `eos` is written; empty where there is none."""
        call = {"bos": llama_cpp.llama_vocab_bos, "eos": llama_cpp.llama_vocab_eos}[name]
        token = call(self._vocab)
        if token < 0:
            return ""
        return llama_cpp.llama_vocab_get_text(self._vocab, token).decode("utf-8", "replace")

    def probe(self) -> list[list[int]]:
        """Ids of the probe strings, to be compared with a remote engine's."""
        return [self.encode(text) for text in PROBES]

    def fingerprint(self) -> str:
        """SHA-256 over every used id's text and kind, and over the probe strings' ids.

        Padding ids (llama.cpp: unused) are left out, since models of one family pad to different
        sizes. The probes stand for merges and pre-tokenizer, which the engine does not hand out.
        """
        if self._fingerprint is None:
            digest = hashlib.sha256()
            for token in range(self.size):
                if llama_cpp.llama_vocab_get_attr(self._vocab, token) & _UNUSED:
                    continue
                text = llama_cpp.llama_vocab_get_text(self._vocab, token)
                control = llama_cpp.llama_vocab_is_control(self._vocab, token)
                digest.update(b"%d\0%d\0%d\0%b" % (token, control, len(text), text))
            digest.update(repr(self.probe()).encode())
            self._fingerprint = digest.hexdigest()
        return self._fingerprint
