"""What the service counts, for Prometheus; every name starts with `convoy_`."""

from collections.abc import Callable, Mapping

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

from service.batcher import BatchRecord

# From what a small model on a GPU takes to what nobody waits for any longer.
_SECONDS = (
    *(0.00025, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075),
    *(0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0),
)


class Metrics:
    """One service's metrics in a registry of their own, so that two never mix."""

    def __init__(self, *, max_batch: int) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        self._requests = Counter(
            "convoy_requests",
            "Requests to classify by the status of their answer; 499: the client left before it.",
            ["status"],
            registry=self.registry,
        )
        self._duration = Histogram(
            "convoy_request_duration_seconds",
            "From a request's header to its answer, of the requests answered 200.",
            buckets=_SECONDS,
            registry=self.registry,
        )
        phases = Histogram(
            "convoy_phase_duration_seconds",
            "Where the time of the requests answered 200 went.",
            ["phase"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self._phases = [phases.labels(p) for p in ("receive", "decode", "queue", "compute")]
        self._images = Counter(
            "convoy_images", "Images classified and answered.", registry=self.registry
        )
        self._batch_size = Histogram(
            "convoy_batch_size",
            "Images in a batch that the engine ran.",
            buckets=range(1, max_batch + 1),
            registry=self.registry,
        )
        self._failed_batches = Counter(
            "convoy_failed_batches", "Batches on which the engine failed.", registry=self.registry
        )
        self._ok = self._requests.labels("200")

    def watch(self, gauges: Mapping[str, tuple[str, Callable[[], float]]]) -> None:
        """Add gauges read whenever somebody asks: {name: (help, read)}."""
        for name, (text, read) in gauges.items():
            Gauge(name, text, registry=self.registry).set_function(read)

    def answered(
        self, images: int, phases_s: tuple[float, float, float, float], total_s: float
    ) -> None:
        """Count a request answered 200: its images; receive, decode, queue, compute; all of it."""
        self._ok.inc()
        self._images.inc(images)
        self._duration.observe(total_s)
        for histogram, seconds in zip(self._phases, phases_s, strict=True):
            histogram.observe(seconds)

    def refused(self, status: int) -> None:
        """Count a request answered anything else."""
        self._requests.labels(str(status)).inc()

    def batch(self, record: BatchRecord) -> None:
        """Count a batch that the engine ran."""
        self._batch_size.observe(record.size)
        if record.failed:
            self._failed_batches.inc()

    def exposition(self) -> bytes:
        """Everything, in Prometheus' text format."""
        return generate_latest(self.registry)
