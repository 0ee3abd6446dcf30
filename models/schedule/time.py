"""Estimates how long the steps of a plan (kernel launches) take, and when each step runs.

The time of a convolution comes from the cost model for convolutions (kernels/tuning/heuristic.py),
and is divided equally among its launches. Any other step takes OTHER_US plus the longest of four
times: its operations on the busiest multiprocessor, its memory traffic, the traffic between its
blocks and the second-level cache, and the latency of its reads. Exponentials of a softmax run on
slower units.

Between a step and the last step on which it depends, the GPU is idle for a short gap. Steps that
run in parallel share the GPU. Each of them occupies one multiprocessor per block. If the GPU has
too few multiprocessors, all steps slow down equally.
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
"""The time from the end of a node in a graph to the start of a node that depends on it."""

OTHER_US = 0.7
"""The assumed time for a launch that computes no convolution to start, load and end."""

_THREADS = 640
"""The assumed number of threads of such launches that a multiprocessor runs at once. Because of
their registers and shared memory, it is about a third of the maximum."""

_CLEARLY = 0.95
"""Branches run in parallel only if the cost model estimates at most this share of the serial
time."""


class Machine(Protocol):
    """Has the properties of a GPU that affect times, from a `Device` or a data sheet."""

    @property
    def multiprocessors(self) -> int:
        """Return the number of multiprocessors."""

    @property
    def max_shared_bytes(self) -> int:
        """Return the largest amount of shared memory per block, in bytes."""

    @property
    def architecture(self) -> str:
        """Return the architecture for which kernels are compiled."""

    @property
    def peak_flops(self) -> float:
        """Return the peak rate of fp32 operations, per second."""

    @property
    def peak_bandwidth(self) -> float:
        """Return the peak memory bandwidth, in bytes per second."""

    @property
    def overlaps(self) -> bool:
        """Return whether a launch can begin before the previous launch has ended
        (kernels/src/dependent.cuh)."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Holds the minimum work of a step: its FLOPs, and the bytes that it moves to and from memory.

    `precision` is the precision of the FLOPs. It does not apply to a convolution, whose algorithm
    has its own precision. `exponentials` is the number of FLOPs that are exponentials of a softmax;
    the GPU computes them at another rate. `reads` describes the reads of each block.
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
    """Describes a kernel launch whose time can be estimated."""

    @property
    def launch(self) -> Launch:
        """Return the step's launch."""

    @property
    def cost(self) -> Cost:
        """Return the minimum work of the step."""

    @property
    def chosen(self) -> PlannedConv | None:
        """Return the convolution that the step computes, or None for other steps."""


@dataclass(frozen=True, slots=True)
class Estimate:
    """Holds the estimated time of a step if it runs alone, and the fraction of the GPU's
    multiprocessors that it uses."""

    us: float
    share: float = 1.0


@dataclass(frozen=True, slots=True)
class Span:
    """Holds the start and end of a step in µs, relative to the start of the first step."""

    start_us: float
    end_us: float


def precision_of(step: TimedStep) -> Precision:
    """Return the precision of a step's multiplications."""
    if step.chosen is None:
        return step.cost.precision
    return step.chosen.choice.algorithm.arithmetic(step.chosen.problem)


def estimate(step: TimedStep, machine: Machine) -> Estimate:
    """Estimate the time of a step that runs alone."""
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
    """Return the number of cycles that the busiest multiprocessor needs for its thread blocks."""
    cost, architecture = step.cost, architecture_of(machine.architecture)
    blocks = prod(step.launch.grid)
    busiest = ceil(blocks / machine.multiprocessors)
    flops_per_cycle = 2 * architecture.lanes * architecture.rate(cost.precision)
    if cost.precision is not Precision.FP32:
        flops_per_cycle /= MMA
    operations = (cost.flops - cost.exponentials) / flops_per_cycle
    operations += cost.exponentials / EXPONENTIALS  # a block computes them between its products
    at_once = max(1, _THREADS // prod(step.launch.block))
    return max(
        operations * busiest / blocks,
        cost.reads.bytes * busiest / ASSUMED.cache_bytes_per_cycle,
        cost.reads.rounds * LATENCY * ceil(busiest / at_once),
    )


def gaps(after: After, *, overlaps: bool, constants: Constants = ASSUMED) -> list[float]:
    """For each step, return the time in µs from the end of its last predecessor to its own start.

    `overlaps` tells whether the GPU can begin a launch before the previous launch has ended.
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
    """Return the start and end of each step. Steps run in parallel unless `after` orders them.

    A step starts one gap after the last predecessor ends. The gap is GAP_US, or the step's entry in
    `gaps_us` if that is given.
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
    """Return whether parallel steps, in the order that `after` requires, take clearly less time
    than steps that run one after another."""
    estimates = [estimate(step, machine) for step in steps]

    def us(order: After) -> float:
        between = gaps(order, overlaps=machine.overlaps)
        return max((span.end_us for span in spans(estimates, order, between)), default=0.0)

    return us(after) <= _CLEARLY * us(in_order(len(steps)))
