"""Which algorithm and configuration to run a convolution with, where none has been measured.

A cost model, not a simulation: it must rank configurations of one problem, and need not be right
about how long they take. The numbers are those of an H100 or H200, in clock cycles of one
multiprocessor; what differs little from GPU to GPU is the same for all.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Protocol

from kernels.convolution.algorithms import ConvChoice, choices
from kernels.convolution.work import Work
from kernels.problems.conv import ConvProblem

_INSTRUCTIONS = 128
"""Of a thread each, a clock."""
_L2_BYTES = 24
"""From the second-level cache, a clock, while all multiprocessors read."""
_MEMORY_BYTES = 18
"""From memory, a clock, a multiprocessor's part."""
_L2_LATENCY = 700
_START = 1000
"""From a block's start to its first chunk in shared memory."""
_MEET = 1500
"""From the first partial sum written to the last block's reading them."""
_NEXT_LAUNCH = 2000
"""From a launch's end to the next one's start."""
_SEVERAL = 1.2
"""Times what several launches are estimated at: they must look clearly better than one, for what
they hand on to each other may leave the cache, and a GPU is idle while one ends and one begins."""
_SHARED_BYTES = 228 << 10
_RESERVED_SHARED_BYTES = 1 << 10
"""Of every block, for the system."""
_REGISTERS = 65536
_MAX_WARPS = 64
_MAX_BLOCKS = 32


class DeviceFacts(Protocol):
    """What the choice depends on of a device: any `Device` tells, and `Facts` do without one."""

    @property
    def multiprocessors(self) -> int:
        """How many blocks run at once, where each fills a multiprocessor."""

    @property
    def max_shared_bytes(self) -> int:
        """Shared memory that a block may ask for, static and dynamic together."""


@dataclass(frozen=True, slots=True)
class Facts:
    """A device that need not be there; an H100's shared memory where it is not said."""

    multiprocessors: int
    max_shared_bytes: int = 227 << 10


H200 = Facts(multiprocessors=132)


def heuristic(device: DeviceFacts) -> Callable[[ConvProblem], ConvChoice]:
    """Chooses for every problem among all there is; it keeps nothing of the device but facts."""
    facts = Facts(device.multiprocessors, device.max_shared_bytes)
    return lambda problem: choose(problem, choices(problem, facts.max_shared_bytes), facts)


def choose(
    problem: ConvProblem, candidates: Sequence[ConvChoice], device: DeviceFacts
) -> ConvChoice:
    """The candidate with the least estimated cost, the first of several: a pure function."""
    return min(candidates, key=lambda choice: estimated_cycles(problem, choice, device))


def estimated_cycles(problem: ConvProblem, choice: ConvChoice, device: DeviceFacts) -> float:
    """Cycles from the first launch to the end, roughly: for comparing choices of one problem."""
    works = choice.algorithm.work(problem, choice.config)
    cycles = sum(_cycles(work, device) for work in works) + (len(works) - 1) * _NEXT_LAUNCH
    return cycles if len(works) == 1 else _SEVERAL * cycles


def resident_blocks(work: Work) -> int:
    """Blocks that fit one multiprocessor of an H100; 0 where not even one does."""
    return min(
        _SHARED_BYTES // (work.shared_bytes + _RESERVED_SHARED_BYTES),
        _REGISTERS // (work.registers * work.threads),
        _MAX_WARPS * 32 // work.threads,
        _MAX_BLOCKS,
    )


def _cycles(work: Work, device: DeviceFacts) -> float:
    blocks = ceil(work.blocks / device.multiprocessors)  # of the busiest one
    # A block that fits no H100 fits the device that it is for, alone.
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
