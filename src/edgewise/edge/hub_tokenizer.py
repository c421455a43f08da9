"""The tokenizer in a hub model's folder, `tokenizer.json`, through the library tokenizers.

The same ids, bytes and special tokens that llama.cpp reads in a GGUF of the same model, so that
both have one fingerprint. Neither torch nor transformers is needed, and no code of a model runs.
"""

import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from edgewise.edge.hub_tokenizer_files import (
    ENDS,
    TOKENIZER,
    Asides,
    Vocabulary,
    read_asides,
    read_vocabulary,
)
from edgewise.errors import ModelError, UsageError


class HubTokenizer:
    """Implements `Tokenizer`, for any number of threads."""

    def __init__(self, folder: Path, *, size: int | None = None) -> None:
        """Read `tokenizer.json` and what stands beside it in `folder`.

        `size` is the number of the model's logits where it pads its vocabulary. Raises `ModelError`
        for a folder without a tokenizer, and for one of another kind; `UsageError` without the
        library.
        """
        self._where = folder / TOKENIZER
        vocabulary = read_vocabulary(folder)
        self._library = _library(self._where, vocabulary)
        with _explained(self._where):
            self._texts = {i: t for t, i in self._library.get_vocab(True).items()}
        known = max(self._texts, default=-1) + 1
        self.size = known if size is None else size
        if known > self.size:
            raise ModelError(
                f"{str(self._where)!r} has {known} ids and its model {self.size}",
                hint="download the model again",
            )
        self._vocabulary, self._lock = vocabulary, threading.Lock()
        control = {i: self._texts[i] for i in vocabulary.control if i in self._texts}
        unknown = vocabulary.unknown(self._texts)
        self._control = frozenset(control)
        self.special: Mapping[int, str] = {**control, **unknown}
        asides = read_asides(folder)
        self.chat_template = asides.chat_template
        self._named = {"bos": asides.bos, "eos": asides.eos}
        self.eos_ids = self._ends(asides)
        self.bos_id = self._first(asides)

    def _ends(self, asides: Asides) -> frozenset[int]:
        named = {asides.eos, *ENDS}
        marked = {token for token, text in self.special.items() if text in named}
        return frozenset(marked | {token for token in asides.eos_ids if token in self._texts})

    def _first(self, asides: Asides) -> int | None:
        """The id that begins a text, None where the model wants none."""
        if asides.add_bos is not None:
            ids = [i for i, text in self._texts.items() if text == asides.bos]
            return ids[0] if asides.add_bos and ids else None
        with _explained(self._where):
            first = self._library.encode("x").ids[:1]
            plain = self._library.encode("x", add_special_tokens=False).ids[:1]
        return first[0] if first and first != plain and first[0] in self.special else None

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Ids of `text`; with `special`, special tokens written in it become their ids.

        Added tokens that are not special, such as `<think>`, do so in any text, as in llama.cpp.
        """
        text = text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
        with self._lock, _explained(self._where):
            self._library.encode_special_tokens = not special
            ids: list[int] = self._library.encode(text, add_special_tokens=False).ids
        if special or self._control.isdisjoint(ids):
            return ids
        return [part for token in ids for part in self._spelled(token)]

    def _spelled(self, token: int) -> list[int]:
        """The ids of a special token's letters, where a model writes it with text's own merges."""
        if token not in self._control:
            return [token]
        letters = self._vocabulary.letters(self._texts[token])
        with _explained(self._where):
            ids = [self._library.token_to_id(letter) for letter in letters]
        return [part for part in ids if part is not None]

    def encode_prompt(self, text: str, *, special: bool = True) -> list[int]:
        """Ids of a whole prompt, behind exactly one BOS where the model wants one."""
        ids = self.encode(text, special=special)
        bos = self.bos_id
        return ids if bos is None or ids[:1] == [bos] else [bos, *ids]

    def piece(self, token: int) -> bytes:
        """The bytes that an id stands for; empty for special tokens and for padding."""
        if not 0 <= token < self.size:
            raise UsageError(f"The vocabulary has ids from 0 to {self.size - 1}, not {token}.")
        text = self._texts.get(token)
        if text is None or token in self.special:
            return b""
        return self._vocabulary.bytes_of(token, text)

    def special_text(self, name: str) -> str:
        """How the special token `bos` or `eos` is written; empty where there is none."""
        return self._named[name]


def _library(where: Path, vocabulary: Vocabulary) -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise UsageError(
            f"Reading {str(where)!r} needs the package tokenizers", hint="pip install tokenizers"
        ) from error
    with _explained(where):
        return tokenizers.Tokenizer.from_buffer(vocabulary.data)


@contextmanager
def _explained(where: Path) -> Generator[None]:
    """What the library raises for a file of no use, as a `ModelError`.

    Its panics are no `Exception`s.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError):
        raise
    except BaseException as error:
        told = str(error).strip().partition("\n")[0][:200] or type(error).__name__
        raise ModelError(
            f"{str(where)!r} is damaged or too new for the installed tokenizers ({told})",
            hint="pip install -U tokenizers, or download the model again",
        ) from error
