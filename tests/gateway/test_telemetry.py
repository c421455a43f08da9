"""Traces and metrics as a real collector gets them, by OTLP over HTTP."""

import socket
import time
from collections.abc import Iterator

import pytest

import edgewise.gateway.telemetry
from edgewise.errors import UsageError
from edgewise.gateway.metrics import GatewayMetrics
from edgewise.gateway.telemetry import outcome, telemetry, trace_id
from tests.gateway.collector import Collector, attributes


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    with Collector() as made:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", made.url)
        yield made


def test_a_consult_is_a_span_whose_trace_the_request_id_names(collector: Collector) -> None:
    metrics = GatewayMetrics()
    told = telemetry(metrics.registry, lambda: None)
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
    told = telemetry(GatewayMetrics().registry, lambda: None)
    with pytest.raises(RuntimeError), told.consult("abcdefgh-2", {}):
        raise RuntimeError("broken")
    told.close()
    (span,) = collector.spans()
    assert span.status.code == 2


def test_every_metric_reaches_the_collector_with_its_labels(collector: Collector) -> None:
    metrics = GatewayMetrics()
    metrics.asks.labels("answered").inc(2)
    metrics.asks.labels("timeout").inc()
    metrics.seconds.observe(0.25)
    told = telemetry(metrics.registry, lambda: metrics.sessions.set(7))
    told.close()
    found = collector.metrics()
    points = found["edgewise_gateway_asks_total"].sum.data_points
    counted = {point.attributes[0].value.string_value: point.as_double for point in points}
    assert counted == {"answered": 2, "timeout": 1}
    (held,) = found["edgewise_gateway_sessions"].gauge.data_points
    assert held.as_double == 7
    (seconds,) = found["edgewise_gateway_ask_seconds_sum"].sum.data_points
    assert seconds.as_double == 0.25


def test_without_a_collector_nothing_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT", raising=False)
    told = telemetry(GatewayMetrics().registry, lambda: None)
    with told.consult("abcdefgh-3", {}) as headers:
        outcome("answered")
    told.close()
    assert headers == {}


def test_a_collector_without_the_sdk_is_a_sentence(
    collector: Collector, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "opentelemetry.sdk.trace", None)
    with pytest.raises(UsageError, match=r"pip install 'edgewise\[gateway,otel\]', or unset it"):
        telemetry(GatewayMetrics().registry, lambda: None)


def test_a_collector_that_is_gone_costs_a_consult_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    told = telemetry(GatewayMetrics().registry, lambda: None)
    with told.consult("abcdefgh-4", {}) as headers:
        outcome("answered")
    told.close()
    assert headers["traceparent"].split("-")[1] == trace_id("abcdefgh-4")


@pytest.mark.parametrize(("kind", "other"), [("TRACES", "METRICS"), ("METRICS", "TRACES")])
def test_what_has_no_address_goes_nowhere(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, kind: str, other: str
) -> None:
    monkeypatch.delenv("OTEL_EXPORTER_OTLP_ENDPOINT")
    path = f"/v1/{kind.lower()}"
    monkeypatch.setenv(f"OTEL_EXPORTER_OTLP_{kind}_ENDPOINT", collector.url + path)
    # Where the SDK would send what has none.
    monkeypatch.setattr(
        f"opentelemetry.exporter.otlp.proto.http.{_module(other)}.DEFAULT_ENDPOINT", collector.url
    )
    told = telemetry(GatewayMetrics().registry, lambda: None)
    with told.consult("abcdefgh-5", {}):
        pass
    told.close()
    assert list(collector.bodies) == [path]


def _module(kind: str) -> str:
    return {"TRACES": "trace_exporter", "METRICS": "metric_exporter"}[kind]


def test_another_protocol_is_refused(collector: Collector, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with pytest.raises(UsageError, match="unset OTEL_EXPORTER_OTLP_PROTOCOL"):
        telemetry(GatewayMetrics().registry, lambda: None)


def test_a_collector_that_stalls_does_not_hold_up_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by an attack: SIGTERM took the gateway 29 s longer."""
    monkeypatch.setattr(edgewise.gateway.telemetry, "CLOSE_SECONDS", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as stalled:
        port = stalled.getsockname()[1]
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
        told = telemetry(GatewayMetrics().registry, lambda: None)
        with told.consult("abcdefgh-1", {}):
            pass
        begun = time.monotonic()
        told.close()
        # Its own timeout is ten seconds, and it tries more than once.
        assert time.monotonic() - begun < 8


@pytest.mark.parametrize(
    ("name", "value"), [("OTEL_METRIC_EXPORT_INTERVAL", "0"), ("OTEL_BSP_SCHEDULE_DELAY", "-1")]
)
def test_a_variable_that_is_none_is_a_sentence(
    collector: Collector, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(UsageError, match="OpenTelemetry does not take one of its variables"):
        telemetry(GatewayMetrics().registry, lambda: None)
