"""Prometheus metrics of the service, in their own registry."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import (
    CollectorRegistry,
    Counter,
    GCCollector,
    Histogram,
    PlatformCollector,
    ProcessCollector,
)
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

SECONDS_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 2.5, 10.0, 60.0)

Record = Callable[[float], None]
"""Records one request, given its duration in seconds."""


class Metrics:
    """The metrics of one process; ``render`` returns them as text."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.requests_total = Counter(
            "calibrd_requests",
            "Requests answered.",
            ("route", "method", "status"),
            registry=self.registry,
        )
        self.request_seconds = Histogram(
            "calibrd_request_seconds",
            "Time from a request's headers to the end of its response.",
            ("route", "method"),
            buckets=SECONDS_BUCKETS,
            registry=self.registry,
        )
        lookups = Counter(
            "calibrd_map_cache_lookups",
            "Lookups of maps in memory.",
            ("result",),
            registry=self.registry,
        )
        self.map_cache_hit = lookups.labels("hit").inc
        self.map_cache_miss = lookups.labels("miss").inc
        damaged = Counter(
            "calibrd_damaged_blobs",
            "Reads of stored bytes that were missing or differed from what was written.",
            ("kind",),
            registry=self.registry,
        )
        self.blob_missing = damaged.labels("missing").inc
        self.blob_corrupt = damaged.labels("corrupt").inc
        ProcessCollector(namespace="calibrd", registry=self.registry)
        PlatformCollector(registry=self.registry)
        GCCollector(registry=self.registry)

    def recorder(self, route: str, method: str, status: int) -> Record:
        """Return a function that records requests with these labels; create it once, reuse it."""
        count = self.requests_total.labels(route, method, str(status)).inc
        observe = self.request_seconds.labels(route, method).observe

        def record(seconds: float) -> None:
            count()
            observe(seconds)

        return record

    def watch_map_cache(self, size: Callable[[], int]) -> None:
        """Report the number of maps in memory, read at each scrape."""

        def collect() -> Iterable[Metric]:
            yield GaugeMetricFamily("calibrd_map_cache_size", "Maps in memory.", value=size())

        self.add_collector(collect)

    def add_collector(self, collect: Callable[[], Iterable[Metric]]) -> None:
        """Call ``collect`` at each scrape for further metrics, such as database metrics."""
        self.registry.register(_CallbackCollector(collect))

    def render(self) -> tuple[bytes, str]:
        """Return all metrics as text, and the content type."""
        return generate_latest(self.registry), CONTENT_TYPE_LATEST


class _CallbackCollector(Collector):
    def __init__(self, collect: Callable[[], Iterable[Metric]]) -> None:
        self._collect = collect

    def collect(self) -> Iterable[Metric]:
        return self._collect()

    def describe(self) -> Iterable[Metric]:
        # otherwise the registry collects once at registration, when there is no database yet
        return ()
