"""A cloud with another vocabulary: the edge's answer goes out as text, its words come in as ids.

`AdaptedCloud` and `BridgeSession` are what clouds by ids (`adapter`) and by text (`text`) have in
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

from edgewise.cloud.base import CloudModel, CloudSession, failed, with_end
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
    retokenized,
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

    def __init__(self, name: str, edge: Tokenizer, context_filter: ContextFilter | None) -> None:
        """`edge` is the edge's tokenizer; without a `context_filter` the cloud sees everything."""
        self.name, self.edge = name, edge
        self.context_filter = context_filter or ContextFilter()

    @property
    def filtered(self) -> str:
        """The end of `identity`: what the context filter shows; empty for everything."""
        return f", {self.context_filter.name}" if self.context_filter.name else ""

    def budget(self, words: int) -> tuple[int, int]:
        """Tokens that a request for so many words asks for; after how many no more are asked."""
        further = FURTHER * (words - 1)
        return min(WORD + further, AT_ONCE), LONGEST + further

    def requests(self, n: int) -> tuple[int, int]:
        step, most = self.budget(n)
        return -(-most // step), step

    def local_only(self, prompt: Prompt) -> bool:
        return self.context_filter.local_only(preceding(self.edge, prompt))

    def require_edge(self, tokenizer: Tokenizer) -> None:
        """Raises `VocabularyMismatch` unless this is the edge's tokenizer."""
        if fingerprint(tokenizer) != fingerprint(self.edge):
            raise VocabularyMismatch(
                f"The adapter of {self.name!r} is for another edge vocabulary",
                hint="make one for this edge model",
            )


class ReplyChunk(msgspec.Struct, frozen=True, kw_only=True):
    """What one request of a consult brought: `data` behind what came before it.

    It may end inside of a character. `ended` where the cloud ended the answer there. `size` tokens
    count towards the most of a consult. `tokens` it wrote in its own vocabulary; `cached` and
    `computed` are prompt tokens by the engine's own meter, `prompt` all of them as it bills them.
    None is what it does not report.
    """

    data: bytes
    ended: bool
    size: int
    tokens: int | None = None
    cached: int | None = None
    computed: int | None = None
    prompt: int | None = None
    engine_seconds: float | None = None


class BridgeSession(CloudSession, ABC):
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
        self._context: FilteredContext | None = None
        self._blocked: Blocked | None = None

    @abstractmethod
    def begin(self, before: Context) -> None:
        """Begin a conversation with the cloud. Raises a `CloudError` where it cannot read it."""

    @abstractmethod
    def request(
        self, consult: "WordConsult", sampling: Sampling, deadline: float, sent: Sent | None
    ) -> Future[Any]:
        """The next request of a consult. The future fails with a `CloudError`."""

    @abstractmethod
    def read(self, consult: "WordConsult", reply: Any) -> ReplyChunk:
        """Check what `request` brought. Raises a `CloudError` for an invalid reply."""

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
            consult = WordConsult(self, answer, shown, text, held, n)
        except Blocked:
            raise
        except EdgewiseError as error:
            return failed(_of_cloud(error))
        return consult.begin(sampling, end, sent)

    def _shown(self, ids: Sequence[int]) -> str:
        """The answer as the cloud reads it.

        Raises `CloudRejected` where it ends inside of a character.
        """
        start, block = len(self.prompt.ids), "none"
        left = ids[start:]
        if self.leaves_thoughts:
            block, left = self._reasoning.parted(ids, start)
        text = written_text(bytes_of(self.edge, left))
        if text is None:
            raise CloudRejected("A consult may not stand inside of a character.")
        if block == "open":
            # The sign that clouds know, whatever the edge's own is.
            return f"{THINK}\n{text.lstrip().removeprefix(THINK).lstrip()}"
        return text.lstrip() if block == "over" else text

    def _begun(self, answer: Sequence[int]) -> str:
        """An answer with the control tokens that are signs of calls."""
        pieces = [self._markers.get(token) or self.edge.piece(token) for token in answer]
        return b"".join(pieces).decode("utf-8", "replace")

    def _opened(self) -> FilteredContext:
        """What the cloud sees, once the conversation is begun. Raises a `CloudError`."""
        if self._blocked is not None:
            raise self._blocked
        if self._context is None:
            try:
                context = self.cloud.context_filter.of(preceding(self.edge, self.prompt))
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


class WordConsult:
    """Asks until enough words are whole; lives in whichever thread brings the cloud's tokens.

    Each request continues behind the `data` that those before it brought. `ids` are what the cloud
    was sent and wrote, if it takes ids.
    """

    def __init__(
        self,
        session: BridgeSession,
        answer: list[int],
        shown: FilteredAnswer,
        text: str,
        held: str,
        words: int,
    ) -> None:
        """For `words` behind an `answer` in ids of the edge's, of which the cloud is `shown` some.

        It is sent the `text` of that, without the blanks `held` at the end.
        """
        self.text = text
        self.step, self.most = session.cloud.budget(words)
        self.data = b""
        self.ids: list[int] = []
        self._chunks: list[ReplyChunk] = []
        self._session, self._words = session, words
        self._answer, self._shown, self._held = answer, shown, held
        self._future: Future[Completion] = Future()
        self._flying: Future[Any] | None = None

    def begin(self, sampling: Sampling, end: float, sent: Sent | None) -> Future[Completion]:
        """`end` by the monotonic clock."""
        self._sampling, self._end, self._sent = sampling, end, sent
        self._future.add_done_callback(self._given_up)
        self._ask_more()
        return self._future

    def _ask_more(self) -> None:
        left = max(0.001, self._end - time.monotonic())
        self._flying = self._session.request(self, self._sampling, left, self._sent)
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
                self._chunks.append(self._session.read(self, done.result()))
                self.data += self._chunks[-1].data
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
        edge, chunks, data = self._session.edge, self._chunks, self.data
        text = characters(data)
        restored = self._shown.restored(text, ended=ended)
        # A character that is cut off is no end.
        whole = ended and len(text.encode()) == len(data) and restored.left is None
        words = kept(
            restored.text.encode(), self._held, self._words, ended=whole, whole=restored.whole
        )
        if not words.complete and restored.left == "unknown":
            raise NothingUsable("The cloud wrote a placeholder that stands for nothing here.")
        # If nothing of so much is whole, nothing will be.
        exhausted = sum(chunk.size for chunk in chunks) >= self.most
        if not words.complete and not ended and not exhausted:
            return None
        ids = tuple(retokenized(edge, self._answer, words.text))
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
