"""Estimates how long a plan's steps take, and when each runs.

A convolution takes what the cost model says (kernels/tuning/heuristic.py), divided equally among
its launches. Any other step takes OTHER_US plus what takes longest: its operations on the busiest
multiprocessor, its bytes from memory, those that its blocks read from the second-level cache, or
their waits for them. A softmax's exponentials are operations of slower units. A step starts a gap
after the last of those that it waits for. Steps that run in parallel share the GPU: each fills the
multiprocessors that it has blocks for, and where that is more than there are, all slow down alike.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod
from typing import Protocol

from kernels.convolution.algorithms import ConvChoice
from kernels.device.gpus import EXPONENTIALS, architecture_of
from kernels.device.launch import Launch
from kernels.operations.reads import NO_READS, BlockReads
from kernels.problems.conv import ConvProblem
from kernels.problems.precision import Precision
from kernels.tuning.constants import ASSUMED, Constants, microseconds
from kernels.tuning.heuristic import LATENCY, launch_cycles
from kernels.tuning.static_profile import MMA
from models.schedule.branches import After, dependents, in_order, streams

GAP_US = microseconds(ASSUMED.launch_cycles)
"""The time from the end of a graph's node to the start of one that waits for it."""

OTHER_US = 0.7
"""The assumed time for a launch that computes no convolution to start, load and end."""

_THREADS = 640
"""The threads of such launches that a multiprocessor runs at once, assumed: their registers and
shared memory leave room for about a third of what there may be."""

_CLEARLY = 0.95
"""Branches run in parallel only if by this model they take at most this share of the time."""


class Machine(Protocol):
    """Gives the properties of a GPU on which times depend, known from a `Device` or a data
    sheet."""

    @property
    def multiprocessors(self) -> int:
        """Return the number of multiprocessors."""

    @property
    def max_shared_bytes(self) -> int:
        """Return the largest shared memory of a block, in bytes."""

    @property
    def architecture(self) -> str:
        """Return the architecture that kernels are compiled for."""

    @property
    def peak_flops(self) -> float:
        """Return the peak rate of fp32 operations, per second."""

    @property
    def peak_bandwidth(self) -> float:
        """Return the peak bandwidth of memory, in bytes per second."""

    @property
    def overlaps(self) -> bool:
        """Return whether a launch may overlap with the previous one (kernels/src/dependent.cuh)."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Holds the least work of a step, which is its FLOPs and the bytes that it moves.

    `precision` is that of its FLOPs, except of a convolution, whose algorithm has one, and of the
    FLOPs that are `exponentials` of a softmax; `reads` are those of each of its blocks.
    """

    flops: int = 0
    bytes: int = 0
    precision: Precision = Precision.FP32
    reads: BlockReads = NO_READS
    exponentials: int = 0


NO_COST = Cost()


@dataclass(frozen=True, slots=True)
class PlannedConv:
    """Holds a convolution and the algorithm that computes it."""

    problem: ConvProblem
    choice: ConvChoice


class TimedStep(Protocol):
    """A launch whose time can be estimated."""

    @property
    def launch(self) -> Launch:
        """Return the step's launch."""

    @property
    def cost(self) -> Cost:
        """Return the least work of the step."""

    @property
    def chosen(self) -> PlannedConv | None:
        """Return the convolution that the step computes, or None for any other step."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Holds the estimated µs of a step that runs alone, and the share of multiprocessors that it
    uses."""

    us: float
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class Span:
    """Holds the start and end of a step in µs from the first step's start."""

    start_us: float
    end_us: float


def precision_of(step: TimedStep) -> Precision:
    """Return the precision at which a step multiplies."""
    if step.chosen is None:
        return step.cost.precision
    return step.chosen.choice.algorithm.arithmetic(step.chosen.problem)


def estimate(step: TimedStep, machine: Machine) -> Estimate:
    """Return the estimate for a step that runs alone."""
    lanes = architecture_of(machine.architecture).lanes
    clock_hz = machine.peak_flops / (2 * lanes * machine.multiprocessors)
    if step.chosen is not None:
        cycles = launch_cycles(step.chosen.problem, step.chosen.choice, machine)
        seconds = sum(cycles) / len(cycles) / clock_hz
    else:
        from_memory = step.cost.bytes / machine.peak_bandwidth
        seconds = OTHER_US / 1e6 + max(from_memory, _cycles(step, machine) / clock_hz)
    return Estimate(1e6 * seconds, min(1.0, prod(step.launch.grid) / machine.multiprocessors))


def _cycles(step: TimedStep, machine: Machine) -> float:
    """Return the cycles in which the busiest multiprocessor computes and reads what it has."""
    cost, architecture = step.cost, architecture_of(machine.architecture)
    blocks = prod(step.launch.grid)
    busiest = ceil(blocks / machine.multiprocessors)
    flops_per_cycle = 2 * architecture.lanes * architecture.rate(cost.precision)
    if cost.precision is not Precision.FP32:
        flops_per_cycle /= MMA
    operations = (cost.flops - cost.exponentials) / flops_per_cycle
    operations += cost.exponentials / EXPONENTIALS  # of a block, between its products
    at_once = max(1, _THREADS // prod(step.launch.block))
    return max(
        operations * busiest / blocks,
        cost.reads.bytes * busiest / ASSUMED.cache_bytes_per_cycle,
        cost.reads.rounds * LATENCY * ceil(busiest / at_once),
    )


def gaps(after: After, *, overlaps: bool, constants: Constants = ASSUMED) -> list[float]:
    """Return the µs between the start of each step and the end of the last step that it waits for.

    `overlaps` says whether launches may overlap.
    """
    stream = streams(after)

    def gap(step: int, early: bool) -> float:
        if overlaps and early:
            return constants.overlapped_cycles
        forks = any(stream[other] != stream[step] for other in after[step])
        return constants.fork_cycles if forks else constants.launch_cycles

    return [microseconds(gap(*waits)) for waits in enumerate(dependents(after))]


def spans(
    estimates: Sequence[Estimate], after: After, gaps_us: Sequence[float] | None = None
) -> list[Span]:
    """Return the start and end of each step; a gap follows the last step that it waits for.

    The gap is GAP_US, unless `gaps_us` gives one per step.
    """
    gaps_us = gaps_us or [GAP_US] * len(after)
    left = [estimate.us for estimate in estimates]
    start, end = [0.0] * len(left), [0.0] * len(left)
    waiting, running = set(range(len(left))), set[int]()
    now = 0.0
    while waiting or running:
        due = {
            step: max((end[earlier] + gaps_us[step] for earlier in after[step]), default=0.0)
            for step in waiting
            if not after[step] & (waiting | running)
        }
        for step, at in due.items():
            if at <= now:
                start[step] = now
                waiting.remove(step)
                running.add(step)
        slowed = max(1.0, sum(estimates[step].share for step in running))
        ends = {step: now + left[step] * slowed for step in running}
        begins = [at for step, at in due.items() if step in waiting]
        then = min([*ends.values(), *begins])
        for step, at in ends.items():
            if at <= then:
                end[step] = then
                running.remove(step)
            else:
                left[step] -= (then - now) / slowed
        now = then
    return [Span(*span) for span in zip(start, end, strict=True)]


def pays(steps: Sequence[TimedStep], after: After, machine: Machine) -> bool:
    """Return whether the steps end clearly earlier in this order than one after another."""
    estimates = [estimate(step, machine) for step in steps]

    def us(order: After) -> float:
        between = gaps(order, overlaps=machine.overlaps)
        return max((span.end_us for span in spans(estimates, order, between)), default=0.0)

    return us(after) <= _CLEARLY * us(in_order(len(steps)))
