"""A bridge's sessions: what the edge wrote goes out as text, the cloud's words come in as ids.

Whatever the cloud speaks, a `Requester` carries the text there and back.
"""

import logging
import time
from collections.abc import Sequence
from concurrent.futures import Future
from functools import reduce
from typing import NamedTuple, Protocol

import msgspec

from edgewise.cloud.base import failed, with_end
from edgewise.cloud.bridge.context_filter import (
    Context,
    ContextFilter,
    FilteredAnswer,
    FilteredContext,
)
from edgewise.cloud.bridge.reasoning import Reasoning
from edgewise.cloud.bridge.word_boundary import characters, held_back, kept, spelled, written_text
from edgewise.completion import Completion, Sent, metered
from edgewise.edge.base import Tokenizer
from edgewise.edge.vocabulary import bytes_of
from edgewise.errors import Blocked, CloudError, CloudRejected, EdgewiseError, NothingUsable
from edgewise.prompts import Prompt
from edgewise.prompts.tool_formats import markers
from edgewise.sampling import Sampling

PREFETCHED = 16
"""New ids of the edge's that are sent ahead together."""

THINK = "<think>"
"""How a cloud is told of a block of reasoning that is not over, whatever the edge's sign."""

WORD = 8
"""Tokens that a cloud elsewhere is asked for at once, for a word: enough for 19 of 20."""

STEP = 2
"""The same in this process, where asking again costs no round trip."""

LONGEST = 32
"""Tokens after which a word counts as none."""

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
    """What is asked of a cloud for so many words; one in this process is asked little at once."""
    further = FURTHER * (words - 1)
    return RequestBudget(STEP if local else min(WORD + further, AT_ONCE), LONGEST + further)


class ReplyChunk(msgspec.Struct, frozen=True, kw_only=True):
    """What one request of a consult brought: `data` behind what came before it.

    It may end inside of a character. `ended` where the cloud ended the answer there. `tokens` it
    wrote in its own vocabulary; `cached` and `computed` are prompt tokens by the engine's own
    meter, `prompt` all of them as it bills them. None is what it does not tell.
    """

    data: bytes
    ended: bool
    tokens: int | None = None
    cached: int | None = None
    computed: int | None = None
    prompt: int | None = None
    engine_seconds: float | None = None


class Requests(Protocol):
    """One consult: each request goes on behind what those before it brought."""

    @property
    def exhausted(self) -> bool:
        """Whether so much was written that if nothing of it is whole, nothing will be."""
        ...

    def more(
        self, sampling: Sampling, deadline: float, sent: Sent | None = None
    ) -> Future[ReplyChunk]:
        """The next request. The future fails with a `CloudError`."""
        ...


class RequesterSession(Protocol):
    """One answer's conversation with a cloud, in text."""

    @property
    def puts_blanks(self) -> bool:
        """Whether the cloud reads an answer as if a blank stood before it."""
        ...

    @property
    def holds_lines(self) -> bool:
        """Whether ends of lines are held back at the end of an answer, as blanks are."""
        ...

    @property
    def leaves_thoughts(self) -> bool:
        """Whether a block of reasoning that is over is left out of the answer."""
        ...

    def begin(self, answer: str, words: int) -> Requests:
        """A consult behind `answer`, which ends with no blank, for so many words."""
        ...

    def prefetch(self, answer: str, sent: Sent | None = None) -> int:
        """As `CloudSession.prefetch`, of an answer that is whole words."""
        ...

    def close(self) -> None:
        """Forget the conversation."""
        ...


class Requester(Protocol):
    """What a bridge stands on."""

    def open(self, before: Context) -> RequesterSession:
        """A session about what is shown. Raises a `CloudError` where the cloud cannot read it."""
        ...


class BridgeSession:
    """Implements `CloudSession`: the same conversation, as the cloud reads it."""

    def __init__(
        self,
        transport: Requester,
        view: ContextFilter,
        prompt: Prompt,
        *,
        edge: Tokenizer,
        name: str,
    ) -> None:
        """`edge` is the edge's tokenizer, `name` the cloud's."""
        self._transport, self._view, self._prompt = transport, view, prompt
        self._edge, self._name = edge, name
        self._reasoning = Reasoning(edge)
        self._marks = {token: text.encode() for text, token in markers(edge).items()}
        self._context: FilteredContext | None = None
        self._session: RequesterSession | None = None
        self._blocked: Blocked | None = None
        self._pushed = 0

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
        answer = list(ids[len(self._prompt.ids) :])
        end = time.monotonic() + deadline
        try:
            context, session = self._opened()
            told = context.answer(self._shown(ids, session), self._begun(answer))
            text, held = held_back(told.text, lines=session.holds_lines)
            if not text and session.puts_blanks:
                held = " "
            going = session.begin(text, n)
        except Blocked:
            raise
        except EdgewiseError as error:
            return failed(_of_cloud(error))
        asked = _Asked(answer, held, n, edge=self._edge, name=self._name)
        return _Consult(going, told, asked).ask(sampling, end, sent)

    def prefetch(self, ids: Sequence[int], sent: Sent | None = None) -> int:
        if self._pushed and abs(len(ids) - self._pushed) < PREFETCHED:
            return 0
        self._pushed = len(ids)
        try:
            context, session = self._opened()
            # The last word may still become another's beginning.
            whole = self._shown(ids, session).rpartition(" ")[0]
            return session.prefetch(context.answer(whole).text, sent)
        except EdgewiseError as error:
            # Between characters, or at a consult that fails with it, more will be said.
            _log.debug("nothing is sent ahead: %s", error)
            return 0

    def close(self) -> None:
        if self._session is not None:
            self._session.close()

    def _shown(self, ids: Sequence[int], session: RequesterSession) -> str:
        """The answer as the cloud is told; raises `CloudRejected` as `_written`."""
        start = len(self._prompt.ids)
        if not session.leaves_thoughts:
            return self._written(ids[start:])
        block, left = self._reasoning.parted(ids, start)
        text = self._written(left)
        if block == "open":
            return f"{THINK}\n{text.lstrip().removeprefix(THINK).lstrip()}"
        return text.lstrip() if block == "over" else text

    def _begun(self, answer: Sequence[int]) -> str:
        """An answer with the control tokens that are signs of calls."""
        pieces = [self._marks.get(token) or self._edge.piece(token) for token in answer]
        return b"".join(pieces).decode("utf-8", "replace")

    def _written(self, answer: Sequence[int]) -> str:
        """The text of an answer. Raises `CloudRejected` where it ends inside of a character."""
        text = written_text(bytes_of(self._edge, answer))
        if text is None:
            raise CloudRejected("A consult may not stand inside of a character.")
        return text

    def _opened(self) -> tuple[FilteredContext, RequesterSession]:
        """What the cloud sees, and the session about it. Raises a `CloudError`."""
        if self._blocked is not None:
            raise self._blocked
        if self._context is None or self._session is None:
            try:
                self._context = self._view.of(preceding(self._edge, self._prompt))
            except Blocked as error:
                _log.info("nothing is sent for this answer: %s", error)
                self._blocked = error
                raise
            self._session = self._transport.open(self._context.shown)
        return self._context, self._session


def preceding(edge: Tokenizer, prompt: Prompt) -> Context:
    """The prompt's messages, else the text that its ids spell."""
    if prompt.messages is not None:
        return Context(prompt.messages)
    return Context(None, bytes_of(edge, prompt.ids).decode("utf-8", "replace"))


class _Asked:
    """What a consult is for: `words` behind an `answer` in ids of the `edge`'s.

    The blanks `held` of the answer are not sent; `name` is the cloud's.
    """

    def __init__(
        self, answer: list[int], held: str, words: int, *, edge: Tokenizer, name: str
    ) -> None:
        self.answer, self.held, self.words = answer, held, words
        self.edge, self.name = edge, name


class _Consult:
    """Asks until enough words are whole; lives in whichever thread brings the cloud's tokens."""

    def __init__(self, going: Requests, told: FilteredAnswer, asked: _Asked) -> None:
        self._going, self._told, self._asked = going, told, asked
        self._parts: list[ReplyChunk] = []
        self._future: Future[Completion] = Future()
        self._flying: Future[ReplyChunk] | None = None

    def ask(self, sampling: Sampling, end: float, sent: Sent | None) -> Future[Completion]:
        """`end` by the monotonic clock."""
        self._sampling, self._end, self._sent = sampling, end, sent
        self._future.add_done_callback(self._given_up)
        self._ask_more()
        return self._future

    def _ask_more(self) -> None:
        left = max(0.001, self._end - time.monotonic())
        asked = self._going.more(self._sampling, left, self._sent)
        self._flying = asked
        asked.add_done_callback(self._landed)
        self._given_up(self._future)

    def _given_up(self, future: Future[Completion]) -> None:
        if future.cancelled() and self._flying is not None:
            self._flying.cancel()

    def _landed(self, done: Future[ReplyChunk]) -> None:
        if done.cancelled():
            self._future.cancel()
        elif not self._future.cancelled():
            try:
                self._parts.append(done.result())
                completion = self._read(self._parts[-1].ended)
                if completion is None:
                    self._ask_more()
                else:
                    self._end_with(completion)
            except EdgewiseError as error:
                self._end_with(_of_cloud(error))
            except Exception as error:
                # Raised in this thread it would reach nobody.
                self._end_with(error)

    def _end_with(self, outcome: Completion | Exception) -> None:
        if self._future.set_running_or_notify_cancel():
            if isinstance(outcome, Completion):
                self._future.set_result(outcome)
            else:
                self._future.set_exception(outcome)

    def _read(self, ended: bool) -> Completion | None:
        """The completion, or None where more of it is needed; raises `CloudError`."""
        asked = self._asked
        data = b"".join(part.data for part in self._parts)
        text = characters(data)
        restored = self._told.restored(text, ended=ended)
        # A character that is cut off is no end.
        whole = ended and len(text.encode()) == len(data) and restored.left is None
        found = kept(
            restored.text.encode(), asked.held, asked.words, ended=whole, whole=restored.whole
        )
        if not found.complete and restored.left == "unknown":
            raise NothingUsable("The cloud wrote a placeholder that stands for nothing here.")
        if not found.complete and not ended and not self._going.exhausted:
            return None
        ids = tuple(spelled(asked.edge, asked.answer, found.text))
        written = reduce(metered, [part.tokens for part in self._parts])
        if not ids and not found.ends:
            many = "" if written is None else f" in {written} tokens"
            raise NothingUsable(f"The cloud wrote no whole word{many}.")
        completion = Completion(
            ids=ids,
            logprobs=(None,) * len(ids),
            stopped=found.ends,
            # Each request is one that an engine computes, and bills.
            cached=reduce(metered, [part.cached for part in self._parts]),
            computed=reduce(metered, [part.computed for part in self._parts]),
            prompt=reduce(metered, [part.prompt for part in self._parts]),
            engine_seconds=_sum([part.engine_seconds for part in self._parts]),
            written=written,
        )
        ends = asked.edge.eos_ids or frozenset([0])
        return with_end(completion, len(ids) + 1, ends, asked.name)


def _of_cloud(error: EdgewiseError) -> CloudError:
    """As what a consult may fail with."""
    if isinstance(error, CloudError):
        return error
    return CloudError(f"The bridge to the cloud model failed: {error}")


def _sum(seconds: Sequence[float | None]) -> float | None:
    known = [one for one in seconds if one is not None]
    return sum(known) if len(known) == len(seconds) else None
