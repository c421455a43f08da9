"""`edgewise serve`: answers OpenAI's API and a chat page by the pair of models."""

import asyncio
import logging
from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from edgewise.cli import listening as flags
from edgewise.cli import render
from edgewise.cli.options import ANSWERING, SentFile, takes
from edgewise.listening.sockets import LOOPBACK, is_loopback
from edgewise.pair import open_pair
from edgewise.settings import Settings

ApiKey = Annotated[
    str | None,
    typer.Option(
        envvar="EDGEWISE_API_KEY",
        show_envvar=False,
        help="API key of clients; better set as EDGEWISE_API_KEY.",
    ),
]

OPEN_FILES = 64
"""Open files that are kept for connections to the cloud model."""


@takes(*ANSWERING, reads=["cloud_key", "edge_key"])
def serve(
    chosen: Settings,
    slots: Annotated[int, typer.Option(min=1, max=256, help="Answers decoded concurrently.")] = 4,
    queue: Annotated[int, typer.Option(min=0, help="Requests that may wait; more get a 429.")] = 32,
    host: flags.Host = LOOPBACK[0],
    port: flags.Port = 8300,
    cors_origin: Annotated[
        list[str] | None, typer.Option(metavar="ORIGIN", help="Allowed CORS origin; repeatable.")
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Another name of this server (a proxy's); repeatable."),
    ] = None,
    keys: Annotated[
        Path | None, typer.Option(help="Key file, one key per client; excludes --api-key.")
    ] = None,
    api_key: ApiKey = None,
    certificate: flags.Certificate = None,
    private_key: flags.PrivateKey = None,
    connections: flags.Connections = None,
    sent_file: SentFile = None,
) -> None:
    """Serve OpenAI's API and a chat page: model ids edgewise, edgewise@0.05, edgewise:edge|cloud.

    edgewise:t0.3 sets a fixed threshold (reproducible answers). The flags are the defaults of a
    request.
    """
    flags.require_guarded(host, keys, api_key, ways="--api-key, or --keys FILE")
    flags.require_extra("serve", "fastapi", "sse_starlette", "structlog", "uvicorn", "websockets")
    from edgewise.keys.keys import Keys  # only now: `require_extra` names what is missing
    from edgewise.listening.logs import REQUESTS, log_lines
    from edgewise.listening.origins import require_host, require_origin
    from edgewise.listening.server import Listener
    from edgewise.server.answering import PAIR, Answering
    from edgewise.server.app import make_app
    from edgewise.server.callers import Callers

    callers = Callers(api_key=api_key, keys=Keys(keys))
    origins = [require_origin(origin) for origin in cors_origin or ()]
    named = [require_host(name) for name in allow_host or ()]
    # Any name will do where keys guard the server, unless some are given.
    hosts = (*LOOPBACK, host, *named) if named or is_loopback(host) else ("*",)
    # What a key finds in a cache must not be what another asked.
    options = {"slots": slots, "keep_prefixes": keys is None, "sent_file": sent_file}
    tls = (certificate, private_key)
    with (  # the port first: that it is taken shows before the models, which take long, are loaded
        flags.listening_at(host, port, tls, connections, reserve=OPEN_FILES) as listening,
        open_pair(chosen, **options) as pair,
        closing(Answering(pair, slots=slots, queue=queue)) as answering,
    ):
        app = make_app(answering, callers=callers, origins=origins, hosts=hosts)
        models = ", ".join(one.name for one in (pair.edge, *pair.clouds))
        if pair.cloud is not None and pair.cloud.reads_passages:
            models += f"; the cloud is asked {render.reads(pair.policy, pair.settings.escalate)}"
        elif pair.policy.verify != "off":
            models += "; the cloud verifies"
        render.note(f"serving {PAIR} ({models}) at {listening.url} (page, /v1)")
        with log_lines("plain", "warning"):
            logging.getLogger(REQUESTS).setLevel("INFO")  # of libraries, only what is wrong
            asyncio.run(Listener(app, listening.socket, **listening.limits).listen())
