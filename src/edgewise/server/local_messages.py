"""Remembers local texts, which only trusted clouds may see, to recognise them if sent unmarked."""

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
"""How many texts are remembered for each owner from requests whose answer has begun."""

# Kept apart, so that a flood of refused requests evicts none of those above.
ASKED = 10_000
"""How many texts are remembered for each owner from all its requests."""

LONG = 16
"""Length, in bytes of letters and digits, from which a text is also found inside other texts."""

# Shorter beginnings are common to many answers.
BEGUN = 64
"""Length, in bytes of letters and digits, of the beginning by which an answer is recognised."""

MOST_COMPARED = 1 << 28
"""Maximum bytes compared to look for local texts inside the texts of one request. A text that would
take more counts as local."""

# Bytes that each comparison counts besides its own, for the time that it takes to begin.
_LOOK = 1 << 8

# A JSON escape, quoted any number of times; at the end of the text it may be incomplete.
_ESCAPE = re.compile(r"(?i)(?<!\\)\\++(?:u([0-9a-f]{4})|u[0-9a-f]{0,3}\Z|[bfnrt])")

_ENTITY = re.compile(r"(?i)&(?:#\d{1,7}|#x[0-9a-f]{1,6}|\w{2,31});")

# Signs after which a new part of an answer begins, which clients may send back by itself.
_ANEW = re.compile(
    r"</think(?:ing)?>|\[/THINK\]|<\|message\|>|\[ARGS\]|\"(?:arguments|parameters)\"\s{0,9}:"
)

# Characters kept from the end of an answer, since a sign of `_ANEW` may begin in them.
_TAIL = 40

# How many times a text may be quoted, as in JSON inside JSON, and still be recognised.
_QUOTED = 2


def _letters(text: str) -> bytes:
    """Return the letters and digits, without escapes: all else may differ between copies."""
    for _ in range(_QUOTED):
        text = _ESCAPE.sub(lambda found: chr(int(found[1] or "20", 16)), text)
        text = _ENTITY.sub(lambda found: unescape(found[0]), text)
    # Halves of what JSON writes as two, put together.
    text = text.encode("utf-16", "surrogatepass").decode("utf-16", "ignore")
    return normalize("NFC", letters(text)).encode()


def _plain(text: str) -> bytes:
    """Return the bytes of a text that are compared: its letters and digits; all if it has none."""
    return _letters(text) or text.encode("utf-8", "surrogatepass")


class LocalAnswer:
    """Remembers how an answer to local messages begins, to recognise it if it is sent back."""

    def __init__(self, known: "LocalMessages", owner: str) -> None:
        self._known, self._owner = known, owner
        # All beginnings that are not known yet: clients send back the whole answer, or a part.
        self._begun, self._tail = [""], ""

    def wrote(self, text: str) -> None:
        """Add the answer's next `text`; remember how reasoning, text and calls' arguments begin."""
        # At each token: a client may stop there, and send back what it got in another request.
        *before, last = _ANEW.split(self._tail + text)
        begun = [one + text for one in self._begun] + ([last] if before else [])
        self._begun = [one for one in begun if self._known.writing(one, owner=self._owner)]
        self._tail = last[-_TAIL:]


class _Search:
    """The search of one request for local texts: `left` is how many bytes it may still compare."""

    left = MOST_COMPARED


class _Texts:
    """Hashes of up to `most` texts of one owner; the oldest is forgotten first."""

    def __init__(self, most: int) -> None:
        self._most = most
        # By writer, and a text's length and hash: the hash of the text's first `LONG` bytes.
        self._known: dict[tuple[str, tuple[int, int]], int] = {}
        # By the hash of the first `LONG` bytes, then by length: the hashes of all such texts, so
        # that one look finds those of one length.
        self._inside: dict[int, dict[int, set[int]]] = {}

    def add(self, writer: str, plain: bytes) -> None:
        """Remember `plain`: as a whole text of `writer` or, if that is "", also inside texts."""
        # Python's own hash: its key is random in each process, so no client can make two collide.
        key = writer, (len(plain), hash(plain))
        # The oldest is the first, and one that comes again is the newest.
        self._known.pop(key, None)
        self._known[key] = begin = hash(plain[:LONG])
        if not writer:
            lengths = self._inside.setdefault(begin, {})
            lengths.setdefault(len(plain), set()).add(hash(plain))
        if len(self._known) > self._most:
            (writer, (length, text)), begin = next(iter(self._known.items()))
            del self._known[writer, (length, text)]
            if not writer:
                lengths = self._inside[begin]
                lengths[length].discard(text)
                if not lengths[length]:
                    del lengths[length]
                if not lengths:
                    del self._inside[begin]

    def holds(self, writer: str, plain: bytes, search: _Search) -> bool:
        """Whether `plain` is a text of `writer` or has one of "" inside; True if `search` ended."""
        if (writer, (len(plain), hash(plain))) in self._known:
            return True
        for at in range(len(plain) - LONG + 1 if self._inside else 0):
            lengths = self._inside.get(hash(plain[at : at + LONG]))
            # A copy, which takes no other thread's turn: one may add texts.
            for length, known in tuple(lengths.items()) if lengths else ():
                part = plain[at : at + length]
                search.left -= len(part) + _LOOK
                if (len(part) == length and hash(part) in known) or search.left < 0:
                    return True
        return False


class LocalMessages:
    """Remembers the texts of local messages as hashes, as long as the server runs.

    A message is local if only trusted clouds (setting `trust`) may see it. Each owner, the name of
    an API key ("" without a key file), has two stores: for at most `most` texts of requests whose
    answer has begun, and for at most `most_asked` of all its requests. The oldest are forgotten
    first. Any thread may call.
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
        """Return the messages, with `local` set in the first local message and in all that follow.

        A message is local if `local` is set in it, if it is the last and the argument `local` is
        true, or if it repeats an earlier local text of `owner`: a message, or an answer's first
        `BEGUN` bytes. Only letters and digits count, in its content, its calls' arguments and its
        `parts` (a list of texts for each message). A message of `LONG` bytes or more, or an answer
        of `BEGUN`, is found anywhere inside; a shorter one only as a whole text of the same writer,
        assistant or not. Text that takes over `MOST_COMPARED` bytes to compare counts as local.
        With `search` false, for a request that will be refused anyway, no repeats are looked for.
        Remembers the local messages for `owner`, except system messages.
        """
        seen: list[Message] = []
        local_only = False
        last, searched = len(messages) - 1, _Search()
        for number, message in enumerate(messages):
            marked = message.local or (local and number == last)
            # Not by the conversation: clients shorten it, join messages, and quote them elsewhere.
            inside = {*_texts(message), *(parts[number] if parts and search else ())}
            known = search and not local_only and self._knows(owner, message.role, inside, searched)
            local_only = local_only or marked or known
            seen.append(replace(message, local=local_only))
        self._add(self._asked, owner, seen)
        return seen

    def answered(self, messages: Iterable[Message], *, owner: str = "") -> None:
        """Remember those of a request's messages that are local; called when its answer begins."""
        self._add(self._answered, owner, messages)

    def writing(self, text: str, *, owner: str = "") -> bool:
        """Remember how a local answer for `owner` begins; `text` is all that is written so far.

        Returns True while more is needed: `text` has under `BEGUN` bytes of letters and digits.
        """
        # Whatever has a longer beginning inside has this one.
        if letters := _letters(text)[:BEGUN]:
            with self._lock:
                self._answered[owner].add("assistant" if len(letters) < BEGUN else "", letters)
        return len(letters) < BEGUN

    def _knows(self, owner: str, role: str, texts: Iterable[str], search: _Search) -> bool:
        with self._lock:
            stores = [store[owner] for store in (self._answered, self._asked) if owner in store]
        # A long text takes a while, and answers that are being written take the lock.
        return any(
            store.holds(_writer(role), plain, search)
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
    """Return the texts of a message and of its calls' arguments."""
    texts = [message.content, *(call.arguments for call in message.tool_calls)]
    return [text for text in texts if text]


def _writer(role: str) -> str:
    """Return the writer of a role's messages: all roles but the assistant count as the user."""
    return "assistant" if role == "assistant" else "user"
