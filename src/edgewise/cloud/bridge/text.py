"""A cloud behind an API that takes and returns text: what the edge wrote goes out as it reads."""

import asyncio
import math
import secrets
import time
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

from msgspec.structs import replace

from edgewise.cloud.base import CloudModel, then
from edgewise.cloud.bridge.capabilities import Capabilities, Reuse, capabilities, reuse, unechoed
from edgewise.cloud.bridge.context_filter import Context, ContextFilter, Plain
from edgewise.cloud.bridge.session import (
    THINK,
    BridgeSession,
    ReplyChunk,
    preceding,
    request_budget,
)
from edgewise.cloud.bridge.word_boundary import BLANKS, WordBoundaries, added, held_back
from edgewise.cloud.io_thread import IoThread
from edgewise.completion import Sent
from edgewise.edge.base import Tokenizer
from edgewise.edge.vocabulary import fingerprint
from edgewise.engines.base import Client, Described, side_by_side, uncached
from edgewise.engines.text import ApiReply, TextEngine
from edgewise.errors import CloudRejected, CloudUnavailable, VocabularyMismatch
from edgewise.prompts import Message, Prompt
from edgewise.sampling import Sampling
from edgewise.wire.protocol import request_id

LOOK_SECONDS = 60.0
"""What is served is looked at again beside a consult when the last look is older."""

PROBE_SECONDS = 60.0
"""How long it may take to see how an API goes on, or what of a long prompt it computes again."""

THOUGHT = "</think>"
"""How a cloud ends a block of reasoning."""

_T = TypeVar("_T")


class TextCloud(CloudModel):
    """Implements `CloudModel` over a `TextEngine`, with an I/O thread of its own.

    It is asked where a word opens, for words. Once checked, `capabilities` say how it goes on.
    """

    def __init__(
        self, engine: TextEngine, *, edge: Tokenizer, view: ContextFilter | None = None
    ) -> None:
        """`view` is what the cloud gets to see (default: everything)."""
        self.engine, self.edge = engine, edge
        self.name = engine.url
        self.capabilities = Capabilities()
        self._view = view or Plain()
        self._served: Described | None = None
        self._looked = -math.inf
        self._io = IoThread(self.name)

    @property
    def boundaries(self) -> WordBoundaries:
        return WordBoundaries(
            self.edge, strips=self.capabilities.strips, reasons=self.engine.reasons
        )

    def requests(self, n: int) -> tuple[int, int]:
        return request_budget(n).requests

    def identity(self) -> str:
        model = self._served.model if self._served else None
        seen = f", {self._view.name}" if self._view.name else ""
        able = self.capabilities.told
        return f"{self.name} {self.engine.dialect} {model or ''} as text, {able}{seen}"

    def local_only(self, prompt: Prompt) -> bool:
        return self._view.local_only(preceding(self.edge, prompt))

    def open(self, prompt: Prompt) -> BridgeSession:
        return BridgeSession(_ByText(self), self._view, prompt, edge=self.edge, name=self.name)

    def check(self, tokenizer: Tokenizer) -> str:
        """Probe how the API goes on; raises as `CloudModel.check`, `CloudRejected` where not."""
        if fingerprint(tokenizer) != fingerprint(self.edge):
            raise VocabularyMismatch(
                f"The words of {self.name!r} are put into another vocabulary",
                hint="make one for this edge model",
            )
        self.submit(self._probe(), PROBE_SECONDS).result()
        self.proof = f"text, as {self.engine.dialect} takes it: {self.capabilities.told}"
        return self.proof

    def reuse(self) -> Reuse | None:
        """What of a long prompt is computed again, by two requests; None where it does not tell.

        Raises a `CloudError`.
        """
        return self.submit(reuse(self.engine), PROBE_SECONDS).result()

    def submit(self, work: Coroutine[Any, Any, _T], deadline: float) -> "Future[_T]":
        """Run `work` on the I/O thread, at most `deadline` seconds."""
        return self._io.submit(work, deadline)

    async def go_on(
        self,
        messages: Sequence[Message],
        answer: str,
        n: int,
        sampling: Sampling,
        client: Client,
    ) -> ApiReply:
        """One request. Another model's reply is dropped, unless it was found to go on as well."""
        try:
            async with side_by_side() as requests:
                asked = requests.begin(self.engine.go_on(messages, answer, n, sampling, client))
                if self._served is not None and time.monotonic() - self._looked > LOOK_SECONDS:
                    requests.begin(self._look())
        except CloudUnavailable:
            # It may be starting anew, as another.
            self._looked = -math.inf
            raise
        return asked.result()

    def close(self) -> None:
        self._io.close(asyncio.sleep(0), self.engine.close())

    async def _probe(self) -> None:
        self._looked = time.monotonic()
        served = await self.engine.describe()
        self.capabilities = await capabilities(self.engine)
        self._served = served

    async def _look(self) -> None:
        self._looked = time.monotonic()
        if await self.engine.describe() != self._served:
            try:
                await self._probe()
            except BaseException:
                self._looked = -math.inf
                raise


class _ByText:
    """Implements `Requester`: messages go as they are."""

    def __init__(self, cloud: TextCloud) -> None:
        self._cloud = cloud

    def open(self, before: Context) -> "_Session":
        return _Session(self._cloud, before)


class _Session:
    """Implements `RequesterSession`; its consults share connections."""

    # Templates do so with earlier turns, and APIs take no signs of other families.
    leaves_thoughts = True

    def __init__(self, cloud: TextCloud, before: Context) -> None:
        self.cloud, self._before = cloud, before
        self._client = Client(session=secrets.token_hex(12))
        self._asks = 0

    @property
    def puts_blanks(self) -> bool:
        """A reply to messages begins with none that is restored."""
        return self._before.messages is not None

    @property
    def holds_lines(self) -> bool:
        return self.cloud.capabilities.trims

    def begin(self, answer: str, words: int) -> "_Requests":
        return _Requests(self, answer, words)

    def prefetch(self, answer: str, sent: Sent | None = None) -> int:
        return 0

    def close(self) -> None:
        """The provider's cache forgets by itself."""

    def ask(
        self, answer: str, n: int, sampling: Sampling, deadline: float, sent: Sent | None
    ) -> "Future[ApiReply]":
        """One request behind `answer`."""
        self._asks += 1
        name = request_id(self._client.session, self._asks)
        before = self._before
        messages = tuple(replace(one, local=False) for one in before.messages or ())
        if sent is not None:
            sent.request_id = name
        client = replace(self._client, sent=sent, request_id=name)
        # One that takes text alone has the prompt in it.
        behind = answer if before.messages is not None else before.text + answer
        work = self.cloud.go_on(messages, behind, n, sampling, client)
        return self.cloud.submit(work, deadline)


class _Requests:
    """Implements `Requests`: a request has the text of those before it."""

    def __init__(self, session: _Session, answer: str, words: int) -> None:
        self._session, self._answer = session, answer
        self._step, self._most = request_budget(words)
        self._came, self._asked = "", 0

    @property
    def exhausted(self) -> bool:
        # Whether a word was over cannot be told where the blank behind it is lost.
        return self._asked >= self._most or (self._asked > 0 and self._habits.strips)

    @property
    def _habits(self) -> Capabilities:
        return self._session.cloud.capabilities

    def more(
        self, sampling: Sampling, deadline: float, sent: Sent | None = None
    ) -> Future[ReplyChunk]:
        begun = self._answer + self._came
        behind, held = held_back(begun, lines=self._habits.trims)
        self._asked += self._step
        asked = self._session.ask(behind, self._step, sampling, deadline, sent)

        def read(gone: ApiReply) -> ReplyChunk:
            return self._part(gone, behind, held)

        return then(asked, read)

    def _part(self, gone: ApiReply, behind: str, held: str) -> ReplyChunk:
        """Raises a `CloudError` for a reply that is none."""
        url = self._session.cloud.name
        text = gone.text
        text = unechoed(behind, text, url) if self._habits.echoes else added(behind, text)
        if not text and not gone.ended:
            raise CloudRejected(f"{url!r} wrote no text in {self._step} tokens.")
        whole = text.partition("\ufffd")[0]
        if self._answer.startswith(THINK) and THOUGHT in whole:
            # Its end is a token of the edge's own.
            whole, self._asked = whole.partition(THOUGHT)[0], self._most
        ended = gone.ended and whole == text
        if self._came:
            # The first reply's blanks are for who holds those of the answer.
            kept = whole.startswith(held)
            whole = whole.removeprefix(held) if kept else whole.lstrip(BLANKS + held)
        self._came += whole
        return ReplyChunk(
            data=whole.encode(),
            ended=ended,
            # Who does not tell has written no more than that.
            tokens=self._step if gone.written is None else gone.written,
            cached=gone.cached,
            computed=uncached(gone.prompt, gone.cached),
            prompt=gone.prompt,
        )
