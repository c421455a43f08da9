"""Remembers which texts are local, for clients that drop the mark or shorten a conversation."""

import re
import secrets
import threading
from collections import defaultdict
from collections.abc import Iterable, Sequence

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from edgewise.prompts import Message

KEPT = 100_000
"""Texts remembered for each owner once an answer to them has begun."""

ASKED = 10_000
"""Texts remembered for each owner of requests that were refused; a flood of them evicts no more."""

LONG = 16
"""Letters and digits from which on a text is also found inside another one."""

BEGUN = 64
"""And the beginning of an answer: shorter ones begin many answers."""

_ESCAPED = re.compile(r"\\[nrt]")
_DROPPED = bytes(code for code in range(128) if not chr(code).isalnum())


def _letters(text: str) -> bytes:
    """The letters and digits: blanks, quotes and JSON's escapes differ from copy to copy."""
    return _ESCAPED.sub("", text).encode("utf-8", "surrogatepass").translate(None, _DROPPED)


def _plain(text: str) -> bytes:
    """What is compared of a text: its letters, or all of it where it has none."""
    return _letters(text) or text.encode("utf-8", "surrogatepass")


class _Hasher:
    """Hashes texts and all their parts: sum of (byte + 1) * base**i, modulo 2**64.

    The base is secret. A collision could only keep here what may leave.
    """

    def __init__(self) -> None:
        self.base = secrets.randbits(64) | 1
        self._inverse = pow(self.base, -1, 1 << 64)

    def powers(self, count: int, base: int) -> NDArray[np.uint64]:
        factors = np.full(count, base, np.uint64)
        factors[:1] = 1
        return np.multiply.accumulate(factors)

    def sums(self, plain: bytes) -> NDArray[np.uint64]:
        """Sums up to each byte; the first is 0."""
        sums = np.zeros(len(plain) + 1, np.uint64)
        codes = np.frombuffer(plain, np.uint8).astype(np.uint64) + np.uint64(1)
        np.cumsum(codes * self.powers(len(plain), self.base), out=sums[1:])
        return sums

    def inverses(self, count: int) -> NDArray[np.uint64]:
        """What makes a part's sum the hash of that part alone, by where it begins."""
        return self.powers(count, self._inverse)


class _Texts:
    """Hashes of up to `most` texts of one owner; the oldest is forgotten first."""

    def __init__(self, most: int) -> None:
        self._most = most
        # By length, hash and role; the value is the hash of the first `LONG` bytes.
        self._known: dict[tuple[int, int, str], int] = {}
        self._long: dict[int, dict[int, set[int]]] = {}
        self._filter = np.zeros(1 << 16, np.int32)

    def add(self, key: tuple[int, int, str], anchor: int) -> None:
        """A text with its role counts as a whole message only; without, inside others too."""
        if self._known.pop(key, None) is None and not key[2]:
            self._filter[anchor >> 48] += 1
            self._long.setdefault(anchor, {}).setdefault(key[0], set()).add(key[1])
        self._known[key] = anchor
        if len(self._known) > self._most:
            self._forget(next(iter(self._known)))

    def _forget(self, key: tuple[int, int, str]) -> None:
        anchor = self._known.pop(key)
        if key[2]:
            return
        self._filter[anchor >> 48] -= 1
        lengths = self._long[anchor]
        lengths[key[0]].discard(key[1])
        if not lengths[key[0]]:
            del lengths[key[0]]
        if not lengths:
            del self._long[anchor]

    def holds(self, key: tuple[int, int, str]) -> bool:
        return key in self._known

    def within(self, sums: NDArray[np.uint64], inverses: NDArray[np.uint64]) -> bool:
        """Whether a long text is a part of the one with these sums."""
        if not self._long or len(sums) <= LONG:
            return False
        anchors = (sums[LONG:] - sums[:-LONG]) * inverses[: len(sums) - LONG]
        (places,) = np.nonzero(self._filter[(anchors >> np.uint64(48)).astype(np.intp)])
        for anchor in set(anchors[places].tolist()) & self._long.keys():
            starts = places[anchors[places] == np.uint64(anchor)]
            for length, hashes in self._long[anchor].items():
                fitting = starts[starts + length < len(sums)]
                parts = (sums[fitting + length] - sums[fitting]) * inverses[fitting]
                if np.isin(parts, np.fromiter(hashes, np.uint64)).any():
                    return True
        return False


class LocalMessages:
    """Remembers, as keyed hashes and while the server runs, what was local.

    Each message counts by itself, with the owner's key: clients shorten histories, join messages,
    and quote them in other requests. Any thread may call.
    """

    def __init__(self, *, most: int = KEPT, most_asked: int = ASKED) -> None:
        self._hasher = _Hasher()
        # By owner; made when something is to be remembered.
        self._answered = defaultdict[str, _Texts](lambda: _Texts(most))
        self._asked = defaultdict[str, _Texts](lambda: _Texts(most_asked))
        self._lock = threading.Lock()

    def marked(
        self,
        messages: Sequence[Message],
        *,
        local: bool,
        owner: str = "",
        parts: Sequence[Sequence[str]] = (),
    ) -> list[Message]:
        """The same messages, marked from the first local one on; with `local` the last one is.

        A message is local if it says so, or if the owner's text, a part of it or a long text
        inside it was local before. `parts` are those of each message. System messages are others'
        as well, so they are not remembered.
        """
        seen: list[Message] = []
        local_only = False
        last = len(messages) - 1
        for number, message in enumerate(messages):
            marked = message.local or (local and number == last)
            inside = [*_texts(message), *(parts[number] if parts else ())]
            local_only = local_only or marked or self._knows(owner, message.role, inside)
            seen.append(replace(message, local=local_only))
        self._add(self._asked, owner, seen)
        return seen

    def answered(self, messages: Iterable[Message], *, owner: str = "") -> None:
        """From now on what is local of them is remembered for good: an answer has begun."""
        self._add(self._answered, owner, messages)

    def writing(self, text: str, *, owner: str = "") -> None:
        """An answer to them, as far as it is written: a client may stop at any token."""
        if letters := _letters(text):
            with self._lock:
                self._remember(self._answered[owner], letters, "assistant", BEGUN)

    def _knows(self, owner: str, role: str, texts: Iterable[str]) -> bool:
        with self._lock:
            stores = [store[owner] for store in (self._answered, self._asked) if owner in store]
            if not stores:
                return False
            for plain in map(_plain, texts):
                sums = self._hasher.sums(plain)
                key = (len(plain), int(sums[-1]), _writer(role))
                inverses = self._hasher.inverses(len(plain))
                if any(one.holds(key) or one.within(sums, inverses) for one in stores):
                    return True
        return False

    def _add(
        self, stores: defaultdict[str, _Texts], owner: str, messages: Iterable[Message]
    ) -> None:
        kept = [one for one in messages if one.local and one.role != "system"]
        with self._lock:
            for message in kept:
                for plain in map(_plain, _texts(message)):
                    self._remember(stores[owner], plain, _writer(message.role), LONG)

    def _remember(self, texts: _Texts, plain: bytes, writer: str, long: int) -> None:
        """From `long` letters on the text is also found inside another one, whoever wrote it."""
        sums = self._hasher.sums(plain)
        key = (len(plain), int(sums[-1]), writer if len(plain) < long else "")
        texts.add(key, int(sums[min(LONG, len(plain))]))


def _texts(message: Message) -> list[str]:
    """What a message says, and what its calls do."""
    texts = [message.content, *(call.arguments for call in message.tool_calls)]
    return [text for text in texts if text]


def _writer(role: str) -> str:
    """Whoever else is not the assistant may say what the user said."""
    return "assistant" if role == "assistant" else "user"
