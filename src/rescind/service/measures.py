"""Counts and seconds for Prometheus. No label ever holds an id of a person or an item."""

from __future__ import annotations

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
NO_ROUTE = "none"
"""Addresses that no route answers share one label: their text comes from outside."""


MEANS = {
    "people": "Accounts that have not ended.",
    "lenders": "Accounts that lend something now.",
    "lent": "Records lent now, by everybody together.",
    "leaves": "Entries of the public log.",
    "keys": "Keys in keys.bin, the server's own among them.",
    "items": "Items that people may lend.",
    "requests_open": "Requests that are neither fulfilled nor refused.",
    "requests_overdue": "Open requests past their deadline.",
    "requests_next_due_seconds": "Unix time of the next deadline, 0 if none.",
    "requests_half": "Open requests with half of their time over, and less than four fifths.",
    "requests_urgent": "Open requests with four fifths of their time over, and not all of it.",
    "requests_late": "Open requests whose time is over.",
    "release": "Number of the release in service, 0 before the first.",
    "people_until_release": "People of the last release who have to differ until one is due.",
    "listeners": "Browsers that listen to events now.",
    "refusing_changes": "1 if changes are refused: the disk is full, or the database away.",
}
"""What each number about the ledger counts; a number without a line here is refused."""


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
        known = self._known.get((method, route, status))
        if known is None:
            shown = route or NO_ROUTE
            known = (self._requests.labels(method, shown, str(status)), self._seconds.labels(shown))
            self._known[method, route, status] = known
        known[0].inc()
        known[1].observe(seconds)

    def text(self, now: Mapping[str, float]) -> bytes:
        """Return all measures, with these numbers about the ledger as they are now.

        A number that is not given is left out: one of before would pass for one of now.
        """
        for name in self._gauges.keys() - now.keys():
            self.registry.unregister(self._gauges.pop(name))
        for name, value in now.items():
            if name not in self._gauges:
                self._gauges[name] = Gauge(f"rescind_{name}", MEANS[name], registry=self.registry)
            self._gauges[name].set(value)
        return generate_latest(self.registry)
