"""Base classes for cloud models whose vocabulary is not the edge model's.

Whole words of a reply become ids of the edge model. Subclasses make requests and read replies.
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

# Tokens that a request for one word asks a remote cloud model for: enough for 19 words of 20.
WORD = 8
# Tokens that a request asks a model in this process for: asking again costs no round trip.
STEP = 2

LONGEST = 32
"""Tokens written by the cloud after which a word that is not complete is given up."""

FURTHER = 4
"""Tokens added to `WORD` and to `LONGEST` for each word after the first."""

AT_ONCE = 256
"""Most tokens in one request, however many words are wanted."""

_log = logging.getLogger(__name__)


class AdaptedCloud(CloudModel):
    """Base class of cloud models of another vocabulary; `context_filter` hides private words."""

    step: int | None = None
    """Tokens to ask for in each request; None: as many as the wanted words may need."""

    def __init__(self, name: str, edge: Tokenizer, context_filter: ContextFilter | None) -> None:
        """`edge` is the edge model's tokenizer; `context_filter` hides private words (or None)."""
        self.name, self.edge, self.context_filter = name, edge, context_filter
        # The end of `identity`.
        self.filtered = f", {context_filter.name}" if context_filter else ""

    def budget(self, words: int) -> tuple[int, int]:
        """Return a consult's token limits for `words` words: (in each request, in all)."""
        further = FURTHER * (words - 1)
        return self.step or min(WORD + further, AT_ONCE), LONGEST + further

    def requests(self, n: int) -> tuple[int, int]:
        step, most = self.budget(n)
        return -(-most // step), step

    def local_only(self, prompt: Prompt) -> bool:
        shown = self.context_filter
        return shown is not None and shown.local_only(preceding(self.edge, prompt))

    def require_edge(self, tokenizer: Tokenizer) -> None:
        """Raise `VocabularyMismatch` unless `tokenizer` has the vocabulary of `self.edge`."""
        if fingerprint(tokenizer) != fingerprint(self.edge):
            raise VocabularyMismatch(
                f"The adapter of {self.name!r} is for another edge vocabulary",
                hint="make one for this edge model",
            )


class ReplyChunk(msgspec.Struct, frozen=True, kw_only=True):
    """What one reply adds to a consult, which may need several requests.

    `data` is the new text in UTF-8, and may end inside a character. `ended`: the cloud ended the
    answer there. `size` tokens count towards the consult's limit (`AdaptedCloud.budget`).
    """

    data: bytes
    ended: bool
    size: int


class AdaptedSession(CloudSession, ABC):
    """Base class of sessions with a cloud model of another vocabulary.

    Subclasses set three flags, in `begin` at the latest. `puts_blanks`: drop the blank with which
    the cloud begins an answer. `holds_lines`: send no line ends at the end of the answer so far
    (blanks there are never sent). `leaves_thoughts`: do not send finished blocks of reasoning.
    """

    puts_blanks = holds_lines = leaves_thoughts = False

    def __init__(self, cloud: AdaptedCloud, prompt: Prompt) -> None:
        self.cloud, self.edge, self.prompt = cloud, cloud.edge, prompt
        self._reasoning = Reasoning(self.edge)
        self._open = False
        self._context: FilteredContext | None = None
        self._blocked: Blocked | None = None

    @abstractmethod
    def begin(self, before: Context) -> None:
        """Begin a conversation with the cloud model; `ask` calls it before the first request.

        `before` is the redacted text before the answer. Raises a `CloudError` if it cannot be sent.
        """

    @abstractmethod
    def request(self, consult: "WordConsult", deadline: float) -> Future[Any]:
        """Send the next request for the words that `consult` lacks; return the future of its reply.

        `deadline` is in seconds from now. The future fails with a `CloudError`. The reply is then
        passed to `meter` and `read`; if words are still missing, `request` is called again.
        """

    @abstractmethod
    def meter(self, consult: "WordConsult", reply: Any) -> Completion:
        """Return a completion with the token counts billed for `reply`; its ids are ignored."""

    @abstractmethod
    def read(self, consult: "WordConsult", reply: Any) -> ReplyChunk:
        """Check a reply and return its new text. Raises a `CloudError` if it is invalid."""

    def ask(self, request: ConsultRequest) -> Future[Completion]:
        """Ask for `request.n` words after `request.ids`; return the future of the completion.

        The completion has fewer words if the answer ends, or at the limit of tokens (`budget` of
        the cloud). The future fails with a `CloudError`: `NothingUsable` if no word was completed.
        Raises `Blocked` if the context filter forbids sending the text.
        """
        end = time.monotonic() + request.deadline
        try:
            self._begin()
            shown = FilteredAnswer(self._shown(request.ids))
            if self._context is not None:
                answer = request.ids[len(self.prompt.ids) :]
                shown = self._context.answer(shown.text, begun(self.edge, answer))
        except Blocked:
            raise
        except EdgewiseError as error:
            return failed(_of_cloud(error))
        return WordConsult(self, request, shown, end).begin()

    def _shown(self, ids: Sequence[int]) -> str:
        """The text of the answer so far as the cloud model reads it, before redaction."""
        start, block = len(self.prompt.ids), "none"
        left = ids[start:]
        if self.leaves_thoughts:
            block, left = self._reasoning.parted(ids, start)
        text = bytes_of(self.edge, left).decode("utf-8", "ignore")
        if block == "open":
            # The sign that clouds know, whatever the edge's own is.
            return f"{THINK}\n{text.lstrip().removeprefix(THINK).lstrip()}"
        return text.lstrip() if block == "over" else text

    def _begin(self) -> None:
        """Begin the conversation, with what the context filter leaves. Raises a `CloudError`."""
        if self._blocked is not None:
            # What was forbidden once stays so: the text before the answer does not change.
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
    """Return what is before the answer: the prompt's messages or, if it has none, its ids' text."""
    if prompt.messages is not None:
        return Context(prompt.messages)
    return Context(None, bytes_of(edge, prompt.ids).decode("utf-8", "replace"))


def begun(edge: Tokenizer, answer: Sequence[int]) -> str:
    """Decode `answer`, ids of an answer so far; control tokens that mark tool calls become text."""
    special = {token: text.encode() for text, token in markers(edge).items()}
    pieces = [special.get(token) or edge.piece(token) for token in answer]
    return b"".join(pieces).decode("utf-8", "ignore")


class WordConsult:
    """A consult for words of a cloud model of another vocabulary; it may take several requests.

    `data` is what the cloud has written so far, in UTF-8; the next request continues after it.
    `ids` are the cloud model's ids of all that was sent and written, empty for a cloud that takes
    text. Each reply is handled in the thread that brings it.
    """

    def __init__(
        self, session: AdaptedSession, request: ConsultRequest, shown: FilteredAnswer, end: float
    ) -> None:
        """`shown` is the redacted answer so far, `end` the deadline by `time.monotonic()`."""
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
        """Send the first request; return the future of the consult's completion."""
        self._future.add_done_callback(self._given_up)
        self._ask_more()
        return self._future

    def _ask_more(self) -> None:
        # Not 0, which would be a timeout before the request has left.
        left = max(0.001, self._end - time.monotonic())
        self._flying = self._session.request(self, left)
        # In the thread that brings the reply: the loop waits for words, not for requests.
        self._flying.add_done_callback(self._landed)
        # It may have been cancelled while this request was being sent.
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
        """Return the completion, or None if another request is needed. Raises a `CloudError`."""
        session, chunks, data = self._session, self._chunks, self.data
        text = characters(data)
        restored = self._shown.restored(text, ended=ended)
        # A character that is cut off is no end.
        whole = ended and len(text.encode()) == len(data) and restored.left is None
        words = kept(
            restored.text.encode(), self._held, self.request.n, ended=whole, whole=restored.whole
        )
        # If nothing of so much is whole, nothing will be; so it is before an unknown placeholder.
        exhausted = sum(chunk.size for chunk in chunks) >= self.most or restored.left == "unknown"
        if not words.complete and not ended and not exhausted:
            return None
        answer = self.request.ids[len(session.prompt.ids) :]
        ids = ids_of_text(session.edge, answer, words.text)
        if ids is None:
            raise CloudProtocolError("The cloud's text cannot be encoded in the edge's vocabulary.")
        completion = self._metered(ids, stopped=words.ends)
        if not ids and not words.ends:
            at = " before an unknown placeholder" if restored.left == "unknown" else ""
            raise NothingUsable(f"The cloud wrote no whole word{at} in {completion.billed} tokens.")
        eos_ids = session.edge.eos_ids or frozenset([0])
        # The limit was in words, so there is always a place for an end.
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
    """Return `error` as a `CloudError`, the only kind that a consult may fail with."""
    if isinstance(error, CloudError):
        return error
    return CloudError(f"The adapter of the cloud model failed: {error}")
