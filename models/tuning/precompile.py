"""Compiling a model's kernels ahead of time, on a machine that needs no GPU."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from pathlib import Path

from kernels.device.compile import DEFAULT_CACHE, compile_all
from kernels.device.device import DeviceError, Instantiation
from kernels.tuning.heuristic import Facts, heuristic
from kernels.tuning.search import finder, tuned
from models.classifier import Classifier
from models.errors import EngineError
from models.lowering import Choose
from models.plan import build_plan
from models.tuning.measured import read_measurements

GPUS_OF: Mapping[str, tuple[Facts, ...]] = {
    architecture: tuple(Facts(each, shared_kb << 10, architecture) for each in multiprocessors)
    for architecture, shared_kb, multiprocessors in (
        ("75", 64, (40, 72)),  # T4; Quadro RTX 8000
        ("80", 163, (56, 108)),  # A30; A100
        ("86", 99, (60, 84)),  # A10 has 72; A16, A40
        ("89", 99, (58, 128, 142)),  # L4; RTX 4090; L40
        ("90a", 227, (114, 132)),  # H100 PCIe; H100 SXM, H200
        ("100", 227, (148,)),  # B200
        ("120", 99, (170, 188)),  # RTX 5090; RTX PRO 6000
    )
}
"""Architectures and their GPUs: the choice of kernels depends on the multiprocessors and on the
shared memory of a block. Another GPU may need a kernel that none of these needs; its engine
compiles that kernel at start."""


def precompile(
    classifier: Classifier,
    architectures: Sequence[str],
    *,
    max_batch: int,
    tuning: Path | None = None,
    cache: Path = DEFAULT_CACHE,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Fill the cache with the kernels for N = 1..max_batch; returns their number.

    The winners in `tuning`, if given, are compiled too. Calls `progress(done, total)`. Raises
    EngineError: an unknown architecture or one that lacks the precision, no compiler, no such file.
    """
    if unknown := sorted(set(architectures) - GPUS_OF.keys()):
        raise EngineError(
            f"unknown architecture {', '.join(unknown)}; there are {', '.join(GPUS_OF)}"
        )
    precision = classifier.precision
    if old := [each for each in architectures if not precision.runs_on(each)]:
        raise EngineError(
            f"sm_{old[0]} has no tensor cores for {precision.value}, which needs"
            f" sm_{precision.least_architecture}; leave it out, or use --precision fp32 or fp16"
        )
    graph = classifier.rewritten.graph
    wanted: dict[Instantiation, None] = {}
    gpus = {gpu for arch in architectures for gpu in GPUS_OF[arch]}
    for choose in (*map(heuristic, gpus), *_measured(tuning, architectures)):
        for n, tensors in product(range(1, max_batch + 1), (False, True)):
            plan = build_plan(graph, classifier.preprocessing, n, choose, tensors=tensors)
            wanted |= dict.fromkeys(step.launch.instantiation for step in plan.steps)
    try:
        return len(compile_all(wanted, architectures, cache, progress))
    except DeviceError as error:
        raise EngineError(str(error)) from error


def _measured(tuning: Path | None, architectures: Sequence[str]) -> Iterator[Choose]:
    """The choices measured to be fastest, per measured device of these architectures."""
    if tuning is None:
        return
    measurements = read_measurements(tuning)
    for conditions in dict.fromkeys(key.conditions for key in measurements):
        if conditions.architecture in architectures:
            # Where nothing was measured: those kernels are compiled anyway.
            fallback = heuristic(GPUS_OF[conditions.architecture][0])
            yield tuned(finder(measurements, conditions), fallback)
