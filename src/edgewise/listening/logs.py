"""Logs that a flood cannot fill, and a stderr that holds JSON alone."""

import io
import json
import logging
import sys
import threading
import time
from collections.abc import Callable, Generator, MutableMapping, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Literal, TextIO

from edgewise.errors import EdgewiseError

Level = Literal["debug", "info", "warning", "error"]

WINDOW_SECONDS = 5.0
BURST = 3
"""Lines of one kind in a window; more are counted."""

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
"""The gateway's own lines of that sort."""


class Sparing(logging.Filter):
    """Lets through `BURST` lines of a kind in `WINDOW_SECONDS`, and says how many it left out.

    That is said by the kind's next line, as `left_out`, or by `overdue`.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._kinds: dict[str, _Kind] = {}
        self._lock = threading.Lock()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is written; it is given the attribute `left_out`."""
        kind = _kind_of(record)
        if kind is None:
            return True
        with self._lock:
            if kind not in self._kinds and len(self._kinds) >= _KINDS:
                kind = "more kinds"
            now = self._clock()
            seen = self._kinds.setdefault(kind, _Kind(now))
            if now - seen.since >= WINDOW_SECONDS:
                if seen.left_out:
                    record.left_out = seen.left_out
                self._kinds[kind] = seen = _Kind(now)
            seen.lines += 1
            seen.left_out += seen.lines > BURST
            return seen.lines <= BURST

    def overdue(self, seconds: float = WINDOW_SECONDS) -> list[tuple[str, int]]:
        """Kinds older than that, with how many of their lines were not told; they begin anew."""
        with self._lock:
            ended = self._clock() - seconds
            old = {name: kind for name, kind in self._kinds.items() if kind.since <= ended}
            for name in old:
                del self._kinds[name]
        return [(name, kind.left_out) for name, kind in old.items() if kind.left_out]


class _Kind:
    def __init__(self, since: float) -> None:
        self.since = since
        self.lines = self.left_out = 0


def _kind_of(record: logging.LogRecord) -> str | None:
    """What lines about the same have in common; None for one that no stranger can cause."""
    told: object = record.msg
    if isinstance(told, dict):
        event, why = str(told.get("event")), str(told.get("why", ""))
        return f"{event}: {why}" if event in _EVENTS else None
    if record.name.split(".")[0] not in _STRANGERS and record.name not in _STRANGERS:
        return None
    first = str(told).partition("\n")[0][:100]
    return f"{first} {record.args}"[:200] if record.args else first


_log = logging.getLogger("edgewise.listening.logs")
_sparing = Sparing()


def flush_counts(seconds: float = WINDOW_SECONDS) -> None:
    """Tell what was left out of kinds that are older than that."""
    for kind, count in _sparing.overdue(seconds):
        _log.warning("lines were left out: %s", kind, extra={"left_out": count})


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
        try:
            yield
        finally:
            structlog.reset_defaults()


def _sentence(_: Any, __: str, event: MutableMapping[str, Any]) -> str:
    """What happened, and with what."""
    told, more = str(event.pop("event")), ", ".join(str(value) for value in event.values())
    return f"{told}: {more}" if more else told


@contextmanager
def json_lines(level: Level = "info") -> Generator[None]:
    """A JSON object a line on stderr, whoever writes there, while the block runs.

    What is written to `sys.stderr` by others becomes the event of a line; what native code writes
    to the descriptor itself does not, so that its last words before an abort are kept.
    """
    import structlog

    shared: Sequence[Any] = (
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    )
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(getattr(logging, level.upper())),
        logger_factory=structlog.stdlib.LoggerFactory(),
    )
    handler = _JsonHandler(sys.stderr)
    handler.setFormatter(_json_formatter(shared))
    with _handled_by(handler, level), _stderr_as_lines(), _hooks():
        try:
            yield
        finally:
            structlog.reset_defaults()


def _json_formatter(shared: Sequence[Any]) -> logging.Formatter:
    import structlog

    def with_count(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        if count := getattr(event["_record"], "left_out", 0):
            event["left_out"] = count
        return event

    return structlog.stdlib.ProcessorFormatter(
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


class _JsonHandler(logging.StreamHandler[TextIO]):
    def handleError(self, record: logging.LogRecord) -> None:
        """A line that cannot be made is told in JSON; where stderr is gone there is no telling."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            told = {"event": "a line could not be written", "level": "error", "why": repr(error)}
            self.stream.write(json.dumps(told | {"logger": record.name}) + "\n")


class _Plain(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        """The level and what is told, with what was left out."""
        told = f"{record.levelname}: {super().format(record)}"
        count = getattr(record, "left_out", 0)
        return f"{told} ({count} more were left out)" if count else told


@contextmanager
def _handled_by(handler: logging.Handler, level: Level) -> Generator[None]:
    """All loggers' lines go to `handler`, sparingly."""
    root = logging.getLogger()
    before, of_uvicorn = root.level, logging.getLogger("uvicorn").level
    _sparing.overdue(0)
    handler.addFilter(_sparing)
    root.addHandler(handler)
    root.setLevel(level.upper())
    # It tells of every connection and of its own start, which is told already.
    logging.getLogger("uvicorn").setLevel(max(root.level, logging.WARNING))
    logging.captureWarnings(True)
    try:
        yield
    finally:
        flush_counts(0)
        logging.captureWarnings(False)
        root.removeHandler(handler)
        root.setLevel(before)
        logging.getLogger("uvicorn").setLevel(of_uvicorn)


class _Lines(io.TextIOBase):
    """Takes what is written to stderr; each whole line becomes one of the log."""

    def __init__(self, below: TextIO) -> None:
        self._below = below
        self._begun = ""
        self._log = logging.getLogger("stderr")

    @property
    def encoding(self) -> str:  # type: ignore[override]
        """Of the text below."""
        return self._below.encoding

    def fileno(self) -> int:
        """The real descriptor, for what must write there itself."""
        return self._below.fileno()

    def writable(self) -> bool:
        """It is."""
        return True

    def write(self, text: str, /) -> int:
        """Keep the last line until it is whole."""
        *whole, self._begun = (self._begun + text).split("\n")
        for line in whole:
            if line.strip():
                self._log.warning("%s", line)
        return len(text)

    def end(self) -> None:
        """The last line ends here."""
        if self._begun:
            self.write("\n")


@contextmanager
def _stderr_as_lines() -> Generator[None]:
    before = sys.stderr
    sys.stderr = lines = _Lines(before)
    try:
        yield
    finally:
        lines.end()
        sys.stderr = before


@contextmanager
def _hooks() -> Generator[None]:
    """Exceptions that nobody caught in a thread or a finalizer are lines of the log."""
    of_threads, unraisable = threading.excepthook, sys.unraisablehook
    log = logging.getLogger("edgewise")

    def in_thread(args: threading.ExceptHookArgs) -> None:
        name = args.thread.name if args.thread else "?"
        log.error("a thread ended: %s", name, exc_info=_info(args.exc_value, args.exc_traceback))

    def in_finalizer(args: Any) -> None:
        info = _info(args.exc_value, args.exc_traceback)
        log.error("%s %r", args.err_msg or "ignored in", args.object, exc_info=info)

    threading.excepthook, sys.unraisablehook = in_thread, in_finalizer
    try:
        yield
    except Exception as error:
        # A sentence is the command line's to tell; a bug is told here.
        if isinstance(error, EdgewiseError | OSError):
            raise
        log.critical("the process failed", exc_info=error)
        raise SystemExit(1) from None
    finally:
        threading.excepthook, sys.unraisablehook = of_threads, unraisable


def _info(
    value: BaseException | None, trace: TracebackType | None
) -> tuple[type[BaseException], BaseException, TracebackType | None] | None:
    return None if value is None else (type(value), value, trace)
