"""The application: OpenAI's endpoints, health, metrics, documentation, the page."""

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

from edgewise.cloud.record.record import by_answer
from edgewise.listening.visitors import ANY, Visitors
from edgewise.parts import make_policy
from edgewise.server import (
    chat_completions,
    completions,
    messages,
    responses,
    tokenizing,
    unplug,
)
from edgewise.server.answering import Answering
from edgewise.server.callers import Callers
from edgewise.server.elsewhere import Elsewhere
from edgewise.server.errors import install
from edgewise.server.guards import BodyLimit, Counted, Headers
from edgewise.server.metrics import ServerMetrics
from edgewise.server.models import Models, policy_for
from edgewise.server.schemas import ErrorReply, ModelEntry, ModelList
from edgewise.server.usage_schemas import (
    CostUsage,
    ModelSavings,
    SavingsEntry,
    SavingsReply,
    SentEntry,
    SentList,
)

_DOCS = "/docs-assets"
_REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorReply, "description": description}
    for status, description in (
        (400, "Bad input, said in one sentence."),
        (401, "The key is wrong or missing."),
        (404, "There is no such model."),
        (413, "The body is too large."),
        (429, "The queue is full; `Retry-After` says when to come back."),
        (502, "The cloud failed, where that was asked to end the answer."),
    )
}


def make_app(
    models: Models,
    *,
    callers: Callers | None = None,
    origins: Sequence[str] = (),
    hosts: Sequence[str] = (ANY,),
) -> FastAPI:
    """The application over loaded pairs.

    `callers` are let in at `/v1` and `/metrics` (None: anybody); `origins` of other pages that may
    ask; `hosts` that requests may be addressed to.
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
    for endpoints in (chat_completions, completions, responses, messages):
        v1.include_router(endpoints.routes(models))
    v1.include_router(_models(models))
    v1.include_router(_sent(models), dependencies=own)
    v1.include_router(_savings(models), dependencies=own)
    v1.include_router(unplug.routes([one.running for one in models.all]))
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
    app.add_middleware(Visitors, hosts=hosts, origins=origins)
    app.mount(_DOCS, StaticFiles(directory=swagger_ui_bundle.swagger_ui_path))
    page = StaticFiles(directory=str(files("edgewise.server") / "page"), html=True)
    app.mount("/", Elsewhere(app, page))
    return app


def _models(models: Models) -> APIRouter:
    router = APIRouter()
    started = int(time.time())

    @router.get("/models")
    async def listed() -> ModelList:  # pyright: ignore[reportUnusedFunction]
        """The model ids; any `NAME@SHARE` or `NAME:tTHRESHOLD` may be asked for as well."""
        return ModelList(data=[ModelEntry(id=name, created=started) for name in models.ids()])

    @router.get("/models/{model}")
    async def model(model: str) -> ModelEntry:  # pyright: ignore[reportUnusedFunction]
        """One of them."""
        policy_for(models.asked(model), model)
        return ModelEntry(id=model, created=started)

    return router


def _sent(models: Models) -> APIRouter:
    router = APIRouter()

    @router.get("/sent")
    def sent() -> SentList:  # pyright: ignore[reportUnusedFunction]
        """What the last answers sent to the cloud: counts, never text."""
        found = [
            SentEntry(
                model=one.name,
                at=first.at,
                conversation=first.conversation,
                answer=first.answer,
                **asdict(counts),
            )
            for one in models.all
            for first, counts in reversed(by_answer(one.record.messages()))
        ]
        return SentList(data=sorted(found, key=lambda entry: -entry.at))

    return router


def _savings(models: Models) -> APIRouter:
    router = APIRouter()

    @router.get("/savings")
    def savings() -> SavingsReply:  # pyright: ignore[reportUnusedFunction]
        """What answers cost since the server began, against the cloud alone."""
        found = [_savings_of(one) for one in models.all]
        conversations = [
            SavingsEntry(
                model=one.name,
                conversation=str(told.conversation),
                answers=told.answers,
                **asdict(told.cost),
            )
            for one in models.all
            for told in (one.billing.conversations() if one.billing else [])
        ]
        return SavingsReply(
            answers=sum(one.answers for one in found),
            total=_summed([one.total for one in found if one.total]),
            models=found,
            conversations=conversations,
        )

    return router


def _savings_of(answering: Answering) -> ModelSavings:
    if answering.billing is None:
        return ModelSavings(model=answering.name, answers=0, total=None)
    found = answering.billing.savings()
    total = CostUsage(**asdict(found.cost))
    return ModelSavings(model=answering.name, answers=found.answers, total=total)


def _summed(costs: Sequence[CostUsage]) -> CostUsage | None:
    """None for none, and where they have no currency in common."""
    if len({cost.currency for cost in costs}) != 1:
        return None
    return CostUsage(
        paid=sum(cost.paid for cost in costs),
        alone=sum(cost.alone for cost in costs),
        saved=sum(cost.saved for cost in costs),
        currency=costs[0].currency,
        input_tokens=sum(cost.input_tokens for cost in costs),
        cached_tokens=sum(cost.cached_tokens for cost in costs),
        output_tokens=sum(cost.output_tokens for cost in costs),
        estimated=any(cost.estimated for cost in costs),
    )


def _about(models: Models, counted: ServerMetrics, guarded: Sequence[Any]) -> APIRouter:
    router = APIRouter()

    @router.get("/health")
    async def health() -> dict[str, Any]:  # pyright: ignore[reportUnusedFunction]
        """That it runs, with what, and whether the cloud answers: the first model, then each."""
        told = [{"model": one.name, **_health_of(one)} for one in models.all]
        return {"status": "ok", **_health_of(models.first), "models": told}

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
    latency = answering.latency
    policy = make_policy(answering.settings, answering.card)
    return {
        "edge": answering.edge.name,
        "cloud": answering.cloud.name if answering.cloud else None,
        "vocabulary": answering.cloud.proof if answering.cloud else None,
        "cloud_paused": answering.breaker.is_open,
        "bundled": answering.bundled,
        "cloud_share": policy.cloud_share,
        "threshold": policy.threshold if policy.cloud_share is None else None,
        "round_trip_seconds": latency.round_trip,
        "engine_seconds": latency.engine,
    }
