"""The application: the APIs, health, metrics, the page."""

import time
from collections.abc import Sequence
from functools import partial
from importlib.metadata import version
from importlib.resources import files
from typing import Any

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.middleware.cors import CORSMiddleware
from fastapi.staticfiles import StaticFiles
from msgspec.structs import asdict
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from edgewise.costs.meter import Billing
from edgewise.events import Consult, Finished, Token
from edgewise.listening.origins import ANY, OriginCheck
from edgewise.parts import make_policy, sampling_of
from edgewise.server import chat, completions, messages, responses
from edgewise.server.answering import Answering
from edgewise.server.callers import Callers, caller_of
from edgewise.server.errors import ApiError, install
from edgewise.server.models import Models, models_of, policy_for

_METHODS = ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]
_REFUSALS: dict[int | str, dict[str, Any]] = {
    400: {"description": "Bad input, in one sentence."},
    401: {"description": "The key is wrong or missing."},
    404: {"description": "There is no such model."},
    413: {"description": "The body is too large."},
    429: {"description": "The queue is full; `Retry-After` tells when to come back."},
    502: {"description": "The cloud failed, and `--on-cloud-error raise` ends the answer then."},
}


keyed = APIRouter()
about = APIRouter()
STARTED = int(time.time())


def _entry(name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": STARTED, "owned_by": "edgewise"}


@keyed.get("/v1/models")
async def listed(request: Request) -> dict[str, Any]:
    """The model ids; any `NAME@SHARE` or `NAME:tTHRESHOLD` may be asked for as well."""
    return {"object": "list", "data": [_entry(name) for name in models_of(request).ids()]}


@keyed.get("/v1/models/{model}")
async def model(model: str, request: Request) -> dict[str, Any]:
    """One of them."""
    policy_for(models_of(request).asked(model), model)
    return _entry(model)


@keyed.get("/v1/sent")
def sent(request: Request) -> dict[str, Any]:
    """What the last answers sent to the cloud: counts, never text; the newest first.

    `at` is when an answer began to send, in seconds since 1970.
    """
    caller_of(request).require_operator()
    answers = [
        (one.name, sent) for one in models_of(request).all for sent in one.pair.record.answers()
    ]
    answers.sort(key=lambda entry: entry[1].at, reverse=True)
    return {"object": "list", "data": [{"model": name, **asdict(sent)} for name, sent in answers]}


@about.get("/health")
async def health(request: Request) -> dict[str, Any]:
    """That it runs, with which models, and whether the cloud answers."""
    models = models_of(request)
    each = [{"model": one.name, **_health_of(one)} for one in models.all]
    return {"status": "ok", **_health_of(models.first), "models": each}


@about.api_route("/v1/{path:path}", methods=_METHODS, include_in_schema=False)
async def unknown(request: Request) -> None:
    """Comes after all endpoints, and before the page's files."""
    asked = f"{request.method} {request.url.path[:80]!r}"
    raise ApiError(404, f"{asked} is not answered; GET /openapi.json lists what is.")


@keyed.get("/metrics", response_class=Response)
async def metrics(request: Request) -> Response:
    """Counters in Prometheus's text format."""
    text = request.app.state.metrics.text()
    return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")


def _health_of(answering: Answering) -> dict[str, Any]:
    decoder = answering.pair.decoder
    latency = decoder.latency
    policy = make_policy(answering.settings, answering.starts)
    cloud = answering.cloud
    drawn = answering.pair.chat_sampling or sampling_of(answering.settings)
    return {
        "edge": answering.edge.name,
        "edge_parameters": answering.edge.parameters,
        "cloud": ", ".join(one.name for one in answering.pair.clouds) or None,
        "cloud_parameters": cloud.local.parameters if cloud and cloud.local else None,
        "vocabulary": cloud.vocabulary_check if cloud else None,
        "cloud_paused": decoder.breaker.is_open,
        "bundled": answering.bundled,
        "cloud_share": policy.cloud_share,
        "threshold": policy.threshold if policy.cloud_share is None else None,
        **{name: getattr(drawn, name) for name in ("temperature", "top_k", "top_p", "min_p")},
        "round_trip_seconds": latency.round_trip,
        "engine_seconds": latency.engine,
    }


def make_app(
    models: Models,
    *,
    callers: Callers | None = None,
    origins: Sequence[str] = (),
    hosts: Sequence[str] = (ANY,),
) -> FastAPI:
    """The application over loaded pairs.

    `callers` may use `/v1` and `/metrics` (None: everybody). `origins` are those of other pages
    that may ask, `hosts` the names that requests may be addressed to.
    """
    app = FastAPI(
        title="Edgewise",
        version=version("edgewise"),
        summary="OpenAI's API over a small model on this device and a large one where it counts.",
        docs_url=None,
        redoc_url=None,
        # A redirect would lose a client's own headers.
        redirect_slashes=False,
    )
    install(app)
    callers = callers or Callers()
    app.state.models, app.state.metrics = models, Metrics(models)
    apis = [one.router for one in (chat, completions, responses, messages)]
    for endpoints in (*apis, keyed):
        checked = [Depends(callers.check)]
        app.include_router(endpoints, dependencies=checked, responses=_REFUSALS)
    app.include_router(about)
    if origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"]
        )
    app.add_middleware(Guard, counter=app.state.metrics.requests)
    app.add_middleware(OriginCheck, hosts=hosts, origins=origins)
    page = StaticFiles(directory=str(files("edgewise.server") / "page"), html=True)
    app.mount("/", page)
    return app


MAX_BODY = 8 << 20
"""Largest request body, bytes."""

_HEADERS = {
    "Content-Security-Policy": (
        "default-src 'self'; frame-ancestors 'none'; form-action 'none'; base-uri 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


class Guard:
    """Refuses bodies above `MAX_BODY`, whatever their headers promise. Counts requests by route and
    status. Adds headers that keep browsers from more than the page needs."""

    def __init__(self, app: ASGIApp, counter: Counter) -> None:
        self._app, self._counter = app, counter

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        left = MAX_BODY

        async def limited() -> Message:
            nonlocal left
            message = await receive()
            left -= len(message.get("body", b""))
            if left < 0:
                raise HTTPException(413, f"The body has more than {MAX_BODY >> 20} MB; send less")
            return message

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                # Known once routed; an unknown address gets no label of its own.
                path = getattr(scope.get("route"), "path", "other")
                self._counter.labels(path, str(message["status"])).inc()
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        await self._app(scope, limited, with_headers)


_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


_COSTS = {
    "paid_total": "What consults cost, in the price list's currency.",
    "alone_total": "What the cloud alone would have cost.",
    "saved": "The difference; negative where it was lost.",
}


class Metrics:
    """Counters in a registry of their own, so that several servers fit in one process."""

    def __init__(self, models: Models) -> None:
        own = self._registry = CollectorRegistry()
        running = Gauge("edgewise_running", "Answers being written.", ["model"], registry=own)
        waiting = Gauge("edgewise_waiting", "Answers in the queue.", ["model"], registry=own)
        for one in models.all:
            running.labels(one.name).set_function(lambda one=one: one.admission.running)
            waiting.labels(one.name).set_function(lambda one=one: one.admission.waiting)
        # Read on demand, so cut answers count too.
        billed = [(one.name, one.pair.billing) for one in models.all if one.pair.billing]
        for name, help in _COSTS.items() if billed else ():
            cost = Gauge(f"edgewise_cost_{name}", help, ["model"], registry=own)
            for model, billing in billed:
                read = partial(_cost, billing, name.removesuffix("_total"))
                cost.labels(model).set_function(read)
        self.requests = self._counter("requests", "Requests.", "path", "status")
        self._tokens = self._counter("tokens", "Tokens.", "model", "source")
        self._consults = self._counter("consults", "Consults.", "model", "outcome")
        self._wasted = self._counter("wasted_tokens", "Cloud tokens dropped.", "model")
        self._tiers = self._counter("tier", "Of several clouds.", "model", "cloud", "count")
        self._first = self._histogram("ttft_seconds", "Time to first token.")
        self._gap = self._histogram("inter_token_seconds", "Between two tokens.")
        self._consult = self._histogram("consult_seconds", "Consults.")

    def text(self) -> bytes:
        """All counters."""
        return generate_latest(self._registry)

    def count(self, model: str, event: object) -> None:
        """Count one event of a model's answer."""
        if isinstance(event, Token):
            self._tokens.labels(model, event.source).inc()
            (self._gap if event.index else self._first).labels(model).observe(event.seconds)
        elif isinstance(event, Consult):
            self._consults.labels(model, event.outcome).inc()
            self._consult.labels(model).observe(event.seconds)
        elif isinstance(event, Finished):
            self._wasted.labels(model).inc(event.usage.wasted_tokens)
            for tier in event.usage.tiers:
                for part in ("wanted", "asked", "failed", "wrote"):
                    self._tiers.labels(model, tier.cloud, part).inc(getattr(tier, part))

    def _counter(self, name: str, help: str, *labels: str) -> Counter:
        return Counter(f"edgewise_{name}", help, labels, registry=self._registry)

    def _histogram(self, name: str, help: str) -> Histogram:
        return Histogram(
            f"edgewise_{name}", help, ["model"], buckets=_SECONDS, registry=self._registry
        )


def _cost(billing: Billing, part: str) -> float:
    return getattr(billing.savings(), part)
