"""The flags that commands share. None means: not given, ask the environment and the file."""

from typing import Annotated, Literal

import typer

Edge = Annotated[
    str | None,
    typer.Option(help="Edge model: a GGUF file, owner/repo[:QUANT], hf://..., or bundled."),
]
Cloud = Annotated[
    str | None,
    typer.Option(help="Cloud model: an engine's URL, a GGUF as for --edge, bundled or none."),
]
CloudEngine = Annotated[
    str | None,
    typer.Option(
        help="What answers at the cloud's URL: llama-server, vllm, sglang, gateway, or one that a "
        "package adds; auto finds out."
    ),
]
Router = Annotated[
    str | None,
    typer.Option(
        help="bundled, max-prob, margin, entropy, logtoku, random, constant:VALUE, or a "
        "checkpoint's folder or hub repository."
    ),
]
CloudShare = Annotated[
    float | None, typer.Option(help="Fraction of the tokens the cloud may write, 0 to 1.")
]
Threshold = Annotated[
    float | None, typer.Option(help="Ask the cloud from this score on, instead of a share.")
]
MaxCloudTokens = Annotated[
    int | None, typer.Option(help="Absolute cap on cloud tokens per answer.")
]
Span = Annotated[int | None, typer.Option(help="Tokens per consult.")]
RunAhead = Annotated[
    int | None,
    typer.Option(help="Tokens the edge may guess ahead while a consult flies; 0 waits."),
]
Deadline = Annotated[
    float | None,
    typer.Option(help="Seconds a consult may take; default: as the latency is, 0.5 to 5."),
]
OnCloudError = Annotated[
    Literal["edge", "raise"] | None,
    typer.Option(help="When a consult fails: go on with the edge's token, or stop."),
]
MaxTokens = Annotated[int | None, typer.Option(help="Longest answer, tokens.")]
Temperature = Annotated[float | None, typer.Option(help="0 is greedy.")]
TopK = Annotated[int | None, typer.Option(help="Keep the K likeliest; 0 is off.")]
TopP = Annotated[float | None, typer.Option(help="Keep the likeliest up to this mass; 1 is off.")]
MinP = Annotated[float | None, typer.Option(help="Drop below this fraction of the best; 0 is off.")]
Seed = Annotated[int | None, typer.Option(help="Seed of the draws.")]
System = Annotated[str | None, typer.Option(help="System message.")]
Ctx = Annotated[int | None, typer.Option(help="Context, tokens.")]
Threads = Annotated[int | None, typer.Option(help="CPU threads; default: all cores but one.")]
GpuLayers = Annotated[str | None, typer.Option(help="Layers on the GPU: auto or a number.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
