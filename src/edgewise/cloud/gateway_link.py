"""A device's session with a gateway, over connections that come and go."""

import asyncio
import contextlib
import secrets
from collections.abc import Sequence
from typing import Protocol

import aiohttp
from tenacity import AsyncRetrying, retry_if_exception_type, wait_random_exponential

from edgewise.edge.kv import common_prefix
from edgewise.engines.base import TOP
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
from edgewise.verdict import Sent, Verdict
from edgewise.wire.protocol import (
    MAX_SPAN,
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
)

OPEN_SECONDS = 5.0
"""How long the gateway may take to answer `Open`."""

_ERRORS: dict[str, type[CloudError]] = {
    error.reason: error
    for error in (CloudUnavailable, CloudTimeout, CloudRefused, CloudRejected, CloudProtocolError)
}


class Opener(Protocol):
    """What a link needs of the gateway it leads to."""

    name: str
    links: "set[Link]"

    @property
    def tokenizer(self) -> str:
        """What `Open` says of the vocabulary."""
        ...

    async def socket(self) -> aiohttp.ClientWebSocketResponse:
        """A new connection; raises a `CloudError`."""
        ...


class Broken(Exception):
    """The link broke in the middle; what was asked may be asked again."""


class Link:
    """A gateway session over connections that come and go. Lives in the I/O thread's loop."""

    def __init__(self, gateway: Opener) -> None:
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
        # Comparing lists is much faster than going through them.
        return len(held) if held == list(ids[: len(held)]) else common_prefix(held, ids)

    async def ask(
        self, ids: list[int], n: int, sampling: Sampling, deadline: float, sent: Sent
    ) -> Verdict:
        """Tried again over a new connection until `deadline`; raises a `CloudError`."""
        end = asyncio.get_running_loop().time() + deadline
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(Broken),
            wait=wait_random_exponential(multiplier=0.05, max=1.0),
            reraise=True,
        )
        async for attempt in retrying:
            with attempt:
                left = max(0.001, end - asyncio.get_running_loop().time())
                return await self._ask_once(ids, n, sampling, left, sent)
        raise AssertionError("tenacity gives up by raising")

    async def push(self, ids: list[int]) -> None:
        """Send what the gateway does not hold; raises a `CloudError`."""
        async with self._sending:
            await self._connected()
            position, new_ids = self._difference(ids)
            if new_ids or position < len(self._ledger.ids):
                self._ledger.put(position, new_ids)
                with contextlib.suppress(Broken):
                    await self._send(Push(position, new_ids, self._ledger.check))

    async def connect(self) -> Opened:
        """Make the connection and open, or resume, the session; raises a `CloudError`."""
        socket = await self._gateway.socket()
        try:
            await socket.send_bytes(encode(Open(VERSION, self._gateway.tokenizer, self._session)))
            message = await socket.receive(OPEN_SECONDS)
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
            with contextlib.suppress(Broken):
                await self._send(Close())
            await self._hang_up()

    async def _ask_once(
        self, ids: list[int], n: int, sampling: Sampling, deadline: float, sent: Sent
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
                sent.add(len(new_ids), await self._send(frame))
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
            with contextlib.suppress(Broken):
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

    async def _send(self, frame: FromDevice) -> int:
        """Returns how many bytes that took."""
        data = encode(frame)
        socket = self._socket
        if socket is None:
            raise Broken
        try:
            await socket.send_bytes(data)
        except (aiohttp.ClientError, OSError) as error:
            await self._hang_up()
            raise Broken from error
        return len(data)

    async def _read(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        """Hand replies to who waits for them, until the link breaks."""
        problem: Exception = Broken()
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
