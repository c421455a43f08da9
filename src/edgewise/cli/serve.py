"""`edgewise serve`: OpenAI's API and a page in front of the pair."""

import socket
from contextlib import ExitStack
from typing import Annotated

import typer
from msgspec.structs import replace

from edgewise import pair, settings
from edgewise.cli import options, render
from edgewise.cli.run import sampling_of
from edgewise.errors import UsageError
from edgewise.settings import Settings

LOOPBACK = ("127.0.0.1", "localhost")
DEFAULT_SLOTS = 4


def serve(
    edge: options.Edge = None,
    cloud: options.Cloud = None,
    cloud_engine: options.CloudEngine = None,
    router: options.Router = None,
    cloud_share: options.CloudShare = None,
    threshold: options.Threshold = None,
    max_cloud_tokens: options.MaxCloudTokens = None,
    span: options.Span = None,
    run_ahead: options.RunAhead = None,
    deadline: options.Deadline = None,
    on_cloud_error: options.OnCloudError = None,
    max_tokens: options.MaxTokens = None,
    temperature: options.Temperature = None,
    top_k: options.TopK = None,
    top_p: options.TopP = None,
    min_p: options.MinP = None,
    seed: options.Seed = None,
    ctx: options.Ctx = None,
    threads: options.Threads = None,
    gpu_layers: options.GpuLayers = None,
    slots: Annotated[int | None, typer.Option(help="Answers written at once; default 4.")] = None,
    queue: Annotated[int, typer.Option(min=0, help="Answers that may wait; more get a 429.")] = 32,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = LOOPBACK[0],
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on.")] = 8300,
    api_key: Annotated[
        str | None, typer.Option(help="Key that clients need; better in EDGEWISE_API_KEY.")
    ] = None,
    cors_origin: Annotated[
        list[str] | None, typer.Option(help="Origin of another page that may ask; repeatable.")
    ] = None,
) -> None:
    """Serve OpenAI's API and a chat page: model ids edgewise, edgewise@0.05, edgewise:edge|cloud.

    What a request leaves out is as the flags say.
    """
    flags = {name: value for name, value in locals().items() if name in Settings.__struct_fields__}
    chosen = settings.load(flags)
    if host not in LOOPBACK and not chosen.api_key:
        raise UsageError(
            f"Without a key anybody who reaches {host} could use the models; give --api-key."
        )
    sampling_of(chosen)  # refused now and not at every request
    _require_extra()
    import uvicorn

    from edgewise.server.answering import Answering
    from edgewise.server.app import make_app

    chosen = replace(chosen, slots=chosen.slots or DEFAULT_SLOTS)
    with ExitStack() as stack:
        listening = stack.enter_context(_listen(host, port))
        edge_model = pair.open_edge(chosen, keep_prefixes=True)
        stack.callback(edge_model.close)
        scorer, card = pair.open_router(chosen, edge_model)
        pair.make_policy(chosen, card)
        cloud_model = pair.open_cloud(chosen, edge_model, keep_prefixes=True)
        if cloud_model is not None:
            stack.callback(cloud_model.close)
        answering = Answering(
            edge=edge_model,
            router=scorer,
            card=card,
            settings=chosen,
            cloud=cloud_model,
            slots=chosen.slots or DEFAULT_SLOTS,
            queue=queue,
        )
        stack.callback(answering.close)
        hosts = (*LOOPBACK, host) if host in LOOPBACK else ("*",)
        app = make_app(answering, api_key=chosen.api_key, origins=cors_origin or (), hosts=hosts)
        where = f"http://{host}:{listening.getsockname()[1]}"
        render.note(f"serving {edge_model.name} at {where} (page, /v1, /docs)")
        config = uvicorn.Config(
            app,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=5,
        )
        uvicorn.Server(config).run(sockets=[listening])


def _listen(host: str, port: int) -> socket.socket:
    """Before the models are loaded, which takes longer than finding out that a port is taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UsageError(f"{host}:{port} cannot be listened on: {reason}.") from error


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
