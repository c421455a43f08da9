"""A cloud with another vocabulary: the edge's answer goes out as text, its words come in as ids.

`AdaptedCloud`, `BridgeSession` and `WordConsult` are what clouds by ids (`adapter`) and by text
(`text`) have in common.
"""

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import Future
from functools import reduce
from typing import ClassVar, NamedTuple

import msgspec

from edgewise.cloud.base import CloudModel, failed, with_end
from edgewise.cloud.bridge.context_filter import (
    Context,
    ContextFilter,
    FilteredAnswer,
    FilteredContext,
)
from edgewise.cloud.bridge.word_boundary import (
    Reasoning,
    characters,
    held_back,
    kept,
    spelled,
    written_text,
)
from edgewise.completion import Completion, Sent, metered
from edgewise.edge.base import Tokenizer
from edgewise.edge.vocabulary import bytes_of, fingerprint
from edgewise.engines.replies import THINK
from edgewise.errors import (
    Blocked,
    CloudError,
    CloudRejected,
    EdgewiseError,
    NothingUsable,
    VocabularyMismatch,
)
from edgewise.prompts import Prompt
from edgewise.prompts.tool_formats import markers
from edgewise.sampling import Sampling

PREFETCHED = 16
"""New ids of the edge's that are prefetched together."""

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


class RequestBudget(NamedTuple):
    """Tokens that a request of a consult asks for, and after how `many` no more are asked."""

    step: int
    many: int

    @property
    def requests(self) -> tuple[int, int]:
        """How many there may be, and tokens of each."""
        return -(-self.many // self.step), self.step


def request_budget(words: int, *, local: bool = False) -> RequestBudget:
    """What a cloud is asked for, for so many words; one in this process for little at once."""
    further = FURTHER * (words - 1)
    return RequestBudget(STEP if local else min(WORD + further, AT_ONCE), LONGEST + further)


class AdaptedCloud(CloudModel):
    """A cloud that sees what a `view` leaves of a conversation, and answers in the edge's ids."""

    def __init__(self, name: str, edge: Tokenizer, view: ContextFilter | None) -> None:
        """`edge` is the edge's tokenizer, `view` what the cloud gets to see (default: all)."""
        self.name, self.edge = name, edge
        self.view = view or ContextFilter()

    def local_only(self, prompt: Prompt) -> bool:
        return self.view.local_only(preceding(self.edge, prompt))

    def require_edge(self, tokenizer: Tokenizer) -> None:
        """Raises `VocabularyMismatch` unless this is the edge's tokenizer."""
        if fingerprint(tokenizer) != fingerprint(self.edge):
            raise VocabularyMismatch(
                f"The adapter of {self.name!r} is for another edge vocabulary",
                hint="make one for this edge model",
            )


class ReplyChunk(msgspec.Struct, frozen=True, kw_only=True):
    """What one request of a consult brought: `data` behind what came before it.

    It may end inside of a character. `ended` where the cloud ended the answer there. `tokens` it
    wrote in its own vocabulary; `cached` and `computed` are prompt tokens by the engine's own
    meter, `prompt` all of them as it bills them. None is what it does not report.
    """

    data: bytes
    ended: bool
    tokens: int | None = None
    cached: int | None = None
    computed: int | None = None
    prompt: int | None = None
    engine_seconds: float | None = None


class BridgeSession(ABC):
    """Implements `CloudSession`: the same conversation, as the cloud reads it.

    A subclass says how the cloud reads an answer: as if a blank stood before it (`puts_blanks`),
    without ends of lines at its end (`holds_lines`), without a finished block of reasoning
    (`leaves_thoughts`).
    """

    holds_lines: bool = False
    leaves_thoughts: ClassVar[bool] = False

    def __init__(self, cloud: AdaptedCloud, prompt: Prompt) -> None:
        self.cloud, self.edge, self.prompt = cloud, cloud.edge, prompt
        self._reasoning = Reasoning(self.edge)
        self._markers = {token: text.encode() for text, token in markers(self.edge).items()}
        self._context: FilteredContext | None = None
        self._blocked: Blocked | None = None
        self._pushed = 0

    @property
    @abstractmethod
    def puts_blanks(self) -> bool: ...

    @abstractmethod
    def begin(self, before: Context) -> None:
        """Begin a conversation with the cloud. Raises a `CloudError` where it cannot read it."""

    @abstractmethod
    def consult(self, wanted: "Wanted") -> "WordConsult":
        """A consult that was not begun."""

    def send_ahead(self, answer: str, sent: Sent | None) -> int:
        """As `CloudSession.prefetch`, of an answer that is whole words."""
        return 0

    def ask(
        self,
        ids: Sequence[int],
        n: int,
        sampling: Sampling,
        deadline: float,
        sent: Sent | None = None,
    ) -> Future[Completion]:
        """Ask for `n` words behind `ids`, which must not end inside of a character.

        Raises `Blocked` if nothing may be sent.
        """
        answer = list(ids[len(self.prompt.ids) :])
        end = time.monotonic() + deadline
        try:
            context = self._opened()
            shown = context.answer(self._shown(ids), self._begun(answer))
            text, held = held_back(shown.text, lines=self.holds_lines)
            if not text and self.puts_blanks:
                held = " "
            consult = self.consult(Wanted(answer, shown, text, held, n))
        except Blocked:
            raise
        except EdgewiseError as error:
            return failed(_of_cloud(error))
        return consult.begin(sampling, end, sent)

    def prefetch(self, ids: Sequence[int], sent: Sent | None = None) -> int:
        if self._pushed and abs(len(ids) - self._pushed) < PREFETCHED:
            return 0
        self._pushed = len(ids)
        try:
            context = self._opened()
            # The last word may still become another's beginning.
            whole = self._shown(ids).rpartition(" ")[0]
            return self.send_ahead(context.answer(whole).text, sent)
        except EdgewiseError as error:
            # Between characters, or at a consult that fails with it, more will be said.
            _log.debug("nothing is prefetched: %s", error)
            return 0

    @abstractmethod
    def close(self) -> None:
        """Forget the conversation."""

    def _shown(self, ids: Sequence[int]) -> str:
        """The answer as the cloud reads it; raises `CloudRejected` as `_written`."""
        start = len(self.prompt.ids)
        if not self.leaves_thoughts:
            return self._written(ids[start:])
        block, left = self._reasoning.parted(ids, start)
        text = self._written(left)
        if block == "open":
            # The sign that clouds know, whatever the edge's own is.
            return f"{THINK}\n{text.lstrip().removeprefix(THINK).lstrip()}"
        return text.lstrip() if block == "over" else text

    def _begun(self, answer: Sequence[int]) -> str:
        """An answer with the control tokens that are signs of calls."""
        pieces = [self._markers.get(token) or self.edge.piece(token) for token in answer]
        return b"".join(pieces).decode("utf-8", "replace")

    def _written(self, answer: Sequence[int]) -> str:
        """The text of an answer. Raises `CloudRejected` where it ends inside of a character."""
        text = written_text(bytes_of(self.edge, answer))
        if text is None:
            raise CloudRejected("A consult may not stand inside of a character.")
        return text

    def _opened(self) -> FilteredContext:
        """What the cloud sees, once the conversation is begun. Raises a `CloudError`."""
        if self._blocked is not None:
            raise self._blocked
        if self._context is None:
            try:
                context = self.cloud.view.of(preceding(self.edge, self.prompt))
            except Blocked as error:
                _log.info("nothing is sent for this answer: %s", error)
                self._blocked = error
                raise
            self.begin(context.shown)
            self._context = context
        return self._context


def preceding(edge: Tokenizer, prompt: Prompt) -> Context:
    """The prompt's messages, else the text that its ids spell."""
    if prompt.messages is not None:
        return Context(prompt.messages)
    return Context(None, bytes_of(edge, prompt.ids).decode("utf-8", "replace"))


class Wanted(NamedTuple):
    """What a consult is for: `words` behind an `answer` in ids of the edge's.

    It is `shown` to the cloud, which is sent its `text` without the blanks `held` at the end.
    """

    answer: list[int]
    shown: FilteredAnswer
    text: str
    held: str
    words: int


class WordConsult(ABC):
    """Asks until enough words are whole; lives in whichever thread brings the cloud's tokens.

    Each request continues behind what those before it brought.
    """

    def __init__(self, session: BridgeSession, wanted: Wanted, budget: RequestBudget) -> None:
        self.wanted = wanted
        self.step, self.most = budget
        self._session = session
        self._chunks: list[ReplyChunk] = []
        self._future: Future[Completion] = Future()
        self._flying: Future[ReplyChunk] | None = None

    @property
    @abstractmethod
    def exhausted(self) -> bool:
        """Whether so much was written that if nothing of it is whole, nothing will be."""

    @abstractmethod
    def request(self, sampling: Sampling, deadline: float, sent: Sent | None) -> Future[ReplyChunk]:
        """The next request. The future fails with a `CloudError`."""

    def begin(self, sampling: Sampling, end: float, sent: Sent | None) -> Future[Completion]:
        """`end` by the monotonic clock."""
        self._sampling, self._end, self._sent = sampling, end, sent
        self._future.add_done_callback(self._given_up)
        self._ask_more()
        return self._future

    def _ask_more(self) -> None:
        left = max(0.001, self._end - time.monotonic())
        self._flying = self.request(self._sampling, left, self._sent)
        self._flying.add_done_callback(self._landed)
        self._given_up(self._future)

    def _given_up(self, future: Future[Completion]) -> None:
        if future.cancelled() and self._flying is not None:
            self._flying.cancel()

    def _landed(self, done: Future[ReplyChunk]) -> None:
        if done.cancelled():
            self._future.cancel()
        elif not self._future.cancelled():
            try:
                self._chunks.append(done.result())
                completion = self._completion(self._chunks[-1].ended)
                if completion is None:
                    self._ask_more()
                elif self._future.set_running_or_notify_cancel():
                    self._future.set_result(completion)
            except Exception as error:
                # Raised in this thread it would reach nobody.
                if self._future.set_running_or_notify_cancel():
                    known = isinstance(error, EdgewiseError)
                    self._future.set_exception(_of_cloud(error) if known else error)

    def _completion(self, ended: bool) -> Completion | None:
        """The completion, or None where more of it is needed; raises `CloudError`."""
        wanted, edge, chunks = self.wanted, self._session.edge, self._chunks
        data = b"".join(chunk.data for chunk in chunks)
        text = characters(data)
        restored = wanted.shown.restored(text, ended=ended)
        # A character that is cut off is no end.
        whole = ended and len(text.encode()) == len(data) and restored.left is None
        words = kept(
            restored.text.encode(), wanted.held, wanted.words, ended=whole, whole=restored.whole
        )
        if not words.complete and restored.left == "unknown":
            raise NothingUsable("The cloud wrote a placeholder that stands for nothing here.")
        if not words.complete and not ended and not self.exhausted:
            return None
        ids = tuple(spelled(edge, wanted.answer, words.text))
        written = reduce(metered, [chunk.tokens for chunk in chunks])
        if not ids and not words.ends:
            many = "" if written is None else f" in {written} tokens"
            raise NothingUsable(f"The cloud wrote no whole word{many}.")
        seconds = [chunk.engine_seconds for chunk in chunks if chunk.engine_seconds is not None]
        completion = Completion(
            ids=ids,
            logprobs=(None,) * len(ids),
            stopped=words.ends,
            # Each request is one that an engine computes, and bills.
            cached=reduce(metered, [chunk.cached for chunk in chunks]),
            computed=reduce(metered, [chunk.computed for chunk in chunks]),
            prompt=reduce(metered, [chunk.prompt for chunk in chunks]),
            engine_seconds=sum(seconds) if len(seconds) == len(chunks) else None,
            written=written,
        )
        return with_end(
            completion, len(ids) + 1, edge.eos_ids or frozenset([0]), self._session.cloud.name
        )


def _of_cloud(error: Exception) -> CloudError:
    """As what a consult may fail with."""
    if isinstance(error, CloudError):
        return error
    return CloudError(f"The adapter of the cloud model failed: {error}")
