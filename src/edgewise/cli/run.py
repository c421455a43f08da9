"""`edgewise run`: answers one prompt."""

import os
import stat
import sys
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import msgspec
import typer

from edgewise.cli import options, render
from edgewise.cli.options import ANSWERING, takes
from edgewise.edge.vocabulary import require_fitting
from edgewise.errors import UsageError
from edgewise.grammar.schema import MAX_SCHEMA
from edgewise.loop.decoder import collect
from edgewise.loop.generation import Generation
from edgewise.pair import Pair, open_pair
from edgewise.prompts import MAX_PROMPT, require_text
from edgewise.settings import Settings, file_bytes, unmarked

# Seconds of waiting for stdin after which a note says so.
_PATIENCE = 3.0

_WAITING = "reading stdin until it ends; with </dev/null the prompt is the argument alone"

Stop = Annotated[
    list[str] | None,
    typer.Option(
        metavar="TEXT", help="Stop string; may be repeated.", rich_help_panel=options.WRITING
    ),
]
NoTemplate = Annotated[
    bool,
    typer.Option(
        "--no-template", help="Send the prompt as it is.", rich_help_panel=options.WRITING
    ),
]
JsonSchema = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="Answer with JSON that this schema allows.",
        rich_help_panel=options.WRITING,
    ),
]


@takes(*ANSWERING, reads=["cloud_key", "edge_key"])
def run(
    chosen: Settings,
    prompt: Annotated[
        str | None,
        typer.Argument(metavar="[PROMPT]", help="The prompt; a document on stdin joins it."),
    ] = None,
    system: options.System = None,
    stop: Stop = None,
    no_template: NoTemplate = False,
    json_schema: JsonSchema = None,
    json: options.Json = False,
    sent_file: options.SentFile = None,
    stats: options.Stats = False,
) -> None:
    """Answer PROMPT; the cloud model writes the critical tokens.

    \b
    edgewise run "Why is the sky blue?" --edge smollm2
    edgewise run "..." --edge small.gguf --cloud http://localhost:8080
    """
    if no_template and system:
        raise UsageError("--no-template and --system exclude each other; give one.")
    if chosen.escalate is not None and 0 < chosen.escalate < 1:
        raise UsageError(
            f"{100 * chosen.escalate:g}% chooses among many answers, and run gives one",
            hint="give 100%, or ask in chat, serve or try, which count over their answers",
            setting="escalate",
        )
    require_text("The system message", system or "")
    schema = _schema(json_schema) if json_schema else None
    text = _read(prompt)
    with ExitStack() as stack:
        pair = stack.enter_context(open_pair(chosen, system=system, sent_file=sent_file))
        if not json:
            render.warn_of_toy(chosen.edge, text)
            render.note_of_reading(pair)
        asked: str | list[int] = text
        if no_template:
            # A text far beyond the context is refused before it is tokenized, which takes seconds.
            require_fitting(pair.edge.tokenizer, [text], pair.edge.context)
            asked = pair.edge.tokenizer.encode_prompt(text)
        events = stack.enter_context(pair.stream(asked, stop=stop or (), json_schema=schema))
        if json:
            print(msgspec.json.encode(collect(events)).decode())
        else:
            _show(pair, events, stats=stats)


def _show(pair: Pair, events: Generation, *, stats: bool) -> None:
    """Print the answer as it is decoded, then its counts. Raises `typer.Exit` after Ctrl-C."""
    tokens, end = render.watched(events, pair)
    if end is not None:
        render.note(render.summary(end, tokens, pair))
        if stats:
            render.note(render.statistics(end.usage, end.timing))
            render.note(f"vocabulary: {pair.cloud.vocabulary_check}" if pair.cloud else "no cloud")
        return
    by_cloud = sum(token.source == "cloud" for token in tokens)
    events.close()  # what is in flight is counted then
    render.out.print()
    paid = f" · {render.costed(events.cost)}" if events.cost else ""
    render.note(f"interrupted after {len(tokens)} tokens, {by_cloud} by the cloud{paid}")
    raise typer.Exit(130)


def _read(prompt: str | None) -> str:
    """Return the prompt: the argument, then piped stdin; without an argument, or for "-", stdin."""
    if prompt is None and sys.stdin.isatty():
        raise UsageError("There is no prompt; give one as an argument or on stdin.")
    if prompt is None or prompt == "-":
        text = _from_stdin()
    else:
        document = _from_stdin() if _is_piped() else ""
        text = f"{prompt}\n\n{document}" if document.strip() else prompt
    require_text("The prompt", text)
    if not text.strip():
        raise UsageError("The prompt is empty; give at least one character.")
    return text


def _is_piped() -> bool:
    """Whether stdin is a file or a pipe; a terminal, or a closed stdin, holds no document."""
    try:
        mode = os.fstat(sys.stdin.fileno()).st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(mode) or stat.S_ISFIFO(mode)


def _from_stdin() -> str:
    """Return stdin's text; bytes that are not UTF-8 become surrogates, as in arguments."""
    waiting = threading.Timer(_PATIENCE, render.note, [_WAITING])
    waiting.daemon = True
    waiting.start()
    try:
        # UTF-8 takes at most four bytes a character; one byte more shows that there are too many.
        data = sys.stdin.buffer.read(4 * MAX_PROMPT + 1)
    finally:
        waiting.cancel()
    # `require_text` refuses surrogates, of arguments as well.
    return unmarked(data).decode("utf-8", "surrogateescape")


def _schema(path: Path) -> dict[str, object]:
    """Return the JSON object in a file. Raises `UsageError` if it holds none."""
    called = f"The schema {str(path)!r}"
    data = file_bytes(path, called, most=MAX_SCHEMA)
    try:
        return msgspec.json.decode(data, type=dict[str, object])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"{called} is not a JSON object: {error}.") from error
