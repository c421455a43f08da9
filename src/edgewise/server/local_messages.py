"""Remembers which texts are local, for clients that drop the mark or shorten a conversation."""

import re
import threading
from collections import defaultdict
from collections.abc import Iterable, Sequence
from html import unescape
from unicodedata import normalize

from msgspec.structs import replace

from edgewise.cloud.redaction import letters
from edgewise.prompts import Message

KEPT = 100_000
"""Texts remembered for each owner once an answer to them has begun."""

ASKED = 10_000
"""Texts remembered for each owner of requests that were refused; a flood of them evicts no more."""

LONG = 16
"""Letters and digits from which on a text is also found inside another one."""

BEGUN = 64
"""Least length of an answer's beginning that is recognised: shorter ones begin many answers."""

MOST_COMPARED = 1 << 28
"""Bytes that are compared to know whether a text is local; one that needs more is."""

_ESCAPE = re.compile(r"(?i)(?<!\\)\\++(?:u([0-9a-f]{4})|u[0-9a-f]{0,3}\Z|[bfnrt])")
"""An escape of JSON's, however often it was quoted; at the end half of one."""

_ENTITY = re.compile(r"(?i)&(?:#\d{1,7}|#x[0-9a-f]{1,6}|\w{2,31});")

_ANEW = re.compile(
    r"</think(?:ing)?>|\[/THINK\]|<\|message\|>|\[ARGS\]|\"(?:arguments|parameters)\"\s{0,9}:"
)
"""Behind these signs an answer has a part of its own, which clients send back by itself."""

_TAIL = 40
"""Characters that may be the beginning of such a sign."""

_QUOTED = 2
"""Most times that a text is quoted, as in JSON inside JSON."""


def _letters(text: str) -> bytes:
    """The letters and digits: all else differs from copy to copy, and how they are written."""
    for _ in range(_QUOTED):
        text = _ESCAPE.sub(lambda found: chr(int(found[1] or "20", 16)), text)
        text = _ENTITY.sub(lambda found: unescape(found[0]), text)
    # Halves of what JSON writes as two, put together.
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "ignore")
    return normalize("NFC", letters(text)).encode()


def _plain(text: str) -> bytes:
    """The part of a text that is compared: its letters, or all of it without letters."""
    return _letters(text) or text.encode("utf-8", "surrogatepass")


class LocalAnswer:
    """An answer to local messages, remembered up to each token: a client may stop at any."""

    def __init__(self, known: "LocalMessages", owner: str) -> None:
        self._known, self._owner = known, owner
        self._text, self._begins = "", True

    def wrote(self, text: str) -> None:
        """It goes on with `text`."""
        *before, self._text = _ANEW.split(self._text + text)
        self._begins = self._begins or bool(before)
        if self._begins:
            self._begins = self._known.writing(self._text, owner=self._owner)
        else:
            self._text = self._text[-_TAIL:]


class _Texts:
    """Hashes of up to `most` texts of one owner; the oldest is forgotten first.

    Python's own hash of bytes, whose key is drawn anew in each process.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        # A writer with a text's length and hash, and the hash of its first `LONG` letters.
        self._known: dict[tuple[str, tuple[int, int]], int] = {}
        self._inside: dict[int, set[tuple[int, int]]] = {}

    def add(self, writer: str, plain: bytes) -> None:
        """A text of a `writer` counts as a whole message only; of "" inside others, too."""
        key = writer, (len(plain), hash(plain))
        self._known.pop(key, None)
        self._known[key] = begin = hash(plain[:LONG])
        if not writer:
            self._inside.setdefault(begin, set()).add(key[1])
        if len(self._known) > self._most:
            (writer, text), begin = next(iter(self._known.items()))
            del self._known[writer, text]
            if not writer:
                self._inside[begin].discard(text)
                if not self._inside[begin]:
                    del self._inside[begin]

    def holds(self, writer: str, plain: bytes) -> bool:
        """Whether this is a whole text of the writer's, or has a long one inside."""
        if (writer, (len(plain), hash(plain))) in self._known:
            return True
        compared = 0
        for at in range(len(plain) - LONG + 1 if self._inside else 0):
            # A copy, which takes no other thread's turn: one may add texts.
            for length, known in tuple(self._inside.get(hash(plain[at : at + LONG]), ())):
                part = plain[at : at + length]
                compared += len(part)
                if (len(part) == length and hash(part) == known) or compared > MOST_COMPARED:
                    return True
        return False


class LocalMessages:
    """Remembers, as keyed hashes and while the server runs, what was local.

    Each message counts by itself, with the owner's key: clients shorten histories, join messages,
    and quote them in other requests. Any thread may call.
    """

    def __init__(self, *, most: int = KEPT, most_asked: int = ASKED) -> None:
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
        search: bool = True,
    ) -> list[Message]:
        """The same messages, marked from the first local one on; with `local` the last one is.

        A message is local if it says so, or if the owner's text, a part of it or a long text
        inside it was local before, for which nobody needs to `search` what is refused anyway.
        `parts` are those of each message. System messages are others' as well, so they are not
        remembered.
        """
        seen: list[Message] = []
        local_only = False
        last = len(messages) - 1
        for number, message in enumerate(messages):
            marked = message.local or (local and number == last)
            inside = {*_texts(message), *(parts[number] if parts and search else ())}
            known = search and not local_only and self._knows(owner, message.role, inside)
            local_only = local_only or marked or known
            seen.append(replace(message, local=local_only))
        self._add(self._asked, owner, seen)
        return seen

    def answered(self, messages: Iterable[Message], *, owner: str = "") -> None:
        """Remembers the local messages for good: an answer has begun."""
        self._add(self._answered, owner, messages)

    def writing(self, text: str, *, owner: str = "") -> bool:
        """An answer to them, as far as it is written. Returns whether to go on with it."""
        # Whatever has a longer beginning inside has this one.
        if letters := _letters(text)[:BEGUN]:
            with self._lock:
                self._answered[owner].add("assistant" if len(letters) < BEGUN else "", letters)
        return len(letters) < BEGUN

    def _knows(self, owner: str, role: str, texts: Iterable[str]) -> bool:
        with self._lock:
            stores = [store[owner] for store in (self._answered, self._asked) if owner in store]
        # A long text takes a while, and answers that are being written take the lock.
        return any(
            store.holds(_writer(role), plain)
            for plain in map(_plain, texts if stores else ())
            for store in stores
        )

    def _add(
        self, stores: defaultdict[str, _Texts], owner: str, messages: Iterable[Message]
    ) -> None:
        kept = [one for one in messages if one.local and one.role != "system"]
        with self._lock:
            for message in kept:
                for plain in map(_plain, _texts(message)):
                    writer = _writer(message.role) if len(plain) < LONG else ""
                    stores[owner].add(writer, plain)


def _texts(message: Message) -> list[str]:
    """Texts of a message and of its calls' arguments."""
    texts = [message.content, *(call.arguments for call in message.tool_calls)]
    return [text for text in texts if text]


def _writer(role: str) -> str:
    """The writer of a role: all but the assistant count as the user."""
    return "assistant" if role == "assistant" else "user"
