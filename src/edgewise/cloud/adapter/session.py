"""A cloud with another vocabulary: the edge's answer goes out as text, its words come in as ids.

`AdaptedCloud` and `AdaptedSession` are what clouds by ids (`ids`) and by text (`text`) have in
common; each says how a request is made and its reply read.
"""

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future
from functools import reduce
from typing import Any

import msgspec

from edgewise.cloud.adapter.word_boundary import (
    Reasoning,
    characters,
    held_back,
    kept,
)
from edgewise.cloud.base import CloudModel, CloudSession, ConsultRequest, failed, with_end
from edgewise.cloud.redaction import (
    Context,
    ContextFilter,
    FilteredAnswer,
    FilteredContext,
)
from edgewise.completion import Completion, metered
from edgewise.edge.base import Tokenizer
from edgewise.edge.vocabulary import bytes_of, fingerprint, ids_of_text
from edgewise.errors import (
    Blocked,
    CloudError,
    CloudProtocolError,
    EdgewiseError,
    NothingUsable,
    VocabularyMismatch,
)
from edgewise.prompts import Prompt
from edgewise.prompts.tool_formats import markers
from edgewise.servers.replies import THINK

WORD = 8
"""Tokens that a cloud elsewhere is asked for at once, for a word: enough for 19 of 20."""

STEP = 2
"""The same in this process, where asking again costs no round trip."""

LONGEST = 32
"""Tokens after which a word that is not whole is given up."""

FURTHER = 4
"""Tokens more for each further word."""

AT_ONCE = 256
"""Most tokens that it is asked for at once, however many words are wanted."""

_log = logging.getLogger(__name__)


class AdaptedCloud(CloudModel):
    """A cloud that sees what a context filter leaves, and answers in the edge's ids."""

    step: int | None = None
    """Tokens of each request; None: as many as the words may take."""

    def __init__(self, name: str, edge: Tokenizer, context_filter: ContextFilter | None) -> None:
        """`edge` is the edge's tokenizer; without a `context_filter` the cloud sees everything."""
        self.name, self.edge, self.context_filter = name, edge, context_filter
        # The end of `identity`.
        self.filtered = f", {context_filter.name}" if context_filter else ""

    def budget(self, words: int) -> tuple[int, int]:
        """Tokens that a request for so many words asks for; after how many no more are asked."""
        further = FURTHER * (words - 1)
        return self.step or min(WORD + further, AT_ONCE), LONGEST + further

    def requests(self, n: int) -> tuple[int, int]:
        step, most = self.budget(n)
        return -(-most // step), step

    def local_only(self, prompt: Prompt) -> bool:
        shown = self.context_filter
        return shown is not None and shown.local_only(preceding(self.edge, prompt))

    def require_edge(self, tokenizer: Tokenizer) -> None:
        """Raises `VocabularyMismatch` unless this is the edge's tokenizer."""
        if fingerprint(tokenizer) != fingerprint(self.edge):
            raise VocabularyMismatch(
                f"The adapter of {self.name!r} is for another edge vocabulary",
                hint="make one for this edge model",
            )


class ReplyChunk(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one request of a consult; `data` follows that of the requests before.

    It may end inside of a character. `ended` where the cloud ended the answer there. `size` tokens
    count towards the most of a consult.
    """

    data: bytes
    ended: bool
    size: int


class AdaptedSession(CloudSession, ABC):
    """Implements `CloudSession`: the same conversation, as the cloud reads it.

    A subclass says, once `begin` was called, how the cloud reads an answer: as if a blank stood
    before it (`puts_blanks`), without ends of lines at its end (`holds_lines`), without a finished
    block of reasoning (`leaves_thoughts`).
    """

    puts_blanks = holds_lines = leaves_thoughts = False

    def __init__(self, cloud: AdaptedCloud, prompt: Prompt) -> None:
        self.cloud, self.edge, self.prompt = cloud, cloud.edge, prompt
        self._reasoning = Reasoning(self.edge)
        self._markers = {token: text.encode() for text, token in markers(self.edge).items()}
        self._open = False
        self._context: FilteredContext | None = None
        self._blocked: Blocked | None = None

    @abstractmethod
    def begin(self, before: Context) -> None:
        """Begin a conversation with the cloud. Raises a `CloudError` where it cannot read it."""

    @abstractmethod
    def request(self, consult: "WordConsult", deadline: float) -> Future[Any]:
        """The next request of a consult. The future fails with a `CloudError`."""

    @abstractmethod
    def meter(self, consult: "WordConsult", reply: Any) -> Completion:
        """What `request` was billed, and its prompt tokens."""

    @abstractmethod
    def read(self, consult: "WordConsult", reply: Any) -> ReplyChunk:
        """Check what `request` brought. Raises a `CloudError` for an invalid reply."""

    def ask(self, request: ConsultRequest) -> Future[Completion]:
        """Ask for `n` words after the ids, but for the bytes of a character that is not whole.

        Raises `Blocked` if nothing may be sent.
        """
        end = time.monotonic() + request.deadline
        try:
            self._begin()
            shown = FilteredAnswer(self._shown(request.ids))
            if self._context is not None:
                shown = self._context.answer(shown.text, self._begun(request.ids))
        except Blocked:
            raise
        except EdgewiseError as error:
            return failed(_of_cloud(error))
        return WordConsult(self, request, shown, end).begin()

    def _shown(self, ids: Sequence[int]) -> str:
        """The answer as the cloud reads it."""
        start, block = len(self.prompt.ids), "none"
        left = ids[start:]
        if self.leaves_thoughts:
            block, left = self._reasoning.parted(ids, start)
        text = bytes_of(self.edge, left).decode("utf-8", "ignore")
        if block == "open":
            # The sign that clouds know, whatever the edge's own is.
            return f"{THINK}\n{text.lstrip().removeprefix(THINK).lstrip()}"
        return text.lstrip() if block == "over" else text

    def _begun(self, ids: Sequence[int]) -> str:
        """The answer with the control tokens that are signs of calls."""
        answer = ids[len(self.prompt.ids) :]
        pieces = [self._markers.get(token) or self.edge.piece(token) for token in answer]
        return b"".join(pieces).decode("utf-8", "ignore")

    def _begin(self) -> None:
        """Begin the conversation, with what the context filter leaves. Raises a `CloudError`."""
        if self._blocked is not None:
            raise self._blocked
        if self._open:
            return
        before = preceding(self.edge, self.prompt)
        if self.cloud.context_filter is not None:
            try:
                self._context = self.cloud.context_filter.of(before)
            except Blocked as error:
                _log.info("nothing is sent for this answer: %s", error)
                self._blocked = error
                raise
            before = self._context.shown
        self.begin(before)
        self._open = True


def preceding(edge: Tokenizer, prompt: Prompt) -> Context:
    """The prompt's messages, else the text that its ids spell."""
    if prompt.messages is not None:
        return Context(prompt.messages)
    return Context(None, bytes_of(edge, prompt.ids).decode("utf-8", "replace"))


class WordConsult:
    """Asks until enough words are whole; lives in whichever thread brings the cloud's tokens.

    Each request continues after the `data` of those before it. `ids` are what the cloud
    was sent and wrote, if it takes ids.
    """

    def __init__(
        self, session: AdaptedSession, request: ConsultRequest, shown: FilteredAnswer, end: float
    ) -> None:
        """Asks for words after the `shown` answer, until `end` (monotonic clock).

        The cloud is sent its `text`, without the blanks at its end.
        """
        self.request = request
        self.text, self._held = held_back(shown.text, lines=session.holds_lines)
        if not self.text and session.puts_blanks:
            self._held = " "
        self.step, self.most = session.cloud.budget(request.n)
        self.data = b""
        self.ids: list[int] = []
        self._chunks, self._meters = list[ReplyChunk](), list[Completion]()
        self._session, self._shown, self._end = session, shown, end
        self._future: Future[Completion] = Future()
        self._flying: Future[Any] | None = None

    def begin(self) -> Future[Completion]:
        """Send the first request."""
        self._future.add_done_callback(self._given_up)
        self._ask_more()
        return self._future

    def _ask_more(self) -> None:
        left = max(0.001, self._end - time.monotonic())
        self._flying = self._session.request(self, left)
        self._flying.add_done_callback(self._landed)
        self._given_up(self._future)

    def _given_up(self, future: Future[Completion]) -> None:
        if future.cancelled() and self._flying is not None:
            self._flying.cancel()

    def _landed(self, done: Future[Any]) -> None:
        if done.cancelled():
            self._future.cancel()
        elif not self._future.cancelled():
            try:
                self._meters.append(self._session.meter(self, done.result()))
                self._chunks.append(self._session.read(self, done.result()))
                self.data += self._chunks[-1].data
                completion = self._completion(self._chunks[-1].ended)
                if completion is None:
                    self._ask_more()
                elif self._future.set_running_or_notify_cancel():
                    self._future.set_result(completion)
            except Exception as error:
                if isinstance(error, NothingUsable):
                    error.meter = self._metered()
                # Raised in this thread it would reach nobody.
                if self._future.set_running_or_notify_cancel():
                    known = isinstance(error, EdgewiseError)
                    self._future.set_exception(_of_cloud(error) if known else error)

    def _completion(self, ended: bool) -> Completion | None:
        """The completion, or None where more of it is needed; raises `CloudError`."""
        session, chunks, data = self._session, self._chunks, self.data
        text = characters(data)
        restored = self._shown.restored(text, ended=ended)
        # A character that is cut off is no end.
        whole = ended and len(text.encode()) == len(data) and restored.left is None
        words = kept(
            restored.text.encode(), self._held, self.request.n, ended=whole, whole=restored.whole
        )
        if not words.complete and restored.left == "unknown":
            raise NothingUsable("The cloud wrote an unknown placeholder.")
        # If nothing of so much is whole, nothing will be.
        exhausted = sum(chunk.size for chunk in chunks) >= self.most
        if not words.complete and not ended and not exhausted:
            return None
        answer = self.request.ids[len(session.prompt.ids) :]
        ids = ids_of_text(session.edge, answer, words.text)
        if ids is None:
            raise CloudProtocolError("The cloud's text cannot be encoded in the edge's vocabulary.")
        completion = self._metered(ids, stopped=words.ends)
        if not ids and not words.ends:
            raise NothingUsable(f"The cloud wrote no whole word in {completion.billed} tokens.")
        eos_ids = session.edge.eos_ids or frozenset([0])
        return with_end(completion, len(ids) + 1, eos_ids)

    def _metered(self, ids: Sequence[int] = (), *, stopped: bool = False) -> Completion:
        meters = self._meters
        return Completion(
            ids=tuple(ids),
            logprobs=(None,) * len(ids),
            stopped=stopped,
            # Each request is one that an engine computes, and bills.
            cached=reduce(metered, [one.cached for one in meters]),
            computed=reduce(metered, [one.computed for one in meters]),
            prompt=reduce(metered, [one.prompt for one in meters]),
            engine_seconds=reduce(metered, [one.engine_seconds for one in meters]),
            written=sum(one.billed for one in meters),
        )


def _of_cloud(error: Exception) -> CloudError:
    """Wraps any other error as a `CloudError`, the only kind a consult may fail with."""
    if isinstance(error, CloudError):
        return error
    return CloudError(f"The adapter of the cloud model failed: {error}")
