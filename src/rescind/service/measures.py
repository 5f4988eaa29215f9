"""Counts and seconds for Prometheus. No label ever holds an id of a person or an item."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
NO_ROUTE = "none"
"""Addresses that no route answers share one label: their text comes from outside."""


class Measures:
    """What this process counted since its start."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._requests = Counter(
            "rescind_http_requests",
            "HTTP requests answered.",
            ("method", "route", "status"),
            registry=self.registry,
        )
        self._seconds = Histogram(
            "rescind_http_request_seconds",
            "Seconds until the answer began.",
            ("route",),
            buckets=BUCKETS,
            registry=self.registry,
        )
        self._gauges: dict[str, Gauge] = {}
        self._known: dict[tuple[str, str, int], tuple[Counter, Histogram]] = {}
        """Measures by their labels: looking labels up takes longer than counting."""

    def request(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one answered request. `route` is the template, such as /v1/me/requests/{id}."""
        known = self._known.get((method, route, status))
        if known is None:
            shown = route or NO_ROUTE
            known = (self._requests.labels(method, shown, str(status)), self._seconds.labels(shown))
            self._known[method, route, status] = known
        known[0].inc()
        known[1].observe(seconds)

    def text(self, now: Mapping[str, float]) -> bytes:
        """Return all measures, with these numbers about the ledger as they are now."""
        for name, value in now.items():
            if name not in self._gauges:
                words = name.replace("_", " ").capitalize()
                self._gauges[name] = Gauge(f"rescind_{name}", f"{words}.", registry=self.registry)
            self._gauges[name].set(value)
        return generate_latest(self.registry)
