"""The gateway: an ASGI application that passes devices' consults on to a cloud model's engines.

It checks keys and limits, and chooses among engines that serve the same model.
"""

import asyncio
import contextlib
import math
from collections.abc import AsyncGenerator, Sequence
from typing import Annotated, Literal

import msgspec
import structlog
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from edgewise.errors import CloudError, OtherVocabulary
from edgewise.gateway.browser_page import Page
from edgewise.gateway.connection import END_SECONDS, Connection
from edgewise.gateway.consults import KeyedConsults
from edgewise.gateway.fleet import Fleet
from edgewise.gateway.metrics import GatewayMetrics
from edgewise.gateway.sessions import Sessions
from edgewise.keys.keys import Keys
from edgewise.keys.limits import KeyLimits, OverLimit
from edgewise.listening.origins import ANY, OriginCheck
from edgewise.wire.protocol import KEY_SUBPROTOCOL, PATH, VERSION, Count

# Between sweeps: with the keys' own `CHECK_SECONDS` a revoked key is out within a second.
SWEEP_SECONDS = 0.25

DRAIN_SECONDS = 20
"""Seconds after SIGTERM within which consults in flight must end."""

OWNER = "edgewise-gateway"
"""Value of `owned_by` in /v1/models, by which a device recognises a gateway."""

MOST_DETOKENIZED = 1 << 15
"""Most token ids of one request to /detokenize."""

# Most bytes of a request body: enough for the most ids of /detokenize, at 12 characters each.
MAX_BODY = 1 << 19

DETOKENIZE_SECONDS = 15.0
"""Timeout of a request to /detokenize."""

log = structlog.get_logger("edgewise.gateway")


class _Ids(msgspec.Struct):
    tokens: Annotated[list[Count], msgspec.Meta(min_length=1, max_length=MOST_DETOKENIZED)]


class Gateway:
    """The gateway: its engines, keys, sessions, limits, metrics and open connections.

    Sessions are in memory only: a device can rebuild its own by sending its token ids again.
    """

    def __init__(self, fleet: Fleet, keys: Keys, sessions: Sessions, limits: KeyLimits) -> None:
        self.fleet, self.keys, self.sessions, self.limits = fleet, keys, sessions, limits
        self.metrics = GatewayMetrics()
        self.consults = KeyedConsults(fleet, limits, self.metrics)
        self._page: Page | None = None
        self.draining = False
        self.connections: set[Connection] = set()
        metrics = self.metrics
        metrics.sessions.set_function(lambda: len(sessions))
        metrics.ids.set_function(lambda: sessions.ids)
        metrics.connections.set_function(lambda: len(self.connections))
        metrics.engines.set_function(lambda: fleet.up)

    def app(
        self,
        *,
        hosts: Sequence[str] = (ANY,),
        origins: Sequence[str] = (),
        page: Page | None = None,
    ) -> Starlette:
        """Return the ASGI application; when it shuts down, it closes engines, key limits and page.

        `hosts` are the allowed host names in the header Host. Web pages may send requests only if
        they come from the gateway itself or from one of `origins`. `page` is served at /page/.
        """
        self._page = page
        routes = [
            WebSocketRoute(PATH, self._serve),
            Route("/health", self._health),
            Route("/ready", self._ready),
            Route("/v1/models", self._models),
            Route("/detokenize", self._detokenize, methods=["POST"]),
            Route("/metrics", self._metrics),
            *(page.routes() if page else ()),
        ]
        ways = ("--keys FILE", "--origin {}")
        middleware = [Middleware(OriginCheck, hosts=hosts, origins=origins, ways=ways)]
        if origins:
            shared = Middleware(
                CORSMiddleware,
                allow_origins=origins,
                allow_methods=["GET", "POST"],
                allow_headers=["Authorization", "Content-Type"],
                allow_private_network=True,
            )
            middleware.append(shared)
        return Starlette(routes=routes, middleware=middleware, lifespan=self._lifespan)

    async def drain(self) -> None:
        """Refuse new sessions, and disconnect each device once its consults in flight have ended.

        Takes at most `DRAIN_SECONDS` + `END_SECONDS`; consults then in flight are cut off.
        """
        self.draining = True
        try:
            async with asyncio.timeout(DRAIN_SECONDS + END_SECONDS):
                await asyncio.gather(*(one.drain(DRAIN_SECONDS) for one in list(self.connections)))
        except TimeoutError:
            log.warning("drain took too long")

    @contextlib.asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncGenerator[None]:
        log.info("started", engines=len(self.fleet.replicas), model=self.fleet.model)
        if self.keys.required:
            self.fleet.warn_of_shared_caches()
        sweeping = asyncio.create_task(self._sweep())
        yield
        sweeping.cancel()
        await self.fleet.close()
        await self.limits.close()
        if self._page is not None:
            self._page.close()

    async def _sweep(self) -> None:
        """Disconnect devices whose key is no longer valid; drop sessions that are idle."""
        swept = self.keys.refresh()
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            try:
                self.sessions.expire()
                changes = self.keys.refresh()
                if changes != swept:
                    for connection in list(self.connections):
                        connection.check_key()
                swept = changes
            # A failed look must not be the last: keys would stay valid for ever.
            except Exception:
                log.exception("sweep failed")

    async def _serve(self, socket: WebSocket) -> None:
        key = self.keys.find(_secret(socket))
        if key is None or self.draining:
            refused = self._refused(socket, 503 if self.draining else 401)
            await socket.send_denial_response(refused)
            return
        connection = Connection(self.consults, self.sessions, self.keys, socket, key)
        self.connections.add(connection)
        try:
            await connection.serve()
        finally:
            self.connections.discard(connection)

    def _refused(self, request: Request | WebSocket, status: Literal[401, 503]) -> JSONResponse:
        """Return the refusal of a request; log and count it."""
        # For the log alone: the reply does not say what is wrong with a key.
        shown = "wrong key" if _secret(request) else "missing key"
        peer = request.client.host if request.client else "?"
        log.info("refused", why=shown if status == 401 else "draining", peer=peer)
        self.metrics.opens.labels("refused").inc()
        if status == 503:
            return _failed(503, "Going away.", {"Retry-After": "1"})
        return _failed(401, "The key is missing or not accepted.", {"WWW-Authenticate": "Bearer"})

    async def _health(self, request: Request) -> Response:
        return JSONResponse({"status": "ok", "protocol": VERSION})

    async def _ready(self, request: Request) -> Response:
        ready = self.fleet.up > 0 and not self.draining
        described = {"ready": ready, "engines_up": self.fleet.up, "draining": self.draining}
        return JSONResponse(described, 200 if ready else 503)

    async def _metrics(self, request: Request) -> Response:
        return Response(generate_latest(self.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    async def _models(self, request: Request) -> Response:
        """Answer /v1/models with the model that the engines serve."""
        if self.keys.find(_secret(request)) is None:
            return self._refused(request, 401)
        fleet = self.fleet
        meta = {"n_vocab": fleet.size, "eos_token": fleet.end or None}
        model = {"id": fleet.model or "unknown", "object": "model", "owned_by": OWNER, "meta": meta}
        return JSONResponse({"object": "list", "data": [model]})

    async def _detokenize(self, request: Request) -> Response:
        """Answer /detokenize, by which devices compare vocabularies; the key pays for the ids."""
        key, size = self.keys.find(_secret(request)), self.fleet.size
        if key is None:
            return self._refused(request, 401)
        ids = await _ids_in(request)
        if ids is None:
            return _failed(400, f"The body holds at most {MOST_DETOKENIZED} token ids.")
        if size is not None and max(ids) >= size:
            return _failed(400, f"The model has ids below {size}.")
        try:
            # First: what is refused costs nothing.
            self.limits.admit(key, 0)
            self.limits.charge(key, len(ids))
            async with asyncio.timeout(DETOKENIZE_SECONDS):
                text = await self.fleet.detokenize(ids)
        except OverLimit as over:
            return _failed(429, str(over), {"Retry-After": str(math.ceil(over.retry_after or 1))})
        except TimeoutError:
            return _failed(503, "The engine does not detokenise in time.")
        except CloudError as error:
            return _failed(409 if isinstance(error, OtherVocabulary) else 503, str(error))
        if text is None:
            return _failed(404, "The engine does not detokenise.")
        return JSONResponse({"content": text})


async def _ids_in(request: Request) -> list[int] | None:
    """Return the ids in a request's body; None if it is invalid or too large, or breaks off."""
    body = b""
    try:
        # Piece by piece: Starlette itself would take a body of any length into memory.
        async for piece in request.stream():
            body += piece
            if len(body) > MAX_BODY:
                return None
        return msgspec.json.decode(body, type=_Ids).tokens
    except (ClientDisconnect, msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _failed(status: int, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    return JSONResponse({"error": message}, status, headers)


def _secret(request: Request | WebSocket) -> str:
    """Return a request's key, a bearer token or (from a web page) a subprotocol; "" for none."""
    shown = request.headers.get("authorization", "")
    scheme, _, secret = shown.partition(" ")
    if scheme.lower() == "bearer":
        return secret.strip()
    offered: list[str] = request.scope.get("subprotocols", [])
    keys = (name for name in offered if name.startswith(KEY_SUBPROTOCOL))
    return next(keys, "").removeprefix(KEY_SUBPROTOCOL)
