"""What a terminal shows. Data go to stdout, everything else to stderr."""

import sys
import unicodedata
from collections.abc import Iterable, Iterator

from rich.console import Console
from rich.style import Style
from rich.table import Table
from rich.text import Text

from edgewise.decoding import Answer, collect
from edgewise.evaluation.comparison import Comparison
from edgewise.events import Consult, Event, Finished, Token

out = Console(highlight=False, soft_wrap=True)
err = Console(stderr=True, highlight=False, soft_wrap=True)

CLOUD = Style(color="red", bold=True)


def printable(text: str) -> str:
    """Without control characters: a model's output must not drive the terminal."""
    return "".join(c for c in text if c in "\n\t" or unicodedata.category(c) != "Cc")


def paint(events: Iterable[Event]) -> Answer:
    """Show an answer as it comes, cloud tokens in colour; returns it whole."""

    def shown() -> Iterator[Event]:
        for event in events:
            if isinstance(event, Token):
                style = CLOUD if event.source == "cloud" else Style()
                out.print(Text(printable(event.text), style), end="")
                out.file.flush()
            elif isinstance(event, Consult) and event.outcome != "answered":
                sys.stdout.flush()
                if not event.index:
                    err.print(f"[dim]cloud: {event.message}[/dim]", markup=True)
            elif isinstance(event, Finished):
                out.print(Text(printable(event.text)))
            yield event

    return collect(shown())


def summary(answer: Answer) -> str:
    """One line about an answer."""
    usage = answer.usage
    total = usage.edge_tokens + usage.cloud_tokens
    failed = f", {usage.failed_calls} failed" if usage.failed_calls else ""
    return (
        f"{total} tokens, {usage.cloud_tokens} by the cloud ({usage.cloud_share:.1%}), "
        f"{usage.cloud_calls} calls{failed}, {total / answer.timing.total:.1f} tokens/s"
    )


def comparison_table(result: Comparison) -> Table:
    """Edge alone, pair and cloud alone, per family and together."""
    table = Table(title=f"{result.questions} held-out questions")
    for name in ("", "edge alone", "pair", "cloud alone", "cloud share"):
        table.add_column(name, justify="right" if name else "left")
    for name, family in result.families.items():
        scores = family.accuracy
        table.add_row(
            name,
            f"{scores.edge:.0%}",
            f"{scores.pair:.0%}",
            f"{scores.cloud:.0%}",
            f"{family.cloud_share:.1%}",
        )
    scores, speed = result.accuracy, result.tokens_per_second
    table.add_section()
    table.add_row(
        "all",
        f"{scores.edge:.0%}",
        f"{scores.pair:.0%}",
        f"{scores.cloud:.0%}",
        f"{result.cloud_share:.1%}",
    )
    table.add_row("tokens/s", f"{speed.edge:.0f}", f"{speed.pair:.0f}", f"{speed.cloud:.0f}", "")
    return table
