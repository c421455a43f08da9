"""Compares the text of all ids of a vocabulary with an engine's, many ids in one request."""

import asyncio
import random
import re
import time
from collections.abc import Sequence

from edgewise.edge.base import Tokenizer
from edgewise.edge.vocabulary import once
from edgewise.engines.base import Client, Engine, Watched, parallel
from edgewise.errors import CloudError, CloudProtocolError, CloudRejected

COMPARE_SECONDS = 20.0
"""Timeout in seconds of the whole comparison; ids compared until then count."""

CONTROL = 2048
"""Most control tokens and ids without text that are compared first, and after reconnections."""

AT_ONCE = 12_288
"""How many ids one request compares."""

BEYOND = 512
"""How many ids after the vocabulary's last must have no text at the engine."""

# A message shows where two texts part, not the texts.
_BEFORE, _SHOWN = 8, 40

_PADDING = re.compile(r"\[PAD\d+\]")  # text of padding ids in older converters
_BROKEN = re.compile("\ufffd+")
# Some engines tidy English up; the order is theirs.
_TIDIED = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")


class Detokenization:
    """The text that an engine should return for every id of a tokenizer, which has `size` ids.

    `control` lists control tokens, then ids without text (padding); `words` lists all other ids,
    shuffled. `nothing` is the set of ids without text, `ends` that of the end tokens' texts.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Read the text of every id, which takes a tenth of a second or more."""
        self.size = tokenizer.size
        self._special = dict(tokenizer.special)
        self._pieces = {t: tokenizer.piece(t) for t in range(self.size) if t not in self._special}
        letters = [t for t, piece in self._pieces.items() if piece.isalpha()]
        # One that is no byte by itself, which some engines join with broken ones beside it.
        self._letter = next((t for t in letters if len(self._pieces[t]) > 1), [*letters, 0][0])
        self.ends = frozenset(self.text(token) for token in tokenizer.eos_ids)
        self.nothing = frozenset(t for t in range(self.size) if not self.text(t))
        # Compared first: the generations of a model family differ in them.
        self.control = [*self._special, *sorted(self.nothing - self._special.keys())]
        self.words = [token for token in self._pieces if token not in self.nothing]
        # So that what differs in ids side by side does not cancel out in their joint text.
        random.Random(0).shuffle(self.words)

    def text(self, token: int) -> str:
        """Return an id's text, control tokens too; "" for padding, U+FFFD for half a character."""
        piece = self._pieces.get(token, b"").decode("utf-8", "replace")
        return _PADDING.sub("", self._special.get(token, piece))

    def request(self, tokens: Sequence[int]) -> tuple[list[int], str]:
        """Return ids to detokenize to compare `tokens`, and the text that they should give.

        A letter's id is at the beginning, and beside each of `tokens` that has no plain text (a
        control token, padding, an incomplete character), to keep its text apart from others.
        """
        # A letter keeps such a token's text apart from its neighbours'.
        letter = self._letter
        ids = [letter]
        for token in tokens:
            text = self.text(token)
            if "\ufffd" in text:
                ids.append(letter)
            ids.append(token)
            if "\ufffd" in text or not text or token in self._special:
                ids.append(letter)
        return ids, "".join(map(self.text, ids))

    def missing(self, size: int) -> int | None:
        """Return the lowest id with a text that an engine of `size` ids lacks; None if none."""
        return next((token for token in range(size, self.size) if self.text(token)), None)


async def compare_all(engine: Engine, tokenizer: Tokenizer) -> str:
    """Compare the texts of all ids of `tokenizer` with the engine's; return the result in words.

    The words end a sentence: "; all 49,152 ids stand for the same". If not all could be compared
    (within 20 s), they say why, and how many were. Sets `engine.watched` if the engine detokenizes.
    Raises `VocabularyMismatch` at a difference, or a `CloudError` if the engine cannot be reached.
    """
    texts = detokenization_of(tokenizer)
    words = list[int]()
    try:
        async with asyncio.timeout(COMPARE_SECONDS):
            if await _compared(engine, texts, words):
                return f"; all {texts.size:,} ids stand for the same"
        why = "it does not detokenise"
    except TimeoutError:
        why = f"it took longer than {COMPARE_SECONDS:g} s"
    except CloudError as error:
        if not (error.declined or isinstance(error, CloudProtocolError | CloudRejected)):
            raise
        why = error.message.rstrip(".")
    some = f"{sum(words):,} of {texts.size:,} ids stand for the same, " if words else ""
    return f"; {some}its other ids are not compared ({why})"


async def _compared(engine: Engine, texts: Detokenization, words: list[int]) -> bool:
    """Return whether the engine detokenizes; add to `words` how many ids each request matched."""
    client = Client(end=time.monotonic() + COMPARE_SECONDS)
    size = engine.described.size
    missing = None if size is None else texts.missing(size)
    if missing is not None:
        text = texts.text(missing)[:_SHOWN]
        raise engine.mismatch(f"has no id {missing}, where the edge model has {text!r}")

    async def same(tokens: Sequence[int], *, control: bool) -> str | None:
        """Return the engine's text, None if it has none; raise if it is not the expected one."""
        ids, own = texts.request(tokens)
        said = await engine.detokenize(ids, client)
        if said is not None and (other := difference(said, own, control=control)):
            raise engine.mismatch("writes {!r} where the edge model has {!r}".format(*other))
        if said is not None and not control:
            words.append(len(tokens))
        return said

    async def nothing_beyond() -> None:
        """Require that ids `beyond` have no text; an engine may decline them instead."""
        try:
            await same(beyond, control=True)
        except CloudError as error:
            if not error.declined:
                raise

    beyond = range(texts.size, texts.size + BEYOND)
    control = [t for t in (*texts.control, *beyond) if t < (size or texts.size)]
    first = control[:CONTROL]
    said, *_ = await parallel(
        same(first, control=True),
        same(texts.words[:AT_ONCE], control=False),
        _require_end(engine, texts),
        *([] if size else [nothing_beyond()]),
    )
    if said is None:
        return False
    engine.watched = Watched(texts.request(first)[0], said)
    await parallel(
        *(same(some, control=True) for some in _divided(control[CONTROL:])),
        *(same(some, control=False) for some in _divided(texts.words[AT_ONCE:])),
    )
    return True


def _divided(tokens: Sequence[int]) -> list[Sequence[int]]:
    return [tokens[at : at + AT_ONCE] for at in range(0, len(tokens), AT_ONCE)]


async def _require_end(engine: Engine, texts: Detokenization) -> None:
    """Raise `VocabularyMismatch` if the cloud's end token is known and none of the edge model's."""
    end = await engine.end_text()
    if end and end not in texts.ends:
        raise engine.mismatch(f"ends an answer with {end[:_SHOWN]!r}, unlike the edge model")


def difference(said: str, own: str, *, control: bool) -> tuple[str, str] | None:
    """Return where `said`, an engine's text, differs from the expected `own`; None if they agree.

    The result is an excerpt of each. Some differences do not count: the number of U+FFFD that stand
    for an incomplete character; blanks that some engines drop before punctuation; with `control`
    all blanks, and texts of padding such as "[PAD7]".
    """
    one, other = _shown(said, control=control), _shown(own, control=control)
    if one in (other, _tidied(other)):
        return None
    pairs = enumerate(zip(one, other, strict=False))
    at = next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))
    shown = slice(max(0, at - _BEFORE), at + _SHOWN)
    return one[shown], other[shown]


@once
def detokenization_of(tokenizer: Tokenizer) -> Detokenization:
    """Return the `Detokenization` of a tokenizer; the first call makes it, later ones reuse it."""
    return Detokenization(tokenizer)


def _shown(text: str, *, control: bool) -> str:
    text = _BROKEN.sub("\ufffd", text)
    # Some engines add blanks around control tokens.
    return _PADDING.sub("", text).replace(" ", "") if control else text


def _tidied(text: str) -> str:
    for ending in _TIDIED:
        text = text.replace(ending, ending.strip())
    return text
