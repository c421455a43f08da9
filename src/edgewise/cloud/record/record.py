"""The record of what leaves: counts for each answer, and on demand every message.

A session adds each message to a `Sent` before it leaves. Those of an answer come from its
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

from edgewise.cloud.record.files import AnswerSent, CountsFile, PayloadsFile
from edgewise.completion import Sent
from edgewise.edge.base import Tokenizer
from edgewise.events import SentCounts
from edgewise.prompts import Prompt

KEPT_ANSWERS = 100
"""The last answers that the record shows."""

KEPT_CONVERSATIONS = 64
"""Conversations whose names are remembered."""

_PUSH_SECONDS = 0.05


class SentRecord:
    """What the answers of a decoder or a server sent; any thread may call."""

    def __init__(
        self, counts: CountsFile | None = None, payloads: PayloadsFile | None = None
    ) -> None:
        """`counts` are kept in a file, and `payloads` written to one."""
        self.lock = threading.Lock()
        self.counts_file, self.payloads = counts, payloads
        self._answers: deque[SentAnswer] = deque(maxlen=KEPT_ANSWERS)
        self._conversations: OrderedDict[bytes, str] = OrderedDict()
        # So that nobody who sees a conversation's key can try texts on it.
        self._secret = secrets.token_bytes(32)

    def answer(self, prompt: Prompt, cloud: str, tokenizer: Tokenizer) -> "SentAnswer":
        """A new answer's part; `cloud` is the cloud model's name, its address where it has one.

        `tokenizer` is that of the ids that are sent.
        """
        made = SentAnswer(self, self.conversation(prompt), _host(cloud), tokenizer)
        with self.lock:
            self._answers.append(made)
        return made

    def conversation(self, prompt: Prompt) -> str:
        """The name of the conversation that an answer to `prompt` belongs to.

        Conversations are told apart by their messages up to the first of the user's; a prompt of
        ids is a new one.
        """
        beginning = _beginning(prompt)
        digest = hashlib.blake2b(beginning, key=self._secret, digest_size=16).digest()
        with self.lock:
            key = digest if beginning else secrets.token_bytes(16)
            name = self._conversations.pop(key, None) or secrets.token_hex(4)
            self._conversations[key] = name
            while len(self._conversations) > KEPT_CONVERSATIONS:
                self._conversations.popitem(last=False)
        return name

    def forget(self) -> None:
        """What begins alike is another conversation from now on."""
        with self.lock:
            self._conversations.clear()

    def answers(self) -> list[AnswerSent]:
        """What the last answers sent, the oldest first; those that sent nothing are left out."""
        with self.lock:
            return [replace(one.sums) for one in self._answers if one.sums.bytes]


class SentAnswer:
    """What one answer sent; made by `SentRecord.answer`."""

    def __init__(
        self, record: SentRecord, conversation: str, host: str, tokenizer: Tokenizer
    ) -> None:
        self.sums = AnswerSent(
            at=time.time(), conversation=conversation, answer=secrets.token_hex(4), host=host
        )
        self._record, self._tokenizer = record, tokenizer
        self._pushed: list[Sent] = []
        self._number = 0
        self._closed = False

    @property
    def conversation(self) -> str:
        """The name of its conversation."""
        return self.sums.conversation

    @property
    def host(self) -> str:
        """The host that its messages go to."""
        return self.sums.host

    def consult(self, ids: Sequence[int]) -> "RecordedSent":
        """For a consult after `ids`."""
        return self._begun("consult", ids)

    def push(self, ids: Sequence[int]) -> "RecordedSent":
        """For a push of `ids`."""
        made = self._begun("push", ids)
        self._pushed = [one for one in self._pushed if one.under_way and not one.under_way.done()]
        self._pushed.append(made)
        return made

    def counts(self) -> SentCounts:
        """All that has travelled, once pushes that are under way have left or take too long."""
        flying = [sent.under_way for sent in self._pushed if sent.under_way is not None]
        if flying:
            futures.wait(flying, _PUSH_SECONDS)
        with self._record.lock:
            return counts_of([self.sums])

    def close(self) -> None:
        """The answer is over: its counts are kept. What leaves after all is kept when it does."""
        with self._record.lock:
            if not self._closed and self.sums.bytes:
                self._keep(self.sums)
            self._closed = True

    def note(self, sent: "RecordedSent", ids: int, message: bytes) -> None:
        """A message leaves now, in whichever thread. Raises a `CloudError` where it may not."""
        record = self._record
        with record.lock:
            if record.payloads is not None:
                text = self._text(sent.prefix[len(sent.prefix) - ids :])
                record.payloads.write(self.sums, sent.kind, sent.number, message, ids, text)
            first = sent.bytes == 0
            more = replace(
                self.sums,
                consults=int(first and sent.kind == "consult"),
                pushes=int(first and sent.kind == "push"),
                bytes=len(message),
                tokens=ids,
            )
            for name in ("consults", "pushes", "bytes", "tokens"):
                setattr(self.sums, name, getattr(self.sums, name) + getattr(more, name))
            if self._closed:
                self._keep(more)

    def _begun(self, kind: Literal["consult", "push"], ids: Sequence[int]) -> "RecordedSent":
        with self._record.lock:
            self._number += 1
            return RecordedSent(self, kind, self._number - 1, list(ids))

    def _keep(self, sums: AnswerSent) -> None:
        if self._record.counts_file is not None:
            self._record.counts_file.append(sums)

    def _text(self, ids: Sequence[int]) -> str:
        return b"".join(map(self._tokenizer.piece, ids)).decode("utf-8", "replace")


class RecordedSent(Sent):
    """A `Sent` of an answer's: every message is in the record before it leaves."""

    __slots__ = ("_answer", "kind", "number", "prefix")

    def __init__(
        self,
        answer: SentAnswer,
        kind: Literal["consult", "push"],
        number: int,
        prefix: Sequence[int],
    ) -> None:
        super().__init__()
        self._answer, self.kind, self.number, self.prefix = answer, kind, number, prefix

    def add(self, ids: int, message: bytes, *, tells: bool = True, again: bool = False) -> None:
        self.require_allowed(tells=tells)
        self._answer.note(self, ids, message)
        super().add(ids, message, tells=tells, again=again)

    def concerns(self, ids: Sequence[int]) -> None:
        self.prefix = list(ids)


def counts_of(answers: Sequence[AnswerSent]) -> SentCounts:
    """What answers sent in all; the host is that of the last one."""
    return SentCounts(
        host=answers[-1].host if answers and answers[-1].bytes else None,
        consults=sum(one.consults for one in answers),
        pushes=sum(one.pushes for one in answers),
        bytes=sum(one.bytes for one in answers),
        tokens=sum(one.tokens for one in answers),
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
