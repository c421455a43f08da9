"""`edgewise serve`: OpenAI's API and a page in front of the pair."""

import asyncio
from collections.abc import Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated

import typer

from edgewise.cli import render
from edgewise.cli.listening import CertificateFile, ListenFlags, Most, PerPeer, PrivateKeyFile
from edgewise.cli.options import (
    COSTS,
    MACHINE,
    MODELS,
    RECORD,
    ROUTING,
    SAMPLING,
    SERVING,
    VIEW,
    SentFile,
    takes,
)
from edgewise.errors import UsageError
from edgewise.listening.sockets import LOOPBACK, address_of, is_loopback, listen
from edgewise.pair import Pair, open_pair
from edgewise.parts import sampling_of
from edgewise.settings import Settings

if TYPE_CHECKING:
    from fastapi import FastAPI

    from edgewise.listening.config import Door
    from edgewise.server.answering import Answering

DEFAULT_SLOTS = 4
OPEN_FILES = 64
"""Left for the cloud's connections."""


@takes(
    *(*MODELS, *VIEW, *ROUTING, *SAMPLING, *MACHINE, *COSTS, *SERVING, *RECORD),
    reads=["cloud_key"],
)
def serve(
    chosen: Settings,
    queue: Annotated[int, typer.Option(min=0, help="Answers that may wait; more get a 429.")] = 32,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = LOOPBACK[0],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.")] = 8300,
    cors_origin: Annotated[
        list[str] | None, typer.Option(help="Origin of another page that may ask; repeatable.")
    ] = None,
    certificate: CertificateFile = None,
    private_key: PrivateKeyFile = None,
    connections: Most = None,
    connections_per_peer: PerPeer = 0,
    sent_file: SentFile = None,
) -> None:
    """Serve OpenAI's API and a chat page: model ids edgewise, edgewise@0.05, edgewise:edge|cloud.

    What a request leaves out is as the flags say.
    """
    if not is_loopback(host) and not chosen.api_key:
        raise UsageError(
            f"Without a key anybody who reaches {host} could use the models; give --api-key."
        )
    sampling_of(chosen)  # refused now and not once the models are loaded
    _require_extra()
    origins = _origins(cors_origin)
    listens = ListenFlags(certificate, private_key, connections, connections_per_peer)
    listens.require_whole()
    slots = chosen.slots or DEFAULT_SLOTS
    with ExitStack() as stack:
        # Before the models are loaded, which takes longer than finding out that a port is taken.
        listening = stack.enter_context(listen(host, port))
        door = listens.door(listening, reserve=OPEN_FILES)
        pair = stack.enter_context(
            open_pair(chosen, slots=slots, keep_prefixes=True, sent_file=sent_file)
        )
        answering = _answering(pair, chosen, slots=slots, queue=queue)
        stack.callback(answering.close)
        app = _app(answering, chosen.api_key, origins, host)
        where = address_of(listening, host, tls=listens.tls)
        render.note(f"serving {pair.edge.name} at {where} (page, /v1, /docs)")
        _run(app, door)


def _answering(pair: Pair, chosen: Settings, *, slots: int, queue: int) -> "Answering":
    from edgewise.server.answering import Answering

    return Answering(
        edge=pair.edge,
        router=pair.router,
        card=pair.card,
        settings=chosen,
        cloud=pair.cloud,
        record=pair.record,
        billing=pair.billing,
        slots=slots,
        queue=queue,
    )


def _app(
    answering: "Answering", api_key: str | None, origins: Sequence[str], host: str
) -> "FastAPI":
    from edgewise.server.app import make_app

    hosts = (*LOOPBACK, host) if is_loopback(host) else ("*",)
    return make_app(answering, api_key=api_key, origins=origins, hosts=hosts)


def _run(app: "FastAPI", door: "Door") -> None:
    """Until a signal ends it."""
    from edgewise.listening.config import ListenConfig
    from edgewise.listening.logs import plain_lines
    from edgewise.listening.server import Listener

    with plain_lines():
        asyncio.run(Listener(ListenConfig(app, door)).listen())


def _origins(given: Sequence[str] | None) -> list[str]:
    """Raises `UsageError` for what no page can have."""
    from edgewise.listening.visitors import require_origin

    return [require_origin(origin) for origin in given or ()]


def _require_extra() -> None:
    try:
        import fastapi
        import sse_starlette
        import swagger_ui_bundle
        import uvicorn

        del fastapi, sse_starlette, swagger_ui_bundle, uvicorn
    except ImportError as error:
        raise UsageError(
            f"The server needs {error.name}: pip install 'edgewise[serve]'."
        ) from error
