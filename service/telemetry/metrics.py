"""Metrics for Prometheus: `convoy_` ones, and `nv_inference_` ones under Triton's names.

Both read `service.telemetry.counts`, as /v2/models/stats does. Plain integers count and
prometheus_client formats them: see docs/decisions/counting.md.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from operator import attrgetter
from platform import python_version

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily as Counter
from prometheus_client.core import GaugeMetricFamily as Gauge
from prometheus_client.core import HistogramMetricFamily as Histogram
from prometheus_client.core import InfoMetricFamily as Info
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from models import __version__
from service.batching.batcher import BatchRecord
from service.engine.cores import available_cores, cpu_model
from service.telemetry.counts import Counts, Totals
from service.telemetry.gpus import open_gpus


class ModelMetrics:
    """One model's counts and gauges; changed on one event loop."""

    def __init__(self, name: str, version: str, counts: Counts) -> None:
        self.name = name
        self.version = version
        self.counts = counts
        self.answered = counts.answered
        self.refused = counts.refused
        self.pending: Callable[[], float] = int  # images waiting for a batch
        self.engine: Callable[[], tuple[str, str]] | None = None  # device, fallback_reason
        self.gauges: dict[str, tuple[str, Callable[[], float]]] = {}

    def batch(self, record: BatchRecord) -> None:
        """Count a batch."""
        self.counts.batch(record)

    def watch(self, gauges: Mapping[str, tuple[str, Callable[[], float]]]) -> None:
        """Add gauges, read at every scrape: {name: (help, read)}; `_total` makes a counter."""
        self.gauges.update(gauges)

    @property
    def statistics(self) -> Totals:
        """The counts so far."""
        return self.counts.sum()


class Metrics(Collector):
    """One service's metrics, in a registry of their own."""

    def __init__(self, *, max_batch: int) -> None:
        self.max_batch = max_batch
        self.models: list[ModelMetrics] = []
        self.lost_decode_threads: Callable[[], float] = int  # so far
        # The process whose memory and CPU time are exported: always the same one, or its counters
        # would go down from one scrape to the next.
        self.process: int | str = "self"
        self._registry = CollectorRegistry()
        ProcessCollector(pid=lambda: self.process, registry=self._registry)
        gpus = open_gpus()
        if gpus is not None:
            self._registry.register(gpus)
        self._facts = {
            "version": __version__,
            "python": python_version(),
            "cpu": cpu_model(),
            "cores": str(available_cores()),
            **(gpus.facts if gpus else {"gpus": "", "driver": ""}),
        }
        self._registry.register(self)

    def add(self, collector: Collector) -> None:
        """Export another collector's metrics, too."""
        self._registry.register(collector)

    def model(self, name: str, version: str) -> ModelMetrics:
        """Add a model."""
        metrics = ModelMetrics(name, version, Counts(self.max_batch))
        self.models.append(metrics)
        return metrics

    def exposition(self) -> bytes:
        """All metrics in Prometheus' text format."""
        return generate_latest(self._registry) + "".join(_triton_lines(self.models)).encode()

    def collect(self) -> Iterable[Metric]:
        """Convoy's own metrics, with a value for each model."""
        requests = Counter(
            "convoy_requests",
            "Requests to a model by status; 499: the client left before the answer.",
            labels=["model", "status"],
        )
        images = Counter("convoy_images", "Images answered.", labels=["model"])
        failed = Counter("convoy_failed_batches", "Batches that failed.", labels=["model"])
        duration = Histogram(
            "convoy_request_duration_seconds",
            "Time from the head of a request to its answer, for status 200.",
            labels=["model"],
        )
        phases = Histogram(
            "convoy_phase_duration_seconds",
            "Time in each phase of a request, for status 200.",
            labels=["model", "phase"],
        )
        sizes = Histogram("convoy_batch_size", "Images per batch.", labels=["model"])
        engines = Info(
            "convoy_engine",
            "The model's device; why it is the CPU where --device auto looked for a GPU.",
            labels=["model"],
        )
        for model in self.models:
            name, totals = model.name, model.statistics
            for status, count in totals.requests.items():
                requests.add_metric([name, str(status)], count)
            images.add_metric([name], totals.inferences)
            failed.add_metric([name], totals.failed_batches)
            duration.add_metric([name], *totals.duration)
            for phase, histogram in totals.phases.items():
                phases.add_metric([name, phase], *histogram)
            sizes.add_metric([name], *totals.batch_size)
            if model.engine is not None:
                device, reason = model.engine()
                engines.add_metric([name], {"device": device, "fallback_reason": reason})
        yield Info("convoy", "This Convoy, its Python and its machine.", self._facts)
        yield from (requests, images, failed, duration, phases, sizes, engines, *self._gauges())
        yield Counter(
            "convoy_lost_decode_threads",
            "Decode threads that hung or died; each was replaced.",
            self.lost_decode_threads(),
        )

    def _gauges(self) -> Iterable[Metric]:
        families: dict[str, Counter | Gauge] = {}
        for model in self.models:
            for name, (text, read) in model.gauges.items():
                if name not in families:
                    kind = Counter if name.endswith("_total") else Gauge
                    families[name] = kind(name, text, labels=["model"])
                families[name].add_metric([model.name], read())
        return families.values()


# Triton's counters: name, help, attribute of Totals.
_TRITON = (
    ("nv_inference_request_success", "Requests answered", "success.count"),
    ("nv_inference_count", "Images answered", "inferences"),
    ("nv_inference_exec_count", "Batches run", "executions"),
    ("nv_inference_request_duration_us", "Time from the last byte to the answer", "success.us"),
    ("nv_inference_queue_duration_us", "Time in the queue", "queue.us"),
    ("nv_inference_compute_input_duration_us", "Time decoding images", "compute_input.us"),
    ("nv_inference_compute_infer_duration_us", "Time in the engine", "compute_infer.us"),
    ("nv_inference_compute_output_duration_us", "Time making answers", "compute_output.us"),
)


def _triton_lines(models: Iterable[ModelMetrics]) -> Iterator[str]:
    """The metrics under Triton's names; prometheus_client would add `_total` to them."""
    scraped = [(_labels(model), model.statistics, model.pending()) for model in models]
    for name, text, attribute in _TRITON:
        yield _head(name, text, "counter")
        for labels, totals, _ in scraped:
            yield f"{name}{{{labels}}} {attrgetter(attribute)(totals)}\n"
    name = "nv_inference_request_failure"
    yield _head(name, "Requests refused or failed, by reason", "counter")
    for labels, totals, _ in scraped:
        for reason, count in totals.failures.items():
            yield f'{name}{{{labels},reason="{reason}"}} {count}\n'
    name = "nv_inference_pending_request_count"
    yield _head(name, "Images waiting for a batch", "gauge")
    for labels, _, pending in scraped:
        yield f"{name}{{{labels}}} {pending:.0f}\n"


def _head(name: str, text: str, kind: str) -> str:
    return f"# HELP {name} {text}\n# TYPE {name} {kind}\n"


def _labels(model: ModelMetrics) -> str:
    """A model's labels in the text format, which escapes three characters."""
    name = model.name.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return f'model="{name}",version="{model.version}"'
