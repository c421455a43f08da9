"""`edgewise run`: one answer."""

import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, BinaryIO

import msgspec
import typer

from edgewise import pair, settings
from edgewise.cli import options, render
from edgewise.edge.base import Tokenizer
from edgewise.errors import UsageError
from edgewise.loop.decoder import Decoder, collect
from edgewise.prompts import Message, prompt_ids
from edgewise.routers.card import RouterCard
from edgewise.sampling import Sampling
from edgewise.settings import Settings
from edgewise.traces.recorder import Recorder

MAX_PROMPT = 4 << 20
"""Longest prompt that is read, characters."""


def run(
    prompt: Annotated[str | None, typer.Argument(help="The prompt; without it, stdin.")] = None,
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
    stop: Annotated[list[str] | None, typer.Option(help="Stop string; may be repeated.")] = None,
    system: options.System = None,
    ctx: options.Ctx = None,
    threads: options.Threads = None,
    gpu_layers: options.GpuLayers = None,
    no_template: Annotated[
        bool, typer.Option("--no-template", help="Send the prompt as it is.")
    ] = False,
    json: options.Json = False,
    trace: Annotated[
        Path | None, typer.Option(help="Write the timeline to FILE; see edgewise trace show.")
    ] = None,
) -> None:
    """Answer PROMPT: the edge model writes, the cloud model writes the critical tokens."""
    flags = {name: value for name, value in locals().items() if name in Settings.__struct_fields__}
    chosen = settings.load(flags)
    if no_template and chosen.system:
        raise UsageError("--no-template leaves no place for --system; drop one of them.")
    require_unicode("The system message", chosen.system or "")
    text = _read(prompt)
    with ExitStack() as stack:
        decoder, _ = open_decoder(chosen, stack)
        ids = _ids(decoder.edge.tokenizer, text, chosen.system, template=not no_template)
        recorder = Recorder(stack.enter_context(_open(trace))) if trace else None
        events = stack.enter_context(
            (recorder.decoder(decoder) if recorder else decoder).stream(
                ids,
                max_tokens=chosen.max_tokens,
                sampling=sampling_of(chosen),
                stop=stop or (),
                pending=recorder is not None,
            )
        )
        recorded = recorder.events(events) if recorder else events
        if json:
            print(msgspec.json.encode(collect(recorded)).decode())
        else:
            answer = render.paint(recorded)
            render.note(render.summary(answer))


def open_decoder(
    chosen: Settings, stack: ExitStack, *, keep_prefixes: bool = False
) -> tuple[Decoder, RouterCard | None]:
    """A decoder with everything the settings name, and its router's card; `stack` closes it."""
    edge = pair.open_edge(chosen, keep_prefixes=keep_prefixes)
    stack.callback(edge.close)
    router, card = pair.open_router(chosen, edge)
    policy = pair.make_policy(chosen, card)
    cloud = pair.open_cloud(chosen, edge, keep_prefixes=keep_prefixes)
    if cloud is not None:
        stack.callback(cloud.close)
    return Decoder(edge, router=router, policy=policy, cloud=cloud), card


def sampling_of(chosen: Settings) -> Sampling:
    """The sampling that the settings name."""
    return Sampling(
        temperature=chosen.temperature,
        top_k=chosen.top_k,
        top_p=chosen.top_p,
        min_p=chosen.min_p,
        seed=chosen.seed or 0,
    )


def _ids(tokenizer: Tokenizer, text: str, system: str | None, *, template: bool) -> list[int]:
    if not template:
        return tokenizer.encode_prompt(text)
    messages = [Message("system", system)] if system else []
    return prompt_ids(tokenizer, [*messages, Message("user", text)])


def _read(prompt: str | None) -> str:
    if prompt is None and sys.stdin.isatty():
        raise UsageError("There is no prompt; give one as an argument or on stdin.")
    text = _from_stdin() if prompt is None else prompt
    require_unicode("The prompt", text)
    if not text.strip():
        raise UsageError("The prompt is empty; give at least one character.")
    if len(text) > MAX_PROMPT:
        raise UsageError(f"The prompt has more than {MAX_PROMPT} characters; shorten it.")
    return text


def _from_stdin() -> str:
    """Undecodable bytes come as surrogates, as they do in arguments."""
    data = sys.stdin.buffer.read(4 * MAX_PROMPT + 1)
    return data.decode("utf-8", "surrogateescape")


def require_unicode(what: str, text: str) -> None:
    """Raises `UsageError` for text that came from undecodable bytes."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{what} is no valid UTF-8; convert it first.") from error


def _open(path: Path) -> BinaryIO:
    try:
        return path.open("wb", buffering=0)
    except OSError as error:
        raise UsageError(f"The trace {str(path)!r} cannot be written: {error.strerror}.") from error
