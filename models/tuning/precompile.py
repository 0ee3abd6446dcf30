"""Compiles the kernels of a model in advance, on a machine that may have no GPU."""

from collections.abc import Callable, Iterator, Sequence
from itertools import product
from pathlib import Path

from kernels.device.compile import DEFAULT_CACHE, compile_all, compiler
from kernels.device.compile import architectures as known_architectures
from kernels.device.device import DeviceError, Instantiation
from kernels.device.gpus import ARCHITECTURES
from kernels.image.place import Kind
from kernels.tuning.heuristic import Facts, heuristic
from kernels.tuning.search import finder, tuned
from models.classifier import Classifier
from models.errors import EngineError
from models.lowering import Choose
from models.plan import build_plan
from models.tuning.measured import read_measurements


def precompile(
    classifier: Classifier,
    architectures: Sequence[str],
    *,
    max_batch: int,
    tuning: Path | None = None,
    cache: Path = DEFAULT_CACHE,
    progress: Callable[[int, int], None] | None = None,
    threads: int = 0,
) -> int:
    """Compile the kernels for all batch sizes up to `max_batch` into the cache, and return their
    number.

    If the file `tuning` is given, the algorithms that were fastest in its measurements are
    compiled, too. `threads` threads compile; 0 means one thread per core. Calls `progress(done,
    total)`. Raises EngineError if an architecture is unknown to the compiler or does not support
    the precision, or if the compiler or a file is missing.
    """
    try:
        known, by = known_architectures(), compiler()
    except DeviceError as error:
        raise EngineError(str(error)) from error
    if unknown := sorted(set(architectures) - set(known)):
        raise EngineError(
            f"unknown architecture {', '.join(unknown)}; {by} compiles for {', '.join(known)}"
        )
    precision = classifier.precision
    if old := [
        architecture
        for architecture in architectures
        if not precision.architectures.includes(architecture)
    ]:
        raise EngineError(
            f"sm_{old[0]} has no tensor cores for {precision.value}; GPUs have them from"
            f" sm_{precision.architectures.first} on. Leave sm_{old[0]} out, or use --precision"
            " fp32 or fp16"
        )
    graph = classifier.rewritten.graph
    meaning = classifier.preprocessing
    kinds = {kind for takes in Kind for kind in meaning.batch_kinds(takes)}
    wanted: dict[Instantiation, None] = {}
    gpus = {gpu for arch in architectures for gpu in _gpus_of(arch)}
    for choose in (*map(heuristic, gpus), *_measured(tuning, architectures)):
        for n, kind in product(range(1, max_batch + 1), sorted(kinds)):
            plan = build_plan(graph, meaning, n, choose, kind=kind)
            wanted |= dict.fromkeys(step.launch.instantiation for step in plan.steps)
    try:
        return len(compile_all(wanted, architectures, cache, progress, threads))
    except DeviceError as error:
        raise EngineError(str(error)) from error


def _measured(tuning: Path | None, architectures: Sequence[str]) -> Iterator[Choose]:
    """Yield one function per device that was measured and has one of these architectures. It
    chooses the algorithms that were fastest on that device."""
    if tuning is None:
        return
    measurements = read_measurements(tuning)
    for conditions in dict.fromkeys(key.conditions for key in measurements):
        if conditions.architecture in architectures:
            # The choice without measurements, whose kernels are compiled in any case.
            fallback = heuristic(next(_gpus_of(conditions.architecture)))
            yield tuned(finder(measurements, conditions), fallback)


def _gpus_of(name: str) -> Iterator[Facts]:
    """Yield, for each GPU of an architecture, the properties that affect plans. An example is the
    number of multiprocessors."""
    architecture = ARCHITECTURES[name]
    for multiprocessors in architecture.multiprocessors:
        yield Facts(multiprocessors, architecture.block_bytes, name)
