"""Logs on stderr: JSON for a gateway, plain lines for a server. Floods of lines are cut."""

import logging
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Literal

Level = Literal["debug", "info", "warning", "error"]

# Long enough that a flood fills no disk, short enough that a log shows it while it lasts.
WINDOW_SECONDS = 5.0
BURST = 3
"""At most `BURST` lines of one kind are written in `WINDOW_SECONDS`; the rest is only counted."""

REQUESTS, OTHERS = "edgewise.requests", "edgewise.requests.others"
"""Names of the loggers of requests: of those whose API key was accepted, and of all others."""

_LIMITED = frozenset({"edgewise.listening", OTHERS})

# Events of the gateway that anybody who connects can cause, so that their lines are limited.
_EVENTS = frozenset({"refused", "ended"})


class FloodFilter(logging.Filter):
    """A logging filter that passes at most `BURST` lines of one kind in `WINDOW_SECONDS`.

    A gateway's events "refused" and "ended" are a kind each. Lines of other packages, of the logger
    "edgewise.listening", and of requests without an accepted key (`OTHERS`) are of one kind if the
    logger and the first 20 characters are equal. All other lines pass. The first line of a kind
    after a window has an attribute `left_out`: how many lines were dropped in it.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._kinds: dict[str, tuple[float, int]] = {}  # since when, and how many lines

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether the line in `record` is written."""
        kind = _kind(record)
        if kind is None:
            return True
        now = self._clock()
        since, lines = self._kinds.get(kind, (now, 0))
        if now - since >= WINDOW_SECONDS:
            record.left_out = max(0, lines - BURST)
            since, lines = now, 0
        self._kinds[kind] = since, lines + 1
        return lines < BURST


def _kind(record: logging.LogRecord) -> str | None:
    """Return the kind of a line, as `FloodFilter` counts it; None if such lines are not limited."""
    message: object = record.msg
    if isinstance(message, dict):
        event = str(message.get("event"))
        return event if event in _EVENTS else None
    if record.name.startswith("edgewise.") and record.name not in _LIMITED:
        return None
    # The beginnings are the library's own words.
    return f"{record.name}: {str(message)[:20]}"


@contextmanager
def log_lines(form: Literal["json", "plain"], level: Level) -> Generator[None]:
    """Write log lines from `level` on, and Python's warnings, to stderr while the block runs.

    `form` is "json" (an object a line) or "plain". uvicorn logs warnings and worse; floods are cut.
    """
    import structlog

    shared = (structlog.stdlib.add_log_level, structlog.processors.TimeStamper(fmt="iso", utc=True))
    json = structlog.processors.JSONRenderer()
    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
        processors=[
            structlog.stdlib.ExtraAdder(allow=["peer", "left_out"]),
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            json if form == "json" else structlog.dev.ConsoleRenderer(colors=False),
        ],
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.stdlib.LoggerFactory(),
    )
    # What native code writes there is left alone: it may be the only message before an abort.
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    handler.addFilter(FloodFilter())
    root, uvicorn = logging.getLogger(), logging.getLogger("uvicorn")
    before = root.level
    root.addHandler(handler)
    root.setLevel(level.upper())
    # It reports every connection, and its own start, which is reported already.
    uvicorn.setLevel(max(root.level, logging.WARNING))
    logging.captureWarnings(True)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        root.removeHandler(handler)
        root.setLevel(before)
        uvicorn.setLevel(logging.NOTSET)
        structlog.reset_defaults()
