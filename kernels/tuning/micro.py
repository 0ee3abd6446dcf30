"""Measures properties of a GPU that the cost model otherwise assumes, by timing the small kernels
of kernels/src/micro.cu.

    MEASUREMENTS ─ readings: a name, what was run, µs ─ fitted ─ Constants

Each measurement is a captured graph of copies, timed as in kernels/tuning/timing.py. The device
must do no other work during the measurements.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from kernels.device.device import Device, Stream, Trigger
from kernels.device.launch import Launch, instantiate, launch
from kernels.tuning.constants import Constants, cycles
from kernels.tuning.timing import COPIES, REPLAYS, Copies, Timing, launcher

SOURCE = "micro.cu"

CACHE_BYTES = 16 << 20
"""Bytes that each block reads, more than the L1 cache holds and less than the L2 cache."""

TURNS = (0, 500, 1000)
"""The lengths of chains of additions: for an empty kernel, and for kernels of about 1 µs and 2
µs."""

VARIANTS, LENGTH = 8, 2048
"""Kernels with 32 KB of code each, together more than the instruction caches hold."""

ISSUE_TURNS = 2000
WARPS = (4, 8, 16, 32)
"""The numbers of warps on each multiprocessor."""


@dataclass(frozen=True, slots=True)
class Reading:
    """Holds a measured median time in µs. It is the time of one launch, or of one run of a fork
    (`measure_fork`). `conditions` describes the launch."""

    name: str
    conditions: Mapping[str, Any]
    us: float


@dataclass(frozen=True, slots=True)
class Effort:
    """Sets how long a measurement takes: the number of copies of a launch in a graph, and the
    number of replays of the graph."""

    copies: int = COPIES
    replays: int = REPLAYS


def read_cache_launch(blocks: int, nbytes: int) -> Launch:
    """Return a launch in which every block sums the same `nbytes` of x into y."""
    kernel = instantiate(SOURCE, "read_cache")
    return launch(kernel, (blocks, 1, 1), (1024, 1, 1), x="x", y="y", vectors=nbytes // 16)


def chain_launch(blocks: int, turns: int, trigger: Trigger = Trigger.START) -> Launch:
    """Return a launch in which every thread executes `turns` additions, one after another, and then
    writes y."""
    kernel = replace(instantiate(SOURCE, "chain"), trigger=trigger)
    return launch(kernel, (blocks, 1, 1), (256, 1, 1), y="y", turns=turns)


def wide_launch(blocks: int, variant: int, length: int) -> Launch:
    """Return a launch of a kernel with long code, which writes y. Kernels of different variants
    have different code, so launches of several variants in turn overflow the instruction caches."""
    kernel = instantiate(SOURCE, "wide", length=length, variant=variant)
    return launch(kernel, (blocks, 1, 1), (256, 1, 1), y="y", x=1.0)


def issue_launch(blocks: int, warps: int, turns: int) -> Launch:
    """Return a launch in which each warp multiplies small tiles in shared memory, `turns` times. It
    writes y."""
    kernel = instantiate(SOURCE, "issue")
    return launch(kernel, (blocks, 1, 1), (32 * warps, 1, 1), y="y", turns=turns)


class Laboratory:
    """Times the small kernels of micro.cu on a device. A Laboratory holds the device and the
    kernels' operands. The function `laboratory` creates a Laboratory."""

    def __init__(self, device: Device, effort: Effort, operands: Mapping[str, int]) -> None:
        self.device, self._effort, self._operands = device, effort, operands

    @property
    def multiprocessors(self) -> int:
        """Return the number of the device's multiprocessors."""
        return self.device.multiprocessors

    def enqueues(self, launched: Launch, *, dependent: bool = False) -> Callable[[Stream], None]:
        """Load the launch's kernel and return a function that enqueues the launch on a stream."""
        run = launcher(self.device, [launched], [self._operands], dependent=dependent)
        return lambda stream: run(stream, 0)

    def us(self, *runs: Callable[[Stream], None]) -> float:
        """Time the launches that the functions `runs` enqueue. A captured graph repeats these
        functions in turn. Return the median time of one call in µs. Raises DeviceError."""

        def run(stream: Stream, index: int) -> None:
            runs[index](stream)

        copies = Copies(self.device, run, len(runs), copies=self._effort.copies)
        return Timing.of(copies.samples_us(self._effort.replays)).p50_us


@contextmanager
def laboratory(device: Device, effort: Effort) -> Iterator[Laboratory]:
    """Allocate operands, yield a Laboratory, and free the operands at the end. Raises
    DeviceError."""
    sizes = {"x": CACHE_BYTES, "y": 4 * 1024 * max(device.multiprocessors, 1)}
    buffers = {name: device.allocate(nbytes) for name, nbytes in sizes.items()}
    stream = device.stream()
    device.fill(buffers["x"].address, CACHE_BYTES, 0, stream)
    stream.synchronize()
    try:
        yield Laboratory(device, effort, {name: buffer.address for name, buffer in buffers.items()})
    finally:
        device.synchronize()
        for buffer in buffers.values():
            buffer.free()


def measure_cache(at: Laboratory) -> list[Reading]:
    """Time launches in which each block reads CACHE_BYTES. The launches have 1 block, and then 1/4,
    1/2 and 1 times as many blocks as there are multiprocessors."""
    every = at.multiprocessors
    return [
        Reading(
            "cache",
            {"blocks": blocks},
            at.us(at.enqueues(read_cache_launch(blocks, CACHE_BYTES))),
        )
        for blocks in dict.fromkeys((1, max(1, every // 4), max(1, every // 2), every))
    ]


def measure_chain(at: Laboratory) -> list[Reading]:
    """Time consecutive launches of an empty and of a short kernel. In half of the measurements,
    consecutive launches may overlap."""
    readings = []
    for turns, trigger in product(TURNS, Trigger):
        launched = chain_launch(at.multiprocessors, turns, trigger)
        for dependent in (False, True):
            conditions = {"turns": turns, "trigger": trigger.name, "dependent": dependent}
            us = at.us(at.enqueues(launched, dependent=dependent))
            readings.append(Reading("chain", conditions, us))
    return readings


def measure_fork(at: Laboratory) -> list[Reading]:
    """Time a fork: a launch, then two launches on parallel streams, then a launch that waits for
    both."""
    half = at.enqueues(chain_launch(max(1, at.multiprocessors // 2), TURNS[1]))
    beside, forked, joined = at.device.stream(), at.device.event(), at.device.event()

    def run(stream: Stream) -> None:
        half(stream)
        forked.record(stream)
        beside.wait(forked)
        half(beside)
        joined.record(beside)
        half(stream)
        stream.wait(joined)
        half(stream)

    return [Reading("fork", {"turns": TURNS[1]}, at.us(run))]


def measure_code(at: Laboratory) -> list[Reading]:
    """Time launches of kernels with long code: first one kernel repeatedly, then several kernels in
    turn."""
    every = [
        at.enqueues(wide_launch(at.multiprocessors, variant, LENGTH)) for variant in range(VARIANTS)
    ]
    return [Reading("code", {"kernels": len(runs)}, at.us(*runs)) for runs in (every[:1], every)]


def measure_issue(at: Laboratory) -> list[Reading]:
    """Time a convolution's inner loop with different numbers of warps on a multiprocessor."""
    return [
        Reading(
            "issue",
            {"warps": warps, "turns": ISSUE_TURNS},
            at.us(at.enqueues(issue_launch(at.multiprocessors, warps, ISSUE_TURNS))),
        )
        for warps in WARPS
    ]


MEASUREMENTS: Mapping[str, Callable[[Laboratory], list[Reading]]] = {
    "cache": measure_cache,
    "chain": measure_chain,
    "fork": measure_fork,
    "code": measure_code,
    "issue": measure_issue,
}


def fitted(readings: Iterable[Reading]) -> Constants:
    """Compute the constants of the cost model from the readings of all MEASUREMENTS.

    In a chain of launches, the gap before a launch is the launch's time minus the time of its
    additions. The time of the additions follows from chains with different numbers of additions.
    Raises ValueError if a reading is missing.
    """
    found = list(readings)

    def us(name: str, **conditions: Any) -> float:
        for reading in found:
            if reading.name == name and conditions.items() <= reading.conditions.items():
                return reading.us
        raise ValueError(f"{name} was not measured with {conditions}; measure it first")

    def gap_us(**conditions: Any) -> float:
        _, short, long = (
            us("chain", turns=turns, trigger="START", **conditions) for turns in TURNS
        )
        return 2 * short - long

    apart = gap_us(dependent=False)
    additions = us("chain", turns=TURNS[1], trigger="START", dependent=False) - apart
    # Three launches lie on the longest path through a fork, and one gap that is none of its own.
    fork_us = (us("fork") - 3 * additions - apart) / 2
    reads = [reading for reading in found if reading.name == "cache"]
    if not reads:
        raise ValueError("cache was not measured; measure it first")
    widest = max(reads, key=lambda read: int(read.conditions["blocks"]))
    slope, intercept = np.polyfit(WARPS, [us("issue", warps=warps) for warps in WARPS], 1)
    return Constants(
        launch_cycles=cycles(apart),
        overlapped_cycles=cycles(gap_us(dependent=True)),
        fork_cycles=cycles(fork_us),
        cache_bytes_per_cycle=cache_bytes_per_cycle(widest),
        idle_warps=float(intercept / slope),
    )


def cache_bytes_per_cycle(reading: Reading) -> float:
    """Return how many bytes per cycle a multiprocessor reads from the second-level cache, from a
    reading of `measure_cache`."""
    return CACHE_BYTES / cycles(reading.us)
