"""A cloud behind an API that takes and returns text: what the edge wrote goes out as it reads."""

import secrets
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

from msgspec.structs import replace

from edgewise.cloud.bridge.capabilities import Capabilities, capabilities, unechoed
from edgewise.cloud.bridge.context_filter import Context, ContextFilter
from edgewise.cloud.bridge.session import (
    AdaptedCloud,
    BridgeSession,
    ReplyChunk,
    WordConsult,
)
from edgewise.cloud.bridge.word_boundary import BLANKS, WordBoundaries, added, held_back
from edgewise.cloud.io_thread import IoThread
from edgewise.completion import Sent
from edgewise.edge.base import Tokenizer
from edgewise.engines.base import Client, Described
from edgewise.engines.replies import THINK, TextContinuation, TextRequest, uncached
from edgewise.engines.text import TextEngine
from edgewise.errors import CloudRejected, CloudUnavailable
from edgewise.prompts import Prompt
from edgewise.sampling import Sampling
from edgewise.wire.protocol import request_id

PROBE_SECONDS = 60.0
"""How long it may take to see how an API continues, or what of a long prompt it computes again."""

THOUGHT = "</think>"
"""How a cloud ends a block of reasoning."""

_T = TypeVar("_T")


class TextCloud(AdaptedCloud):
    """Implements `CloudModel` over a `TextEngine`, with an I/O thread of its own.

    It is asked where a word opens, for words. Once checked, `capabilities` say how it continues.
    """

    def __init__(
        self,
        engine: TextEngine,
        *,
        edge: Tokenizer,
        context_filter: ContextFilter | None = None,
    ) -> None:
        """`context_filter` says what the cloud gets to see (default: everything)."""
        super().__init__(engine.url, edge, context_filter)
        self.engine = engine
        self.capabilities = Capabilities()
        self._served: Described | None = None
        self._went = False
        self._io = IoThread(self.name)

    @property
    def boundaries(self) -> WordBoundaries:
        return WordBoundaries(self.edge, reasons=self.engine.reasons)

    def identity(self) -> str:
        model = self._served.model if self._served else None
        how = self.capabilities.in_words
        return f"{self.name} {self.engine.dialect} {model or ''} as text, {how}{self.filtered}"

    def open(self, prompt: Prompt) -> "TextBridgeSession":
        return TextBridgeSession(self, prompt)

    def check(self, tokenizer: Tokenizer) -> str:
        """Probe how the API continues; raises as `CloudModel.check`, `CloudRejected` if not."""
        self.require_edge(tokenizer)
        self.submit(self._probe(), PROBE_SECONDS).result()
        self.vocabulary_check = (
            f"text, as {self.engine.dialect} takes it: {self.capabilities.in_words}"
        )
        return self.vocabulary_check

    def submit(self, work: Coroutine[Any, Any, _T], deadline: float) -> "Future[_T]":
        """Run `work` on the I/O thread, at most `deadline` seconds."""
        return self._io.submit(work, deadline)

    async def complete(self, request: TextRequest, client: Client) -> TextContinuation:
        """One request. An API that was gone is asked first whether it serves the same."""
        if self._went and await self.engine.describe() != self._served:
            await self._probe()
        self._went = False
        try:
            return await self.engine.complete(request, client)
        except CloudUnavailable:
            self._went = self._served is not None
            raise

    def close(self) -> None:
        self._io.close(self.engine.close())

    async def _probe(self) -> None:
        served = await self.engine.describe()
        self.capabilities = await capabilities(self.engine)
        self._served = served


class TextBridgeSession(BridgeSession):
    """Messages go as they are; consults share connections."""

    # Templates do so with earlier turns, and APIs take no signs of other families.
    leaves_thoughts = True

    def __init__(self, cloud: TextCloud, prompt: Prompt) -> None:
        super().__init__(cloud, prompt)
        self._engine = cloud
        self._before = Context(())
        self._client = Client(session=secrets.token_hex(12))
        self._asks = 0

    def begin(self, before: Context) -> None:
        self._before = before
        # A reply to messages begins with none that is restored.
        self.puts_blanks = before.messages is not None
        self.holds_lines = self._engine.capabilities.trims

    def request(
        self, consult: WordConsult, sampling: Sampling, deadline: float, sent: Sent | None
    ) -> "Future[TextContinuation]":
        self._asks += 1
        name = request_id(self._client.session, self._asks)
        before = self._before
        messages = tuple(replace(message, local=False) for message in before.messages or ())
        if sent is not None:
            sent.request_id = name
        client = replace(self._client, sent=sent, request_id=name)
        answer, _ = self._sent(consult)
        # An API that takes text alone has the prompt in it.
        text = answer if before.messages is not None else before.text + answer
        asked = TextRequest(messages, text, consult.step, sampling)
        return self._engine.submit(self._engine.complete(asked, client), deadline)

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
        return ReplyChunk(
            data=whole.encode(),
            ended=ended,
            size=consult.most if thought else consult.step,
            # An API that does not report it has written no more than that.
            tokens=consult.step if reply.written is None else reply.written,
            cached=reply.cached,
            computed=uncached(reply.prompt, reply.cached),
            prompt=reply.prompt,
        )

    def close(self) -> None:
        """The provider's cache forgets by itself."""

    def _sent(self, consult: WordConsult) -> tuple[str, str]:
        """What the next request of a consult continues, and the blanks that are held back."""
        return held_back(consult.text + consult.data.decode(), lines=self.holds_lines)
