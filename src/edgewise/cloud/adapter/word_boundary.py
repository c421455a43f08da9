"""Word boundaries: where a cloud model of another vocabulary is asked, and where its reply is cut.

Both are between two words. A reply is converted to ids of the edge model and appended: the ids
before it, which are in the edge model's KV cache, stay as they are. Blocks of reasoning are found
here too: some cloud models cannot continue inside one.
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
"""How many characters a reply must share with the answer's beginning to count as repeating it."""

# How many ids before a position are read to judge whether a word ends there.
_CONTEXT = 32

# Scripts without spaces, where a word is a character: CJK, kana, Thai, Lao, Burmese, Khmer.
_UNSPACED = (
    *((0x0E00, 0x0EFF), (0x1000, 0x109F), (0x1780, 0x17FF)),
    *((0x2E80, 0x312F), (0x3190, 0x9FFF), (0xF900, 0xFAFF), (0x20000, 0x3FFFF)),
)

# Characters that belong to the one before, as accents do: joiners, and skin tones.
_JOINERS = "\u200c\u200d" + "".join(map(chr, range(0x1F3FB, 0x1F400)))

# Regional indicators: two make one picture (a flag), so one is not a word by itself.
_LETTERS_OF_FLAGS = range(0x1F1E6, 0x1F200)


class Kept(NamedTuple):
    """The part of a cloud model's reply that is used, as `text`.

    `complete`: the consult needs no further request. `ends`: the answer ends after this text.
    """

    text: str
    complete: bool
    ends: bool


def opens_word(before: str, after: str) -> bool:
    """Whether the text `after` begins with a new word, or the blanks before one.

    `before` is the text before it. True if either is empty, as `after` is for an end token.
    """
    if not before or not after or before[-1].isspace():
        return True
    return _breaks(before[-_CONTEXT:] + after[0], len(before[-_CONTEXT:]))


def held_back(written: str, *, lines: bool = False) -> tuple[str, str]:
    """Split a text into what to send and the blanks (`lines`: and line ends) at its end."""
    # Most tokens include the blank before a word, and some clouds drop blanks at a text's end.
    sent = written.rstrip(None if lines else BLANKS)
    return sent, written[len(sent) :]


def added(sent: str, reply: str) -> str:
    """Return the new text of a reply, which may repeat `sent`, the text sent, before it continues.

    Raises `NothingUsable` if the reply is only the beginning of `sent` (24 characters or more): the
    model restarted the answer. A reply that begins like `sent` but then differs is returned whole.
    """
    begun, again = sent.lstrip(), reply.strip()
    shorter = min(len(begun), len(again))
    # What differs further on may be the next row of a table.
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
    """Return the first `words` complete words of a reply, or as many as it has.

    `held` are blanks that the answer ends with already; they are removed from the reply's
    beginning. `ended` says whether the cloud ended the answer with this reply; otherwise the last
    word is complete only if another begins after it. `whole` are parts of the reply that must not
    be divided, as (start, end) in characters, such as a private word put for its placeholder. The
    returned text ends before an incomplete character or U+FFFD.
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
    """Whether a token of `text` ends just before character `at`; True at both ends of the text.

    False everywhere if the tokens do not add up to `text`; one blank before it is ignored.
    """
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
    """Decode UTF-8 up to the first incomplete character or U+FFFD."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        text = data[: error.start].decode()
    return text.partition("\ufffd")[0]


def written_text(data: bytes) -> str | None:
    """Decode an answer's UTF-8 bytes; return None if the last character is incomplete."""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    text = decoder.decode(data)
    return None if decoder.getstate()[0] else text


Block = Literal["none", "open", "over"]
"""State of a reasoning block at an answer's beginning: there is none, it is open, or it is over."""

# Tags around reasoning: Qwen, DeepSeek, GLM and SmolLM; Mistral; Seed; Command; gpt-oss.
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

# Ids that are searched for a tag: at a prompt's end, where a template may put it, and after.
_PROMPT = 16


class Reasoning:
    """Finds a block of reasoning, such as <think>...</think>, at the beginning of an answer."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        # Signs may be control tokens, which are no text.
        signs = b" ".join(sign for signs in _SIGNS for sign in signs)
        special = ((token, text.encode()) for token, text in tokenizer.special.items())
        self._silent = {token: text for token, text in special if text and text in signs}

    def keeps(self, ids: Sequence[int], start: int, token: int, *, inside: bool) -> bool:
        """Whether `token` begins or ends a reasoning block, or is part of the blanks after one.

        `token` is the next after `ids`; the answer begins at index `start` of `ids`. With `inside`
        the result is also True for every token in a block.
        """
        block, left = self.parted([*ids, token], start)
        if block == "open":
            return inside or self.parted(ids, start)[0] != "open"
        return block == "over" and not self._text(left).strip()

    def parted(self, ids: Sequence[int], start: int) -> tuple[Block, Sequence[int]]:
        """Return the reasoning block's state ("none", "open" or "over"), and ids of the answer.

        The answer begins at index `start` of `ids`. If the block is over, only the ids after it are
        returned, otherwise all of the answer's.
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
        """The closing tag for the block that the answer begins with; None if there is none."""
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
    """Decides where in an answer a cloud model with another vocabulary may be asked."""

    def __init__(
        self, edge: Tokenizer, cloud: Tokenizer | None = None, *, reasons: bool | None = None
    ) -> None:
        """`edge` and `cloud` are the two models' tokenizers.

        The cloud may be asked where both split the text; without `cloud`, where a word begins.
        `reasons` is None for a cloud model that is sent finished blocks of reasoning, too. For any
        other it says whether this model can continue inside an open block.
        """
        self._edge, self._cloud = edge, cloud
        self._reasoning, self._reasons = Reasoning(edge), reasons

    def refused(
        self, ids: Sequence[int], start: int, token: int, *, divided: bool = False
    ) -> Literal["mid_word", "reasoning"] | None:
        """Return why the cloud may not be asked after `ids`, as a `Token.reason`; None if it may.

        The answer begins at index `start` of `ids`. `token` is the edge model's next token, which
        shows whether the word before it is complete. `divided`: `ids` end with a completion of the
        cloud model, so there is a word boundary in any case.
        """
        keeps, reasons = self._reasoning.keeps, self._reasons
        if reasons is not None and keeps(ids, start, token, inside=not reasons):
            return "reasoning"
        return None if divided or self._judged(ids, start, token, self._cloud) else "mid_word"

    def opens(self, ids: Sequence[int], start: int, token: int) -> bool:
        """Whether `token`, after `ids`, begins a word; the answer begins at `ids[start]`."""
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
    """Whether a word ends before character `at`, which is neither first nor beyond the last."""
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
    """Whether a character counts as a word by itself: CJK and other unspaced scripts, pictures."""
    code = ord(char)
    if unicodedata.category(char) == "So":
        return code not in _LETTERS_OF_FLAGS
    return any(first <= code <= last for first, last in _UNSPACED)


def _like(piece: bytes) -> str:
    """Some character of the same kind as the incomplete one in `piece`; empty for no bytes."""
    if not piece:
        return ""
    return "\u3042" if piece[0] in range(0xE3, 0xEA) else "\U0001f600" if piece[0] >= 0xF0 else "a"
