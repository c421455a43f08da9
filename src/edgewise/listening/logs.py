"""Logs: JSON on the stderr of a gateway, sentences on that of a server; floods are counted."""

import json
import logging
import sys
import time
from collections.abc import Callable, Generator, MutableMapping
from contextlib import contextmanager
from typing import Any, Literal, TextIO

Level = Literal["debug", "info", "warning", "error"]

WINDOW_SECONDS = 5.0
BURST = 3
"""Lines of one kind that are written in a window; the others are counted."""

_KINDS = 64
_STRANGERS = (
    "edgewise.listening",
    "uvicorn",
    "asyncio",
    "websockets",
    "starlette",
    "sse_starlette",
)
"""Loggers whose lines anybody can cause who connects."""

_EVENTS = frozenset({"refused", "ended"})
"""Lines of the gateway that anybody can cause who connects."""


class FloodFilter(logging.Filter):
    """Lets `BURST` lines of a kind pass in `WINDOW_SECONDS`.

    The kind's next line says how many were left out, as `left_out`.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._kinds: dict[str, tuple[float, int]] = {}  # since when, and how many lines

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is written."""
        kind = _kind(record)
        if kind is None:
            return True
        if kind not in self._kinds and len(self._kinds) >= _KINDS:
            kind = "more kinds"
        now = self._clock()
        since, lines = self._kinds.get(kind, (now, 0))
        if now - since >= WINDOW_SECONDS:
            record.left_out = max(0, lines - BURST)
            since, lines = now, 0
        self._kinds[kind] = since, lines + 1
        return lines < BURST


def _kind(record: logging.LogRecord) -> str | None:
    """What lines about the same thing have in common; None for one that no stranger can cause."""
    message: object = record.msg
    if isinstance(message, dict):
        event = str(message.get("event"))
        return f"{event}: {message.get('why', '')}" if event in _EVENTS else None
    if record.name.split(".")[0] not in _STRANGERS and record.name not in _STRANGERS:
        return None
    first = str(message).partition("\n")[0][:100]
    return f"{first} {record.args}"[:200] if record.args else first


@contextmanager
def plain_lines(level: Level = "warning") -> Generator[None]:
    """A sentence a line on stderr, while the block runs."""
    import structlog

    structlog.configure(
        processors=[_sentence],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.stdlib.LoggerFactory(),
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Plain())
    with _handled_by(handler, level):
        yield


def _sentence(_: Any, __: str, event: MutableMapping[str, Any]) -> str:
    """The event, and its values."""
    name, values = str(event.pop("event")), ", ".join(str(value) for value in event.values())
    return f"{name}: {values}" if values else name


class _Plain(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        """The level and the sentence."""
        line = f"{record.levelname}: {super().format(record)}"
        count = getattr(record, "left_out", 0)
        return f"{line} ({count} more were left out)" if count else line


@contextmanager
def json_lines(level: Level = "info") -> Generator[None]:
    """A JSON object a line on stderr for every line of a logger, while the block runs.

    What native code writes to stderr stays as it is: its last words before an abort.
    """
    import structlog

    shared = (
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.stdlib.LoggerFactory(),
    )

    def with_count(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        if count := getattr(event["_record"], "left_out", 0):
            event["left_out"] = count
        return event

    formatter = structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[
            *shared,
            structlog.stdlib.add_logger_name,
            structlog.stdlib.ExtraAdder(allow=["peer"]),
        ],
        processors=[
            with_count,
            structlog.stdlib.ProcessorFormatter.remove_processors_meta,
            structlog.processors.format_exc_info,
            structlog.processors.JSONRenderer(),
        ],
    )
    handler = _JsonHandler(sys.stderr)
    handler.setFormatter(formatter)
    with _handled_by(handler, level):
        yield


class _JsonHandler(logging.StreamHandler[TextIO]):
    def handleError(self, record: logging.LogRecord) -> None:
        """A line that cannot be formatted is told in JSON. A stderr that is gone takes nothing."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            line = {"event": "a line could not be written", "level": "error", "why": repr(error)}
            self.stream.write(json.dumps(line | {"logger": record.name}) + "\n")


@contextmanager
def _handled_by(handler: logging.Handler, level: Level) -> Generator[None]:
    """The lines of all loggers go to `handler`, through the filter."""
    import structlog

    root, uvicorn = logging.getLogger(), logging.getLogger("uvicorn")
    before = root.level, uvicorn.level
    handler.addFilter(FloodFilter())
    root.addHandler(handler)
    root.setLevel(level.upper())
    # It tells of every connection and of its own start, which is told already.
    uvicorn.setLevel(max(root.level, logging.WARNING))
    logging.captureWarnings(True)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        root.removeHandler(handler)
        root.setLevel(before[0])
        uvicorn.setLevel(before[1])
        structlog.reset_defaults()
