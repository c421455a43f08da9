"""Traces as a real collector gets them, by OTLP over HTTP."""

import socket
import threading
from collections.abc import Iterator

import pytest

import edgewise.gateway.telemetry
from edgewise.errors import UsageError
from edgewise.gateway.telemetry import outcome, telemetry, trace_id
from tests.gateway.collector import Collector, attributes


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with Collector() as made:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", made.url)
        yield made


def test_a_consult_is_a_span_whose_trace_the_request_id_names(collector: Collector) -> None:
    told = telemetry()
    with told.consult("abcdefgh-1f", {"edgewise.key": "laptop", "edgewise.tokens": 3}) as headers:
        outcome("answered")
    told.close()
    (span,) = collector.spans()
    assert span.trace_id.hex() == trace_id("abcdefgh-1f")
    assert headers["traceparent"] == f"00-{span.trace_id.hex()}-{span.span_id.hex()}-01"
    assert attributes(span) == {
        "edgewise.request_id": "abcdefgh-1f",
        "edgewise.key": "laptop",
        "edgewise.tokens": 3,
        "edgewise.outcome": "answered",
    }


def test_a_consult_that_fails_is_a_span_with_its_error(collector: Collector) -> None:
    told = telemetry()
    with pytest.raises(RuntimeError), told.consult("abcdefgh-2", {}):
        raise RuntimeError("broken")
    told.close()
    (span,) = collector.spans()
    assert span.status.code == 2


def test_without_a_collector_nothing_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    told = telemetry()
    with told.consult("abcdefgh-3", {}) as headers:
        outcome("answered")
    told.close()
    assert headers == {}


def test_a_collector_without_the_sdk_is_a_sentence(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(UsageError, match="otel"):
        telemetry()


def test_a_collector_that_is_gone_costs_a_consult_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    told = telemetry()
    with told.consult("abcdefgh-4", {}) as headers:
        outcome("answered")
    told.close()
    assert headers["traceparent"].split("-")[1] == trace_id("abcdefgh-4")


def test_an_address_for_metrics_alone_sends_nothing(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", f"{collector.url}/v1/metrics")
    told = telemetry()
    with told.consult("abcdefgh-5", {}):
        pass
    told.close()
    assert not collector.bodies


def test_another_protocol_is_refused(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with pytest.raises(UsageError, match="OTEL_EXPORTER_OTLP_PROTOCOL"):
        telemetry()


def test_a_collector_that_stalls_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by an attack: SIGTERM took the gateway 29 s longer."""
    monkeypatch.setattr(edgewise.gateway.telemetry, "CLOSE_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as stalled:
        port = stalled.getsockname()[1]
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
        told = telemetry()
        with told.consult("abcdefgh-1", {}):
            pass
        before = set(threading.enumerate())
        told.close()
        # Its own timeout is ten seconds, and it tries more than once: that still goes on.
        assert set(threading.enumerate()) - before


def test_a_variable_that_is_none_is_a_sentence(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "-1")
    with pytest.raises(UsageError, match="OTEL"):
        telemetry()
