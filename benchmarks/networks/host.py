"""Measures the µs of host time that the engine adds to a call of `run`.

    python -m benchmarks.networks.host [--calls N] [--record [FILE]]

The engine is the real one, on a device that computes nothing and takes no time (null_device.py):
checks, the images' way into pinned memory, one replay, the scores' way out. A driver's own time is
not in it. `floor` is the copy of the images alone, as NumPy does it: no engine can take less. Sizes
of batches take turns, so that other work on the machine affects all of them.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from statistics import quantiles

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.networks.light import LIGHT_NETWORKS, classifier, light_network
from benchmarks.networks.null_device import NullDevice
from benchmarks.rows import RESULTS, add_record, append
from kernels.tuning.heuristic import heuristic
from models.classifier import Classifier
from models.engines.cuda_engine import CudaEngine
from models.engines.engine import Images, Pixels

BATCHES = (1, 2, 4, 8)
GOAL_US = 15.0
"""The goal in µs for N = 1."""

_TURNS = 20


@dataclass(frozen=True, slots=True)
class Call:
    """Holds the times of calls with n images, in µs."""

    n: int
    p20_us: float
    p50_us: float
    p80_us: float
    floor_us: float


def measure(network: Classifier, batches: Sequence[int] = BATCHES, calls: int = 2000) -> list[Call]:
    """Return a row for each N."""
    device = NullDevice()
    engine = CudaEngine(network, device, max_batch=max(batches), choose=heuristic(device))
    engine.warm_up()
    took: dict[int, list[float]] = {n: [] for n in batches}
    floors: dict[int, list[float]] = {n: [] for n in batches}
    for _ in range(_TURNS):
        for n in batches:
            # An array of its own for each image, as decoding leaves them.
            images = [np.full(network.preprocessing.image_shape, i, np.uint8) for i in range(n)]
            into = np.empty((n, *network.preprocessing.image_shape), np.uint8)

            took[n] += _times(partial(engine.run, images), calls // _TURNS)
            floors[n] += _times(partial(_copy, into, images), calls // _TURNS)
    engine.close()
    return [Call(n, *_percentiles(took[n]), _percentiles(floors[n])[1]) for n in batches]


def _copy(into: Images, images: Sequence[Pixels]) -> None:
    for slot, image in zip(into, images, strict=True):
        slot[...] = image


def _times(call: Callable[[], object], calls: int) -> list[float]:
    times = []
    for _ in range(calls):
        begin = time.perf_counter_ns()
        call()
        times.append(1e-3 * (time.perf_counter_ns() - begin))
    return times


def _percentiles(times: Sequence[float]) -> tuple[float, float, float]:
    fifths = quantiles(times, n=10, method="inclusive")
    return fifths[1], fifths[4], fifths[7]


def table(calls: Sequence[Call]) -> Table:
    """Return the rows as a table."""
    shown = Table(title="µs a call that the engine adds, null device", title_justify="left")
    for heading in ("N", "p20", "p50", "p80", "floor"):
        shown.add_column(heading, justify="right")
    for call in calls:
        numbers = (call.p20_us, call.p50_us, call.p80_us, call.floor_us)
        shown.add_row(str(call.n), *(f"{number:.1f}" for number in numbers))
    return shown


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.networks.host",
        description="Measure the host's microseconds that the engine adds to a batch.",
    )
    parser.add_argument("--network", choices=LIGHT_NETWORKS, default="squeezenet")
    parser.add_argument("--calls", type=int, default=2000, help="for each N (%(default)s)")
    add_record(parser, RESULTS / "host.jsonl")
    asked = parser.parse_args(arguments)
    calls = measure(classifier(asked.network, light_network(asked.network)), calls=asked.calls)
    console = Console(highlight=False)
    console.print(table(calls))
    verdict = "met" if calls[0].p50_us <= GOAL_US else "NOT MET"
    console.print(f"{verdict}: {calls[0].p50_us:.1f} µs at N = 1 (goal: at most {GOAL_US:g} µs)")
    if asked.record:
        append(asked.record, map(asdict, calls))


if __name__ == "__main__":
    main()
