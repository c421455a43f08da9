"""`edgewise sent`: what has left this device, by the counts that answers keep."""

from datetime import datetime
from typing import Annotated

import msgspec
import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from edgewise.cli import options, render
from edgewise.cloud.record import AnswerSent, CountsFile, counts_of, counts_place
from edgewise.errors import UsageError
from edgewise.events import SentCounts

_COUNTS = ("consults", "prefetches", "bytes", "tokens")


def sent(
    limit: Annotated[int, typer.Option(min=1, help="The last N answers.")] = 20,
    json: options.Json = False,
) -> None:
    """Show what the last answers sent to a cloud: counts of messages' bodies, never text."""
    place = counts_place()
    if place is None:
        raise UsageError("There is no home folder to keep counts in; set HOME or XDG_STATE_HOME.")
    shown = CountsFile(place).read()[-limit:]
    if json:
        print(msgspec.json.encode(shown).decode())
    elif not shown:
        render.note(f"no counts in {place}: nothing was sent")
    else:
        render.show(_table(shown))
        render.note(f"counts of messages' bodies, from {place}")


def _table(answers: list[AnswerSent]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for at, name in enumerate(("when", "conversation", "host", *_COUNTS)):
        justify = "right" if name in _COUNTS else "left"
        table.add_column(name, justify=justify, no_wrap=at == 0)
    for one in answers:
        when = datetime.fromtimestamp(one.at).astimezone().strftime("%Y-%m-%d %H:%M:%S")
        place = render.printable(one.conversation), render.printable(one.host or "")
        table.add_row(when, *place, *_numbers(one))
    table.add_section()
    table.add_row("all", "", "", *_numbers(counts_of(answers)))
    return table


def _numbers(counts: AnswerSent | SentCounts) -> list[str]:
    return [f"{getattr(counts, name):,}" for name in _COUNTS]
