"""The gateway: an ASGI application between devices and engines."""

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator

import structlog
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

from edgewise.engines.base import Client
from edgewise.errors import CloudError, CloudProtocolError, EdgewiseError, UsageError
from edgewise.gateway.fleet import Busy, Fleet
from edgewise.gateway.keys import Key, Keys
from edgewise.gateway.limits import Limits
from edgewise.gateway.metrics import Metrics
from edgewise.gateway.sessions import Session, Sessions
from edgewise.wire.protocol import (
    MAX_IDS,
    PATH,
    VERSION,
    Ask,
    Cancel,
    Close,
    Failed,
    FromGateway,
    NeedFull,
    Open,
    Opened,
    Push,
    Reply,
    encode,
    from_device,
    unpacked,
)

OPEN_SECONDS = 10.0
"""How long a device may take to say `Open`, and to read what it is sent."""

FRAMES_PER_SECOND = 2000
"""More than any device writes; a connection that keeps above it is closed."""

WAITING_ASKS = 8
"""Consults of one session that may wait for their turn."""

PROTOCOL_ERROR, POLICY, GOING_AWAY, TRY_LATER = 1002, 1008, 1001, 1013
"""Close codes of RFC 6455."""

log = structlog.get_logger("edgewise.gateway")


class Gateway:
    """State shared by all connections of a process. Holds nothing that a device cannot rebuild."""

    def __init__(self, fleet: Fleet, keys: Keys, sessions: Sessions) -> None:
        self.fleet, self.keys, self.sessions = fleet, keys, sessions
        self.limits, self.metrics = Limits(), Metrics()
        self.draining = False
        self.connections: set[Connection] = set()

    def app(self) -> Starlette:
        """The application; its lifespan starts and closes the fleet."""
        routes = [
            WebSocketRoute(PATH, self._serve),
            Route("/health", self._health),
            Route("/ready", self._ready),
            Route("/metrics", self._metrics),
            Route("/v1/models", self._models),
        ]
        return Starlette(routes=routes, lifespan=self._lifespan)

    async def drain(self) -> None:
        """Take no new sessions, let consults in flight end, send the devices elsewhere."""
        self.draining = True
        await asyncio.gather(*(connection.drain() for connection in list(self.connections)))

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncGenerator[None]:
        await self.fleet.start()
        log.info("started", engines=len(self.fleet.replicas), model=self.fleet.model)
        sweeping = asyncio.create_task(self._sweep())
        yield
        sweeping.cancel()
        await self.fleet.close()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            self.sessions.expire()

    async def _serve(self, socket: WebSocket) -> None:
        key = self.keys.find(_bearer(socket))
        if key is None or self.draining:
            self._note_refusal(socket)
            status = 503 if self.draining else 401
            await socket.send_denial_response(_refusal(status))
            return
        connection = Connection(self, socket, key)
        self.connections.add(connection)
        try:
            await connection.serve()
        finally:
            self.connections.discard(connection)

    def _note_refusal(self, asked: Request | WebSocket) -> None:
        """Why is told here only; the device sees the same whatever is wrong with its key."""
        shown = "wrong key" if _bearer(asked) else "missing key"
        log.info("refused", why="draining" if self.draining else shown, peer=_peer(asked))
        self.metrics.opens.labels("refused").inc()

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok", "protocol": VERSION})

    async def _ready(self, request: Request) -> Response:
        ready = self.fleet.up > 0 and not self.draining
        described = {"ready": ready, "engines_up": self.fleet.up, "draining": self.draining}
        return JSONResponse(described, 200 if ready else 503)

    async def _metrics(self, request: Request) -> Response:
        metrics = self.metrics
        metrics.sessions.set(len(self.sessions))
        metrics.ids.set(self.sessions.ids)
        metrics.connections.set(len(self.connections))
        metrics.engines.set(self.fleet.up)
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)

    async def _models(self, request: Request) -> Response:
        """So that a device finds out what it talks to."""
        if self.keys.find(_bearer(request)) is None:
            self._note_refusal(request)
            return _refusal(401)
        model = {"id": self.fleet.model or "unknown", "object": "model", "owned_by": OWNER}
        return JSONResponse({"object": "list", "data": [model]})


OWNER = "edgewise-gateway"


class Connection:
    """One device, and its session."""

    def __init__(self, gateway: Gateway, socket: WebSocket, key: Key) -> None:
        self._gateway, self._socket, self._key = gateway, socket, key
        self._session: Session | None = None
        self._asks: dict[int, asyncio.Task[None]] = {}
        self._warming: asyncio.Task[None] | None = None
        self._sending = asyncio.Lock()
        self._frames, self._begun = 0, time.monotonic()

    async def serve(self) -> None:
        """Until the device leaves, or breaks the protocol."""
        await self._socket.accept()
        try:
            await self._open()
            while self._session is not None:
                data = await self._receive()
                self._count_frame()
                await self._take(data)
        except WebSocketDisconnect:
            pass
        except CloudProtocolError as error:
            await self._end(PROTOCOL_ERROR, "protocol", str(error))
        except _Ended as end:
            await self._end(end.code, end.reason, str(end), end.retry_after)
        finally:
            self._leave()

    async def drain(self) -> None:
        """Let consults in flight end, then hang up."""
        await asyncio.gather(*self._asks.values(), return_exceptions=True)
        with contextlib.suppress(RuntimeError):
            await self._socket.close(GOING_AWAY)

    async def _open(self) -> None:
        gateway = self._gateway
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                frame = from_device(await self._receive())
        except TimeoutError as error:
            raise _Ended(POLICY, "protocol", "No open frame came.") from error
        if not isinstance(frame, Open):
            raise CloudProtocolError("The first frame must be open.")
        if frame.version != VERSION:
            raise _Ended(
                POLICY,
                "rejected",
                f"This gateway speaks version {VERSION} of the protocol, not {frame.version}.",
            )
        if not gateway.fleet.tokenizer or frame.tokenizer != gateway.fleet.tokenizer:
            raise _Ended(
                POLICY,
                "rejected",
                "The vocabulary is not that of the gateway's model; choose two models of one "
                "family.",
            )
        key = self._key
        if key.sessions and gateway.sessions.attached(key.name) >= key.sessions:
            raise _Ended(
                TRY_LATER,
                "unavailable",
                f"The key has its {key.sessions} sessions open already.",
                1.0,
            )
        session = gateway.sessions.open(frame.session, key.name)
        if session is None:
            raise _Ended(TRY_LATER, "unavailable", "The gateway holds no more sessions.", 1.0)
        self._session = session
        resumed = "resumed" if session.name == frame.session else "new"
        gateway.metrics.opens.labels(resumed).inc()
        log.info(
            "open", key=key.name, session=session.name[:8], how=resumed, peer=_peer(self._socket)
        )
        ledger = session.ledger
        await self._send(
            Opened(
                VERSION,
                session.name,
                len(ledger.ids),
                ledger.check,
                gateway.fleet.engine,
                gateway.fleet.model[:200],
            )
        )

    async def _receive(self) -> bytes:
        """The next binary message; starlette's own method stumbles over a text message."""
        message = await self._socket.receive()
        if message["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(message.get("code", 1005))
        data = message.get("bytes")
        if data is None:
            raise CloudProtocolError("Frames are binary messages, not text.")
        return data

    def _count_frame(self) -> None:
        """A second's frames at most, over the seconds since the connection was made."""
        self._frames += 1
        allowed = FRAMES_PER_SECOND * (1 + time.monotonic() - self._begun)
        if self._frames > allowed:
            raise _Ended(POLICY, "protocol", "Too many frames in too short a time.", 1.0)

    async def _take(self, data: bytes) -> None:
        frame = from_device(data)
        assert self._session is not None
        if isinstance(frame, Ask):
            self._begin(frame, self._session)
        elif isinstance(frame, Push):
            if not self._put(self._session, frame):
                self._gateway.metrics.pushes.labels("need_full").inc()
                await self._send(NeedFull())
            elif not self._asks:
                self._warm(self._session)
        elif isinstance(frame, Cancel):
            if task := self._asks.get(frame.ask):
                task.cancel()
        elif isinstance(frame, Close):
            self._gateway.sessions.forget(self._session)
            self._session = None
        else:
            raise CloudProtocolError("A session is opened once.")

    def _begin(self, frame: Ask, session: Session) -> None:
        if frame.ask in self._asks:
            raise CloudProtocolError(f"Consult {frame.ask} is being answered already.")
        # The ids are those of this moment: a later frame may replace them.
        held = self._put(session, frame)
        ids = list(session.ledger.ids) if held else []
        task = asyncio.create_task(self._answer(frame, session, ids if held else None))
        self._asks[frame.ask] = task
        task.add_done_callback(lambda _: self._asks.pop(frame.ask, None))

    async def _answer(self, frame: Ask, session: Session, ids: list[int] | None) -> None:
        begun = time.monotonic()
        outcome = "cancelled"
        try:
            reply = await self._verdict(frame, session, ids)
            outcome = reply.reason if isinstance(reply, Failed) else _OUTCOMES[type(reply)]
            await self._send(reply)
        except (WebSocketDisconnect, RuntimeError, TimeoutError):
            outcome = "device left"
        finally:
            metrics = self._gateway.metrics
            metrics.asks.labels(outcome).inc()
            metrics.seconds.observe(time.monotonic() - begun)

    async def _verdict(
        self, frame: Ask, session: Session, ids: list[int] | None
    ) -> Reply | NeedFull | Failed:
        gateway = self._gateway
        if ids is None:
            return NeedFull(frame.ask)
        if gateway.keys.find_named(self._key) is None:
            return Failed(frame.ask, "refused", "The key was revoked.")
        if len(self._asks) > WAITING_ASKS:
            return self._busy(frame, 0.1)
        if wait := gateway.limits.wait(self._key):
            return self._busy(frame, wait)
        if self._warming is not None:
            self._warming.cancel()
        client = Client(session.name, session.salt)
        try:
            async with asyncio.timeout(frame.deadline / 1000), session.turn:
                verdict = await gateway.fleet.complete(
                    ids, frame.n, unpacked(frame.sampling), client
                )
        except TimeoutError:
            return Failed(frame.ask, "timeout", "The engine did not answer before the deadline.")
        except Busy as busy:
            return self._busy(frame, busy.retry_after)
        except CloudError as error:
            log.warning("consult failed", reason=error.reason, session=session.name[:8])
            # What the engine says may hold parts of the prompt; the device gets the kind of it.
            return Failed(frame.ask, error.reason, _SAID[error.reason])
        except UsageError as error:
            return Failed(frame.ask, "rejected", str(error))
        gateway.limits.wrote(self._key, len(verdict.ids))
        metrics = gateway.metrics
        metrics.tokens.labels(self._key.name).inc(len(verdict.ids))
        metrics.prompt.labels("hit").inc(verdict.cached or 0)
        metrics.prompt.labels("miss").inc(verdict.computed or 0)
        return Reply(
            frame.ask,
            verdict.ids,
            verdict.logprobs,
            verdict.stopped,
            verdict.cached,
            verdict.computed,
            verdict.engine_seconds,
            tuple(
                tuple((candidate.id, candidate.logprob) for candidate in top[: frame.top])
                for top in verdict.top
            )
            if frame.top
            else (),
        )

    def _busy(self, frame: Ask, wait: float) -> Failed:
        message = "Too many consults; try again later."
        return Failed(frame.ask, "unavailable", message, int(1000 * wait) + 1)

    def _put(self, session: Session, frame: Ask | Push) -> bool:
        """Take the ids of a frame; False where this session does not hold what they follow."""
        ledger = session.ledger
        if frame.position + len(frame.ids) > MAX_IDS:
            raise CloudProtocolError(f"A prefix has at most {MAX_IDS} ids.")
        if ledger.put(frame.position, frame.ids) and ledger.check == frame.check:
            return True
        ledger.put(0, [])
        return False

    def _warm(self, session: Session) -> None:
        """Let the engine compute what was pushed while nobody waits; the latest push counts."""
        if self._warming is not None:
            self._warming.cancel()
        ids = list(session.ledger.ids)
        self._warming = asyncio.create_task(self._prefill(session, ids))

    async def _prefill(self, session: Session, ids: list[int]) -> None:
        outcome = "superseded"
        try:
            client = Client(session.name, session.salt, urgent=False)
            async with session.turn:
                await self._gateway.fleet.prefill(ids, client)
            outcome = "warmed"
        except (EdgewiseError, Busy) as error:
            outcome = "failed"
            log.debug("push not warmed", error=type(error).__name__)
        finally:
            self._gateway.metrics.pushes.labels(outcome).inc()

    async def _send(self, frame: FromGateway) -> None:
        data = encode(frame)
        async with self._sending, asyncio.timeout(OPEN_SECONDS):
            await self._socket.send_bytes(data)

    async def _end(
        self, code: int, reason: str, message: str, retry_after: float | None = None
    ) -> None:
        """Say why, and hang up."""
        log.info("ended", why=message[:200], key=self._key.name, peer=_peer(self._socket))
        milliseconds = None if retry_after is None else int(1000 * retry_after)
        with contextlib.suppress(WebSocketDisconnect, RuntimeError, TimeoutError):
            await self._send(Failed(None, reason, message[:500], milliseconds))
            await self._socket.close(code)

    def _leave(self) -> None:
        for task in [*self._asks.values(), *([self._warming] if self._warming else [])]:
            task.cancel()
        if self._session is not None:
            self._gateway.sessions.leave(self._session)


class _Ended(Exception):
    def __init__(
        self, code: int, reason: str, message: str, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.code, self.reason, self.retry_after = code, reason, retry_after


_OUTCOMES: dict[type[object], str] = {Reply: "answered", NeedFull: "need_full"}
_SAID = {
    "timeout": "The engine did not answer in time.",
    "unavailable": "The engine is not ready.",
    "refused": "The engine refuses the gateway's key.",
    "rejected": "The engine declined the request, for instance for its length.",
    "protocol": "The engine's reply was not what it promises.",
}


def _bearer(request: Request | WebSocket) -> str:
    shown = request.headers.get("authorization", "")
    scheme, _, secret = shown.partition(" ")
    return secret.strip() if scheme.lower() == "bearer" else ""


def _peer(asked: Request | WebSocket) -> str:
    return asked.client.host if asked.client else "?"


def _refusal(status: int) -> JSONResponse:
    message = "The key is missing or not accepted." if status == 401 else "Going away."
    headers = {"WWW-Authenticate": "Bearer"} if status == 401 else {"Retry-After": "1"}
    return JSONResponse({"error": message}, status, headers)
