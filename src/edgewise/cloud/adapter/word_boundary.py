"""Word boundaries: where a cloud with another vocabulary is asked, what is kept of its reply.

Blocks of reasoning, which models write before an answer, are boundaries too.

What the edge has written is not changed. A reply is appended in the edge's ids, so nothing in its
KV cache is tokenised again. Consults are made, and replies end, between two words.
"""

import codecs
import unicodedata
from collections.abc import Sequence
from typing import Literal, NamedTuple

from edgewise.edge.base import Tokenizer
from edgewise.edge.vocabulary import bytes_of
from edgewise.errors import NothingUsable

BLANKS = " \t"

REPEATED = 24
"""Characters of an answer's beginning that a reply does not come to by chance."""

_CONTEXT = 32
"""Ids before a place that are read to judge it."""

_UNSPACED = (
    *((0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF)),
    *((0x2E80, 0x312F), (0x3190, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF)),
)
"""Scripts without spaces, where a word is a character: CJK, kana, Thai, Lao, Burmese, Khmer."""

_JOINERS = "\u200c\u200d" + "".join(map(chr, range(0x1F3FB, 0x1F400)))
"""Characters that belong to the one before, as accents do: joiners, and skin tones."""

_LETTERS_OF_FLAGS = range(0x1F1E6, 0x1F200)
"""Pictures one by one, but two of them make one."""


class Kept(NamedTuple):
    """The used part of a reply. `complete`: no more is needed; `ends`: it ends the answer."""

    text: str
    complete: bool
    ends: bool


def opens_word(before: str, after: str) -> bool:
    """Whether a consult may stand between two texts, by their characters alone.

    Where a word, or blanks before one, begin; `after` may be empty, as an end token is.
    """
    if not before or not after or before[-1].isspace():
        return True
    return _breaks(before[-_CONTEXT:] + after[0], len(before[-_CONTEXT:]))


def held_back(written: str, *, lines: bool = False) -> tuple[str, str]:
    """Splits an answer into the text to send and the blanks to hold back; with `lines`, newlines.

    Most tokens include the blank before a word, and some clouds drop blanks at the end of a text.
    """
    sent = written.rstrip(None if lines else BLANKS)
    return sent, written[len(sent) :]


def added(sent: str, reply: str) -> str:
    """Strip the echo: some APIs repeat what was sent before they continue. Returns the new text.

    Raises `NothingUsable` where all of a reply is how the answer begins: the model began it anew.
    A reply that differs later on, as a table's next row does, continues it.
    """
    begun, again = sent.lstrip(), reply.strip()
    shorter = min(len(begun), len(again))
    if shorter < REPEATED or begun[:shorter] != again[:shorter]:
        return reply
    if begun[:REPEATED] in begun[1:]:
        # It repeats itself, and may once more.
        return reply
    if len(again) >= len(begun):
        return reply.lstrip()[len(begun) :]
    raise NothingUsable("The cloud model restarted the answer instead of continuing it.")


def kept(
    reply: bytes, held: str, words: int, *, ended: bool, whole: Sequence[tuple[int, int]] = ()
) -> Kept:
    """At most so many whole words of a reply, without blanks that the answer has already.

    `ended` if the cloud ended the answer there. The last word is whole if another begins after
    it. Never a part of a character, nor U+FFFD, which stands for one. No word ends inside
    of what is `whole`: places from and to, in characters.
    """
    read = characters(reply)
    ended = ended and len(read.encode()) == len(reply)
    text = read.removeprefix(held) if read.startswith(held) else read.lstrip(BLANKS + held)
    gone = len(read) - len(text)
    inside = {at - gone for start, end in whole for at in range(start + 1, end)}
    ends = [at for at in range(1, len(text)) if at not in inside and _breaks(text, at)]
    if len(ends) >= words and not (ended and text[ends[words - 1] :].isspace()):
        return Kept(text[: ends[words - 1]], complete=True, ends=False)
    if ended:
        return Kept(text, complete=True, ends=True)
    return Kept(text[: ends[-1]] if ends else "", complete=False, ends=False)


def divides(tokenizer: Tokenizer, text: str, at: int) -> bool:
    """Whether the tokenizer, given `text`, writes a token's end at character `at`."""
    data, wanted = text.encode(), len(text[:at].encode())
    pieces = [tokenizer.piece(token) for token in tokenizer.encode(text)]
    whole = b"".join(pieces)
    # SentencePiece puts a blank before a text.
    reached = len(data) - len(whole)
    if reached not in (0, -1) or not whole.endswith(data):
        return False
    for piece in pieces:
        if reached >= wanted:
            break
        reached += len(piece)
    return reached == wanted or wanted == 0


def characters(data: bytes) -> str:
    """The whole characters at the beginning."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        text = data[: error.start].decode()
    return text.partition("\ufffd")[0]


def written_text(data: bytes) -> str | None:
    """Decodes an answer's bytes; None if the last character is incomplete."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data)
    return None if decoder.getstate()[0] else text


Block = Literal["none", "open", "over"]
"""State of a reasoning block at an answer's beginning."""

_SIGNS = tuple(
    (begin.encode(), end.encode())
    for begin, end in (
        ("<think>", "</think>"),
        ("[THINK]", "[/THINK]"),
        ("<seed:think>", "</seed:think>"),
        ("<|START_THINKING|>", "<|END_THINKING|>"),
        ("<|channel|>analysis<|message|>", "<|channel|>final<|message|>"),
    )
)
"""Qwen, DeepSeek, GLM and SmolLM; Mistral; Seed; Command; gpt-oss."""

_PROMPT = 16
"""Ids at a prompt's end that are read: a template may begin a block there."""


class Reasoning:
    """Finds a block at an answer's beginning, in ids of a tokenizer's."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        # Signs may be control tokens, which are no text.
        signs = b" ".join(sign for signs in _SIGNS for sign in signs)
        special = ((token, text.encode()) for token, text in tokenizer.special.items())
        self._silent = {token: text for token, text in special if text and text in signs}

    def keeps(self, ids: Sequence[int], start: int, token: int, *, inside: bool) -> bool:
        """Whether `token` after `ids`, an answer from `start` on, begins or ends a block.

        The blanks after a block end it, too. With `inside` also true inside of a block.
        """
        block, left = self.parted([*ids, token], start)
        if block == "open":
            return inside or self.parted(ids, start)[0] != "open"
        return block == "over" and not self._text(left).strip()

    def parted(self, ids: Sequence[int], start: int) -> tuple[Block, Sequence[int]]:
        """Whether there is a block, and the answer's ids inside an open block, else after it.

        The sign that begins one, where the answer has it, stays with what is inside.
        """
        end, text = self._end(ids, start), self._text(ids[start:])
        if end is None:
            return "none", ids[start:]
        if end not in text:
            return "open", ids[start:]
        left, number = text.index(end) + len(end), start
        while left > 0:
            left -= len(self._piece(ids[number]))
            number += 1
        return "over", ids[number:]

    def _end(self, ids: Sequence[int], start: int) -> bytes | None:
        """The sign that ends the block with which the answer begins; None where it does not."""
        before = self._text(ids[max(0, start - _PROMPT) : start]).rstrip()
        beginning = self._text(ids[start : start + _PROMPT]).lstrip()
        for begin, end in _SIGNS:
            if before.endswith(begin) or beginning.startswith(begin):
                return end
        return None

    def _text(self, ids: Sequence[int]) -> bytes:
        return b"".join(map(self._piece, ids))

    def _piece(self, token: int) -> bytes:
        return self._silent.get(token) or self._tokenizer.piece(token)


class WordBoundaries:
    """Finds positions where a cloud with another vocabulary can be consulted."""

    def __init__(
        self, edge: Tokenizer, cloud: Tokenizer | None = None, *, reasons: bool | None = None
    ) -> None:
        """A boundary is where both tokenizers divide the text; without `cloud`, where a word opens.

        `reasons` says whether a cloud that is not shown reasoning can continue inside a block;
        None: it is shown.
        """
        self._edge, self._cloud = edge, cloud
        self._reasoning, self._reasons = Reasoning(edge), reasons

    def refused(
        self, ids: Sequence[int], start: int, token: int, *, divided: bool = False
    ) -> Literal["mid_word", "reasoning"] | None:
        """Why no consult may follow `ids`, an answer from `start` on; None if one may.

        `token` is the edge's next token; it shows whether the previous word is complete.
        `divided`: a completion ended here.
        """
        keeps, reasons = self._reasoning.keeps, self._reasons
        if reasons is not None and keeps(ids, start, token, inside=not reasons):
            return "reasoning"
        return None if divided or self._judged(ids, start, token, self._cloud) else "mid_word"

    def opens(self, ids: Sequence[int], start: int, token: int) -> bool:
        """Whether `token` begins a word after `ids`."""
        return self._judged(ids, start, token, None)

    def _judged(self, ids: Sequence[int], start: int, token: int, cloud: Tokenizer | None) -> bool:
        written = written_text(bytes_of(self._edge, ids[max(start, len(ids) - _CONTEXT) :]))
        if written is None:
            return False
        piece = self._edge.piece(token)
        if cloud is None:
            return opens_word(written, characters(piece) or _like(piece))
        sent, _ = held_back(written)
        return divides(cloud, written + characters(piece), len(sent))


def _breaks(text: str, at: int) -> bool:
    """Whether a word ends at character `at`, which is inside of the text."""
    after = text[at]
    if unicodedata.category(after)[0] == "M" or after in _JOINERS or text[at - 1] == "\u200d":
        return False
    base = at - 1
    while base and (unicodedata.category(text[base])[0] == "M" or text[base] in _JOINERS):
        base -= 1
    before = text[base]
    if before.isspace() or after.isspace():
        # Blanks belong to the word after them.
        return not before.isspace()
    return is_unspaced(after) or is_unspaced(before) or _kind(before) != _kind(after)


def _kind(char: str) -> str:
    category = unicodedata.category(char)[0]
    return category if category in "LN" else ""


def is_unspaced(char: str) -> bool:
    """Whether a character is a word: in scripts without spaces, and pictures."""
    code = ord(char)
    if unicodedata.category(char) == "So":
        return code not in _LETTERS_OF_FLAGS
    return any(first <= code <= last for first, last in _UNSPACED)


def _like(piece: bytes) -> str:
    """A character of the kind that the first byte of one begins; empty for no bytes."""
    if not piece:
        return ""
    return "\u3042" if piece[0] in range(0xE3, 0xEA) else "\U0001f600" if piece[0] >= 0xF0 else "a"
