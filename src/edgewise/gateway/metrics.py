"""Prometheus metrics of a gateway."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

# From a consult that was cached to the longest deadline that most devices have.
_SECONDS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)


class GatewayMetrics:
    """The Prometheus metrics of one gateway, in a registry of its own."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.sessions = self._gauge("sessions", "Sessions held.")
        self.connections = self._gauge("connections", "Devices connected.")
        self.ids = self._gauge("ids", "Token ids held by all sessions.")
        self.engines = self._gauge("engines_up", "Healthy engines.")
        self.opens = self._counter("opens", "Sessions opened.", "outcome")
        self.consults = self._counter("consults", "Consults by outcome.", "outcome")
        self.prefetches = self._counter("prefetches", "Prefetches by outcome.", "outcome")
        self.tokens = self._counter("cloud_tokens", "Tokens written.", "key")
        self.verified = self._counter("verified_tokens", "Tokens verified.", "key")
        self.prompt = self._counter("prompt_tokens", "Prompt tokens of consults.", "cache")
        self.seconds = Histogram(
            "edgewise_gateway_consult_seconds",
            "Seconds of a consult.",
            buckets=_SECONDS,
            registry=self.registry,
        )

    def _gauge(self, name: str, help: str) -> Gauge:
        return Gauge(f"edgewise_gateway_{name}", help, registry=self.registry)

    def _counter(self, name: str, help: str, label: str) -> Counter:
        return Counter(f"edgewise_gateway_{name}", help, [label], registry=self.registry)
