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
from prometheus_client import generate_latest

from edgewise.cloud.sent_record import by_answer
from edgewise.listening.visitors import ANY, Visitors
from edgewise.server import chat_completions, completions, messages, responses, tokenizing
from edgewise.server.answering import Answering
from edgewise.server.elsewhere import Elsewhere
from edgewise.server.errors import install
from edgewise.server.guards import BodyLimit, Counted, Headers, key_check
from edgewise.server.models import model_ids, policy_for
from edgewise.server.schemas import ErrorReply, ModelEntry, ModelList
from edgewise.server.usage_schemas import (
    CostUsage,
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
    answering: Answering,
    *,
    api_key: str | None = None,
    origins: Sequence[str] = (),
    hosts: Sequence[str] = (ANY,),
) -> FastAPI:
    """The application over a loaded pair.

    `api_key` is asked for at `/v1` and `/metrics`; `origins` of other pages that may ask;
    `hosts` that requests may be addressed to.
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
    guarded = [Depends(key_check(api_key))]
    v1 = APIRouter(prefix="/v1", dependencies=guarded, responses=_REFUSALS)
    v1.include_router(chat_completions.routes(answering))
    v1.include_router(completions.routes(answering))
    v1.include_router(responses.routes(answering))
    v1.include_router(messages.routes(answering))
    v1.include_router(_models(answering))
    v1.include_router(_sent(answering))
    v1.include_router(_savings(answering))
    app.include_router(v1)
    app.include_router(tokenizing.routes(answering), dependencies=guarded, responses=_REFUSALS)
    app.include_router(_about(answering, guarded))
    app.add_middleware(Counted, counter=answering.metrics.requests)
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


def _models(answering: Answering) -> APIRouter:
    router = APIRouter()
    started = int(time.time())

    @router.get("/models")
    async def models() -> ModelList:  # pyright: ignore[reportUnusedFunction]
        """The model ids; any `edgewise@SHARE` may be asked for besides."""
        ids = model_ids(cloud=answering.cloud is not None)
        return ModelList(data=[ModelEntry(id=name, created=started) for name in ids])

    @router.get("/models/{model}")
    async def model(model: str) -> ModelEntry:  # pyright: ignore[reportUnusedFunction]
        """One of them."""
        cloud = answering.cloud is not None
        policy_for(model, answering.settings, answering.card, cloud=cloud)
        return ModelEntry(id=model, created=started)

    return router


def _sent(answering: Answering) -> APIRouter:
    router = APIRouter()

    @router.get("/sent")
    def sent() -> SentList:  # pyright: ignore[reportUnusedFunction]
        """What the last answers sent to the cloud: counts, never text."""
        return SentList(
            data=[
                SentEntry(
                    at=first.at,
                    conversation=first.conversation,
                    answer=first.answer,
                    **asdict(counts),
                )
                for first, counts in reversed(by_answer(answering.record.messages()))
            ]
        )

    return router


def _savings(answering: Answering) -> APIRouter:
    router = APIRouter()

    @router.get("/savings")
    def savings() -> SavingsReply:  # pyright: ignore[reportUnusedFunction]
        """What answers cost since the server began, against the cloud alone."""
        billing = answering.billing
        if billing is None:
            return SavingsReply(answers=0, total=None, conversations=[])
        found = billing.savings()
        return SavingsReply(
            answers=found.answers,
            total=CostUsage(**asdict(found.cost)),
            conversations=[
                SavingsEntry(
                    conversation=str(one.conversation), answers=one.answers, **asdict(one.cost)
                )
                for one in billing.conversations()
            ],
        )

    return router


def _about(answering: Answering, guarded: Sequence[Any]) -> APIRouter:
    router = APIRouter()

    @router.get("/health")
    async def health() -> dict[str, Any]:  # pyright: ignore[reportUnusedFunction]
        """That it runs, with what, and whether the cloud answers."""
        latency = answering.latency
        return {
            "status": "ok",
            "edge": answering.edge.name,
            "cloud": answering.cloud.name if answering.cloud else None,
            "cloud_paused": answering.breaker.is_open,
            "round_trip_seconds": latency.round_trip,
            "engine_seconds": latency.engine,
        }

    @router.get("/metrics", dependencies=list(guarded), response_class=Response)
    async def metrics() -> Response:  # pyright: ignore[reportUnusedFunction]
        """Counters in Prometheus's text format."""
        found = answering.metrics
        found.running.set(answering.admission.running)
        found.waiting.set(answering.admission.waiting)
        text = generate_latest(found.registry)
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
