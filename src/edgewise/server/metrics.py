"""Counters of a server in Prometheus's form, each model's under its name."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from edgewise.events import Consult, Event, Finished, Token
from edgewise.server.models import Models

_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class Metrics:
    """Counters in a registry of their own, so that several servers fit in one process."""

    def __init__(self, models: Models) -> None:
        own = self._registry = CollectorRegistry()
        self._registry.register(_Costs(models))
        running = Gauge("edgewise_running", "Answers being written.", ["model"], registry=own)
        waiting = Gauge("edgewise_waiting", "Answers in the queue.", ["model"], registry=own)
        for one in models.all:
            running.labels(one.name).set_function(lambda one=one: one.admission.running)
            waiting.labels(one.name).set_function(lambda one=one: one.admission.waiting)
        self.requests = self._counter("requests", "Requests.", "path", "status")
        self._tokens = self._counter("tokens", "Tokens.", "model", "source")
        self._consults = self._counter("consults", "Consults.", "model", "outcome")
        self._wasted = self._counter("wasted_tokens", "Cloud tokens dropped.", "model")
        self._first = self._histogram("ttft_seconds", "Time to first token.")
        self._gap = self._histogram("inter_token_seconds", "Between two tokens.")
        self._consult = self._histogram("consult_seconds", "Consults.")

    def text(self) -> bytes:
        """All counters."""
        return generate_latest(self._registry)

    def count(self, model: str, event: Event) -> None:
        """Count one event of a model's answer."""
        if isinstance(event, Token):
            self._tokens.labels(model, event.source).inc()
            (self._gap if event.index else self._first).labels(model).observe(event.seconds)
        elif isinstance(event, Consult):
            self._consults.labels(model, event.outcome).inc()
            self._consult.labels(model).observe(event.seconds)
        elif isinstance(event, Finished):
            self._wasted.labels(model).inc(event.usage.wasted_tokens)

    def _counter(self, name: str, help: str, *labels: str) -> Counter:
        return Counter(f"edgewise_{name}", help, labels, registry=self._registry)

    def _histogram(self, name: str, help: str) -> Histogram:
        return Histogram(
            f"edgewise_{name}", help, ["model"], buckets=_SECONDS, registry=self._registry
        )


class _Costs(Collector):
    """Costs in the price list's currency, read on demand, so cut answers count too."""

    def __init__(self, models: Models) -> None:
        self._models = models

    def collect(self) -> Iterator[Metric]:
        paid = CounterMetricFamily("edgewise_cost_paid", "What consults cost.", labels=["model"])
        alone = CounterMetricFamily(
            "edgewise_cost_alone", "What the cloud alone would have cost.", labels=["model"]
        )
        # Negative where it was lost.
        saved = GaugeMetricFamily("edgewise_cost_saved", "The difference.", labels=["model"])
        for one in self._models.all:
            if one.pair.billing is not None:
                cost = one.pair.billing.savings().cost
                paid.add_metric([one.name], cost.paid)
                alone.add_metric([one.name], cost.alone)
                saved.add_metric([one.name], cost.saved)
        yield from (family for family in (paid, alone, saved) if family.samples)
