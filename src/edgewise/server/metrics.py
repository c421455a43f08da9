"""Counters in Prometheus's form."""

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from edgewise.costs.meter import Billing
from edgewise.events import Consult, Event, Finished, Token

_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0)


class Metrics:
    """Counters of one pair, in a registry of its own."""

    def __init__(self, billing: Billing | None = None) -> None:
        """With `billing`, costs are included."""
        self.registry = CollectorRegistry()
        if billing is not None:
            self.registry.register(_Costs(billing))
        self.running = Gauge("edgewise_running", "Answers being written.", registry=self.registry)
        self.waiting = Gauge("edgewise_waiting", "Answers in the queue.", registry=self.registry)
        self._tokens = Counter("edgewise_tokens", "Tokens.", ["source"], registry=self.registry)
        self._consults = Counter(
            "edgewise_consults", "Consults.", ["outcome"], registry=self.registry
        )
        self._wasted = Counter(
            "edgewise_wasted_tokens", "Cloud tokens dropped.", registry=self.registry
        )
        self._first = self._histogram("ttft_seconds", "Time to first token.")
        self._gap = self._histogram("inter_token_seconds", "Between two tokens.")
        self._consult = self._histogram("consult_seconds", "Consults.")

    def count(self, event: Event) -> None:
        """Count one event of an answer."""
        if isinstance(event, Token):
            self._tokens.labels(event.source).inc()
            (self._gap if event.index else self._first).observe(event.seconds)
        elif isinstance(event, Consult):
            self._consults.labels(event.outcome).inc()
            self._consult.observe(event.seconds)
        elif isinstance(event, Finished):
            self._wasted.inc(event.usage.wasted_tokens)

    def _histogram(self, name: str, help: str) -> Histogram:
        return Histogram(f"edgewise_{name}", help, buckets=_SECONDS, registry=self.registry)


class ServerMetrics:
    """Counters of a server, so that several fit in one process."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.requests = Counter(
            "edgewise_requests", "Requests.", ["path", "status"], registry=self._registry
        )

    def text(self, models: Mapping[str, Metrics], *, told_apart: bool) -> bytes:
        """All counters; with `told_apart` each has its model's name as a label."""
        each = [_Labelled(models)] if told_apart else [one.registry for one in models.values()]
        return b"".join(generate_latest(one) for one in (self._registry, *each))


class _Labelled(Collector):
    """Counters of several models: the text format wants each metric in one piece."""

    def __init__(self, models: Mapping[str, Metrics]) -> None:
        self._models = models

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for name, one in self._models.items():
            for found in one.registry.collect():
                family = Metric(found.name, found.documentation, found.type, found.unit)
                family = families.setdefault(found.name, family)
                family.samples += [
                    sample._replace(labels={"model": name, **sample.labels})
                    for sample in found.samples
                ]
        return iter(families.values())


class _Costs(Collector):
    """Costs in the price list's currency, read on demand, so cut answers count too."""

    def __init__(self, billing: Billing) -> None:
        self._billing = billing

    def collect(self) -> Iterator[Metric]:
        cost = self._billing.savings().cost
        for name, help, value in (
            ("paid", "What consults cost.", cost.paid),
            ("alone", "What the cloud alone would have cost.", cost.alone),
        ):
            yield CounterMetricFamily(f"edgewise_cost_{name}", help, value=value)
        # Negative where it was lost.
        yield GaugeMetricFamily("edgewise_cost_saved", "The difference.", value=cost.saved)
