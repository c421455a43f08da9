"""The large model behind a gateway: one WebSocket a session, only new ids travel.

A link that breaks is made anew, with jittered pauses, as long as a consult's deadline allows; the
gateway tells how much of the session it still holds, and the rest is sent again.
"""

import asyncio
import contextlib
import secrets
import ssl
from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, TypeVar

import aiohttp
from tenacity import AsyncRetrying, retry_if_exception_type, wait_random_exponential

from edgewise.cloud.base import Prefix
from edgewise.cloud.engine import with_end
from edgewise.cloud.io_thread import IoThread
from edgewise.edge.base import Tokenizer
from edgewise.engines.base import TOP, checked_address
from edgewise.errors import (
    CloudError,
    CloudProtocolError,
    CloudRefused,
    CloudRejected,
    CloudTimeout,
    CloudUnavailable,
    VocabularyMismatch,
)
from edgewise.events import Candidate
from edgewise.sampling import Sampling
from edgewise.verdict import Verdict
from edgewise.wire.protocol import (
    MAX_FRAME,
    MAX_SPAN,
    PATH,
    VERSION,
    Ask,
    Cancel,
    Close,
    Failed,
    FromDevice,
    Ledger,
    NeedFull,
    Open,
    Opened,
    Push,
    Reply,
    encode,
    from_gateway,
    packed,
    tokenizer_fingerprint,
)

CHECK_SECONDS = 10.0
CONNECT_SECONDS = 5.0
HEARTBEAT_SECONDS = 20.0
"""A link that does not answer a ping within half of this is taken for broken."""

_T = TypeVar("_T")
_ERRORS: dict[str, type[CloudError]] = {
    error.reason: error
    for error in (CloudUnavailable, CloudTimeout, CloudRefused, CloudRejected, CloudProtocolError)
}


class GatewayCloud:
    """Implements `CloudModel`. `https` is verified; the key travels as a bearer token."""

    def __init__(self, url: str, *, key: str | None = None) -> None:
        self.name = checked_address(url)
        self._headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._tokenizer = ""
        self._eos_ids = frozenset([0])
        self._idle: list[_Link] = []
        self.links: set[_Link] = set()
        self._http: aiohttp.ClientSession | None = None
        self._io = IoThread(self.name)

    def open(self, ids: Sequence[int]) -> "GatewaySession":
        return GatewaySession(self, ids)

    def check(self, tokenizer: Tokenizer) -> str:
        """Open a session: the gateway knows what its engine makes of the same fixed strings."""
        before, self._tokenizer = self._tokenizer, tokenizer_fingerprint(tokenizer)
        link = _Link(self)
        try:
            opened = self.submit(link.connect(), CHECK_SECONDS).result()
        except BaseException:
            self._tokenizer = before
            raise
        self._eos_ids = tokenizer.eos_ids or self._eos_ids
        self.submit(self.give(link), CHECK_SECONDS).result()
        return f"the gateway's {opened.engine} engine has the same ids for the same strings"

    def submit(self, work: Coroutine[Any, Any, _T], deadline: float) -> "Future[_T]":
        """Run `work` on the I/O thread, at most `deadline` seconds."""
        return self._io.submit(work, deadline)

    def finished(self, verdict: Verdict, n: int) -> Verdict:
        """With the edge's end token where the engine kept its own."""
        return with_end(verdict, n, self._eos_ids, self.name)

    async def take(self, ids: Sequence[int]) -> "_Link":
        """An idle link that knows the beginning of `ids` best, or a new one."""
        best = max(self._idle, key=lambda link: link.shared(ids), default=None)
        if best is None:
            return _Link(self)
        self._idle.remove(best)
        return best

    async def give(self, link: "_Link") -> None:
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
    """Implements `CloudSession`."""

    pushes = True

    def __init__(self, gateway: GatewayCloud, ids: Sequence[int]) -> None:
        self._gateway = gateway
        self._prefix = Prefix(ids)
        self._taken: asyncio.Task[_Link] | None = None
        self._closed = False

    def ask(
        self, position: int, new_ids: Sequence[int], n: int, sampling: Sampling, deadline: float
    ) -> Future[Verdict]:
        ids = self._prefix.put(position, new_ids)
        return self._gateway.submit(self._ask(ids, n, sampling, deadline), deadline)

    def warm(self, position: int, new_ids: Sequence[int]) -> None:
        ids = self._prefix.put(position, new_ids)
        self._gateway.submit(self._push(ids), CHECK_SECONDS)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._gateway.submit(self._leave(), CHECK_SECONDS)

    async def _link(self, ids: Sequence[int]) -> "_Link":
        # A task, so that consults in flight together wait for one and the same link.
        if self._taken is None:
            self._taken = asyncio.create_task(self._gateway.take(ids))
        return await asyncio.shield(self._taken)

    async def _ask(self, ids: list[int], n: int, sampling: Sampling, deadline: float) -> Verdict:
        link = await self._link(ids)
        return self._gateway.finished(await link.ask(ids, n, sampling, deadline), n)

    async def _push(self, ids: list[int]) -> None:
        link = await self._link(ids)
        # Best effort: what goes wrong shows at the next consult.
        with contextlib.suppress(CloudError):
            await link.push(ids)

    async def _leave(self) -> None:
        if self._taken is not None:
            await self._gateway.give(await self._taken)


class _Broken(Exception):
    """The link broke in the middle; what was asked may be asked again."""


class _Link:
    """A gateway session over connections that come and go. Lives in the I/O thread's loop."""

    def __init__(self, gateway: GatewayCloud) -> None:
        self._gateway = gateway
        self._socket: aiohttp.ClientWebSocketResponse | None = None
        self._reader: asyncio.Task[None] | None = None
        self._session = ""
        self._ledger = Ledger()
        self._sending = asyncio.Lock()
        self._waiting: dict[int, asyncio.Future[Reply | NeedFull]] = {}
        self._count = secrets.randbelow(1 << 16)
        gateway.links.add(self)

    def shared(self, ids: Sequence[int]) -> int:
        """How many of `ids` the gateway is thought to hold already."""
        held = self._ledger.ids
        if held == list(ids[: len(held)]):
            return len(held)
        pairs = zip(held, ids, strict=False)
        return next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(held), len(ids)))

    async def ask(self, ids: list[int], n: int, sampling: Sampling, deadline: float) -> Verdict:
        """Tried again over a new connection until `deadline`; raises a `CloudError`."""
        end = asyncio.get_running_loop().time() + deadline
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(_Broken),
            wait=wait_random_exponential(multiplier=0.05, max=1.0),
            reraise=True,
        )
        async for attempt in retrying:
            with attempt:
                left = max(0.001, end - asyncio.get_running_loop().time())
                return await self._ask_once(ids, n, sampling, left)
        raise AssertionError("tenacity gives up by raising")

    async def push(self, ids: list[int]) -> None:
        """Send what the gateway does not hold; raises a `CloudError`."""
        async with self._sending:
            await self._connected()
            position, new_ids = self._difference(ids)
            if new_ids or position < len(self._ledger.ids):
                self._ledger.put(position, new_ids)
                with contextlib.suppress(_Broken):
                    await self._send(Push(position, new_ids, self._ledger.check))

    async def connect(self) -> Opened:
        """Make the connection and open, or resume, the session; raises a `CloudError`."""
        socket = await self._gateway.socket()
        try:
            await socket.send_bytes(encode(Open(VERSION, self._gateway.tokenizer, self._session)))
            message = await socket.receive(CONNECT_SECONDS)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            await socket.close()
            raise CloudUnavailable(
                f"{self._gateway.name!r} broke off while the session was opened; try again."
            ) from error
        if message.type is not aiohttp.WSMsgType.BINARY:
            await socket.close()
            raise CloudUnavailable(f"{self._gateway.name!r} hung up on a new session; try again.")
        frame = from_gateway(message.data)
        if not isinstance(frame, Opened):
            await socket.close()
            raise self._refusal(frame)
        self._session = frame.session
        kept = frame.known <= len(self._ledger.ids) and frame.known > 0
        self._ledger.put(frame.known if kept else 0, [])
        if self._ledger.check != frame.check:
            self._ledger.put(0, [])
        self._socket = socket
        self._reader = asyncio.create_task(self._read(socket))
        return frame

    async def forget(self) -> None:
        """Let the gateway drop the session, and hang up."""
        if self._socket is not None:
            with contextlib.suppress(_Broken):
                await self._send(Close())
            await self._hang_up()

    async def _ask_once(
        self, ids: list[int], n: int, sampling: Sampling, deadline: float
    ) -> Verdict:
        if n > MAX_SPAN:
            raise CloudRejected(
                f"A gateway writes at most {MAX_SPAN} tokens at a time, not {n}; ask for fewer."
            )
        for _ in range(3):
            async with self._sending:
                await self._connected()
                position, new_ids = self._difference(ids)
                self._ledger.put(position, new_ids)
                self._count = (self._count + 1) % (1 << 32)
                ask = self._count
                frame = Ask(
                    ask,
                    position,
                    new_ids,
                    self._ledger.check,
                    n,
                    max(1, int(1000 * deadline)),
                    TOP,
                    packed(sampling),
                )
                reply: asyncio.Future[Reply | NeedFull] = asyncio.Future()
                self._waiting[ask] = reply
                await self._send(frame)
            answered = await self._reply(ask, reply)
            if isinstance(answered, Reply):
                return _verdict(answered)
            self._ledger.put(0, [])
        raise CloudProtocolError(f"{self._gateway.name!r} does not keep what it is sent.")

    async def _reply(self, ask: int, reply: "asyncio.Future[Reply | NeedFull]") -> Reply | NeedFull:
        try:
            return await reply
        except asyncio.CancelledError:
            # The deadline, or the decoder, gave up: spare the engine the rest.
            with contextlib.suppress(_Broken):
                await self._send(Cancel(ask))
            raise
        finally:
            self._waiting.pop(ask, None)

    def _difference(self, ids: list[int]) -> tuple[int, list[int]]:
        position = self.shared(ids)
        return position, ids[position:]

    async def _connected(self) -> None:
        if self._socket is None or self._socket.closed:
            await self.connect()

    async def _send(self, frame: FromDevice) -> None:
        socket = self._socket
        if socket is None:
            raise _Broken
        try:
            await socket.send_bytes(encode(frame))
        except (aiohttp.ClientError, OSError) as error:
            await self._hang_up()
            raise _Broken from error

    async def _read(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        """Hand replies to who waits for them, until the link breaks."""
        problem: Exception = _Broken()
        try:
            async for message in socket:
                if message.type is not aiohttp.WSMsgType.BINARY:
                    raise CloudProtocolError(f"{self._gateway.name!r} sent a text message.")
                self._take(from_gateway(message.data))
        except CloudError as error:
            problem = error
        finally:
            if self._socket is socket:
                self._socket = None
            for reply in self._waiting.values():
                if not reply.done():
                    reply.set_exception(problem)
            await socket.close()

    def _take(self, frame: Opened | Reply | NeedFull | Failed) -> None:
        if isinstance(frame, NeedFull) and frame.ask is None:
            self._ledger.put(0, [])
            return
        if isinstance(frame, Failed) and frame.ask is None:
            raise self._refusal(frame)
        if isinstance(frame, Opened):
            raise CloudProtocolError(f"{self._gateway.name!r} opened a session twice.")
        reply = self._waiting.get(frame.ask) if frame.ask is not None else None
        if reply is None or reply.done():
            return  # it came too late
        if isinstance(frame, Failed):
            reply.set_exception(self._refusal(frame))
        else:
            reply.set_result(frame)

    def _refusal(self, frame: object) -> CloudError:
        if not isinstance(frame, Failed):
            return CloudProtocolError(f"{self._gateway.name!r} did not open the session.")
        message = f"{self._gateway.name!r}: {frame.message}"
        if "vocabulary" in frame.message:
            raise VocabularyMismatch(message)
        later = f"It asks for {frame.retry_after} ms of patience." if frame.retry_after else None
        return _ERRORS.get(frame.reason, CloudProtocolError)(message, hint=later)

    async def _hang_up(self) -> None:
        socket, self._socket = self._socket, None
        if socket is not None:
            await socket.close()


def _verdict(reply: Reply) -> Verdict:
    return Verdict(
        ids=reply.ids,
        logprobs=reply.logprobs,
        top=tuple(tuple(Candidate(*pair) for pair in top) for top in reply.top),
        stopped=reply.stopped,
        cached=reply.cached,
        computed=reply.computed,
        engine_seconds=reply.engine_seconds,
    )
