"""Chooses a convolution's algorithm and configuration where none has been measured.

A cost model, not a simulation: it must rank configurations of one problem, not predict their times.
The numbers are those of an H100 or H200, in clock cycles of one multiprocessor; those that differ
little between GPUs are the same for all.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Protocol

from kernels.convolution.algorithms import ConvChoice, choices
from kernels.convolution.work import Work
from kernels.problems.conv import ConvProblem

_INSTRUCTIONS = 128
"""Per clock, each of one thread."""
_L2_BYTES = 24
"""From the second-level cache, per clock, while all multiprocessors read."""
_MEMORY_BYTES = 18
"""From memory, per clock and multiprocessor."""
_L2_LATENCY = 700
_START = 1000
"""From a block's start to its first chunk in shared memory."""
_MEET = 1500
"""From the first partial sum's write to the last block's read."""
_NEXT_LAUNCH = 2000
"""From a launch's end to the next one's start."""
_SEVERAL = 1.2
"""Factor on the estimate of several launches: they must be clearly better than one, since their
intermediate data may leave the cache, and a GPU idles between two launches."""
_SHARED_BYTES = 228 << 10
_RESERVED_SHARED_BYTES = 1 << 10
"""Per block, reserved by CUDA."""
_REGISTERS = 65536
_MAX_WARPS = 64
_MAX_BLOCKS = 32


class DeviceFacts(Protocol):
    """The properties of a device that decide the choice: a `Device`, or `Facts` without one."""

    @property
    def multiprocessors(self) -> int:
        """The number of multiprocessors."""

    @property
    def max_shared_bytes(self) -> int:
        """The most shared memory of a block, static and dynamic together."""


@dataclass(frozen=True, slots=True)
class Facts:
    """A device's properties without the device; shared memory defaults to an H100's."""

    multiprocessors: int
    max_shared_bytes: int = 227 << 10


H200 = Facts(multiprocessors=132)


def heuristic(device: DeviceFacts) -> Callable[[ConvProblem], ConvChoice]:
    """A choice for every problem among all candidates; it keeps only facts of the device."""
    facts = Facts(device.multiprocessors, device.max_shared_bytes)
    return lambda problem: choose(problem, choices(problem, facts.max_shared_bytes), facts)


def choose(
    problem: ConvProblem, candidates: Sequence[ConvChoice], device: DeviceFacts
) -> ConvChoice:
    """The candidate with the least estimated cost, the first where several are equal."""
    return min(candidates, key=lambda choice: estimated_cycles(problem, choice, device))


def estimated_cycles(problem: ConvProblem, choice: ConvChoice, device: DeviceFacts) -> float:
    """Estimated cycles of all launches, to compare choices of one problem."""
    works = choice.algorithm.work(problem, choice.config)
    cycles = sum(_cycles(work, device) for work in works) + (len(works) - 1) * _NEXT_LAUNCH
    return cycles if len(works) == 1 else _SEVERAL * cycles


def resident_blocks(work: Work) -> int:
    """Blocks that fit on one multiprocessor of an H100, possibly 0."""
    return min(
        _SHARED_BYTES // (work.shared_bytes + _RESERVED_SHARED_BYTES),
        _REGISTERS // (work.registers * work.threads),
        _MAX_WARPS * 32 // work.threads,
        _MAX_BLOCKS,
    )


def _cycles(work: Work, device: DeviceFacts) -> float:
    blocks = ceil(work.blocks / device.multiprocessors)  # of the busiest one
    # A block too large for an H100 fits, alone, on the device that it is for.
    resident = max(1, resident_blocks(work))
    waves = ceil(blocks / resident)
    warps = min(blocks, resident) * work.threads / 32
    issued = warps / (warps + 2)
    throughput = blocks * max(work.instructions / (_INSTRUCTIONS * issued), work.bytes / _L2_BYTES)
    latency = waves * work.rounds * _L2_LATENCY
    memory = work.weight_bytes / (_MEMORY_BYTES * device.multiprocessors)
    total = waves * _START + max(throughput, latency, memory)
    if work.tail_bytes:
        total += _MEET + work.tail_bytes / _L2_BYTES
    return total
