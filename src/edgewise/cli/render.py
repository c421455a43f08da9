"""What a terminal shows. Data go to stdout, everything else to stderr."""

import os
import unicodedata
from collections.abc import Iterable, Iterator

from rich.console import Console
from rich.segment import Segment, Segments
from rich.style import Style
from rich.table import Table
from rich.text import Text

from edgewise.decoding import Answer, collect
from edgewise.evaluation.comparison import Comparison
from edgewise.events import Event, Finished, Token

_COLOURS = None if os.environ.get("NO_COLOR") else "auto"

out = Console(highlight=False, soft_wrap=True, color_system=_COLOURS)
err = Console(stderr=True, highlight=False, soft_wrap=True, color_system=_COLOURS)

CLOUD = Style(color="red", bold=True)


# They reorder what is shown around them, so that text could pose as other text.
_REORDERING = frozenset("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069")


def printable(text: str) -> str:
    """Without control characters: a model's output must not drive the terminal."""
    return "".join(
        c
        for c in text
        if c in "\n\t" or (unicodedata.category(c) not in ("Cc", "Cs") and c not in _REORDERING)
    )


def paint(events: Iterable[Event]) -> Answer:
    """Show an answer as it comes, cloud tokens in colour; returns it whole.

    The first consult that failed is told on stderr, once the answer is complete.
    """
    problems: list[str] = []

    def shown() -> Iterator[Event]:
        for event in events:
            if isinstance(event, Token):
                _write(event.text, CLOUD if event.source == "cloud" else Style())
            elif isinstance(event, Finished):
                _write(event.text + "\n", Style())
            elif event.message:
                problems.append(event.message)
            yield event

    answer = collect(shown())
    if problems:
        note(f"the edge model stood in: {problems[0]}")
    return answer


def _write(text: str, style: Style) -> None:
    # As a segment: rich's Text would turn tabs into spaces.
    out.print(Segments([Segment(printable(text), style)]), end="")
    out.file.flush()


def note(text: str) -> None:
    """A dim line on stderr."""
    err.print(Text(printable(text), Style(dim=True)))


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
