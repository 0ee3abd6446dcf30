"""Implements `convoy tune`, which measures the algorithms for a network's convolutions at every
batch size."""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path

from kernels.device.device import Device, DeviceError, FaultError
from kernels.device.gpus import architecture_of
from kernels.problems.conv import ConvProblem
from kernels.tuning.autotune import TOP_CANDIDATES, Search, autotune
from kernels.tuning.search import ranking
from kernels.tuning.store import DEFAULT_STORE, Outcomes, TuningStore, TuningStoreError
from models.classifier import Classifier
from models.errors import EngineError
from models.open_gpu import open_gpu
from models.tuning.measured import conv_problems


@dataclass(frozen=True, slots=True)
class MeasuredCandidate:
    """Holds the median times of an algorithm in one configuration, with warm and with cold caches.

    Candidates are compared by `us`, the mean of both times.
    """

    name: str
    us: float
    warm_us: float
    cold_us: float


@dataclass(frozen=True, slots=True)
class ProblemReport:
    """Reports on one convolution, the nodes that compute it, and the measured candidates. `ranked`
    begins with the fastest candidate."""

    nodes: tuple[str, ...]
    problem: str
    n: int
    flops: int  # for the direct algorithm; a multiply-add counts as two
    roofline_us: float  # the longer time of those FLOPs and the operands' bytes, at peak rates
    ranked: tuple[MeasuredCandidate, ...]
    failures: tuple[tuple[str, str], ...]  # candidate, reason

    @property
    def effective_tflops(self) -> float:
        """Return the number of operations of a direct convolution divided by the fastest
        candidate's time, in TFLOP/s.

        For Winograd, which needs fewer operations, the result can exceed the device's peak.
        """
        return self.flops / self.ranked[0].us / 1e6

    @property
    def roofline_share(self) -> float:
        """Return the least time of a direct convolution at the device's peak rates, divided by the
        fastest candidate's time."""
        return self.roofline_us / self.ranked[0].us


@dataclass(frozen=True, slots=True)
class TuningReport:
    """Lists the measurements of a network's convolutions on a device, including measurements of
    earlier runs."""

    name: str
    device: str
    store: Path
    problems: tuple[ProblemReport, ...]


def tune(
    classifier: Classifier,
    *,
    max_batch: int,
    tuning: Path | None,
    progress: Callable[[str, int, int], None],
    top: int | None = TOP_CANDIDATES,
    anew: bool = False,
    threads: int = 0,
) -> TuningReport:
    """Measure the `top` most promising algorithms for every convolution, at all batch sizes up to
    `max_batch`.

    If `top` is None, all candidates are measured. `threads` threads compile all kernels before the
    first measurement; 0 means one thread per core. Measurements are stored in the file `tuning`, or
    in the default file if `tuning` is None. Stored measurements are repeated only if `anew` is
    True. Calls `progress(task, done, total)`. Raises EngineError if there is no GPU, if the file
    cannot be used, or if the device fails. Completed measurements are stored even after an error or
    KeyboardInterrupt.
    """
    device = open_gpu(
        "Run `convoy tune` on a machine with a GPU; without a GPU, choices are estimated"
    )
    store = TuningStore(tuning or DEFAULT_STORE)
    graph = classifier.rewritten.graph
    problems = conv_problems(graph, range(1, max_batch + 1))
    try:
        known = autotune(
            device,
            list(problems),
            store,
            Search(top, anew=anew),
            progress=progress,
            threads=threads,
        )
    except TuningStoreError as error:
        raise EngineError(str(error)) from error
    except FaultError as error:
        raise EngineError(
            f"a kernel failed on {device.name}: {error}. Measurements so far are in {store.path};"
            " run `convoy tune` again, which leaves that kernel out"
        ) from error
    except DeviceError as error:
        raise EngineError(f"{device.name} cannot measure {classifier.name}: {error}") from error
    return TuningReport(
        name=classifier.name,
        device=device.name,
        store=store.path,
        problems=tuple(
            _report(device, problem, tuple(names), known[problem])
            for problem, names in problems.items()
        ),
    )


def _report(
    device: Device, problem: ConvProblem, nodes: tuple[str, ...], outcomes: Outcomes
) -> ProblemReport:
    x = problem.n * problem.c * prod(problem.window.input)
    if problem.projection:
        x += problem.n * problem.projection.c * prod(problem.projection.input)
    rate = architecture_of(device.architecture).rate(problem.precision)
    elements = x + prod(problem.filter_shape) + problem.k + prod(problem.output_shape)
    return ProblemReport(
        nodes=nodes,
        problem=str(problem),
        n=problem.n,
        flops=2 * problem.macs,
        roofline_us=1e6
        * max(
            2 * problem.macs / (device.peak_flops * rate),
            problem.precision.stored.itemsize * elements / device.peak_bandwidth,
        ),
        ranked=tuple(
            MeasuredCandidate(name, times.us, times.warm.p50_us, times.cold.p50_us)
            for name, times in ranking(outcomes)
        ),
        failures=tuple(
            (name, outcome.failure)
            for name, outcome in outcomes.items()
            if outcome.failure is not None
        ),
    )
