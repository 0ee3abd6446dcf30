"""Packs the compiled kernels of all tests and of all measurements, for a day on a GPU.

    python -m tests.support.benchmarks.carried RELEASE ARCHITECTURE FILE

A cubin's name in the cache depends on the compiler's version. So RELEASE must be the version of
NVRTC on the machine for which the cubins are packed. FILE is a .tar.xz. Cubins that the cache lacks
are compiled.
"""

import sys
import tarfile
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import product
from pathlib import Path

from rich.progress import Progress, TaskID

from benchmarks.gpu.units import AT_PRECISIONS, units
from benchmarks.kernels.suites import SUITES
from benchmarks.networks import light
from benchmarks.networks.sides import ConvoyNetwork
from benchmarks.networks.switches import UNTUNED
from kernels.device.compile import cached_file, compile_all, compiler
from kernels.device.compilers import COMPARED
from kernels.device.device import Event, Instantiation, Kernel, Trigger
from kernels.image.place import Kind
from kernels.problems.conv import ConvProblem
from kernels.tuning import micro
from kernels.tuning.autotune import Search
from kernels.tuning.heuristic import heuristic
from kernels.tuning.search import instantiations, shortlist
from models import BUILT_IN_MODEL, load_classifier
from models.classifier import Classifier
from models.engines.cuda_engine import CudaEngine
from models.tuning.measured import conv_problems
from tests.support.cases import INSTANTIATIONS
from tests.support.kernels.compilers import run_with
from tests.support.kernels.null_device import NullDevice, NullEvent
from tests.support.kernels.resources import CACHE
from tests.support.networks import SQUEEZENET

TUNED = "SqueezeNet", "ResNet-50"
SUITE = "vgg-e"
"""The suite of convolutions that is tuned first if time is left. Its candidates are carried with
every trigger."""


class _Slow(NullEvent):
    """Replaces an event. It reports so long a time that a measurement needs no repetitions."""

    def elapsed_ms(self, since: Event) -> float:
        """Return more time than any warm-up takes."""
        return 1e6


class Recorder(NullDevice):
    """A device that only records the kernels that are loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: dict[Instantiation, None] = {}

    def event(self) -> NullEvent:
        """Return an event that lets measurements end at once."""
        return _Slow()

    def load(self, instantiation: Instantiation) -> Kernel:
        """Record the kernel."""
        self.loaded[instantiation] = None
        return super().load(instantiation)


def wanted() -> dict[Instantiation, None]:
    """Return every kernel once: the kernels of the tests and of the engines, the kernels that
    measure the cost model's constants, and the candidates of tuning."""
    device = Recorder()
    for model, most in _served():
        choose = heuristic(device)
        CudaEngine(model, device, max_batch=most, choose=choose, takes=Kind.JPEG).close()
    subjects = {(unit.subject, unit.n) for unit in units() if unit.side == UNTUNED}
    for subject, n in sorted(subjects):
        model = light.network(*AT_PRECISIONS[subject])
        ConvoyNetwork(model, device, n, heuristic(device)).close()
    with micro.laboratory(device, micro.Effort()) as at:
        for measure in micro.MEASUREMENTS.values():
            measure(at)
    return dict.fromkeys(INSTANTIATIONS) | device.loaded | _candidates(device)


def _served() -> Iterator[tuple[Classifier, int]]:
    """Yield the networks that tests and servers run, each with its largest batch. Kernels that
    these networks do not use belong to a case."""
    yield load_classifier(BUILT_IN_MODEL), 8
    yield load_classifier(SQUEEZENET, overrides={"preset": "caffe", "precision": "fp32"}), 8


def _candidates(device: NullDevice) -> dict[Instantiation, None]:
    layers: Iterable[ConvProblem] = (
        problem
        for name in TUNED
        for problem in conv_problems(light.network(name).rewritten.graph, [1])
    )
    every = (*layers, *(layer.problem for layer in SUITES[SUITE]))
    return {
        kernel: None
        for problem in dict.fromkeys(every)
        for choice, trigger in product(shortlist(problem, device, Search().top).values(), Trigger)
        for kernel in instantiations(problem, choice._replace(trigger=trigger))
    }


def pack(kernels: Iterable[Instantiation], arch: str, file: Path) -> None:
    """Compile the kernels that the cache lacks, and pack the cubins for `arch`."""
    with Progress() as bar:
        task = bar.add_task(f"{compiler()}, sm_{arch}")
        show = partial(_show, bar, task)
        made = compile_all(kernels, [arch], CACHE, show)
    with tarfile.open(file, "w:xz", preset=6) as packed:
        for kernel, _ in made:
            cubin = cached_file(kernel, arch, CACHE)
            packed.add(cubin, cubin.name)


def _show(bar: Progress, task: TaskID, done: int, total: int) -> None:
    bar.update(task, completed=done, total=total)


def main(release: str, arch: str, file: str) -> None:
    """Pack the kernels in a process with the compiler RELEASE. Raises SystemExit for an unknown
    compiler."""
    releases = {each.release: each for each in COMPARED}
    if release not in releases:
        raise SystemExit(f"no NVRTC {release} was compared; there are {', '.join(releases)}")
    if releases[release].name == compiler():
        pack(wanted(), arch, Path(file))
    else:
        run_with(releases[release], ["-m", "tests.support.benchmarks.carried", release, arch, file])


if __name__ == "__main__":
    main(*sys.argv[1:])
