"""The large model behind a gateway: one WebSocket a session, only new ids travel.

A link that breaks is made anew, with jittered pauses, as long as a consult's deadline allows; the
gateway tells how much of the session it still holds, and the rest is sent again.
"""

import asyncio
import contextlib
import ssl
import time
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from typing import Annotated, Any, ClassVar, TypeVar

import aiohttp
import msgspec

from edgewise.cloud.base import CloudModel, log_failure, require_meant, with_end
from edgewise.cloud.gateway.link import GatewayLink, shared
from edgewise.cloud.io_thread import IoThread
from edgewise.completion import MOST_IDS, Completion, Sent
from edgewise.edge.base import PROBES, Tokenizer
from edgewise.engines.base import NOBODY, Client, Described, Watched
from edgewise.engines.detokenization import COMPARE_SECONDS, compare_all, spelling_of
from edgewise.engines.http import Endpoint, checked_address, decoded, not_now, unreachable
from edgewise.engines.vocabulary_check import FRESH_SECONDS
from edgewise.errors import (
    CloudError,
    CloudProtocolError,
    CloudRejected,
    OtherVocabulary,
    VocabularyMismatch,
)
from edgewise.prompts import Prompt
from edgewise.sampling import Sampling
from edgewise.wire.protocol import MAX_FRAME, PATH, tokenizer_fingerprint

CHECK_SECONDS = 10.0
CONNECT_SECONDS = 5.0
HEARTBEAT_SECONDS = 20.0
"""A link that does not answer a ping within half of this is taken for broken."""

MOST_IDLE = 8
"""Sessions that are kept for the next answers; each holds a conversation at the gateway."""

PUSHED = 16
"""New ids that are pushed together: an engine's cache block, and one prefill instead of many."""

_T = TypeVar("_T")


class _Text(msgspec.Struct):
    content: str


class _Meta(msgspec.Struct):
    n_vocab: Annotated[int, msgspec.Meta(ge=1, le=MOST_IDS)] | None = None
    eos_token: str | None = None


class _Entry(msgspec.Struct):
    id: str
    meta: _Meta | None = None


class _Listed(msgspec.Struct):
    data: list[_Entry]


class GatewayVocabulary(Endpoint):
    """Implements `Speller`. A gateway of before tells nothing."""

    def __init__(self, url: str, *, key: str | None = None) -> None:
        super().__init__(url, key=key)
        self.described = Described()
        self.watched: Watched | None = None
        self._end: str | None = None

    async def describe(self) -> None:
        """Ask what it serves; raises a `CloudError`."""
        try:
            listed = decoded(await self.get("/v1/models"), _Listed, "a gateway").data
        except (CloudRejected, CloudProtocolError):
            listed = []
        self.watched, self._end = None, None
        self.described = Described()
        for entry in listed[:1]:
            meta = entry.meta or _Meta()
            self.described, self._end = Described(entry.id, meta.n_vocab), meta.eos_token

    def remembered_by(self) -> str:
        return f"gateway {self.described.model} {self.described.size} {self._end}"

    async def end_text(self) -> str | None:
        return self._end

    async def detokenize(self, ids: Sequence[int], client: Client = NOBODY) -> str | None:
        try:
            answered = await self.post("/detokenize", {"tokens": ids}, client)
        except CloudRejected as error:
            if error.status in (404, 405):
                return None
            raise
        return decoded(answered, _Text, "a gateway").content


class GatewayCloud(CloudModel):
    """Implements `CloudModel`. `https` is verified; the key travels as a bearer token.

    A gateway serves one model; where a `model` is named it must be that.
    """

    owner: ClassVar[str] = "edgewise-gateway"

    def __init__(self, url: str, *, key: str | None = None, model: str | None = None) -> None:
        self.name, self.model = checked_address(url), model
        self.tokenizer = ""
        self.links: set[GatewayLink] = set()
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._eos_ids = frozenset([0])
        self._size: int | None = None
        self._nothing = frozenset[int]()
        self._serves = ""
        self._idle: list[GatewayLink] = []
        self._http: aiohttp.ClientSession | None = None
        self._vocabulary = GatewayVocabulary(url, key=key)
        self._looked = 0.0
        self._io = IoThread(self.name)

    def identity(self) -> str:
        return f"{self.name} {self._serves}"

    def open(self, prompt: Prompt) -> "GatewaySession":
        return GatewaySession(self)

    def check(self, tokenizer: Tokenizer) -> str:
        """Open a session: the gateway knows what its engine makes of the same fixed strings.

        One whose engines detokenise is asked for the text of all ids besides.
        """
        # Reading a vocabulary would hold the I/O thread up.
        nothing = spelling_of(tokenizer).nothing
        before, self.tokenizer = self.tokenizer, tokenizer_fingerprint(tokenizer)
        try:
            checking = self._check(tokenizer)
            proof = self.submit(checking, CHECK_SECONDS + COMPARE_SECONDS).result()
        except BaseException as error:
            self.tokenizer = before
            if isinstance(error, OtherVocabulary):
                raise VocabularyMismatch(
                    error.message,
                    hint="choose two models of one family, or name its own tokenizer",
                    setting="cloud_tokenizer",
                ) from error
            raise
        self._nothing = nothing
        return proof

    def submit(self, work: Coroutine[Any, Any, _T], deadline: float) -> "Future[_T]":
        """Run `work` on the I/O thread, at most `deadline` seconds."""
        return self._io.submit(work, deadline)

    def finished(self, completion: Completion, n: int, prompt: int) -> Completion:
        """With the edge's end token where the engine kept its own, and checked."""
        completion = with_end(completion, n, self._eos_ids, self.name)
        completion.check(asked=n, prompt=prompt, size=self._size)
        require_meant(completion, self._nothing, self.name)
        return completion

    def take(self, ids: Sequence[int]) -> GatewayLink:
        """A link for an answer that begins with `ids`. In the I/O thread.

        The idle one that holds most of them, where it keeps more than it drops: conversations begin
        alike, and would take each other's sessions. Else a new one, or where there are `MOST_IDLE`
        the one that was idle for longest.
        """
        best = max(self._idle, key=lambda link: link.shared(ids), default=None)
        if best is None or 2 * best.shared(ids) < best.held:
            if len(self._idle) < MOST_IDLE:
                return GatewayLink(self)
            best = self._idle[0]
        self._idle.remove(best)
        return best

    def give(self, link: GatewayLink) -> None:
        """Keep a link for the next answer. In the I/O thread."""
        self._idle.append(link)

    def require_model(self, served: str) -> None:
        """Raises `CloudRejected` where another model was named than the one that is served."""
        if self.model not in (None, served):
            raise CloudRejected(
                f"The gateway at {self.name!r} serves no model {self.model!r}",
                hint=f"it serves {served!r}",
                setting="cloud_model",
            )

    async def require_vocabulary(self) -> None:
        """Raises a `CloudError` unless ids mean what they did when they were compared.

        A new connection may lead to another gateway, or to one that serves another model by now.
        """
        watched = self._vocabulary.watched
        if watched is None or time.monotonic() - self._looked < FRESH_SECONDS:
            return
        if await self._vocabulary.detokenize(watched.ids) != watched.text:
            raise OtherVocabulary(
                f"The gateway at {self.name!r} writes other text for the same ids than before",
                hint="start again",
            )
        self._looked = time.monotonic()

    async def socket(self) -> aiohttp.ClientWebSocketResponse:
        """A new connection; raises a `CloudError`."""
        if self._http is None:
            connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(), limit=0)
            self._http = aiohttp.ClientSession(
                connector=connector, headers=self._headers, middlewares=[_follow_nowhere]
            )
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                return await self._http.ws_connect(
                    self.name + PATH,
                    compress=0,
                    max_msg_size=MAX_FRAME,
                    heartbeat=HEARTBEAT_SECONDS,
                )
        except aiohttp.WSServerHandshakeError as error:
            problem = not_now(self.name, error.status) or CloudProtocolError(
                f"{self.name!r} is no gateway (HTTP {error.status})", hint="check the address"
            )
            raise problem from error
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise unreachable(self.name, error) from error

    def close(self) -> None:
        self._io.close(self._forget(), self._hang_up())

    async def _check(self, tokenizer: Tokenizer) -> str:
        link = GatewayLink(self)
        try:
            await self._vocabulary.describe()
            opened = await link.connect(Sent())
            compared = await compare_all(self._vocabulary, tokenizer)
        except BaseException:
            self.links.discard(link)
            await link.forget()
            raise
        self._looked = time.monotonic()
        self._eos_ids = tokenizer.eos_ids or self._eos_ids
        self._size = tokenizer.size
        self._serves = f"{opened.engine} {opened.model}"
        self.give(link)
        same = f"the gateway's {opened.engine} engine has the same ids for {len(PROBES)} strings"
        self.proof = same + compared
        return self.proof

    async def _forget(self) -> None:
        for link in list(self.links):
            await link.forget()

    async def _hang_up(self) -> None:
        await self._vocabulary.close()
        if self._http is not None:
            await self._http.close()


class GatewaySession:
    """Implements `CloudSession`: only what the gateway lacks travels, ahead of consults too.

    The link is taken in the I/O thread, with the first ids there are.
    """

    def __init__(self, gateway: GatewayCloud) -> None:
        self._gateway = gateway
        self._link: GatewayLink | None = None
        self._told: list[int] = []
        self._closed = False

    def ask(
        self,
        ids: Sequence[int],
        n: int,
        sampling: Sampling,
        deadline: float,
        sent: Sent | None = None,
    ) -> Future[Completion]:
        self._told = list(ids)
        work = self._ask(self._told, n, sampling, deadline, sent or Sent())
        return self._gateway.submit(work, deadline)

    def push(self, ids: Sequence[int], sent: Sent | None = None) -> int:
        fresh = len(ids) - shared(self._told, ids)
        if not fresh or (self._told and fresh < PUSHED):
            return 0
        self._told = list(ids)
        sent = sent or Sent()
        sent.under_way = self._in_background(self._push(self._told, sent))
        return fresh

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._in_background(self._leave())

    def _in_background(self, work: Coroutine[Any, Any, None]) -> "Future[None]":
        under_way = self._gateway.submit(work, CHECK_SECONDS)
        under_way.add_done_callback(log_failure)
        return under_way

    def _linked(self, ids: Sequence[int]) -> GatewayLink:
        if self._link is None:
            self._link = self._gateway.take(ids)
        return self._link

    async def _ask(
        self, ids: list[int], n: int, sampling: Sampling, deadline: float, sent: Sent
    ) -> Completion:
        if not ids:
            raise CloudRejected("A consult needs at least one id before it.")
        completion = await self._linked(ids).ask(ids, n, sampling, deadline, sent)
        return self._gateway.finished(completion, n, len(ids))

    async def _push(self, ids: list[int], sent: Sent) -> None:
        # Best effort: what goes wrong shows at the next consult.
        with contextlib.suppress(CloudError):
            await self._linked(ids).push(ids, sent)

    async def _leave(self) -> None:
        if self._link is not None:
            self._gateway.give(self._link)


async def _follow_nowhere(
    request: aiohttp.ClientRequest, send: aiohttp.ClientHandlerType
) -> aiohttp.ClientResponse:
    """A redirect is an answer like any other that opens no session."""
    response = await send(request)
    if 300 <= response.status < 400:
        response.close()
        raise aiohttp.WSServerHandshakeError(
            response.request_info, response.history, status=response.status
        )
    return response
