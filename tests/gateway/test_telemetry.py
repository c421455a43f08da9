"""Traces as a real collector gets them, by OTLP over HTTP."""

import socket
import sys
import threading
from collections.abc import Iterator

import pytest

import edgewise.gateway.telemetry
from edgewise.errors import UsageError
from edgewise.gateway.telemetry import outcome, telemetry, trace_id
from tests.gateway.collector import Collector


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with Collector() as made:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", made.url)
        yield made


def test_without_a_collector_nothing_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    told = telemetry()
    with told.consult("abcdefgh-3", {}) as headers:
        outcome("answered")
    told.close()
    assert headers == {}


@pytest.mark.parametrize(
    ("variable", "value"),
    [("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"), ("OTEL_BSP_SCHEDULE_DELAY", "-1"), ("", "")],
    ids=["another protocol", "another variable", "no SDK"],
)
def test_a_collector_that_cannot_be_reached_so_is_a_sentence(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    if variable:
        monkeypatch.setenv(variable, value)
    else:
        monkeypatch.setitem(sys.modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(UsageError, match="OTEL"):
        telemetry()


def test_a_collector_that_stalls_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by an attack: SIGTERM took the gateway 29 s longer."""
    monkeypatch.setattr(edgewise.gateway.telemetry, "CLOSE_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as stalled:
        port = stalled.getsockname()[1]
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
        told = telemetry()
        with told.consult("abcdefgh-1", {}) as headers:
            pass
        assert headers["traceparent"].split("-")[1] == trace_id("abcdefgh-1")
        before = set(threading.enumerate())
        told.close()
        # Its own timeout is ten seconds, and it tries more than once: that still goes on.
        assert set(threading.enumerate()) - before
