"""OpenTelemetry: a trace of every consult, and the gateway's metrics, sent to a collector.

The collector's address and headers come from OpenTelemetry's own variables (`OTEL_EXPORTER_OTLP_*`,
`OTEL_SERVICE_NAME`, `OTEL_TRACES_SAMPLER`); without an address nothing is recorded or sent.
"""

import hashlib
import os
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager

from opentelemetry import trace
from opentelemetry.metrics import CallbackOptions, Meter, Observation
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, TraceFlags, Tracer
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from prometheus_client import CollectorRegistry

from edgewise.errors import UsageError

SERVICE = "edgewise-gateway"
_ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
_TRACES, _METRICS = "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT"
_PROTOCOL, _HTTP = "OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"

CLOSE_SECONDS = 5.0
"""How long a collector may take to read the last of it: the gateway's end waits for that."""

_propagator = TraceContextTextMapPropagator()


class Telemetry:
    """A tracer, and what must be closed so that the last spans are sent."""

    def __init__(
        self, tracer: Tracer | None = None, closing: Iterable[Callable[[], object]] = ()
    ) -> None:
        """Without a tracer nothing is recorded."""
        self._tracer = tracer or trace.NoOpTracer()
        self._closing = tuple(closing)

    @contextmanager
    def consult(
        self, request_id: str, attributes: Mapping[str, str | int]
    ) -> Generator[dict[str, str]]:
        """A span around a consult; yields the headers by which the engine's spans join its trace.

        The trace's id follows from the request id (`trace_id`), so that whoever has one finds
        the other.
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
        """Send what is left, as far as the collector takes it in `CLOSE_SECONDS`."""
        # An exporter tries again for half a minute, and a thread of its own is not waited for.
        closing = [threading.Thread(target=close, daemon=True) for close in self._closing]
        for thread in closing:
            thread.start()
        end = time.monotonic() + CLOSE_SECONDS
        for thread in closing:
            thread.join(max(0.0, end - time.monotonic()))


def outcome(value: str) -> None:
    """How the consult of the current span ended."""
    trace.get_current_span().set_attribute("edgewise.outcome", value)


def trace_id(request_id: str) -> str:
    """The trace of a request id, 32 hexadecimal digits: BLAKE2b-128 of the id."""
    return hashlib.blake2b(request_id.encode(), digest_size=16).hexdigest()


def telemetry(registry: CollectorRegistry, measure: Callable[[], object]) -> Telemetry:
    """As the environment says. `measure` brings the gauges of `registry` up to date.

    Traces and metrics go where an address is named for them, and nowhere else. Raises `UsageError`
    where a collector is named and the SDK is not installed, does not understand one of its
    variables, or another protocol is asked for than OTLP over HTTP.
    """
    traced, measured = (_named(_ENDPOINT, own) for own in (_TRACES, _METRICS))
    if not traced and not measured:
        return Telemetry()
    if os.environ.get(_PROTOCOL, _HTTP) != _HTTP:
        raise UsageError(f"The gateway speaks {_HTTP} to collectors", hint=f"unset {_PROTOCOL}")
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.metrics import MeterProvider
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
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
        if traced:
            traces.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        readers = [PeriodicExportingMetricReader(OTLPMetricExporter())] if measured else []
        metrics = MeterProvider(readers, resource, shutdown_on_exit=False)
    except ValueError as error:
        raise UsageError(
            f"OpenTelemetry does not take one of its variables: {error}", hint="see OTEL_*"
        ) from error
    _observe(metrics.get_meter(SERVICE), registry, measure)
    tracer = traces.get_tracer(SERVICE) if traced else None
    return Telemetry(tracer, (traces.shutdown, metrics.shutdown))


def _named(*names: str) -> bool:
    return any(os.environ.get(name) for name in names)


def _context(request_id: str) -> SpanContext:
    number = int(trace_id(request_id), 16)
    return SpanContext(
        trace_id=number,
        span_id=number >> 64,
        is_remote=True,
        trace_flags=TraceFlags(TraceFlags.SAMPLED),
    )


def _observe(meter: Meter, registry: CollectorRegistry, measure: Callable[[], object]) -> None:
    """Everything that the registry counts, under its names; a histogram as its sum and count."""
    for family in registry.collect():
        told = {"description": family.documentation}
        if family.type == "gauge":
            read = _reader(registry, measure, family.name)
            meter.create_observable_gauge(family.name, [read], **told)
            continue
        for suffix in ("_total",) if family.type == "counter" else ("_sum", "_count"):
            read = _reader(registry, measure, family.name + suffix)
            meter.create_observable_counter(family.name + suffix, [read], **told)


def _reader(
    registry: CollectorRegistry, measure: Callable[[], object], name: str
) -> Callable[[CallbackOptions], Iterable[Observation]]:
    def read(_: CallbackOptions) -> Iterable[Observation]:
        measure()
        found = (sample for family in registry.collect() for sample in family.samples)
        return [Observation(one.value, dict(one.labels)) for one in found if one.name == name]

    return read
