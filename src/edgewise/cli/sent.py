"""`edgewise sent`: what has left this device, by the counts that answers keep."""

from datetime import datetime
from typing import Annotated

import msgspec
import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from edgewise.cli import options, render
from edgewise.cloud.record.files import CountsFile, SentMessage, counts_place
from edgewise.cloud.record.record import by_answer, summed
from edgewise.errors import UsageError
from edgewise.events import SentCounts

_COUNTS = ("bytes", "tokens", "new\ntokens", "new\ncharacters")


def sent(
    limit: Annotated[int, typer.Option(min=1, help="The last N answers.")] = 20,
    each: Annotated[
        bool, typer.Option("--each", help="Every consult and push of them on a line of its own.")
    ] = False,
    json: options.Json = False,
) -> None:
    """Show what the last answers sent to a cloud: counts of messages' bodies, never text."""
    place = counts_place()
    if place is None:
        raise UsageError("There is no home folder to keep counts in; set HOME or XDG_STATE_HOME.")
    messages, unread = CountsFile(place).read()
    if unread:
        render.note(f"{unread} lines of {place} are no counts and are left out")
    answers = by_answer(messages)[-limit:]
    kept = {first.answer for first, _ in answers}
    shown = [message for message in messages if message.answer in kept]
    if json:
        print(msgspec.json.encode(shown).decode())
    elif not shown:
        render.note(f"no counts in {place}: nothing was sent, or counts are switched off")
    else:
        render.show(_each(shown) if each else _by_answer(answers, shown))
        render.note(f"counts of messages' bodies, from {place}")


def _by_answer(answers: list[tuple[SentMessage, SentCounts]], shown: list[SentMessage]) -> Table:
    table = _table("when", "conversation", "host", "consults", "pushes", *_COUNTS)
    for first, counts in answers:
        table.add_row(*_place(first), *_times(counts), *_numbers(counts))
    every = summed(shown)
    table.add_section()
    table.add_row("all", "", "", *_times(every), *_numbers(every))
    return table


def _each(shown: list[SentMessage]) -> Table:
    table = _table("when", "conversation", "host", "answer", "kind", *_COUNTS)
    for message in shown:
        counts = summed([message])
        name = render.printable(f"{message.answer} {message.number}")
        table.add_row(*_place(message), name, message.kind, *_numbers(counts))
    return table


def _table(*names: str) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for at, name in enumerate(names):
        counted = name in (*_COUNTS, "consults", "pushes")
        table.add_column(name, justify="right" if counted else "left", no_wrap=at == 0)
    return table


def _place(message: SentMessage) -> tuple[str, str, str]:
    when = datetime.fromtimestamp(message.at).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    return when, render.printable(message.conversation), render.printable(message.host)


def _times(counts: SentCounts) -> list[str]:
    return [f"{counts.consults:,}", f"{counts.pushes:,}"]


def _numbers(counts: SentCounts) -> list[str]:
    found = (counts.bytes, counts.tokens, counts.new_tokens, counts.new_characters)
    return [f"{number:,}" for number in found]
