"""The gateway's end of one device's WebSocket: reads frames in order and answers each."""

import asyncio
import contextlib
import time
from asyncio import to_thread

import structlog
from starlette.websockets import WebSocket, WebSocketDisconnect

from edgewise.errors import CloudProtocolError
from edgewise.gateway.consults import KeyedConsults, SessionPrefix, failed
from edgewise.gateway.sessions import Session, Sessions
from edgewise.keys.keys import Key, Keys
from edgewise.keys.limits import Bucket
from edgewise.wire.protocol import (
    MAX_IDS,
    SUBPROTOCOL,
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
    encode,
    from_device,
)

# Consults of a session that may wait: more than the six that a device has in flight.
WAITING_ASKS = 8

OPEN_SECONDS = 10.0
"""Seconds that a device has to send its `Open` frame, and to read each frame that it is sent."""

# Frames that a connection may send a second: more than any device does. Above, it is closed.
FRAMES_PER_SECOND = 2000
# Bytes above which a frame is decoded in a thread; smaller frames take less than 0.1 ms.
LARGE = 1 << 14

PAUSE_SECONDS = 10.0
"""Most seconds that a large frame waits if its key is over its limit of ids a second."""

END_SECONDS = 0.4
"""Timeout of the last frame to a device whose key was revoked, and of the end of a drain."""

PROTOCOL_ERROR, POLICY, GOING_AWAY, TRY_LATER = 1002, 1008, 1001, 1013
"""WebSocket close codes (RFC 6455)."""

log = structlog.get_logger("edgewise.gateway")


def _decoded(data: bytes) -> tuple[FromDevice, Ledger]:
    """Decode a frame; return it with a `Ledger` of its ids. Raises `CloudProtocolError`."""
    frame = from_device(data)
    return frame, Ledger(frame.ids if isinstance(frame, Ask | Prefetch) else ())


class Connection:
    """Serves the WebSocket of one device, with its session, its consults and its prefetch."""

    def __init__(
        self, consults: KeyedConsults, sessions: Sessions, keys: Keys, socket: WebSocket, key: Key
    ) -> None:
        self._consults, self._sessions, self._keys = consults, sessions, keys
        self._socket, self._key = socket, key
        self._session: Session | None = None
        self._asks: dict[int, asyncio.Task[None]] = {}
        self._prefetching: asyncio.Task[None] | None = None
        self._sending = asyncio.Lock()
        self._frames = Bucket(1.0)
        self._fresh = 0
        self._talking: asyncio.Timeout | None = None

    async def serve(self) -> None:
        """Serve until the device leaves or breaks the protocol, or its key is no longer valid."""
        offered = SUBPROTOCOL in self._socket.scope.get("subprotocols", ())
        # A browser ends the connection unless one of what it offered is accepted.
        await self._socket.accept(SUBPROTOCOL if offered else None)
        try:
            await self._talk()
        except WebSocketDisconnect:
            pass
        except TimeoutError:
            # Else the device does not read what it is sent: it would not read this either.
            if self._keys.current(self._key) is None:
                await self._end(_revoked())
        except CloudProtocolError as error:
            await self._end(_Ended(PROTOCOL_ERROR, "protocol", str(error)))
        except _Ended as end:
            await self._end(end)
        finally:
            self._stop()
            if self._session is not None:
                self._sessions.leave(self._session)

    def check_key(self) -> None:
        """Cancel the consults in flight and disconnect, if the key was revoked or has expired."""
        if self._talking is not None and self._keys.current(self._key) is None:
            self._stop()
            self._hang_up()

    async def drain(self, seconds: float) -> None:
        """Wait for the consults in flight, at most `seconds`, then close the WebSocket."""
        if self._asks:
            await asyncio.wait(self._asks.values(), timeout=seconds)
        with contextlib.suppress(RuntimeError, WebSocketDisconnect):
            await self._socket.close(GOING_AWAY)

    async def _talk(self) -> None:
        """Answer frames until the session closes. Raises `TimeoutError` after `_hang_up`."""
        async with asyncio.timeout(None) as self._talking:
            try:
                await self._open()
                while session := self._session:
                    await self._take(*await self._frame(), session)
            finally:
                self._talking = None

    async def _open(self) -> None:
        """Read the first frame and open the session; refuse another protocol or vocabulary."""
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                data = await self._receive()
        except TimeoutError as error:
            raise _Ended(POLICY, "protocol", "No open frame came.") from error
        frame = from_device(data) if len(data) <= LARGE else None
        if not isinstance(frame, Open):
            raise CloudProtocolError("The first frame must be open.")
        if frame.version != VERSION:
            message = f"This gateway speaks version {VERSION} of the protocol, not {frame.version}."
            raise _Ended(POLICY, "rejected", message)
        fleet = self._consults.fleet
        if not fleet.tokenizer or frame.tokenizer != fleet.tokenizer:
            raise _Ended(POLICY, VOCABULARY, "The vocabulary is not that of the gateway's model.")
        key, sessions = self._key, self._sessions
        # Before a session is made, or a device could make one by each refusal.
        if key.sessions and sessions.attached(key.name) >= key.sessions:
            message = f"The key has its {key.sessions} sessions open already."
            raise _Ended(TRY_LATER, "unavailable", message, 1.0)
        session = self._session = sessions.open(frame.session, key.name)
        if session is None:
            raise _Ended(TRY_LATER, "unavailable", "The gateway holds no more sessions.", 1.0)
        how = "resumed" if session.name == frame.session else "new"
        self._consults.metrics.opens.labels(how).inc()
        peer = _peer(self._socket)
        log.info("open", key=key.name, session=session.name[:8], how=how, peer=peer)
        known, check, model = len(session.ledger), session.ledger.checksum, fleet.model[:200]
        opened = Opened(VERSION, session.name, known, check, fleet.engine, model, fleet.verifies)
        await self._send(opened)

    async def _receive(self) -> bytes:
        """Return the next binary message. Raises `CloudProtocolError` for a text message."""
        message = await self._socket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1005))
        data = message.get("bytes")
        if data is None:
            raise CloudProtocolError("Frames are binary messages, not text.")
        return data

    async def _frame(self) -> tuple[FromDevice, Ledger]:
        """Return the next frame and its ids; decode a large one once its key's rate allows more."""
        data, now = await self._receive(), time.monotonic()
        # A second's frames may come at once.
        if self._frames.wait(FRAMES_PER_SECOND, now):
            raise _Ended(POLICY, "protocol", "Too many frames in too short a time.", 1.0)
        self._frames.take(1, FRAMES_PER_SECOND, now)
        # If more frames wait, nothing above yields to the event loop.
        await asyncio.sleep(0)
        key, limits = self._key_now(), self._consults.limits
        if len(data) <= LARGE:
            frame, ids = _decoded(data)
        else:
            try:
                async with asyncio.timeout(PAUSE_SECONDS):
                    while wait := limits.charge(key, self._take_fresh()):
                        await asyncio.sleep(wait)
            except TimeoutError as error:
                message = "Too many token ids in too short a time."
                raise _Ended(TRY_LATER, "unavailable", message, PAUSE_SECONDS) from error
            # Milliseconds, in which every other device would wait.
            frame, ids = await to_thread(_decoded, data)
        self._fresh += len(ids)
        return frame, ids

    def _take_fresh(self) -> int:
        """Return the number of ids received since the last call; the caller charges them."""
        fresh, self._fresh = self._fresh, 0
        return fresh

    def _key_now(self) -> Key:
        key = self._keys.current(self._key)
        if key is None:
            raise _revoked()
        return key

    async def _take(self, frame: FromDevice, ids: Ledger, session: Session) -> None:
        if isinstance(frame, Ask):
            await self._begin(frame, self._put(frame, ids, session))
        elif isinstance(frame, Prefetch):
            prefix = self._put(frame, ids, session)
            if prefix is None:
                self._consults.metrics.prefetches.labels("need_full").inc()
                await self._send(NeedFull())
            elif ids and not self._asks:
                # The engine computes the last prefetch with new ids while nobody waits.
                self._stop_prefetch()
                work = self._consults.prefetch(_copied(prefix))
                self._prefetching = asyncio.create_task(work)
        elif isinstance(frame, Cancel):
            if task := self._asks.get(frame.ask):
                task.cancel()
        elif isinstance(frame, Close):
            self._sessions.forget(session)
            self._session = None
        else:
            raise CloudProtocolError("A session is opened once.")

    def _put(self, frame: Ask | Prefetch, ids: Ledger, session: Session) -> SessionPrefix | None:
        """Store a frame's ids; return the session's prefix, None if the device has another."""
        if frame.position + len(ids) > MAX_IDS:
            raise CloudProtocolError(f"A prefix has at most {MAX_IDS} ids.")
        key = self._key_now()
        held = self._sessions.put(session, frame.position, ids, frame.checksum)
        return None if held is None else SessionPrefix(held, session, key, self._take_fresh)

    async def _begin(self, frame: Ask, prefix: SessionPrefix | None) -> None:
        if frame.ask in self._asks:
            raise CloudProtocolError(f"Consult {frame.ask} is being answered already.")
        # It would hold the session's turn, and nobody waits for it.
        self._stop_prefetch()
        if prefix is None or len(self._asks) >= WAITING_ASKS:
            # No task: until the device reads this, no more of its frames are taken.
            await self._answer(frame, prefix, crowded=True)
            return
        work = self._answer(frame, _copied(prefix), crowded=False)
        task = self._asks[frame.ask] = asyncio.create_task(work)
        # However it ends: the number may be used again.
        task.add_done_callback(lambda _: self._asks.pop(frame.ask, None))

    async def _answer(self, frame: Ask, prefix: SessionPrefix | None, *, crowded: bool) -> None:
        begun, outcome = time.monotonic(), "cancelled"
        try:
            if prefix is None:
                answer, outcome = NeedFull(frame.ask), "need_full"
            else:
                if crowded:
                    message = "Too many consults of one session wait."
                    answer = failed(frame, "unavailable", message, 0.1)
                else:
                    answer = await self._consults.answer(frame, prefix)
                outcome = answer.reason if isinstance(answer, Failed) else "answered"
            await self._send(answer)
        except WebSocketDisconnect:
            outcome = "device left"
        finally:
            self._consults.metrics.consults.labels(outcome).inc()
            self._consults.metrics.seconds.observe(time.monotonic() - begun)

    async def _send(self, frame: FromGateway) -> None:
        """Send a frame. Raises `WebSocketDisconnect`, also if the device has stopped reading."""
        data = encode(frame)
        try:
            async with self._sending, asyncio.timeout(OPEN_SECONDS):
                await self._socket.send_bytes(data)
        except (RuntimeError, TimeoutError) as error:
            # Starlette's word for a socket that was closed meanwhile is a RuntimeError.
            self._hang_up()
            raise WebSocketDisconnect from error

    async def _end(self, end: "_Ended") -> None:
        log.info("ended", why=str(end)[:200], key=self._key.name, peer=_peer(self._socket))
        milliseconds = None if end.retry_after is None else int(1000 * end.retry_after)
        seconds = END_SECONDS if end.reason == "refused" else None
        with contextlib.suppress(WebSocketDisconnect, RuntimeError, TimeoutError):
            async with asyncio.timeout(seconds):
                await self._send(Failed(None, end.reason, str(end)[:500], milliseconds))
                await self._socket.close(end.code)

    def _hang_up(self) -> None:
        if self._talking is not None:
            self._talking.reschedule(0.0)
            self._talking = None

    def _stop(self) -> None:
        """Cancel the consults and the prefetch in flight."""
        self._stop_prefetch()
        for task in self._asks.values():
            task.cancel()

    def _stop_prefetch(self) -> None:
        if self._prefetching is not None:
            self._prefetching.cancel()


class _Ended(Exception):
    def __init__(self, code: int, reason: str, message: str, later: float | None = None) -> None:
        super().__init__(message)
        self.code, self.reason, self.retry_after = code, reason, later


def _copied(prefix: SessionPrefix) -> SessionPrefix:
    """Return the prefix with a copy of its ids, which later frames do not change."""
    return prefix._replace(ids=prefix.ids.copy())


def _revoked() -> _Ended:
    return _Ended(POLICY, "refused", "The key was revoked, or has expired.")


def _peer(socket: WebSocket) -> str:
    return socket.client.host if socket.client else "?"
