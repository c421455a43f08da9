"""A cloud model behind an API that takes the beginning of an answer as text, and continues it.

A few fixed requests find out first how an API does so. An API is refused if it starts the answer
over, or drops the blank at the beginning of its reply; which words it writes does not matter.
"""

import asyncio
import time
from concurrent.futures import Future
from typing import Any

import msgspec
from msgspec.structs import replace

from edgewise.cloud.adapter.session import AdaptedCloud, AdaptedSession, ReplyChunk, WordConsult
from edgewise.cloud.adapter.word_boundary import BLANKS, WordBoundaries, added, held_back
from edgewise.cloud.engine import Clients, IoThread
from edgewise.cloud.redaction import Context, ContextFilter
from edgewise.completion import Completion
from edgewise.edge.base import Tokenizer
from edgewise.engines.base import Client, Described
from edgewise.engines.text import TextContinuation, TextEngine, TextRequest
from edgewise.engines.vocabulary_check import FRESH_SECONDS
from edgewise.errors import CloudProtocolError, CloudRejected, CloudUnavailable
from edgewise.prompts import Message, Prompt
from edgewise.servers.replies import THINK, uncached

PROBE_SECONDS = 60.0
"""Timeout in seconds of finding out how an API continues a started answer."""

THOUGHT = "</think>"
"""Ends a block of reasoning in the cloud's text."""

TOKENS = 6
"""Most tokens of a reply in a probe."""

_ASKED = (Message("user", "Count in words from one to ten, separated by spaces."),)

# Beginnings of an answer that end inside of a word, and the rest of that word.
_BEGUN = (("one two three fo", "ur"), ("one two three four five six sev", "en"))
# So begins no answer of a model's own.
_ODD = "= # one two three fo"
_WORDS = "one two three four"
# How a model that starts the answer over begins, in lower case.
_ANEW = ("one", "1", "sure", "i ", "i'", "here", "certainly", "of course", "okay", "ok,", "great")


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """How an API continues the beginning of an answer that it is sent.

    `echoes`: its reply repeats this beginning. `trims`: blanks at the end of it may get lost.
    """

    echoes: bool = False
    trims: bool = False

    @property
    def in_words(self) -> str:
        """A description for users, such as "exact, keeps blanks"."""
        first = "exact, after what it repeats" if self.echoes else "exact"
        blanks = "may drop blanks at the end of what is sent" if self.trims else "keeps blanks"
        return f"{first}, {blanks}"


class ApiCloud(AdaptedCloud):
    """Base class of cloud models behind a text API (`TextEngine`); each model has an I/O thread."""

    def __init__(
        self, engine: TextEngine, *, edge: Tokenizer, context_filter: ContextFilter | None = None
    ) -> None:
        """`edge` is the edge model's tokenizer; `context_filter` hides private words (or None)."""
        super().__init__(engine.url, edge, context_filter)
        self.engine = engine
        self._io = IoThread(self.name)
        self.submit = self._io.submit

    def close(self) -> None:
        self._io.close(self.engine.close())


class TextCloud(ApiCloud):
    """A cloud model behind an API that continues text: it is asked between words, for whole words.

    After `check_vocabulary`, `capabilities` says how the API continues the beginning of an answer.
    """

    def __init__(self, engine: TextEngine, **options: Any) -> None:
        super().__init__(engine, **options)
        self.capabilities = Capabilities()
        self._served: Described | None = None
        self._reconnected, self._since = asyncio.Event(), 0.0
        if engine.owner:
            # Others decline requests for a model that they do not serve any more.
            engine.connected = self._reconnected.set
        self.boundaries = WordBoundaries(self.edge, reasons=engine.reasons)

    def identity(self) -> str:
        model = self._served.model if self._served else None
        how = self.capabilities.in_words
        return f"{self.name} {self.engine.dialect} {model or ''} as text, {how}{self.filtered}"

    def open(self, prompt: Prompt) -> "AdaptedTextSession":
        return AdaptedTextSession(self, prompt)

    def check_vocabulary(self, tokenizer: Tokenizer) -> str:
        """Find out how the API continues a started answer; return what was found, as a text.

        `tokenizer` is the edge model's. Raises `VocabularyMismatch` if this object was made for
        another edge model, `CloudRejected` if the API does not continue, and another `CloudError`
        if it fails.
        """
        self.require_edge(tokenizer)
        self.submit(self._probe(), PROBE_SECONDS).result()
        self.vocabulary_check = (
            f"text, as {self.engine.dialect} takes it: {self.capabilities.in_words}"
        )
        return self.vocabulary_check

    async def complete(self, request: TextRequest, client: Client) -> TextContinuation:
        """Send a request and return the reply; `client` names session and consult to the API.

        Raises a `CloudError`: `CloudUnavailable` also if the API serves another model by now.
        """
        try:
            # Before and after: the model may be replaced while the request is under way.
            await self._recheck()
            served = self._served
            reply = await self.engine.complete(request, client)
            await self._recheck()
        except CloudUnavailable:
            # What comes back after an outage may be another model.
            self._reconnected.set()
            self._since = 0.0
            raise
        if self._served != served:
            raise CloudUnavailable(f"{self.name!r} serves another model by now", hint="try again")
        return reply

    async def _probe(self) -> None:
        served = await self.engine.describe()
        if served != self._served:
            self.capabilities = await Probe(self.engine).capabilities()
            self._served = served
        self._reconnected.clear()
        self._since = time.monotonic()

    async def _recheck(self) -> None:
        """After an outage or a reconnect, look which model is served; probe one that is new."""
        stale = self._reconnected.is_set() and time.monotonic() - self._since > FRESH_SECONDS
        if self._served and stale:
            await self._probe()


class AdaptedTextSession(AdaptedSession):
    """The session of a `TextCloud`: each request sends all messages and the answer's text."""

    # Templates do so with earlier turns, and APIs take no signs of other families.
    leaves_thoughts = True

    def __init__(self, cloud: TextCloud, prompt: Prompt) -> None:
        super().__init__(cloud, prompt)
        self._engine = cloud
        self._before, self._clients = Context(()), Clients()

    def begin(self, before: Context) -> None:
        self._before = before
        # A reply to messages begins with none that is restored.
        self.puts_blanks = before.messages is not None
        self.holds_lines = self._engine.capabilities.trims

    def request(self, consult: WordConsult, deadline: float) -> "Future[TextContinuation]":
        client, before = self._clients.of(consult.request.sent), self._before
        messages = tuple(replace(message, local=False) for message in before.messages or ())
        answer, _ = self._sent(consult)
        # An API that takes text alone has the prompt in it.
        text = answer if before.messages is not None else before.text + answer
        asked = TextRequest(messages, text, consult.step, consult.request.sampling)
        return self._engine.submit(self._engine.complete(asked, client), deadline)

    def meter(self, consult: WordConsult, reply: TextContinuation) -> Completion:
        return billed(reply, consult.step)

    def read(self, consult: WordConsult, reply: TextContinuation) -> ReplyChunk:
        url, text, able = self._engine.name, reply.text, self._engine.capabilities
        behind, held = self._sent(consult)
        text = unechoed(behind, text, url) if able.echoes else added(behind, text)
        if not text and not reply.ended:
            raise CloudRejected(f"{url!r} wrote no text in {consult.step} tokens.")
        whole = text.partition("\ufffd")[0]
        # Its end is a token of the edge's own.
        thought = consult.text.startswith(THINK) and THOUGHT in whole
        if thought:
            whole = whole.partition(THOUGHT)[0]
        ended = reply.ended and whole == text
        if consult.data:
            # Blanks of the first reply are matched with those of the answer (`kept`).
            kept = whole.startswith(held)
            whole = whole.removeprefix(held) if kept else whole.lstrip(BLANKS + held)
        size = consult.most if thought else consult.step
        return ReplyChunk(data=whole.encode(), ended=ended, size=size)

    def _sent(self, consult: WordConsult) -> tuple[str, str]:
        """The text that a consult's next request sends, and the blanks held back at its end."""
        return held_back(consult.text + consult.data.decode(), lines=self.holds_lines)


def billed(reply: TextContinuation, most: int) -> Completion:
    """Return a completion without ids, which holds the token counts that are billed for `reply`.

    `most` is the request's limit of tokens, billed if the API does not report how many it wrote.
    """
    return Completion(
        ids=(),
        logprobs=(),
        written=most if reply.written is None else reply.written,
        cached=reply.cached,
        computed=uncached(reply.prompt, reply.cached),
        prompt=reply.prompt,
    )


class Probe:
    """Finds out by a few fixed requests whether, and how, an API continues a started answer."""

    def __init__(self, engine: TextEngine) -> None:
        self._engine = engine
        self._echoes = False

    async def capabilities(self) -> Capabilities:
        """Send the requests and return the findings.

        Raises `CloudRejected` if the API declines a started answer, starts it over or drops the
        blank before its first word, and another `CloudError` if it fails.
        """
        await self._continues()
        await self._require_blanks()
        return Capabilities(echoes=self._echoes, trims=await self._trims())

    async def _continues(self) -> None:
        """Raise `CloudRejected` if the API does not continue a started answer."""
        replies: list[str] = []
        for begun, rest in _BEGUN:
            reply = await self._reply(begun)
            if not self._echoes and reply.lstrip().startswith(begun):
                reply = await self._repeated()
            if reply.lstrip().startswith(rest):
                return
            # Like an answer's beginning, or the begun word once more.
            word = begun.split()[-1] + rest
            if not reply.lstrip().lower().startswith((word, *_ANEW)):
                return
            replies.append(reply)
        raise self._restarts(replies[0])

    async def _repeated(self) -> str:
        """Return the text after an echo; raise `CloudRejected` if it was no echo, but a restart."""
        reply = (await self._asked(_ODD)).lstrip()
        if not reply.startswith(_ODD) or reply == _ODD:
            raise self._restarts(reply)
        self._echoes = True
        return reply.removeprefix(_ODD)

    async def _require_blanks(self) -> None:
        """Raise `CloudRejected` if a reply loses its leading blank."""
        # Words would run together.
        if (await self._reply(_WORDS)).startswith("five"):
            raise CloudRejected(
                f"{self._engine.url!r} drops the leading space of its continuation",
                hint="choose another provider, or an engine by token ids",
            )

    async def _trims(self) -> bool:
        """Whether the API loses or refuses blanks at the end of a started answer."""
        try:
            return (await self._reply(f"{_WORDS} "))[:1].isspace()
        except CloudRejected:
            return True

    async def _reply(self, begun: str) -> str:
        """Return what the API adds to the started answer `begun`, without an echo."""
        reply = await self._asked(begun)
        return unechoed(begun, reply, self._engine.url) if self._echoes else reply

    async def _asked(self, begun: str) -> str:
        try:
            return (await self._engine.complete(TextRequest(_ASKED, begun, TOKENS))).text
        except CloudRejected as error:
            # A wrong key or model says nothing of started answers.
            if error.setting is not None:
                raise
            raise CloudRejected(
                f"{self._engine.url!r} does not accept a started answer "
                f"({error.message.rstrip('.')})",
                request_id=error.request_id,
            ) from error

    def _restarts(self, reply: str) -> CloudRejected:
        return CloudRejected(
            f"{self._engine.url!r} restarts an answer instead of continuing it: to "
            f"{_BEGUN[0][0]!r} it added {reply[:40]!r}"
        )


def unechoed(sent: str, reply: str, url: str) -> str:
    """Return `reply` without its beginning, which repeats `sent`, the text that the API got.

    Blanks at the ends of `sent` may differ. Raises `CloudProtocolError`, which names the API's
    `url`, if `sent` is not repeated.
    """
    again = reply.lstrip()
    if not sent.strip():
        return reply
    for begun in (sent.lstrip(), sent.strip()):
        if again.startswith(begun):
            return again[len(begun) :]
    raise CloudProtocolError(f"{url!r} did not repeat the started answer, as it did before.")
