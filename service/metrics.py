"""What the service counts, for Prometheus: names of its own, and Triton's beside them.

Every metric of Convoy's starts with `convoy_` and carries the model's name; the `nv_inference_`
ones say the same as /v2/models/stats.
"""

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

from service.batcher import BatchRecord
from service.gpus import open_gpus
from service.statistics import BACKEND, CANCELED, OTHER, REJECTED, Phases, Statistics

# From what a small model on a GPU takes to what nobody waits for any longer.
_SECONDS = (
    *(0.00025, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075),
    *(0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0),
)
_PHASES = ("receive", "decode", "queue", "compute", "respond")


class Metrics:
    """One service's metrics in a registry of their own, so that two never mix."""

    def __init__(self, *, max_batch: int) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        gpus = open_gpus()
        if gpus is not None:
            self.registry.register(gpus)
        self.requests = Counter(
            "convoy_requests",
            "Requests to a model by the status of their answer; 499: the client left before it.",
            ["model", "status"],
            registry=self.registry,
        )
        self.duration = Histogram(
            "convoy_request_duration_seconds",
            "From a request's header to its answer, of the requests answered 200.",
            ["model"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.phases = Histogram(
            "convoy_phase_duration_seconds",
            "Where the time of the requests answered 200 went.",
            ["model", "phase"],
            buckets=_SECONDS,
            registry=self.registry,
        )
        self.images = Counter(
            "convoy_images", "Images classified and answered.", ["model"], registry=self.registry
        )
        self.batch_size = Histogram(
            "convoy_batch_size",
            "Images in a batch that the engine ran.",
            ["model"],
            buckets=range(1, max_batch + 1),
            registry=self.registry,
        )
        self.failed_batches = Counter(
            "convoy_failed_batches",
            "Batches on which the engine failed.",
            ["model"],
            registry=self.registry,
        )
        self._gauges: dict[str, Gauge] = {}
        self._models: list[ModelMetrics] = []

    def model(self, name: str, version: str) -> "ModelMetrics":
        """The metrics of one more model."""
        metrics = ModelMetrics(self, name, version)
        self._models.append(metrics)
        return metrics

    def gauge(self, name: str, text: str) -> Gauge:
        """A gauge with a value a model, made when it is first asked for."""
        if name not in self._gauges:
            self._gauges[name] = Gauge(name, text, ["model"], registry=self.registry)
        return self._gauges[name]

    def exposition(self) -> bytes:
        """Everything, in Prometheus' text format."""
        return generate_latest(self.registry) + "".join(_triton_lines(self._models)).encode()


class ModelMetrics:
    """One model's share of the metrics, and its statistics."""

    def __init__(self, metrics: Metrics, name: str, version: str) -> None:
        self.name = name
        self.version = version
        self.statistics = Statistics()
        self.pending: Callable[[], float] = int  # images that wait, of whoever watches
        self._metrics = metrics
        self._ok = metrics.requests.labels(name, "200")
        self._images = metrics.images.labels(name)
        self._duration = metrics.duration.labels(name)
        self._phases = [metrics.phases.labels(name, phase) for phase in _PHASES]
        self._batch_size = metrics.batch_size.labels(name)
        self._failed_batches = metrics.failed_batches.labels(name)

    def watch(self, gauges: Mapping[str, tuple[str, Callable[[], float]]]) -> None:
        """Add gauges read whenever somebody asks: {name: (help, read)}."""
        for name, (text, read) in gauges.items():
            self._metrics.gauge(name, text).labels(self.name).set_function(read)

    def answered(self, images: int, phases: Phases) -> None:
        """Count a request answered 200."""
        self._ok.inc()
        self._images.inc(images)
        self._duration.observe(phases.total)
        receive, decode, queue, compute, respond = self._phases
        receive.observe(phases.receive)
        decode.observe(phases.decode)
        queue.observe(phases.queue)
        compute.observe(phases.compute)
        respond.observe(phases.respond)
        self.statistics.answered(images, phases)

    def refused(self, status: int, seconds: float) -> None:
        """Count a request answered anything else, after so long."""
        self._metrics.requests.labels(self.name, str(status)).inc()
        self.statistics.refused(status, seconds)

    def batch(self, record: BatchRecord) -> None:
        """Count a batch that the engine ran."""
        self._batch_size.observe(record.size)
        if record.failed:
            self._failed_batches.inc()
        else:
            self.statistics.batch(record.size, record.compute_ms / 1e3)


# Name, what it counts, and how a model's statistics tell it.
_TRITON: tuple[tuple[str, str, Callable[[Statistics], int]], ...] = (
    (
        "nv_inference_request_success",
        "Requests answered",
        lambda s: s.success.count,
    ),
    ("nv_inference_count", "Images answered", lambda s: s.inferences),
    ("nv_inference_exec_count", "Batches run", lambda s: s.executions),
    (
        "nv_inference_request_duration_us",
        "Time of the requests answered, from their last byte on",
        lambda s: s.success.ns // 1000,
    ),
    (
        "nv_inference_queue_duration_us",
        "Of it, waiting for a batch to start",
        lambda s: s.queue.ns // 1000,
    ),
    (
        "nv_inference_compute_input_duration_us",
        "Of it, decoding the images",
        lambda s: s.compute_input.ns // 1000,
    ),
    (
        "nv_inference_compute_infer_duration_us",
        "Of it, on the device",
        lambda s: s.compute_infer.ns // 1000,
    ),
    (
        "nv_inference_compute_output_duration_us",
        "Of it, making the answer",
        lambda s: s.compute_output.ns // 1000,
    ),
)


def _triton_lines(models: Iterable[ModelMetrics]) -> Iterable[str]:
    """The metrics under Triton's names; prometheus_client would add `_total` to them."""
    labels = [
        (model, f'model="{_escaped(model.name)}",version="{model.version}"') for model in models
    ]
    for name, text, read in _TRITON:
        yield from _head(name, text, "counter")
        for model, label in labels:
            yield f"{name}{{{label}}} {read(model.statistics)}\n"
    name = "nv_inference_request_failure"
    yield from _head(name, "Requests refused or failed, by reason", "counter")
    for model, label in labels:
        for reason in (REJECTED, CANCELED, BACKEND, OTHER):
            count = model.statistics.failures.get(reason, 0)
            yield f'{name}{{{label},reason="{reason}"}} {count}\n'
    name = "nv_inference_pending_request_count"
    yield from _head(name, "Images waiting for a batch", "gauge")
    for model, label in labels:
        yield f"{name}{{{label}}} {model.pending():.0f}\n"


def _head(name: str, text: str, kind: str) -> Iterable[str]:
    yield f"# HELP {name} {text}\n# TYPE {name} {kind}\n"


def _escaped(text: str) -> str:
    """A label's value as the text format wants it."""
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
