"""What the service counts, for Prometheus: names of its own, and Triton's beside them.

Every metric of Convoy's starts with `convoy_` and carries the model's name; the `nv_inference_`
ones say the same as /v2/models/stats.

Plain numbers are changed on the event loop, and told by prometheus_client when somebody asks. Its
own counters and histograms, made for many threads, took three times as long when measured.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from service.batcher import BatchRecord
from service.gpus import open_gpus
from service.statistics import BACKEND, CANCELED, OTHER, REJECTED, Phases, Statistics

# From what a small model on a GPU takes to what nobody waits for any longer.
_SECONDS = (
    *(0.00025, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075),
    *(0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0),
)


class Histogram:
    """How many values were at most each of the bounds, and their sum."""

    __slots__ = ("_bounds", "_counts", "_sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Count one more."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def told(self) -> tuple[list[tuple[str, float]], float]:
        """What a HistogramMetricFamily takes: bounds with cumulative counts, and the sum."""
        bounds = [*map(floatToGoString, self._bounds), "+Inf"]
        return list(zip(bounds, accumulate(self._counts), strict=True)), self._sum


class ModelMetrics:
    """One model's numbers, and its statistics; changed on one event loop."""

    def __init__(self, name: str, version: str, max_batch: int) -> None:
        self.name = name
        self.version = version
        self.statistics = Statistics()
        self.pending: Callable[[], float] = int  # images that wait, of whoever watches
        self.gauges: dict[str, tuple[str, Callable[[], float]]] = {}
        self.requests = {"200": 0}  # by the status of their answer
        self.failed_batches = 0
        self.duration = Histogram(_SECONDS)
        self.receive = Histogram(_SECONDS)
        self.decode = Histogram(_SECONDS)
        self.queue = Histogram(_SECONDS)
        self.compute = Histogram(_SECONDS)
        self.respond = Histogram(_SECONDS)
        self.batch_size = Histogram(range(1, max_batch + 1))

    def watch(self, gauges: Mapping[str, tuple[str, Callable[[], float]]]) -> None:
        """Add gauges read whenever somebody asks: {name: (help, read)}."""
        self.gauges.update(gauges)

    def answered(self, images: int, phases: Phases) -> None:
        """Count a request answered 200."""
        self.requests["200"] += 1
        self.duration.observe(phases.total)
        self.receive.observe(phases.receive)
        self.decode.observe(phases.decode)
        self.queue.observe(phases.queue)
        self.compute.observe(phases.compute)
        self.respond.observe(phases.respond)
        self.statistics.answered(images, phases)

    def refused(self, status: int, seconds: float) -> None:
        """Count a request answered anything else, after so long."""
        self.requests[str(status)] = self.requests.get(str(status), 0) + 1
        self.statistics.refused(status, seconds)

    def batch(self, record: BatchRecord) -> None:
        """Count a batch that the engine ran."""
        self.batch_size.observe(record.size)
        if record.failed:
            self.failed_batches += 1
        else:
            self.statistics.batch(record.size, record.compute_ms / 1e3)


class Metrics(Collector):
    """One service's metrics in a registry of their own, so that two never mix."""

    def __init__(self, *, max_batch: int) -> None:
        self._max_batch = max_batch
        self._models: list[ModelMetrics] = []
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        gpus = open_gpus()
        if gpus is not None:
            self._registry.register(gpus)
        self._registry.register(self)

    def model(self, name: str, version: str) -> ModelMetrics:
        """The metrics of one more model."""
        metrics = ModelMetrics(name, version, self._max_batch)
        self._models.append(metrics)
        return metrics

    def exposition(self) -> bytes:
        """Everything, in Prometheus' text format."""
        return generate_latest(self._registry) + "".join(_triton_lines(self._models)).encode()

    def collect(self) -> Iterable[Metric]:
        """Convoy's own metrics, with a value for each model."""
        requests = CounterMetricFamily(
            "convoy_requests",
            "Requests to a model by the status of their answer; 499: the client left before it.",
            labels=["model", "status"],
        )
        images = CounterMetricFamily(
            "convoy_images", "Images classified and answered.", labels=["model"]
        )
        failed = CounterMetricFamily(
            "convoy_failed_batches", "Batches on which the engine failed.", labels=["model"]
        )
        duration = HistogramMetricFamily(
            "convoy_request_duration_seconds",
            "From a request's header to its answer, of the requests answered 200.",
            labels=["model"],
        )
        phases = HistogramMetricFamily(
            "convoy_phase_duration_seconds",
            "Where the time of the requests answered 200 went.",
            labels=["model", "phase"],
        )
        sizes = HistogramMetricFamily(
            "convoy_batch_size", "Images in a batch that the engine ran.", labels=["model"]
        )
        for model in self._models:
            name = model.name
            for status, count in dict(model.requests).items():
                requests.add_metric([name, status], count)
            images.add_metric([name], model.statistics.inferences)
            failed.add_metric([name], model.failed_batches)
            duration.add_metric([name], *model.duration.told())
            for phase in ("receive", "decode", "queue", "compute", "respond"):
                phases.add_metric([name, phase], *getattr(model, phase).told())
            sizes.add_metric([name], *model.batch_size.told())
        yield from (requests, images, failed, duration, phases, sizes, *self._gauges())

    def _gauges(self) -> Iterable[Metric]:
        families: dict[str, GaugeMetricFamily] = {}
        for model in self._models:
            for name, (text, read) in model.gauges.items():
                if name not in families:
                    families[name] = GaugeMetricFamily(name, text, labels=["model"])
                families[name].add_metric([model.name], read())
        return families.values()


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
