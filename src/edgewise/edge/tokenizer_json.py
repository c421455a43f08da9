"""`HubTokenizer`: reads the `tokenizer.json` in a model's folder with the library tokenizers.

Its ids, bytes and special tokens equal those that llama.cpp reads in a GGUF of the same model, so
that both have one fingerprint (`vocabulary.fingerprint`). The files are checked before the library
reads them. Neither torch nor transformers is needed, and no code of a model runs.
"""

import math
import re
import threading
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, cast

import msgspec

from edgewise.edge.files import damaged, explained, parsed, read_bytes, read_json
from edgewise.errors import ModelError, UsageError

TOKENIZER = "tokenizer.json"
TOOL_TEMPLATE = "additional_chat_templates/tool_use.jinja"
_TOOLS = "tool_use"
MAX_TOKENIZER = 128 << 20
"""Most bytes of a `tokenizer.json` that is read. Gemma's has 33 MB."""

# A template is some pages of text at most.
MAX_TEMPLATE_FILE = 1 << 20
GROWTH = 16
"""How many times as long a normalizer may make a text; beyond that the tokenizer is refused."""

_ENDS = """
<|im_end|> <|eot_id|> <|eom_id|> <|end|> <|endoftext|> <|end_of_text|> <|return|> <|call|> <|eot|>
<end_of_turn> <turn|> <eos> </s> <EOT> _<EOT> [EOT] [EOS] <end_of_utterance> <|end_of_role|>
<|END_OF_TURN_TOKEN|> <｜end▁of▁sentence｜> <|fim_pad|> <|repo_name|> <|file_sep|> <reponame>
<fim-pad> <fim_pad> <fim-repo>
"""
ENDS = frozenset(_ENDS.split())
"""Special tokens that end an answer in any model, whatever its files say, as in llama.cpp."""

# The largest vocabularies have a million ids; all up to the last one are looked at one by one.
_MOST_IDS = 1 << 22
_SPACE = "▁"
_BYTE = re.compile(r"<0x([0-9A-Fa-f]{2})>")
_NULL = msgspec.Raw(b"null")

# Added tokens that llama.cpp's converter makes control tokens, though they are not marked special.
_LOOKS_SPECIAL = re.compile(
    r"<\|.*\|>|<｜.*｜>|<unused.*>|<pad>|<mask>|<2mass>|\[@BOS@\]", re.DOTALL
)


class _Added(msgspec.Struct):
    id: int
    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool = False
    special: bool = False


class _File(msgspec.Struct):
    """The content of `tokenizer.json`."""

    model: msgspec.Raw
    version: str = "1.0"
    truncation: Any = None
    padding: Any = None
    added_tokens: list[_Added] = []
    normalizer: msgspec.Raw = _NULL
    pre_tokenizer: msgspec.Raw = _NULL
    post_processor: msgspec.Raw = _NULL
    decoder: msgspec.Raw = _NULL


class _Model(msgspec.Struct):
    type: str | None = None
    byte_fallback: bool = False
    unk_token: str | None = None
    unk_id: int | None = None


class _Named(msgspec.Struct):
    content: str = ""


class _Template(msgspec.Struct):
    name: str
    template: str


class _TokenizerConfig(msgspec.Struct):
    chat_template: str | list[_Template] | None = None
    bos_token: str | _Named | None = None
    eos_token: str | _Named | None = None
    add_bos_token: bool | None = None


class _Ends(msgspec.Struct):
    eos_token_id: int | list[int] | None = None


@cache
def _byte_of_letter() -> Mapping[str, int]:
    """Return the byte for each letter by which byte-level BPE writes bytes (GPT-2's table)."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(b): b for b in shown} | {chr(256 + i): b for i, b in enumerate(hidden)}


def _checked(path: Path) -> tuple[_File, _Model]:
    """Return the content of `tokenizer.json`, and of its "model". Raises `ModelError`."""
    data = read_bytes(path, MAX_TOKENIZER)
    if data is None:
        raise ModelError(
            f"There is no {TOKENIZER} in {str(path.parent)!r}",
            hint="save the model's fast tokenizer there, or name a GGUF of the model",
        )
    try:
        parsed(data)  # where a key stands twice, the library may read the other
        file = msgspec.json.decode(data, type=_File)
        model = msgspec.json.decode(file.model, type=_Model)
        grows = _growth(msgspec.json.decode(file.normalizer))
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        raise damaged(path, f"is not a tokenizer ({error})") from error
    if not _is_byte_level(file) and not model.byte_fallback:
        raise ModelError(
            f"{str(path)!r} ({model.type or 'of no type'}) cannot encode every text",
            hint="choose a model with a byte-level or byte-fallback vocabulary",
        )
    if grows > GROWTH:
        raise ModelError(
            f"{str(path)!r} can make a text more than {GROWTH} times longer before encoding it",
            hint="choose another model",
        )
    # A text is encoded as it is, whatever length the file was saved for.
    file.truncation = file.padding = None
    for one in file.added_tokens:
        one.special = one.special or _LOOKS_SPECIAL.fullmatch(one.content) is not None
    return file, model


def _is_byte_level(file: _File) -> bool:
    return any(b'"ByteLevel"' in bytes(step) for step in (file.pre_tokenizer, file.decoder))


def _growth(step: object) -> float:
    """Return how many times a normalizer step can lengthen a long text."""
    fields = cast(dict[str, Any], step) if isinstance(step, dict) else {}
    kind = fields.get("type")
    if kind == "Sequence":
        return math.prod(map(_growth, fields.get("normalizers") or []))
    if kind == "Precompiled":
        return 4.0
    if kind != "Replace":
        return 1.0
    pattern: Any = fields.get("pattern") or {}
    length = len(str(fields.get("content") or ""))
    string = pattern.get("String") if isinstance(pattern, dict) else None
    return max(1.0, length / len(string)) if isinstance(string, str) and string else 1.0 + length


def _templates(folder: Path, config: _TokenizerConfig) -> tuple[str | None, str | None]:
    """Return the chat template and the one for tools, or None; separate files take precedence."""
    given = config.chat_template
    named = {"default": given} if isinstance(given, str) else {}
    if isinstance(given, list):
        named = {one.name: one.template for one in given}
    files = (("default", "chat_template.jinja"), (_TOOLS, TOOL_TEMPLATE))
    for name, file in files:
        if (own := read_bytes(folder / file, MAX_TEMPLATE_FILE)) is not None:
            named[name] = own.decode("utf-8", "replace")
    return named.get("default", next(iter(named.values()), None)), named.get(_TOOLS)


def _text(token: str | _Named | None) -> str:
    return token.content if isinstance(token, _Named) else token or ""


class HubTokenizer:
    """The `Tokenizer` in a model folder's `tokenizer.json`; safe for any number of threads."""

    def __init__(self, folder: Path, *, size: int | None = None) -> None:
        """Read `folder`. `size` is the model's number of logits; None: one for each id, no padding.

        Raises `ModelError` for missing or damaged files, `UsageError` without `tokenizers`.
        """
        self._where = folder / TOKENIZER
        file, model = _checked(self._where)
        self._byte_level = _is_byte_level(file)
        self._added = frozenset(one.id for one in file.added_tokens)
        self._library = _library(self._where, msgspec.json.encode(file))
        self._lock = threading.Lock()
        with explained(self._where, "tokenizers"):
            self._texts = {i: t for t, i in self._library.get_vocab(True).items()}
        known = max(self._texts, default=-1) + 1
        self.size = known if size is None else size
        if known > (most := _MOST_IDS if size is None else size):
            raise damaged(self._where, f"has {known} ids and its model at most {most}")
        control = {one.id for one in file.added_tokens if one.special}
        self._control = control & self._texts.keys()
        self.special: Mapping[int, str] = {
            i: text
            for i, text in self._texts.items()
            if i in self._control or i == model.unk_id or text == model.unk_token
        }
        config = read_json(folder / "tokenizer_config.json", _TokenizerConfig) or _TokenizerConfig()
        self.chat_template, self.tool_template = _templates(folder, config)
        self._named = {"bos": _text(config.bos_token), "eos": _text(config.eos_token)}
        self.eos_ids = self._ends(folder)
        self.bos_id = self._first(config.add_bos_token)

    def _ends(self, folder: Path) -> frozenset[int]:
        named = {self._named["eos"], *ENDS}
        ids = {token for token, text in self.special.items() if text in named}
        for name in ("generation_config.json", "config.json"):
            ends = read_json(folder / name, _Ends) or _Ends()
            found = ends.eos_token_id
            ids.update(found if isinstance(found, list) else [] if found is None else [found])
        return frozenset(ids & self._texts.keys())

    def _first(self, adds_bos: bool | None) -> int | None:
        """Return the id that begins every prompt (BOS); None if the model wants none."""
        if adds_bos is not None:
            ids = [i for i, text in self._texts.items() if text == self._named["bos"]]
            return ids[0] if adds_bos and ids else None
        # The config does not say, so what the library puts before a text tells.
        with explained(self._where, "tokenizers"):
            first = self._library.encode("x").ids[:1]
            plain = self._library.encode("x", add_special_tokens=False).ids[:1]
        return first[0] if first and first != plain and first[0] in self.special else None

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """Return the ids of `text`; without `special`, special tokens in it are read as plain text.

        Added tokens that are not special become their ids in any text, as in llama.cpp (`<think>`).
        """
        # Strings of Rust hold no lone surrogates.
        text = text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
        # The setting below is the whole tokenizer's, so one thread encodes at a time.
        with self._lock, explained(self._where, "tokenizers"):
            self._library.encode_special_tokens = not special
            ids: list[int] = self._library.encode(text, add_special_tokens=False).ids
        if special or self._control.isdisjoint(ids):
            return ids
        return [part for token in ids for part in self._spelled(token)]

    def _spelled(self, token: int) -> list[int]:
        """Return the ids that spell a special token as plain text; of another token, its own id."""
        if token not in self._control:
            return [token]
        data = self._texts[token].encode()
        letters = [f"<0x{byte:02X}>" for byte in data]
        if self._byte_level:
            letter_of = {byte: letter for letter, byte in _byte_of_letter().items()}
            letters = [letter_of[byte] for byte in data]
        with explained(self._where, "tokenizers"):
            ids = [self._library.token_to_id(letter) for letter in letters]
        return [part for part in ids if part is not None]

    def encode_prompt(self, text: str, *, special: bool = True) -> list[int]:
        ids = self.encode(text, special=special)
        bos = self.bos_id
        return ids if bos is None or ids[:1] == [bos] else [bos, *ids]

    def piece(self, token: int) -> bytes:
        if not 0 <= token < self.size:
            raise UsageError(f"The vocabulary has ids from 0 to {self.size - 1}, not {token}.")
        text = self._texts.get(token)
        if text is None or token in self.special:
            return b""
        if token in self._added:
            return text.replace(_SPACE, _SPACE if self._byte_level else " ").encode()
        if self._byte_level:
            letters = _byte_of_letter()
            if all(letter in letters for letter in text):
                return bytes(letters[letter] for letter in text)
            return text.encode("utf-8", "surrogatepass")
        if match := _BYTE.fullmatch(text):
            return bytes([int(match[1], 16)])
        return text.replace(_SPACE, " ").encode("utf-8", "surrogatepass")

    def special_text(self, name: str) -> str:
        return self._named[name]


def _library(where: Path, data: bytes) -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise UsageError(
            f"Reading {str(where)!r} needs the package tokenizers", hint="pip install tokenizers"
        ) from error
    with explained(where, "tokenizers"):
        return tokenizers.Tokenizer.from_buffer(data)
