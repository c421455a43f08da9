"""`edgewise bench`: speeds on this machine."""

from typing import Annotated

import msgspec
import typer

from edgewise import registry, settings
from edgewise.cli import options, render
from edgewise.decoding import Decoder
from edgewise.errors import UsageError
from edgewise.evaluation.speed import measure
from edgewise.policy import Policy

app = typer.Typer(help="Measure speeds on this machine.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """Keeps `edge` a subcommand."""


@app.command()
def edge(
    edge: options.Edge = None,
    router: options.Router = None,
    context: Annotated[int, typer.Option(help="Tokens before the first measured one.")] = 128,
    tokens: Annotated[int, typer.Option(help="Tokens per block.")] = 64,
    blocks: Annotated[int, typer.Option(help="Interleaved blocks; at least 5.")] = 5,
    threads: options.Threads = None,
    gpu_layers: options.GpuLayers = None,
    json: options.Json = False,
) -> None:
    """Decoding speed with the router, against the bare engine in the same process."""
    if blocks < 5 or tokens < 1 or context < 1:
        raise UsageError("Give at least 5 blocks of 1 token after a context of 1 token.")
    flags = {"edge": edge, "router": router, "threads": threads, "gpu_layers": gpu_layers}
    chosen = settings.load({**flags, "ctx": context + tokens + 8})
    model = registry.open_edge(chosen)
    try:
        scorer, _ = registry.open_router(chosen, model)
        decoder = Decoder(model, router=scorer, policy=Policy(threshold=1.0))
        speed = measure(decoder, context=context, tokens=tokens, blocks=blocks)
    finally:
        model.close()
    if json:
        print(msgspec.json.encode(speed).decode())
    else:
        render.out.print(
            f"{model.name}, context {context}, {blocks} blocks of {tokens} tokens: bare engine "
            f"{speed.native_tokens_per_second:.1f} tokens/s, Edgewise "
            f"{speed.edgewise_tokens_per_second:.1f} tokens/s, ratio {speed.ratio:.3f} "
            f"({speed.ratio_low:.3f} to {speed.ratio_high:.3f})"
        )
