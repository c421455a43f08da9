"""Logs: spare in a flood, all JSON where that is promised."""

import json
import logging
import warnings
from collections.abc import Callable

import pytest
import structlog

from edgewise.listening.logs import BURST, OTHERS, WINDOW_SECONDS, FloodFilter, log_lines
from tests.doubles.clock import Clock


def record(told: object, name: str = "uvicorn.error", *args: object) -> logging.LogRecord:
    return logging.LogRecord(name, logging.WARNING, "", 0, told, args, None)


def test_a_flood_of_one_kind_is_counted() -> None:
    clock = Clock()
    flood = FloodFilter(clock)
    assert sum(flood.filter(record("Invalid HTTP request received.")) for _ in range(1000)) == 3
    assert flood.filter(record("another kind"))
    clock.now += WINDOW_SECONDS
    again = record("Invalid HTTP request received.")
    assert flood.filter(again)
    assert again.__dict__["left_out"] == 1000 - BURST
    # What strangers do not cause is always told.
    for told in ({"event": "open"}, {"event": "engine not used"}, "a sentence"):
        assert all(flood.filter(record(told, "edgewise.gateway")) for _ in range(100))


MADE_UP: dict[str, Callable[[int], logging.LogRecord]] = {
    "asyncio": lambda n: record(f"Fatal error on transport\ntransport: <fd={n}>", "asyncio"),
    "gateway": lambda n: record({"event": "ended", "why": f"{n}"}),
    OTHERS: lambda n: record("%s %s %d", OTHERS, "GET", f"/{n}", 404),
}


@pytest.mark.parametrize("line", MADE_UP.values(), ids=MADE_UP)
def test_what_a_stranger_makes_up_is_one_kind(line: Callable[[int], logging.LogRecord]) -> None:
    flood = FloodFilter(Clock())
    assert sum(flood.filter(line(number)) for number in range(1000)) == BURST


def test_every_line_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    log = structlog.get_logger("edgewise.gateway")
    with log_lines("json", "info"):
        log.info("started", engines=1)
        log.debug("not told")
        try:
            raise RuntimeError("a bug")
        except RuntimeError:
            log.exception("failed")
            logging.getLogger("asyncio").exception("a callback failed")
        logging.getLogger("uvicorn.error").warning("an %s", "argument")
        logging.getLogger("uvicorn.error").info("not told either")
        logging.getLogger("edgewise.listening").info("closed: %s", "why", extra={"peer": "1.2.3.4"})
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("a warning", stacklevel=1)
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    own = {"event": "started", "level": "info", "engines": 1, "timestamp": ""}
    assert lines[0] | {"timestamp": ""} == own
    events = [line["event"] for line in lines]
    assert "RuntimeError: a bug" in lines[1]["exception"]
    assert "RuntimeError: a bug" in lines[2]["exception"]
    assert events[3:5] == ["an argument", "closed: why"]
    assert lines[4]["peer"] == "1.2.3.4"
    assert "a warning" in events[5]
    assert not any("not told" in event for event in events)


def test_the_level_holds_for_both_kinds_of_logger(capsys: pytest.CaptureFixture[str]) -> None:
    with log_lines("json", "error"):
        structlog.get_logger("edgewise.gateway").warning("no")
        logging.getLogger("uvicorn.error").warning("no")
        logging.getLogger("uvicorn.error").error("yes")
        structlog.get_logger("edgewise.gateway").error("yes")
    with log_lines("json", "debug"):
        structlog.get_logger("edgewise.gateway").debug("yes")
        logging.getLogger("asyncio").debug("yes")
    told = [json.loads(line)["event"] for line in capsys.readouterr().err.splitlines()]
    assert told == ["yes"] * 4


def test_a_server_writes_plain_lines(capsys: pytest.CaptureFixture[str]) -> None:
    with log_lines("plain", "warning"):
        structlog.get_logger("edgewise.keys").warning("keys not read", why="gone")
        structlog.get_logger("edgewise.keys").info("not told")
        for _ in range(2 * BURST):
            logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
    told = capsys.readouterr().err.splitlines()
    assert ["[warning" in line for line in told] == [True] * (1 + BURST)
    assert "gone" in told[0]
