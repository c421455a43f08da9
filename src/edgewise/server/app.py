"""The application: the APIs, health, metrics, documentation, the page."""

import time
from collections.abc import Sequence
from importlib.metadata import version
from importlib.resources import files
from typing import Any

import swagger_ui_bundle
from fastapi import APIRouter, Depends, FastAPI, Response
from fastapi.middleware.cors import CORSMiddleware
from fastapi.openapi.docs import get_swagger_ui_html
from fastapi.responses import HTMLResponse
from fastapi.staticfiles import StaticFiles
from msgspec.structs import asdict

from edgewise.listening.origins import ANY, OriginCheck
from edgewise.parts import make_policy
from edgewise.server import chat, completions, messages, responses, tokenizing
from edgewise.server.answering import Answering
from edgewise.server.callers import Callers
from edgewise.server.errors import install
from edgewise.server.guards import BodyLimit, Counted, Elsewhere, Headers
from edgewise.server.metrics import ServerMetrics
from edgewise.server.models import Models, policy_for

_DOCS = "/docs-assets"
_REFUSALS: dict[int | str, dict[str, Any]] = {
    400: {"description": "Bad input, in one sentence."},
    401: {"description": "The key is wrong or missing."},
    404: {"description": "There is no such model."},
    413: {"description": "The body is too large."},
    429: {"description": "The queue is full; `Retry-After` tells when to come back."},
    502: {"description": "The cloud failed, and `--on-cloud-error raise` ends the answer then."},
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
        # A client that sends its own headers need not be told about unexpected slashes.
        redirect_slashes=False,
    )
    install(app)
    callers = callers or Callers()
    guarded, own = [Depends(callers.check)], [Depends(callers.check_operator)]
    v1 = APIRouter(prefix="/v1", dependencies=guarded, responses=_REFUSALS)
    for endpoints in (chat, completions, responses, messages):
        v1.include_router(endpoints.routes(models))
    v1.include_router(_models(models))
    v1.include_router(_accounts(models), dependencies=own)
    metrics = ServerMetrics()
    app.include_router(v1)
    app.include_router(tokenizing.routes(models), dependencies=guarded, responses=_REFUSALS)
    app.include_router(_about(models, metrics, guarded))
    app.add_middleware(Counted, counter=metrics.requests)
    if origins:
        app.add_middleware(
            CORSMiddleware, allow_origins=origins, allow_methods=["*"], allow_headers=["*"]
        )
    app.add_middleware(Headers)
    app.add_middleware(BodyLimit)
    app.add_middleware(OriginCheck, hosts=hosts, origins=origins)
    app.mount(_DOCS, StaticFiles(directory=swagger_ui_bundle.swagger_ui_path))
    page = StaticFiles(directory=str(files("edgewise.server") / "page"), html=True)
    app.mount("/", Elsewhere(app, page))
    return app


def _models(models: Models) -> APIRouter:
    router = APIRouter()
    started = int(time.time())

    def entry(name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": started, "owned_by": "edgewise"}

    @router.get("/models")
    async def listed() -> dict[str, Any]:  # pyright: ignore[reportUnusedFunction]
        """The model ids; any `NAME@SHARE` or `NAME:tTHRESHOLD` may be asked for as well."""
        return {"object": "list", "data": [entry(name) for name in models.ids()]}

    @router.get("/models/{model}")
    async def model(model: str) -> dict[str, Any]:  # pyright: ignore[reportUnusedFunction]
        """One of them."""
        policy_for(models.asked(model), model)
        return entry(model)

    return router


def _accounts(models: Models) -> APIRouter:
    router = APIRouter()

    @router.get("/sent")
    def sent() -> dict[str, Any]:  # pyright: ignore[reportUnusedFunction]
        """What the last answers sent to the cloud: counts, never text; the newest first.

        `at` is when an answer began to send, in seconds since 1970.
        """
        found = [(one.name, sent) for one in models.all for sent in one.pair.record.answers()]
        found.sort(key=lambda entry: entry[1].at, reverse=True)
        return {"object": "list", "data": [{"model": name, **asdict(sent)} for name, sent in found]}

    @router.get("/savings")
    def savings() -> dict[str, Any]:  # pyright: ignore[reportUnusedFunction]
        """What answers cost since the server began, against the cloud alone.

        `total` is null without a price, or where models have different currencies.
        """
        found = [_savings_of(one) for one in models.all]
        conversations = [
            {
                "model": one.name,
                "conversation": str(found.conversation),
                "answers": found.answers,
                **asdict(found.cost),
            }
            for one in models.all
            for found in (one.pair.billing.conversations() if one.pair.billing else [])
        ]
        return {
            "object": "savings",
            "answers": sum(one["answers"] for one in found),
            "total": _summed([one["total"] for one in found if one["total"]]),
            "models": found,
            "conversations": conversations,
        }

    return router


def _savings_of(answering: Answering) -> dict[str, Any]:
    billing = answering.pair.billing
    if billing is None:
        return {"model": answering.name, "answers": 0, "total": None}
    found = billing.savings()
    return {"model": answering.name, "answers": found.answers, "total": asdict(found.cost)}


def _summed(costs: Sequence[dict[str, Any]]) -> dict[str, Any] | None:
    """None for no costs, and for several currencies."""
    if len({cost["currency"] for cost in costs}) != 1:
        return None
    counts = ("paid", "alone", "saved", "input_tokens", "cached_tokens", "output_tokens")
    return {
        **{name: sum(cost[name] for cost in costs) for name in counts},
        "currency": costs[0]["currency"],
        "estimated": any(cost["estimated"] for cost in costs),
    }


def _about(models: Models, counted: ServerMetrics, guarded: Sequence[Any]) -> APIRouter:
    router = APIRouter()

    @router.get("/health")
    async def health() -> dict[str, Any]:  # pyright: ignore[reportUnusedFunction]
        """That it runs, with which models, and whether the cloud answers."""
        each = [{"model": one.name, **_health_of(one)} for one in models.all]
        return {"status": "ok", **_health_of(models.first), "models": each}

    @router.get("/metrics", dependencies=list(guarded), response_class=Response)
    async def metrics() -> Response:  # pyright: ignore[reportUnusedFunction]
        """Counters in Prometheus's text format."""
        for one in models.all:
            one.metrics.running.set(one.admission.running)
            one.metrics.waiting.set(one.admission.waiting)
        each = {one.name: one.metrics for one in models.all}
        text = counted.text(each, told_apart=models.told_apart)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    @router.get("/docs", include_in_schema=False)
    async def docs() -> HTMLResponse:  # pyright: ignore[reportUnusedFunction]
        return get_swagger_ui_html(
            openapi_url="/openapi.json",
            title="Edgewise",
            swagger_js_url=f"{_DOCS}/swagger-ui-bundle.js",
            swagger_css_url=f"{_DOCS}/swagger-ui.css",
            swagger_favicon_url="/icon.svg",
        )

    return router


def _health_of(answering: Answering) -> dict[str, Any]:
    decoder = answering.pair.decoder
    latency = decoder.latency
    policy = make_policy(answering.settings, answering.card)
    return {
        "edge": answering.edge.name,
        "cloud": answering.cloud.name if answering.cloud else None,
        "vocabulary": answering.cloud.proof if answering.cloud else None,
        "cloud_paused": decoder.breaker.is_open,
        "bundled": answering.bundled,
        "cloud_share": policy.cloud_share,
        "threshold": policy.threshold if policy.cloud_share is None else None,
        "round_trip_seconds": latency.round_trip,
        "engine_seconds": latency.engine,
    }
