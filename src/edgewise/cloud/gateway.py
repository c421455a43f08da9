"""The large model behind a gateway: one WebSocket a session, only new ids travel.

A link that breaks is made anew, with jittered pauses, as long as a consult's deadline allows; the
gateway tells how much of the session it still holds, and the rest is sent again.
"""

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import aiohttp

from edgewise.cloud.base import CloudModel
from edgewise.cloud.engine import with_end
from edgewise.cloud.gateway_link import Link
from edgewise.cloud.io_thread import IoThread
from edgewise.edge.base import Tokenizer
from edgewise.engines.base import checked_address
from edgewise.errors import CloudError, CloudProtocolError, CloudRefused, CloudUnavailable
from edgewise.prompts import Prompt
from edgewise.sampling import Sampling
from edgewise.verdict import Sent, Verdict
from edgewise.wire.protocol import MAX_FRAME, PATH, tokenizer_fingerprint

CHECK_SECONDS = 10.0
CONNECT_SECONDS = 5.0
HEARTBEAT_SECONDS = 20.0
"""A link that does not answer a ping within half of this is taken for broken."""

PUSHED = 16
"""New ids that are pushed together: an engine's cache block, and one prefill instead of many."""

_T = TypeVar("_T")
_log = logging.getLogger(__name__)


class GatewayCloud(CloudModel):
    """Implements `CloudModel`. `https` is verified; the key travels as a bearer token."""

    def __init__(self, url: str, *, key: str | None = None) -> None:
        self.name = checked_address(url)
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._tokenizer = ""
        self._eos_ids = frozenset([0])
        self._serves = ""
        self._idle: list[Link] = []
        self.links: set[Link] = set()
        self._http: aiohttp.ClientSession | None = None
        self._io = IoThread(self.name)

    def identity(self) -> str:
        return f"{self.name} {self._serves}"

    def open(self, prompt: Prompt) -> "GatewaySession":
        return GatewaySession(self)

    def check(self, tokenizer: Tokenizer) -> str:
        """Open a session: the gateway knows what its engine makes of the same fixed strings."""
        before, self._tokenizer = self._tokenizer, tokenizer_fingerprint(tokenizer)
        link = Link(self)
        try:
            opened = self.submit(link.connect(), CHECK_SECONDS).result()
        except BaseException:
            self._tokenizer = before
            raise
        self._eos_ids = tokenizer.eos_ids or self._eos_ids
        self._serves = f"{opened.engine} {opened.model}"
        self.submit(self.give(link), CHECK_SECONDS).result()
        return f"the gateway's {opened.engine} engine has the same ids for the same strings"

    def submit(self, work: Coroutine[Any, Any, _T], deadline: float) -> "Future[_T]":
        """Run `work` on the I/O thread, at most `deadline` seconds."""
        return self._io.submit(work, deadline)

    def finished(self, verdict: Verdict, n: int) -> Verdict:
        """With the edge's end token where the engine kept its own."""
        return with_end(verdict, n, self._eos_ids, self.name)

    async def take(self, ids: Sequence[int]) -> Link:
        """An idle link that knows the beginning of `ids` best, or a new one."""
        best = max(self._idle, key=lambda link: link.shared(ids), default=None)
        if best is None:
            return Link(self)
        self._idle.remove(best)
        return best

    async def give(self, link: "Link") -> None:
        """Keep a link for the next answer."""
        self._idle.append(link)

    async def socket(self) -> aiohttp.ClientWebSocketResponse:
        """A new connection; raises a `CloudError`."""
        if self._http is None:
            connector = aiohttp.TCPConnector(ssl=ssl.create_default_context(), limit=0)
            self._http = aiohttp.ClientSession(connector=connector, headers=self._headers)
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                return await self._http.ws_connect(
                    self.name + PATH,
                    compress=0,
                    max_msg_size=MAX_FRAME,
                    heartbeat=HEARTBEAT_SECONDS,
                )
        except aiohttp.WSServerHandshakeError as error:
            if error.status in (401, 403):
                raise CloudRefused(
                    f"{self.name!r} refused the key; set EDGEWISE_CLOUD_KEY to one it accepts."
                ) from error
            if error.status in (408, 429) or error.status >= 500:
                raise CloudUnavailable(
                    f"{self.name!r} is not ready (HTTP {error.status}); try again shortly."
                ) from error
            raise CloudProtocolError(
                f"{self.name!r} is no gateway (HTTP {error.status}); check the address."
            ) from error
        except aiohttp.ClientConnectorCertificateError as error:
            raise CloudUnavailable(
                f"The certificate of {self.name!r} is not trusted; for a private authority set "
                "SSL_CERT_FILE to its certificate."
            ) from error
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise CloudUnavailable(
                f"The gateway at {self.name!r} cannot be reached ({type(error).__name__}); check "
                "the address and that it runs."
            ) from error

    @property
    def tokenizer(self) -> str:
        """What `Open` says of the vocabulary."""
        return self._tokenizer

    def close(self) -> None:
        self._io.close(self._forget(), self._hang_up())

    async def _forget(self) -> None:
        for link in list(self.links):
            await link.forget()

    async def _hang_up(self) -> None:
        if self._http is not None:
            await self._http.close()


class GatewaySession:
    """Implements `CloudSession`: only what the gateway lacks travels, ahead of consults too."""

    def __init__(self, gateway: GatewayCloud) -> None:
        self._gateway = gateway
        self._taken: asyncio.Task[Link] | None = None
        self._told = 0
        self._closed = False

    def ask(
        self,
        ids: Sequence[int],
        n: int,
        sampling: Sampling,
        deadline: float,
        sent: Sent | None = None,
    ) -> Future[Verdict]:
        self._told = len(ids)
        work = self._ask(list(ids), n, sampling, deadline, sent or Sent())
        return self._gateway.submit(work, deadline)

    def push(self, ids: Sequence[int]) -> int:
        self._told = min(self._told, len(ids))
        fresh = len(ids) - self._told
        if self._told and fresh < PUSHED:
            return 0
        self._told = len(ids)
        self._in_background(self._push(list(ids)))
        return fresh

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._in_background(self._leave())

    def _in_background(self, work: Coroutine[Any, Any, None]) -> None:
        self._gateway.submit(work, CHECK_SECONDS).add_done_callback(_log_failure)

    async def _link(self, ids: Sequence[int]) -> Link:
        # A task, so that consults in flight together wait for one and the same link.
        if self._taken is None:
            self._taken = asyncio.create_task(self._gateway.take(ids))
        return await asyncio.shield(self._taken)

    async def _ask(
        self, ids: list[int], n: int, sampling: Sampling, deadline: float, sent: Sent
    ) -> Verdict:
        link = await self._link(ids)
        return self._gateway.finished(await link.ask(ids, n, sampling, deadline, sent), n)

    async def _push(self, ids: list[int]) -> None:
        link = await self._link(ids)
        # Best effort: what goes wrong shows at the next consult.
        with contextlib.suppress(CloudError):
            await link.push(ids)

    async def _leave(self) -> None:
        if self._taken is not None:
            await self._gateway.give(await self._taken)


def _log_failure(done: "Future[None]") -> None:
    """Nobody waits for these calls, so what goes wrong in them is told here."""
    if not done.cancelled() and (error := done.exception()):
        _log.warning("the gateway's session: %s", error)
