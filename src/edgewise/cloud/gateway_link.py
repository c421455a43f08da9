"""A device's session with a gateway, which outlives its connections.

If a connection breaks or cannot be made, another is tried after a random pause, until the consult's
deadline. The gateway then says how much of the session it still holds; the rest is sent again.
"""

import asyncio
import contextlib
import logging
import random
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed
from websockets.frames import CloseCode
from websockets.protocol import State

from edgewise.cloud.base import ConsultRequest
from edgewise.completion import Completion, Outgoing, Verified
from edgewise.edge.vocabulary import common_prefix
from edgewise.engines.base import TOP
from edgewise.engines.http import bounded
from edgewise.errors import (
    CloudError,
    CloudProtocolError,
    CloudRefused,
    CloudRejected,
    CloudTimeout,
    CloudUnavailable,
    OtherVocabulary,
)
from edgewise.events import Candidate
from edgewise.wire.protocol import (
    MAX_DEADLINE,
    MAX_SPAN,
    VERSION,
    VOCABULARY,
    Ask,
    Cancel,
    Close,
    Failed,
    FromDevice,
    FromGateway,
    Ledger,
    NeedFull,
    Open,
    Opened,
    Prefetch,
    Reply,
    encode,
    from_gateway,
    packed,
    request_id,
)

OPEN_SECONDS = 5.0
"""Timeout of the gateway's answer to `Open`."""

# Timeout of sending a cancellation, which spares the engine work; nobody waits for it.
CANCEL_SECONDS = 0.1

FIRST_PAUSE, LONGEST_PAUSE = 0.05, 1.0
"""Bounds, in seconds, of the first random pause before reconnecting and of all; it doubles."""

MAX_MESSAGE = 500
"""Most characters shown of an error message that a gateway sent."""

TRIES = 3
"""How often a gateway may ask for all ids of a session in one consult, before the consult fails."""

# A gateway names a failure as the device would have found it without a gateway.
_ERRORS: Mapping[str, type[CloudError]] = {
    error.reason: error
    for error in (CloudUnavailable, CloudTimeout, CloudRefused, CloudRejected, CloudProtocolError)
} | {VOCABULARY: OtherVocabulary}

# Close codes that this side sends if what the gateway sent is no valid frame.
_NO_FRAMES = (CloseCode.PROTOCOL_ERROR, CloseCode.INVALID_DATA, CloseCode.MESSAGE_TOO_BIG)

_Waiting = dict[int, "asyncio.Future[Reply | NeedFull]"]

_log = logging.getLogger(__name__)


class Broken(Exception):
    """The connection broke or could not be made (see `__cause__`); the request may be retried."""


class GatewayLink:
    """A session with a gateway that survives broken connections. Use it in the I/O thread only."""

    def __init__(
        self,
        name: str,
        tokenizer: str,
        connect: Callable[[], Awaitable[ClientConnection]],
        require_same: Callable[[str], Awaitable[None]],
    ) -> None:
        """`name` is the gateway's URL, `tokenizer` the fingerprint of the edge model's tokenizer.

        `connect` opens a WebSocket. `require_same` is called with the name of the served model at
        each new connection; it raises a `CloudError` for another model, as may `connect`."""
        self._name, self._tokenizer = name, tokenizer
        self._connect, self._require_same = connect, require_same
        self._socket: ClientConnection | None = None
        self._reader: asyncio.Task[None] | None = None
        self._session, self._verifies = "", False
        self._ledger = Ledger()
        # The gateway must get frames in the order in which the ledger took their ids.
        self._sending = asyncio.Lock()
        # Of this connection: those of an earlier one fail with it.
        self._waiting: _Waiting = {}
        self._count = secrets.randbelow(1 << 16)

    @property
    def held(self) -> int:
        """Number of ids that this session has sent, and that the gateway should still hold."""
        return len(self._ledger)

    def shared(self, ids: Sequence[int]) -> int:
        """Return how many leading `ids` the gateway should hold already."""
        return common_prefix(self._ledger.ids, ids)

    async def ask(self, request: ConsultRequest) -> Completion:
        """Send one consult and return its completion; reconnect if needed.

        Raises a `CloudError` if it fails. The caller must cancel it after `request.deadline` s.
        """
        if (most := max(request.n, request.verify)) > MAX_SPAN:
            raise CloudRejected(
                f"A gateway writes or verifies at most {MAX_SPAN} tokens at a time, not {most}",
                hint="ask for fewer",
            )
        end, forgotten, pause = time.monotonic() + request.deadline, 0, FIRST_PAUSE
        before = request.sent.requests
        while forgotten < TRIES:
            try:
                reply = await self._reply(request, end, before)
            except Broken as error:
                # Until the deadline, at which this is cancelled, or says why there is no link.
                left = end - time.monotonic()
                if left < 2 * FIRST_PAUSE and isinstance(error.__cause__, CloudUnavailable):
                    raise error.__cause__ from None
                await asyncio.sleep(min(random.uniform(0.0, pause), max(left / 2, FIRST_PAUSE)))
                pause = min(2 * pause, LONGEST_PAUSE)
                continue
            if isinstance(reply, Reply):
                return Completion(
                    ids=reply.ids,
                    logprobs=reply.logprobs,
                    top=tuple(tuple(Candidate(*pair) for pair in top) for top in reply.top),
                    stopped=reply.stopped,
                    cached=reply.cached,
                    computed=reply.computed,
                    engine_seconds=reply.engine_seconds,
                    verified=tuple(Verified(*one) for one in reply.verified),
                )
            self._ledger.put(0, [])
            forgotten += 1
        raise CloudProtocolError(f"The gateway {self._name!r} keeps losing the session's prefix.")

    async def prefetch(self, ids: list[int], sent: Outgoing) -> None:
        """Send those of `ids` (prompt and answer) that the gateway lacks; `sent` counts them.

        If the connection breaks or cannot be made, just returns; other faults raise a `CloudError`.
        """
        with contextlib.suppress(Broken):
            async with self._sending:
                await self._connected(sent)
                held = len(self._ledger.ids)
                position, new_ids = self._put(ids)
                if new_ids or position < held:
                    await self._send(Prefetch(position, new_ids, self._ledger.checksum), sent)

    async def connect(self, sent: Outgoing) -> Opened:
        """Connect to the gateway, open or resume the session there, and return the gateway's reply.

        `sent` counts the opening message. Raises a `CloudError` if any of this fails.
        """
        socket = await self._connect()
        try:
            frame = await self._opened(socket, sent)
        except BaseException:
            await socket.close()
            raise
        self._session, self._verifies = frame.session, frame.verifies
        if not self._ledger.put(frame.known, []) or self._ledger.checksum != frame.checksum:
            self._ledger.put(0, [])
        self._socket, self._waiting = socket, {}
        self._reader = asyncio.create_task(self._read(socket, self._waiting))
        return frame

    async def forget(self) -> None:
        """If connected, tell the gateway to delete the session, and disconnect."""
        if self._socket is not None:
            with contextlib.suppress(Broken):
                await self._send(Close(), Outgoing())
            await self._hang_up()

    async def _opened(self, socket: ClientConnection, sent: Outgoing) -> Opened:
        opening = encode(Open(VERSION, self._tokenizer, self._session))
        try:
            sent.add((), opening, billable=False)
            async with asyncio.timeout(OPEN_SECONDS):
                await socket.send(opening)
                message = await socket.recv()
        except (ConnectionClosed, OSError) as error:
            raise CloudUnavailable(
                f"{self._name!r} disconnected while the session was opened", hint="try again"
            ) from error
        frame = self._frame(message)
        if isinstance(frame, Failed):
            raise self._refusal(frame)
        if not isinstance(frame, Opened):
            raise CloudProtocolError(f"{self._name!r} did not open the session.")
        await self._require_same(frame.model)
        return frame

    async def _reply(self, request: ConsultRequest, end: float, before: int) -> Reply | NeedFull:
        sent = request.sent
        async with self._sending:
            await self._connected(sent)
            if request.verify and not self._verifies:
                # An older gateway would ignore the field, or break the connection off.
                raise CloudRejected(
                    f"The gateway at {self._name!r} cannot verify tokens",
                    hint="update it, or choose an engine that can",
                )
            position, new_ids = self._put(request.ids)
            self._count = (self._count + 1) % (1 << 32)
            ask, check, drawn = self._count, self._ledger.checksum, packed(request.sampling)
            left = max(1, min(int(1000 * (end - time.monotonic())), MAX_DEADLINE))
            sent.request_id = request_id(self._session, ask)
            waiting = self._waiting
            reply = waiting[ask] = asyncio.Future()
            # A consult that was given up asks no more how its reply failed.
            reply.add_done_callback(lambda done: done.cancelled() or done.exception())
            try:
                n, verify = request.n, request.verify
                frame = Ask(ask, position, new_ids, check, n, left, TOP, drawn, verify)
                await self._send(frame, sent, again=sent.requests > before)
            except BaseException:
                waiting.pop(ask).cancel()
                raise
        try:
            return await reply
        except asyncio.CancelledError:
            # The deadline, or the decoder, gave up: spare the engine the rest.
            if waiting is self._waiting:
                with contextlib.suppress(Broken, TimeoutError):
                    async with asyncio.timeout(CANCEL_SECONDS):
                        await self._send(Cancel(ask), sent)
            raise
        finally:
            waiting.pop(ask, None)

    async def _connected(self, sent: Outgoing) -> None:
        if self._socket is None or self._socket.state is not State.OPEN:
            try:
                await self.connect(sent)
            except CloudUnavailable as error:
                raise Broken from error

    def _put(self, ids: Sequence[int]) -> tuple[int, list[int]]:
        """Return the ids that are new to the gateway, after their position; note them as sent."""
        position = self.shared(ids)
        fresh = list(ids[position:])
        self._ledger.put(position, fresh)
        return position, fresh

    async def _send(self, frame: FromDevice, sent: Outgoing, *, again: bool = False) -> None:
        data = encode(frame)
        socket = self._socket
        if socket is None:
            raise Broken
        billable = isinstance(frame, Ask | Prefetch)
        sent.add(frame.ids if billable else (), data, billable=billable, again=again)
        try:
            await socket.send(data)
        except (ConnectionClosed, OSError) as error:
            await self._hang_up()
            raise Broken from error

    async def _read(self, socket: ClientConnection, waiting: _Waiting) -> None:
        """Pass replies to the consults that wait for them, until the connection breaks."""
        problem: Exception = Broken()
        try:
            while True:
                self._take(self._frame(await socket.recv()), waiting)
        except CloudError as error:
            problem = error
        except ConnectionClosed as error:
            _log.debug("the link to %r broke: %s", self._name, error)
            if error.sent and error.sent.code in _NO_FRAMES and not error.rcvd_then_sent:
                problem = CloudProtocolError(f"{self._name!r}: {error.sent.reason}.")
        finally:
            # Unless another connection has taken its place.
            if self._socket is socket:
                self._socket = None
            for reply in waiting.values():
                if not reply.done():
                    reply.set_exception(problem)
            await socket.close()

    def _frame(self, message: str | bytes) -> FromGateway:
        # The protocol has binary frames alone.
        if isinstance(message, str):
            raise CloudProtocolError(f"{self._name!r} sent a text message.")
        return from_gateway(message)

    def _take(self, frame: FromGateway, waiting: _Waiting) -> None:
        if isinstance(frame, Opened):
            raise CloudProtocolError(f"{self._name!r} opened a session twice.")
        if frame.ask is None:
            if isinstance(frame, Failed):
                raise self._refusal(frame)
            self._ledger.put(0, [])
            return
        reply = waiting.get(frame.ask)
        if reply is None or reply.done():
            return  # it came too late
        if isinstance(frame, Failed):
            reply.set_exception(self._refusal(frame))
        else:
            reply.set_result(frame)

    def _refusal(self, frame: Failed) -> CloudError:
        later = f"it asks for {frame.retry_after} ms of patience" if frame.retry_after else None
        error = _ERRORS.get(frame.reason, CloudProtocolError)(
            f"{self._name!r}: {_plain(frame.message)}",
            hint=later,
            request_id=bounded(frame.request_id),
        )
        error.declined = isinstance(error, CloudRefused | CloudRejected)
        return error

    async def _hang_up(self) -> None:
        socket, self._socket = self._socket, None
        if socket is not None:
            await socket.close()


def _plain(text: str) -> str:
    """Return a text as one line of at most `MAX_MESSAGE` characters, safe to print."""
    return "".join(c if c.isprintable() else " " for c in text[:MAX_MESSAGE])
