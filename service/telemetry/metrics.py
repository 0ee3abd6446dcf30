"""What the service counts, for Prometheus: names of its own, and Triton's beside them.

Every metric of Convoy's starts with `convoy_` and carries the model's name; the `nv_inference_`
ones say the same as /v2/models/stats.

Plain numbers (`service/telemetry/counts.py`) are told by prometheus_client when somebody asks. Its
own counters and histograms, made for many threads, took three times as long when measured.
"""

from collections.abc import Callable, Iterable, Mapping

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from service.batching.batcher import BatchRecord
from service.telemetry.counts import PHASES, Counts
from service.telemetry.gpus import open_gpus
from service.telemetry.statistics import Statistics


class ModelMetrics:
    """One model's counts and gauges; changed on one event loop."""

    def __init__(self, name: str, version: str, counts: Counts) -> None:
        self.name = name
        self.version = version
        self.counts = counts
        self.answered = counts.answered
        self.refused = counts.refused
        self.pending: Callable[[], float] = int  # images that wait, of whoever watches
        self.engine: Callable[[], tuple[str, str]] | None = None  # device, fallback_reason
        self.gauges: dict[str, tuple[str, Callable[[], float]]] = {}

    def batch(self, record: BatchRecord) -> None:
        """Count a batch."""
        self.counts.batch(record)

    def watch(self, gauges: Mapping[str, tuple[str, Callable[[], float]]]) -> None:
        """Add gauges read whenever somebody asks: {name: (help, read)}; counters by their names."""
        self.gauges.update(gauges)

    @property
    def statistics(self) -> Statistics:
        """The counts, as Triton's statistics extension has them."""
        return self.counts.sum().statistics


class Metrics(Collector):
    """One service's metrics in a registry of their own, so that two never mix."""

    def __init__(self, *, max_batch: int) -> None:
        self.max_batch = max_batch
        self.models: list[ModelMetrics] = []
        self.lost_decode_threads: Callable[[], float] = int  # so far, of whoever watches
        # Whose memory and time are told. Several processes of one service tell of the same: of
        # each its own, counters would go down from one scrape to the next.
        self.process: int | str = "self"
        self.prepare: Callable[[], object] = int  # called before everything is told
        self._registry = CollectorRegistry()
        ProcessCollector(pid=lambda: self.process, registry=self._registry)
        gpus = open_gpus()
        if gpus is not None:
            self._registry.register(gpus)
        self._registry.register(self)

    def add(self, collector: Collector) -> None:
        """Tell of something else, too."""
        self._registry.register(collector)

    def model(self, name: str, version: str) -> ModelMetrics:
        """The metrics of one more model."""
        metrics = ModelMetrics(name, version, Counts(self.max_batch))
        self.models.append(metrics)
        return metrics

    def exposition(self) -> bytes:
        """Everything, in Prometheus' text format."""
        self.prepare()
        return generate_latest(self._registry) + "".join(_triton_lines(self.models)).encode()

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
        engines = InfoMetricFamily(
            "convoy_engine",
            "Where the model runs; why on the CPU, where --device auto looked for a GPU.",
            labels=["model"],
        )
        sizes = HistogramMetricFamily(
            "convoy_batch_size", "Images in a batch that the engine ran.", labels=["model"]
        )
        for model in self.models:
            name, counts = model.name, model.counts.sum()
            for status, count in counts.requests.items():
                requests.add_metric([name, str(status)], count)
            images.add_metric([name], counts.images)
            failed.add_metric([name], counts.failed_batches)
            duration.add_metric([name], *counts.duration)
            for phase in PHASES:
                phases.add_metric([name, phase], *counts.phase(phase))
            sizes.add_metric([name], *counts.batch_size)
            if model.engine is not None:
                device, reason = model.engine()
                engines.add_metric([name], {"device": device, "fallback_reason": reason})
        yield from (requests, images, failed, duration, phases, sizes, engines, *self._gauges())
        yield CounterMetricFamily(
            "convoy_lost_decode_threads",
            "Decode threads that were stuck or died, each replaced by another.",
            self.lost_decode_threads(),
        )

    def _gauges(self) -> Iterable[Metric]:
        families: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
        for model in self.models:
            for name, (text, read) in model.gauges.items():
                if name not in families:
                    kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
                    families[name] = kind(name, text, labels=["model"])
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
    told = [
        (
            f'model="{_escaped(model.name)}",version="{model.version}"',
            model.statistics,
            model.pending(),
        )
        for model in models
    ]
    for name, text, read in _TRITON:
        yield from _head(name, text, "counter")
        for label, statistics, _ in told:
            yield f"{name}{{{label}}} {read(statistics)}\n"
    name = "nv_inference_request_failure"
    yield from _head(name, "Requests refused or failed, by reason", "counter")
    for label, statistics, _ in told:
        for reason, count in statistics.failures.items():
            yield f'{name}{{{label},reason="{reason}"}} {count}\n'
    name = "nv_inference_pending_request_count"
    yield from _head(name, "Images waiting for a batch", "gauge")
    for label, _, pending in told:
        yield f"{name}{{{label}}} {pending:.0f}\n"


def _head(name: str, text: str, kind: str) -> Iterable[str]:
    yield f"# HELP {name} {text}\n# TYPE {name} {kind}\n"


def _escaped(text: str) -> str:
    """A label's value as the text format wants it."""
    return text.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
