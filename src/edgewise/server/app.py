"""The web application: routes of the APIs, health and metrics, and the web page."""

import asyncio
import collections
import logging
import time
from collections.abc import Iterator, Sequence
from importlib.metadata import version
from importlib.resources import files
from operator import attrgetter
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.middleware.cors import CORSMiddleware
from fastapi.responses import JSONResponse
from fastapi.staticfiles import StaticFiles
from msgspec.structs import asdict
from prometheus_client import CollectorRegistry, Counter, Histogram, Metric, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgewise.events import Consult, Finished, Token
from edgewise.keys.keys import ANYBODY
from edgewise.listening.logs import OTHERS, REQUESTS
from edgewise.listening.origins import ANY, OriginCheck
from edgewise.opening import sampling_of
from edgewise.server import chat, completions, messages, responses
from edgewise.server.answering import Answering
from edgewise.server.callers import Callers, caller_of
from edgewise.server.errors import ApiError, install, shown
from edgewise.server.models import listed_ids, pair_of, policy_for

_REFUSALS: dict[int | str, dict[str, Any]] = {
    400: {"description": "Bad input, in one sentence."},
    401: {"description": "The key is wrong or missing."},
    404: {"description": "There is no such model."},
    413: {"description": "The body is too large."},
    429: {"description": "The queue is full; `Retry-After` tells when to come back."},
    502: {"description": "The cloud failed, and `--on-cloud-error raise` ends the answer then."},
}


requests, others = logging.getLogger(REQUESTS), logging.getLogger(OTHERS)
keyed = APIRouter()
about = APIRouter()
STARTED = int(time.time())


def _entry(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": STARTED, "owned_by": "edgewise"}


@keyed.get("/v1/models")
async def listed(request: Request) -> dict[str, Any]:
    """List model ids. `edgewise@S` (S: cloud share) and `edgewise:tT` (T: threshold) work, too."""
    return {"object": "list", "data": [_entry(name) for name in listed_ids(pair_of(request))]}


@keyed.get("/v1/models/{model}")
async def model(model: str, request: Request) -> dict[str, Any]:
    """Return OpenAI's model object for the id `model`. An unknown id gets a 404."""
    policy_for(pair_of(request), model)
    return _entry(model)


@keyed.get("/v1/sent")
def sent(request: Request) -> dict[str, Any]:
    """List what each of the last answers sent to cloud models: counts, no text; the newest first.

    `at` is when the answer began, in seconds since 1970. Answers that sent nothing are left out. On
    a server with a key file the request is refused (403), as the list has the answers of all keys.
    """
    if caller_of(request).key is not ANYBODY:
        raise ApiError(403, "This lists the answers of all keys; use /metrics instead.")
    # Answers end in another order than they began.
    answers = sorted(pair_of(request).pair.record.answers(), key=attrgetter("at"), reverse=True)
    data = [
        {"at": one.at, "conversation": one.conversation, "answer": one.answer, **asdict(one.sums)}
        for one in answers
    ]
    return {"object": "list", "data": data}


@about.get("/health")
async def health(request: Request) -> dict[str, Any]:
    """Report that the server runs, its models and settings, and whether consults are paused.

    `cloud_paused` is about the first cloud model. Without a valid key no model is named.
    """
    answering, known = pair_of(request), request.app.state.callers.find(request) is not None
    clouds = ", ".join(one.name for one in answering.pair.clouds)
    policy = answering.pair.policy
    fixed = policy.verify == "off" and policy.cloud_share is None
    cloud = answering.cloud
    drawn = answering.pair.chat_sampling or sampling_of(answering.settings)
    return {
        "status": "ok",
        # Names may be addresses and paths.
        "edge": answering.edge.name if known else "edge",
        "edge_parameters": answering.edge.parameters,
        "cloud": (clouds if known else "cloud") if clouds else None,
        "cloud_parameters": cloud.local.parameters if cloud and cloud.local else None,
        "vocabulary": cloud.vocabulary_check if cloud else None,
        # Of the nearest: further clouds are asked only after it.
        "cloud_paused": any(tier.breaker.is_open for tier in answering.pair.decoder.tiers[:1]),
        "bundled": answering.bundled,
        "cloud_share": policy.cloud_share,
        "threshold": policy.threshold if fixed else None,
        "verify": policy.verify,
        **{name: getattr(drawn, name) for name in ("temperature", "top_k", "top_p", "min_p")},
    }


@keyed.get("/metrics", response_class=Response)
async def metrics(request: Request) -> Response:
    """Return the server's counters in Prometheus's text format."""
    text = generate_latest(request.app.state.metrics.registry)
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


def make_app(
    answering: Answering,
    *,
    callers: Callers | None = None,
    origins: Sequence[str] = (),
    hosts: Sequence[str] = (ANY,),
) -> FastAPI:
    """Return the web application that answers requests with the models of `answering`.

    `callers` (None: no keys) checks keys, but not for `/health`, `/openapi.json` and the page. Web
    pages of `origins` may send requests, too. `hosts` are valid in the header Host (`ANY`: all).
    """
    app = FastAPI(
        title="Edgewise",
        version=version("edgewise"),
        summary="OpenAI's API over a small model on this device and a large one where it counts.",
        # Its pages would load scripts from elsewhere.
        docs_url=None,
        redoc_url=None,
        # A redirect would lose a client's own headers.
        redirect_slashes=False,
    )
    install(app)
    app.state.callers = callers = callers or Callers()
    app.state.answering, app.state.metrics = answering, Metrics(answering)
    for api in (chat, completions, responses, messages):
        app.include_router(api.router, responses=_REFUSALS)
    app.include_router(keyed, dependencies=[Depends(callers.check)], responses=_REFUSALS)
    app.include_router(about)
    if origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=origins,
            allow_methods=["*"],
            allow_headers=["*"],
            allow_private_network=True,
        )
    app.add_middleware(Guard, counter=app.state.metrics.requests)
    # Added last, so first to see a request: what a foreign page sends is not even counted.
    app.add_middleware(OriginCheck, hosts=hosts, origins=origins)
    # No route: where a path has an endpoint, another method is a 405 and not a missing file.
    app.router.default = PageFiles(directory=str(files("edgewise.server") / "page"), html=True)
    return app


class PageFiles(StaticFiles):
    """Serves the files of the web page; any other path gets a 404 that says where the API is."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        asked = f"{scope['method']} {scope['path'][:80]!a}"
        try:
            # As GET, so that POST to a wrong path is a 404 that says where the API is, and no 405.
            found = await super().get_response(path, {**scope, "method": "GET"})
        except HTTPException as error:
            where = "the API is at /v1, and GET /openapi.json lists it"
            raise ApiError(404, f"{asked} is not an endpoint; {where}.") from error
        if scope["method"] != "GET":
            raise HTTPException(405, headers={"Allow": "GET"})
        return found


MAX_BODY = 8 << 20
"""Maximum size of a request body, in bytes."""

_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; frame-ancestors 'none'; form-action 'none'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


class Guard:
    """Middleware for limits, counts and headers of every request.

    It refuses bodies of more than `MAX_BODY` bytes while they arrive, counts requests by route and
    status, logs a line for each, answers HEAD like GET, and adds security headers for browsers.
    """

    def __init__(self, app: ASGIApp, counter: Counter) -> None:
        self._app, self._counter = app, counter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        left, status, begun = MAX_BODY, 0, time.monotonic()
        method, path = scope["method"], scope["path"]
        state = scope.setdefault("state", {})
        # Filled while the answer is written, so that a cut answer is logged with what it had.
        state["written"] = collections.Counter[str]()
        # uvicorn knows of HEAD, and sends no body.
        own = {**scope, "method": "GET"} if method == "HEAD" else scope

        async def limited() -> Message:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                raise HTTPException(413, f"The body has more than {MAX_BODY >> 20} MB; send less")
            return message

        def count(found: int) -> None:
            nonlocal status
            status = found
            # Known once routed; an unknown address gets no label of its own.
            self._counter.labels(getattr(own.get("route"), "path", "other"), str(status)).inc()

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                count(message["status"])
                # On every reply, errors too: a browser may be led to any address.
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        try:
            await self._app(own, limited, with_headers)
        except asyncio.CancelledError:
            # The server has ended, and waits no longer.
            if not status:
                going = ApiError(503, "The server is going away.", headers={"Retry-After": "1"})
                await JSONResponse(going.body(), 503, going.headers)(own, receive, with_headers)
        finally:
            if not status:
                count(500)
            seconds, written = time.monotonic() - begun, state["written"]
            tokens = f", {written['edge']} edge + {written['cloud']} cloud tokens"
            # No query, which may hold a key. Lines that a stranger can cause are limited.
            log = requests if "caller" in state else others
            line = (method, shown(path), status, seconds, tokens if written else "")
            log.info("%s %s %d in %.2f s%s", *line)


# From a token of a fast edge to a whole answer of a slow one.
_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class Metrics(Collector):
    """A server's Prometheus metrics."""

    def __init__(self, answering: Answering) -> None:
        # Of its own, so that several servers fit in a process.
        self.registry = CollectorRegistry()
        self._queue, self._billing = answering.queue, answering.pair.billing
        self.registry.register(self)
        self.requests = self._counter("requests", "Requests.", "path", "status")
        self._tokens = self._counter("generation_tokens", "Output tokens.", "source")
        self._consults = self._counter("consults", "Consults by outcome.", "outcome")
        self._wasted = self._counter("wasted_tokens", "Cloud tokens not used.")
        self._tiers = self._counter("tier", "Counts per cloud tier.", "cloud", "count")
        self._first = self._histogram("time_to_first_token_seconds", "Time to first token.")
        self._gap = self._histogram("inter_token_latency_seconds", "Seconds between tokens.")
        self._consult = self._histogram("consult_seconds", "Seconds of a consult.")

    def collect(self) -> Iterator[Metric]:
        """Yield gauges: answers running and waiting; if a price is set, three costs so far."""
        queue = self._queue
        yield GaugeMetricFamily("edgewise_running", "Answers being decoded.", queue.running)
        yield GaugeMetricFamily("edgewise_waiting", "Answers in the queue.", queue.waiting)
        if self._billing is not None:
            # Read on demand, so that answers that were cut count, too.
            costs = self._billing.savings()
            for name, help, value in (
                ("paid_total", "What consults cost, in the price list's currency.", costs.paid),
                ("alone_total", "What the cloud alone would have cost.", costs.alone),
                ("saved", "The difference; negative where it was lost.", costs.saved),
            ):
                yield GaugeMetricFamily(f"edgewise_cost_{name}", help, value)

    def count(self, event: object) -> None:
        """Add a `Token`, `Consult` or `Finished` event to the counters; ignore any other event."""
        if isinstance(event, Token):
            self._tokens.labels(event.source).inc()
            (self._gap if event.index else self._first).observe(event.seconds)
        elif isinstance(event, Consult):
            self._consults.labels(event.outcome).inc()
            self._consult.observe(event.seconds)
        elif isinstance(event, Finished):
            self._wasted.inc(event.usage.wasted_tokens)
            for tier in event.usage.tiers:
                for part in ("wanted", "calls", "failed", "wrote"):
                    self._tiers.labels(tier.cloud, part).inc(getattr(tier, part))

    def _counter(self, name: str, help: str, *labels: str) -> Counter:
        return Counter(f"edgewise_{name}", help, labels, registry=self.registry)

    def _histogram(self, name: str, help: str) -> Histogram:
        return Histogram(f"edgewise_{name}", help, buckets=_SECONDS, registry=self.registry)
