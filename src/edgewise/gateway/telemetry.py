"""What a gateway counts, for Prometheus; and a trace of every consult, for OpenTelemetry.

The collector's address and headers come from OpenTelemetry's own variables (`OTEL_EXPORTER_OTLP_*`,
`OTEL_SERVICE_NAME`, `OTEL_TRACES_SAMPLER`). Without an address nothing is recorded or sent.
"""

import hashlib
import os
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, TraceFlags, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from edgewise.errors import UsageError

SERVICE = "edgewise-gateway"
_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
_TRACES = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"
_PROTOCOL, _HTTP = "OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"

CLOSE_SECONDS = 5.0
"""How long a collector may take to read the last spans: the gateway's end waits for that."""

_propagator = TraceContextTextMapPropagator()


_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class GatewayMetrics:
    """In a registry of its own, so that several gateways fit in one process."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.sessions = self._gauge("sessions", "Sessions held.")
        self.connections = self._gauge("connections", "Devices connected.")
        self.ids = self._gauge("ids", "Token ids held by all sessions.")
        self.engines = self._gauge("engines_up", "Engines that are well.")
        self.opens = self._counter("opens", "Sessions opened.", "outcome")
        self.asks = self._counter("asks", "Consults, by how they ended.", "outcome")
        self.pushes = self._counter("pushes", "Pushes, by how they ended.", "outcome")
        self.tokens = self._counter("cloud_tokens", "Tokens written.", "key")
        self.prompt = self._counter("prompt_tokens", "Prompt tokens of consults.", "cache")
        self.seconds = Histogram(
            "edgewise_gateway_ask_seconds",
            "From a consult to its completion.",
            buckets=_SECONDS,
            registry=self.registry,
        )

    def _gauge(self, name: str, help: str) -> Gauge:
        return Gauge(f"edgewise_gateway_{name}", help, registry=self.registry)

    def _counter(self, name: str, help: str, label: str) -> Counter:
        return Counter(f"edgewise_gateway_{name}", help, [label], registry=self.registry)


class Telemetry:
    """A tracer, and how the last spans are sent."""

    def __init__(
        self, tracer: Tracer | None = None, shutdown: Callable[[], object] | None = None
    ) -> None:
        """Without a tracer nothing is recorded."""
        self._tracer, self._shutdown = tracer or trace.NoOpTracer(), shutdown

    @contextmanager
    def consult(
        self, request_id: str, attributes: Mapping[str, str | int]
    ) -> Generator[dict[str, str]]:
        """A span around a consult. Yields the headers by which the engine's spans join its trace.

        The trace's id follows from the request id (`trace_id`): who has one finds the other.
        """
        parent = trace.set_span_in_context(NonRecordingSpan(_context(request_id)))
        span = self._tracer.start_as_current_span(
            "consult",
            context=parent,
            kind=SpanKind.SERVER,
            attributes={"edgewise.request_id": request_id, **attributes},
        )
        headers: dict[str, str] = {}
        with span as current:
            if current.is_recording():
                _propagator.inject(headers)
            yield headers

    def close(self) -> None:
        """Send what is left, as far as the collector reads it in `CLOSE_SECONDS`."""
        if self._shutdown is None:
            return
        # The exporter tries again for half a minute, and a daemon thread is not waited for.
        closing = threading.Thread(target=self._shutdown, daemon=True)
        closing.start()
        closing.join(CLOSE_SECONDS)


def outcome(value: str) -> None:
    """How the consult of the current span ended."""
    trace.get_current_span().set_attribute("edgewise.outcome", value)


def trace_id(request_id: str) -> str:
    """The trace of a request id, 32 hexadecimal digits: BLAKE2b-128 of the id."""
    return hashlib.blake2b(request_id.encode(), digest_size=16).hexdigest()


def telemetry() -> Telemetry:
    """As the environment says. Raises `UsageError` for a collector that cannot be reached so."""
    if not (os.environ.get(_ENDPOINT) or os.environ.get(_TRACES)):
        return Telemetry()
    if os.environ.get(_PROTOCOL, _HTTP) != _HTTP:
        raise UsageError(f"The gateway speaks {_HTTP} to collectors", hint=f"unset {_PROTOCOL}")
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise UsageError(
            f"{_ENDPOINT} names a collector, and the gateway's OpenTelemetry SDK is not installed",
            hint="pip install 'edgewise[gateway,otel]', or unset it",
        ) from error
    resource = Resource.create({"service.name": os.environ.get("OTEL_SERVICE_NAME", SERVICE)})
    try:
        traces = TracerProvider(resource=resource, shutdown_on_exit=False)
        traces.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    except ValueError as error:
        raise UsageError(
            f"OpenTelemetry does not take one of its variables: {error}", hint="see OTEL_*"
        ) from error
    return Telemetry(traces.get_tracer(SERVICE), traces.shutdown)


def _context(request_id: str) -> SpanContext:
    number = int(trace_id(request_id), 16)
    return SpanContext(
        trace_id=number,
        span_id=number >> 64,
        is_remote=True,
        trace_flags=TraceFlags(TraceFlags.SAMPLED),
    )
