"""Exports metrics for Prometheus as `convoy_...`, and with Triton's names as `nv_inference_...`.

Both come from `service.telemetry.counts`, like /v2/models/stats. The counters are plain integers,
which prometheus_client formats: see docs/decisions/counting.md.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from platform import python_version
from typing import Any, NamedTuple

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily as Counter
from prometheus_client.core import GaugeMetricFamily as Gauge
from prometheus_client.core import HistogramMetricFamily as Histogram
from prometheus_client.core import InfoMetricFamily as Info
from prometheus_client.core import Metric
from prometheus_client.registry import Collector
from typing_extensions import override

from models import __version__
from service.engine.runner import EngineStatus
from service.machine.cores import available_cores, cpu_model
from service.telemetry.counts import Counts, folded
from service.telemetry.gpus import open_gpus


@dataclass(eq=False)
class ModelMetrics:
    """The counts of one model, and the functions that read its gauges when metrics are
    requested."""

    name: str
    version: str
    counts: Counts
    earlier: Sequence[Sequence[int]] = ()  # rows of counts of versions before this one
    pending: Callable[[], float] = int  # images waiting for a batch
    engines: Callable[[], Sequence[EngineStatus]] = tuple
    # Help and value by name. A name that ends in `_total` becomes a counter.
    gauges: dict[str, tuple[str, Callable[[], float]]] = field(default_factory=dict)

    def forget(self) -> None:
        """Drop references to the model, because it is closed."""
        self.pending, self.engines, self.gauges = int, tuple, {}


class Comparison(NamedTuple):
    """The difference between the answers of a model's new and old versions to recent images."""

    images: int = 0  # compared
    agreement: float | None = None  # the share of them that got the same class
    largest_change: float | None = None  # of a probability of any class; None: there were no images


class Metrics(Collector):
    """Collects the metrics of one service in a separate Prometheus registry."""

    def __init__(self, *, max_batch: int) -> None:
        self.max_batch = max_batch
        self.models: list[ModelMetrics] = []
        self.swaps: dict[tuple[str, str], int] = {}  # by model and outcome
        self.compared: dict[str, Comparison] = {}  # the last new version of each model
        self.lost_decode_threads: Callable[[], float] = int  # so far
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        self._facts = {
            "version": __version__,
            "python": python_version(),
            "cpu": cpu_model(),
            "cores": str(available_cores()),
            "gpus": "",
            "driver": "",
        }
        self._gpus = open_gpus()
        if self._gpus is not None:
            self._registry.register(self._gpus)
            self._facts |= self._gpus.facts
        self._registry.register(self)

    def model(self, name: str, version: str) -> ModelMetrics:
        """Add a model, and return its metrics."""
        metrics = self.beside(name, version)
        self.models.append(metrics)
        return metrics

    def beside(self, name: str, version: str) -> ModelMetrics:
        """Return metrics for a new version of a model. They are not exported until `replace` is
        called."""
        return ModelMetrics(name, version, Counts(self.max_batch))

    def replace(self, old: ModelMetrics | None, new: ModelMetrics | None) -> None:
        """Export the counts of a model's version `new` instead of its version `old`. Either may be
        None.

        The old version may still count its requests in progress. The versions before it must have
        stopped counting.
        """
        others = [model for model in self.models if model is not old]
        index = self.models.index(old) if old in self.models else len(others)
        if old is not None and new is not None:
            earlier = [folded(old.earlier)] if old.earlier else []
            new.earlier = [old.counts.row, *earlier]
        # Replaced as a whole, because a thread may be reading it.
        self.models = others[:index] + ([new] if new else []) + others[index:]

    def exposition(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry) + "".join(_triton_lines(self.models)).encode()

    def busy_gpus(self) -> list[float]:
        """Return the fraction of time for which each GPU is busy. Call it in a thread, because
        drivers may be slow."""
        gauges = [] if self._gpus is None else self._gpus.collect()
        busy = (gauge for gauge in gauges if gauge.name == "nv_gpu_utilization")
        return [sample.value for gauge in busy for sample in gauge.samples]

    @override
    def collect(self) -> Iterable[Metric]:
        families: dict[str, Any] = {}

        def add(kind: Any, name: str, text: str, *value: Any, **labels: str) -> None:
            if name not in families:
                families[name] = kind(name, text, labels=["model", *labels])
            families[name].add_metric([model.name, *labels.values()], *value)

        for model in self.models:
            done = model.counts.sum(model.earlier)
            for status, count in done.requests.items():
                add(Counter, "convoy_requests", _REQUESTS, count, status=str(status))
            add(Counter, "convoy_images", "Images answered.", done.inferences)
            for why, count in done.decoded.items():
                by = "cpu" if why else "gpu"
                add(Counter, "convoy_images_decoded", _DECODED, count, by=by, why=why)
            add(Counter, "convoy_failed_batches", "Batches that failed.", done.failed_batches)
            add(Histogram, "convoy_request_duration_seconds", _DURATION, *done.duration)
            for phase, histogram in done.phases.items():
                add(Histogram, "convoy_phase_duration_seconds", _PHASE, *histogram, phase=phase)
            add(Histogram, "convoy_batch_size", "Images per batch.", *done.batch_size)
            for number, (device, precision, reason, _, *values) in enumerate(model.engines()):
                about = {"device": device, "precision": precision, "fallback_reason": reason}
                add(Info, "convoy_engine", _ENGINE, about, engine=str(number))
                for (kind, name, text), value in zip(_OF_ENGINE, values, strict=True):
                    add(kind, name, text, float(value), engine=str(number), device=device)
            for name, (text, read) in model.gauges.items():
                add(Counter if name.endswith("_total") else Gauge, name, text, read())
            add(Gauge, "convoy_version", "The version that is served.", float(model.version))
        yield Info("convoy", "This Convoy, its Python and its machine.", self._facts)
        yield from families.values()
        if self.swaps:
            yield from self._of_swaps()
        lost = "Decode threads that hung or died; each was replaced."
        yield Counter("convoy_lost_decode_threads", lost, self.lost_decode_threads())

    def swapped(self, model: str, outcome: str) -> None:
        """Count one attempt to replace a model's version. `outcome` is "loaded", "refused" or
        "failed"."""
        self.swaps[model, outcome] = self.swaps.get((model, outcome), 0) + 1

    def _of_swaps(self) -> Iterator[Metric]:
        swaps = Counter("convoy_swaps", _SWAPS, labels=["model", "outcome"])
        for labels, count in tuple(self.swaps.items()):
            swaps.add_metric(labels, count)
        agreement = Gauge("convoy_swap_agreement", _AGREEMENT, labels=["model"])
        change = Gauge("convoy_swap_largest_change", _CHANGE, labels=["model"])
        images = Gauge("convoy_swap_images", _COMPARED, labels=["model"])
        for model, compared in tuple(self.compared.items()):
            images.add_metric([model], compared.images)
            if compared.agreement is not None and compared.largest_change is not None:
                agreement.add_metric([model], compared.agreement)
                change.add_metric([model], compared.largest_change)
        yield from (swaps, images, agreement, change)


_SWAPS = "New versions: loaded; refused for too little agreement; failed to open or to warm up."
_COMPARED = "Recent images on which the last new version was compared with the old one."
_AGREEMENT = "Share of the compared recent images to which both versions gave the same class."
_CHANGE = "Largest change of a probability on the compared recent images."
_REQUESTS = "Requests to a model by status; 499: the client left before the answer."
_DECODED = "Images of an engine that decodes JPEG files, by decoder and reason to use the CPU."
_DURATION = "Time from the head of a request to its answer, for status 200."
_PHASE = "Time in each phase of a request, for status 200."
_ENGINE = "Device, precision and the reason why --device auto chose the CPU."

# The fields of EngineStatus after the first four.
_OF_ENGINE: Sequence[tuple[type[Counter] | type[Gauge], str, str]] = (
    (Gauge, "convoy_engine_ready", "1 while the engine takes batches."),
    (Gauge, "convoy_engine_max_batch", "Most images that the engine takes at once."),
    (Counter, "convoy_engine_restarts", "Attempted restarts of an engine that hung or failed."),
    (Counter, "convoy_engine_batches", "Batches that the engine ended, including failed batches."),
    (Counter, "convoy_engine_images", "Images in the batches that the engine ended."),
    (Counter, "convoy_engine_busy_seconds", "Time in the batches that the engine ended."),
)

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
    """Yield the metrics with Triton's names as text, because prometheus_client would append
    `_total` to the names."""
    scraped = [(_labels(model), model.counts.sum(), model.pending()) for model in models]
    for name, text, attribute in _TRITON:
        yield f"# HELP {name} {text}\n# TYPE {name} counter\n"
        for labels, totals, _ in scraped:
            yield f"{name}{{{labels}}} {attrgetter(attribute)(totals)}\n"
    name = "nv_inference_request_failure"
    yield f"# HELP {name} Requests that failed, by reason\n# TYPE {name} counter\n"
    for labels, totals, _ in scraped:
        for reason, count in totals.failures.items():
            yield f'{name}{{{labels},reason="{reason}"}} {count}\n'
    name = "nv_inference_pending_request_count"
    yield f"# HELP {name} Images waiting for a batch\n# TYPE {name} gauge\n"
    for labels, _, pending in scraped:
        yield f"{name}{{{labels}}} {pending:.0f}\n"


def _labels(model: ModelMetrics) -> str:
    """Return a model's labels in Prometheus' text format, with special characters escaped."""
    name = model.name.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    return f'model="{name}",version="{model.version}"'
