"""The record of what leaves: every consult and every push, as its messages are handed on.

A session tells a `Sent` of each message before it leaves. Those of an answer come from its
`SentAnswer`, so nothing of a conversation travels that the record does not know.
"""

import hashlib
import secrets
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Sequence
from concurrent import futures
from typing import Literal
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from edgewise.cloud.record.files import CountsFile, PayloadsFile, SentMessage
from edgewise.completion import Sent
from edgewise.edge.base import Tokenizer
from edgewise.edge.kv import common_prefix
from edgewise.events import SentCounts
from edgewise.prompts import Prompt

KEPT_ANSWERS = 100
"""The last answers that the record shows."""

KEPT_CONVERSATIONS = 64
KEPT_TOKENS = 1 << 19
"""Of what was told before so much is remembered; what is forgotten counts as new again.

Where text travels they are characters.
"""

_PUSH_SECONDS = 0.05

_Told = int | str
"""What a host is told, one after the other: an id; or a character, or who says those behind it."""

# All bytes of UTF-8 that begin no character.
_CONTINUING = bytes(range(0x80, 0xC0))


class SentRecord:
    """What the answers of a decoder or a server sent; any thread may call."""

    def __init__(
        self, counts: CountsFile | None = None, payloads: PayloadsFile | None = None
    ) -> None:
        """`counts` are kept in a file, and `payloads` written to one; answers have one vocabulary.

        `characters` are those that begin in an id's bytes, looked up once: a tokenizer takes long.
        """
        self.lock = threading.Lock()
        self.characters: dict[int, int] = {}
        self.counts_file, self.payloads = counts, payloads
        self._answers: deque[SentAnswer] = deque(maxlen=KEPT_ANSWERS)
        self._conversations: OrderedDict[bytes, _Conversation] = OrderedDict()
        # So that nobody who sees a conversation's key can try texts on it.
        self._secret = secrets.token_bytes(32)

    def answer(self, prompt: Prompt, cloud: str, tokenizer: Tokenizer) -> "SentAnswer":
        """A new answer's part; `cloud` is the cloud model's name, its address where it has one.

        `tokenizer` is that of the ids that are sent.
        """
        with self.lock:
            conversation = self._conversation(prompt)
            made = SentAnswer(self, conversation, _host(cloud), tokenizer)
            self._answers.append(made)
        return made

    def conversation(self, prompt: Prompt) -> str:
        """The name of the conversation that an answer to `prompt` belongs to."""
        with self.lock:
            return self._conversation(prompt).name

    def forget(self) -> None:
        """What begins alike is another conversation from now on."""
        with self.lock:
            self._conversations.clear()

    def messages(self) -> list[SentMessage]:
        """What the last answers sent, the oldest first."""
        with self.lock:
            answers = list(self._answers)
        return [message for answer in answers for message in answer.messages()]

    def _conversation(self, prompt: Prompt) -> "_Conversation":
        """The one that begins as `prompt` does, up to its first user message; ids are a new one."""
        beginning = _beginning(prompt)
        digest = hashlib.blake2b(beginning, key=self._secret, digest_size=16).digest()
        key = digest if beginning else secrets.token_bytes(16)
        found = self._conversations.pop(key, None) or _Conversation()
        self._conversations[key] = found
        while len(self._conversations) > 1 and (
            len(self._conversations) > KEPT_CONVERSATIONS
            or sum(one.tokens for one in self._conversations.values()) > KEPT_TOKENS
        ):
            self._conversations.popitem(last=False)[1].forget()
        return found


class SentAnswer:
    """What one answer sent, message by message; made by `SentRecord.answer`."""

    def __init__(
        self, record: SentRecord, conversation: "_Conversation", host: str, tokenizer: Tokenizer
    ) -> None:
        self._record, self._conversation = record, conversation
        self._host, self._tokenizer = host, tokenizer
        self._name = secrets.token_hex(4)
        self._messages: list[SentMessage] = []
        self._pushed: list[Sent] = []
        # Told in the thread that sends, worked out in another.
        self._unread: deque[tuple[SentMessage, Sequence[_Told]]] = deque()
        self._closed = False

    @property
    def conversation(self) -> str:
        """The name of its conversation."""
        return self._conversation.name

    def consult(self, ids: Sequence[int]) -> "RecordedSent":
        """For a consult after `ids`."""
        return self._begun("consult", ids)

    def push(self, ids: Sequence[int]) -> "RecordedSent":
        """For a push of `ids`."""
        made = self._begun("push", ids)
        self._pushed = [sent for sent in self._pushed if _flies(sent)]
        self._pushed.append(made)
        return made

    def about(self, sent: "RecordedSent") -> SentMessage:
        """What has travelled for one of them so far."""
        with self._record.lock:
            self._read()
            return replace(sent.message)

    def messages(self) -> list[SentMessage]:
        """All that has travelled so far."""
        with self._record.lock:
            self._read()
            return [replace(message) for message in self._messages if message.bytes]

    def counts(self) -> SentCounts:
        """All that has travelled, once pushes that are under way have left or take too long."""
        flying = [sent.under_way for sent in self._pushed if sent.under_way is not None]
        if flying:
            futures.wait(flying, _PUSH_SECONDS)
        return summed(self.messages())

    def close(self) -> None:
        """The answer is over: its counts are kept. What leaves after all is kept when it does."""
        with self._record.lock:
            if self._closed:
                return
            self._closed = True
            self._read()
            self._keep([message for message in self._messages if message.bytes])

    def note(self, sent: "RecordedSent", ids: int, message: bytes, *, tells: bool) -> None:
        """A message leaves now, in whichever thread. Raises a `CloudError` where it may not."""
        record, about = self._record, sent.message
        with record.lock:
            if record.payloads is not None:
                text = self._text(sent.prefix[len(sent.prefix) - ids :])
                record.payloads.write(about, message, ids, text)
            before = replace(about)
            about.bytes += len(message)
            about.tokens += ids
            if tells:
                self._unread.append((about, sent.prefix))
            if self._closed:
                self._read()
                self._keep([_difference(about, before)])

    def _begun(self, kind: Literal["consult", "push"], ids: Sequence[int]) -> "RecordedSent":
        message = SentMessage(
            at=time.time(),
            conversation=self._conversation.name,
            answer=self._name,
            number=len(self._messages),
            kind=kind,
            host=self._host,
        )
        with self._record.lock:
            self._read()
            self._messages.append(message)
        return RecordedSent(self, message, list(ids))

    def _read(self) -> None:
        """Work out what was new in what has left."""
        while self._unread:
            message, prefix = self._unread.popleft()
            new = self._conversation.tell(self._host, prefix)
            message.new_tokens += sum(isinstance(one, int) for one in new)
            message.new_characters += sum(map(self._characters, new))

    def _characters(self, token: _Told) -> int:
        if isinstance(token, str):
            return len(token) == 1
        known = self._record.characters.get(token)
        if known is None:
            known = len(self._tokenizer.piece(token).translate(None, _CONTINUING))
            self._record.characters[token] = known
        return known

    def _keep(self, messages: Sequence[SentMessage]) -> None:
        if messages and self._record.counts_file is not None:
            self._record.counts_file.append(messages)

    def _text(self, ids: Sequence[_Told]) -> str:
        pieces = (self._tokenizer.piece(token) for token in ids if isinstance(token, int))
        return b"".join(pieces).decode("utf-8", "replace")


class RecordedSent(Sent):
    """A `Sent` that the record hears of, before the message leaves."""

    __slots__ = ("_answer", "message", "prefix")

    def __init__(self, answer: SentAnswer, message: SentMessage, prefix: Sequence[int]) -> None:
        super().__init__()
        self._answer, self.message = answer, message
        self.prefix: Sequence[_Told] = prefix

    def add(self, ids: int, message: bytes, *, tells: bool = True, again: bool = False) -> None:
        self.require_allowed(tells=tells)
        self._answer.note(self, ids, message, tells=tells)
        super().add(ids, message, tells=tells, again=again)

    def concerns(self, ids: Sequence[int]) -> None:
        self.prefix = list(ids)

    def shows(self, texts: Sequence[tuple[str, str]]) -> None:
        # No character is mistaken for who says it: they are longer.
        self.prefix = [one for who, text in texts for one in (f"{who}:", *text)]


class _Conversation:
    """What each host knows of a conversation."""

    def __init__(self) -> None:
        self.name = secrets.token_hex(4)
        self._hosts: dict[str, _Sequences] = {}

    @property
    def tokens(self) -> int:
        return sum(len(told) for told in self._hosts.values())

    def tell(self, host: str, told: Sequence[_Told]) -> list[_Told]:
        """A host knows these now; returns those of them that it did not know in this place."""
        return self._hosts.setdefault(host, _Sequences()).add(told)

    def forget(self) -> None:
        """Answers that are still shown hold it."""
        self._hosts.clear()


class _Sequences:
    """Sequences that were told: every beginning of them, by its hash."""

    def __init__(self) -> None:
        self._beginnings: set[int] = set()
        self._last: list[_Told] = []
        self._hashes: list[int] = []

    def __len__(self) -> int:
        return len(self._beginnings)

    def add(self, ids: Sequence[_Told]) -> list[_Told]:
        """Returns those that end a beginning not told before."""
        last = self._last
        # Comparing lists is much faster than going through them.
        shared = len(last) if last == ids[: len(last)] else common_prefix(last, ids)
        del self._last[shared:], self._hashes[shared:]
        new: list[_Told] = []
        beginning = self._hashes[-1] if shared else 0
        for token in ids[shared:]:
            beginning = hash((beginning, token))
            if beginning not in self._beginnings:
                self._beginnings.add(beginning)
                new.append(token)
            self._hashes.append(beginning)
        self._last += ids[shared:]
        return new


def by_answer(messages: Sequence[SentMessage]) -> list[tuple[SentMessage, SentCounts]]:
    """The answers that sent them, each with its first message and with what all come to."""
    answers: dict[str, list[SentMessage]] = {}
    for message in messages:
        answers.setdefault(message.answer, []).append(message)
    return [(found[0], summed(found)) for found in answers.values()]


def summed(messages: Sequence[SentMessage]) -> SentCounts:
    """What the messages of one answer, or to one host, come to."""

    def kinds(kind: str) -> int:
        return len({(one.answer, one.number) for one in messages if one.kind == kind})

    return SentCounts(
        host=messages[-1].host if messages else None,
        consults=kinds("consult"),
        pushes=kinds("push"),
        bytes=sum(one.bytes for one in messages),
        tokens=sum(one.tokens for one in messages),
        new_tokens=sum(one.new_tokens for one in messages),
        new_characters=sum(one.new_characters for one in messages),
    )


def _flies(sent: Sent) -> bool:
    return sent.under_way is not None and not sent.under_way.done()


def _difference(after: SentMessage, before: SentMessage) -> SentMessage:
    return replace(
        after,
        bytes=after.bytes - before.bytes,
        tokens=after.tokens - before.tokens,
        new_tokens=after.new_tokens - before.new_tokens,
        new_characters=after.new_characters - before.new_characters,
    )


def _beginning(prompt: Prompt) -> bytes:
    """Of a conversation, up to its first user message; empty where there is none."""
    messages = prompt.messages or ()
    users = [at for at, one in enumerate(messages) if one.role == "user"]
    if not users:
        return b""
    turns = [(one.role, one.content) for one in messages[: users[0] + 1]]
    return msgspec.json.encode((prompt.owner, turns))


def _host(cloud: str) -> str:
    return urlsplit(cloud).netloc or cloud if "://" in cloud else cloud
