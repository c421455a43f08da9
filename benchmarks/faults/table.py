"""What a fault did, and whether anything was lost by it."""

from collections.abc import Iterable, Sequence

import msgspec

from edgewise_lab.tables import line

SEEN = 0.9
"""Of the tries: an engine may be out of use for a moment by what was done to it before."""

READ = ("verified", "corrected")
"""Reasons of a token that the cloud read."""


class Row(msgspec.Struct):
    """A fault tried `tries` times.

    `seen` counts how often it was seen to happen: a fault that did not happen proves nothing.
    `lost` answers did not end, or are not what was to be written. `processes` ended that nobody
    had ended, `watchers` do not look at their engines any more.
    """

    fault: str
    tries: int = 0
    seen: int = 0
    lost: int = 0
    processes: int = 0
    watchers: int = 0
    note: str = ""
    reasons: set[str] = msgspec.field(default_factory=set[str])

    def tried(
        self, *, seen: bool = True, lost: bool = False, ended: int = 0, blind: bool = False
    ) -> None:
        """Once more."""
        self.tries += 1
        self.seen += seen
        self.lost += lost
        self.processes += ended
        self.watchers += blind

    @property
    def failed(self) -> bool:
        """Whether it must be looked into."""
        unseen = self.seen < max(1, SEEN * self.tries)
        return bool(self.lost or self.processes or self.watchers) or unseen

    @property
    def told(self) -> str:
        """The note, and which reasons tokens had but for those where nothing is wrong."""
        reasons = ", ".join(sorted(self.reasons - {"critical", "span", *READ}))
        return "; ".join(filter(None, [self.note, reasons]))


def table(title: str, rows: Iterable[Row]) -> list[str]:
    """Markdown."""
    head = ["fault", "tries", "seen", "answers lost", "processes ended", "watchers ended", ""]
    lines = [f"### {title}", "", *line(head, head=True)]
    for row in rows:
        cells = [row.tries, row.seen, row.lost, row.processes, row.watchers]
        lines += line([row.fault, *(f"{cell:,}" for cell in cells), row.told])
    return [*lines, ""]


def failures(rows: Sequence[Row]) -> list[str]:
    """Names of what failed."""
    return [row.fault for row in rows if row.failed]
