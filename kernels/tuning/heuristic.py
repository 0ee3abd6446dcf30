"""Chooses a convolution's algorithm and configuration by estimated cost, if the convolution was not
measured.

    problem ─ Work: blocks, products, bytes ─┐
    machine code ─ StaticProfile ────────────┴─ cycles of each launch ─ the choice with the fewest

This is the cost model for convolutions. It counts the instructions that a kernel issues, and takes
the hardware's limits from data sheets. Assumed numbers are marked as such, or stand in
kernels/tuning/constants.py. Numbers are for an H100 or H200, in clock cycles of one multiprocessor.
The same numbers are used for other GPUs.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from math import ceil
from typing import Protocol

from kernels.convolution.algorithms import ConvChoice, choices
from kernels.convolution.work import Work
from kernels.device.device import Instantiation
from kernels.device.gpus import H200
from kernels.problems.conv import ConvProblem
from kernels.tuning.constants import ASSUMED, Constants
from kernels.tuning.profile_table import ARCHITECTURE, profile_of
from kernels.tuning.static_profile import SCHEDULERS, StaticProfile, resident

MEMORY_BYTES = int(H200.peak_bandwidth / (H200.clock_hz * H200.multiprocessors))
"""Bytes from memory per cycle and multiprocessor."""

LATENCY = 600
"""The assumed latency of the second-level cache, and of memory under load, in cycles."""

_WAIT = 29
"""Cycles of a wait for a result whose time is not fixed. The number holds for loads from shared
memory, the most frequent case."""

_MEET = 1500
"""The assumed cycles from the write of the first partial sum to the read by the last block."""

_CLUSTER_MEET = 851 + 190
"""Cycles of a barrier of a cluster's blocks, measured on an H100 with 2 blocks (arXiv 2609.01864,
table II), plus the first load from another block's shared memory (arXiv 2508.18850, section
2.3)."""

_CLUSTER_BYTES = 12
"""Bytes from other blocks' shared memory per cycle and multiprocessor, while all read. An H100
reaches 2.9 TB/s in clusters of 16, and up to 3.35 TB/s in smaller clusters (arXiv 2508.18850,
figure 5)."""

_GROUPS = (14, *[16] * 4, *[18] * 3)
"""The multiprocessors in each group (GPC) of an H100; a cluster runs in one group. These sizes
match two measurements: with clusters of 8 blocks 120 of the 132 multiprocessors had blocks
(github.com/accel-sim/gpu-app-collection, pull request 87), and with clusters of 16 about 112 (arXiv
2508.18850, figure 5). Other GPUs are assumed to be alike."""

_SEVERAL = 1.2
"""The factor on the cost of several launches. Several launches must be clearly better than one
launch, because the data between them may leave the cache."""


_ALIKE = 1.05
"""Costs whose ratio is below this number count as equal, since the cost model is not more
accurate."""

FULL = 0.9
"""The least share of multiprocessors that should have a block, if this costs little."""


class DeviceFacts(Protocol):
    """The device properties that affect the choice of an algorithm. `Device` and `Facts` have these
    properties."""

    @property
    def multiprocessors(self) -> int:
        """Return the number of multiprocessors."""

    @property
    def max_shared_bytes(self) -> int:
        """Return the largest shared memory of a block in bytes, static and dynamic together."""

    @property
    def architecture(self) -> str:
        """Return the architecture that kernels are compiled for, such as "80", "90a" or "cusim".

        "cusim", the simulator, has all tensor cores.
        """


@dataclass(frozen=True, slots=True)
class Facts:
    """Holds the properties of a device, which need not exist on this machine. The defaults are the
    properties of an H200."""

    multiprocessors: int
    max_shared_bytes: int = H200.max_shared_bytes
    architecture: str = ARCHITECTURE


def heuristic(device: DeviceFacts) -> Callable[[ConvProblem], ConvChoice]:
    """Return a function that chooses among all candidates for a problem, and caches the choice.

    The function does not keep the device, only its properties. Devices with the same properties
    share the cache.
    """
    facts = Facts(device.multiprocessors, device.max_shared_bytes, device.architecture)
    return partial(_chosen, facts)


@cache
def _chosen(facts: Facts, problem: ConvProblem) -> ConvChoice:
    return choose(problem, choices(problem, facts.max_shared_bytes, facts.architecture), facts)


def choose(
    problem: ConvProblem, candidates: Sequence[ConvChoice], device: DeviceFacts
) -> ConvChoice:
    """Return the candidate with the lowest estimated cost. Of several such candidates, return the
    first.

    There is one exception: if candidates with nearly the lowest cost have blocks for nearly all
    multiprocessors, the cheapest of these candidates is returned.
    """

    def cost(choice: ConvChoice) -> float:
        launches = launch_cycles(problem, choice, device)
        cycles = sum(ASSUMED.launch_cycles + launch for launch in launches)
        return cycles * (_SEVERAL if len(launches) > 1 else 1)

    costs = list(map(cost, candidates))
    near = sorted((cost, i) for i, cost in enumerate(costs) if cost <= _ALIKE * min(costs))
    filling = (i for _, i in near if fills(problem, candidates[i], device))
    return candidates[next(filling, near[0][1])]


def fills(problem: ConvProblem, choice: ConvChoice, device: DeviceFacts) -> bool:
    """Return whether a choice's largest launch has enough blocks for all, or nearly all,
    multiprocessors."""
    works = choice.algorithm.work(problem, choice.config)
    return max(work.blocks for work in works) >= FULL * device.multiprocessors


def estimated_cycles(
    problem: ConvProblem,
    choice: ConvChoice,
    device: DeviceFacts,
    warm: bool = False,
    constants: Constants = ASSUMED,
) -> float:
    """Return the estimated cycles of all launches, including the gap before each launch."""
    launches = launch_cycles(problem, choice, device, warm, constants)
    return sum(constants.launch_cycles + launch for launch in launches)


def launch_cycles(
    problem: ConvProblem,
    choice: ConvChoice,
    device: DeviceFacts,
    warm: bool = False,
    constants: Constants = ASSUMED,
) -> tuple[float, ...]:
    """Return the estimated cycles of each launch, if the launch runs alone and x is in the
    second-level cache.

    If `warm`, the weights are in the second-level cache too. Otherwise they are in memory.
    """
    works = choice.algorithm.work(problem, choice.config)
    return tuple(sum(parts(work, device, warm, constants).values()) for work in works)


def parts(
    work: Work, device: DeviceFacts, warm: bool, constants: Constants = ASSUMED
) -> dict[str, float]:
    """Return the parts of one launch's estimated cycles, by name. Their sum is the launch's
    time."""
    profile = profile_of(work.kernel)
    # Of the busiest multiprocessor.
    blocks = ceil(work.blocks / usable(device.multiprocessors, work.cluster))
    # A block too large for an H100 fits, alone, on the device that it is for.
    at_once = max(1, resident_blocks(work))
    waves = ceil(blocks / at_once)
    full, rest = divmod(blocks, at_once)
    busy = full * _wave(work, profile, at_once, constants) + _wave(work, profile, rest, constants)
    memory = 0 if warm else work.weight_bytes / (MEMORY_BYTES * device.multiprocessors)
    ends, issued = _ends(work, profile, min(blocks, at_once))
    alone = sum(ends.values())
    # Blocks begin and end while others multiply, but those of the first wave.
    return {
        **ends,
        "issue": max(0, issued - alone),
        "loop": max(busy, memory),
        "waves": (waves - 1) * max(alone / at_once, issued),
        "split": _split(work, constants),
    }


def _split(work: Work, constants: Constants) -> float:
    """Return how many cycles it takes to add the partial sums of a tile, or 0 if there are no
    partial sums."""
    if not work.tail_bytes:
        return 0
    if work.tail_in_cluster:
        return _CLUSTER_MEET + work.tail_bytes / _CLUSTER_BYTES
    return _MEET + work.tail_bytes / constants.cache_bytes_per_cycle


def usable(multiprocessors: int, cluster: int) -> int:
    """Return how many multiprocessors can have a block at the same time, if blocks run in clusters
    of `cluster` blocks."""
    whole = sum(size // cluster * cluster for size in _GROUPS)
    return max(1, multiprocessors * whole // sum(_GROUPS))


def resident_blocks(work: Work) -> int:
    """Return how many blocks fit on one multiprocessor of an H100, possibly 0."""
    registers = profile_of(work.kernel).registers
    return resident(registers, work.threads, work.shared_bytes, ARCHITECTURE)


def _wave(work: Work, profile: StaticProfile, blocks: int, constants: Constants) -> float:
    """Return how many cycles one multiprocessor needs for the products of `blocks` blocks."""
    if not blocks:
        return 0
    iterations = work.products / profile.products if profile.products else 0
    return max(
        iterations * _iteration(work.kernel, blocks, constants.idle_warps),
        blocks * work.bytes / constants.cache_bytes_per_cycle,
        work.rounds * LATENCY,
    )


@cache
def _iteration(kernel: Instantiation, blocks: int, idle_warps: float) -> float:
    """Return how many cycles all warps of one multiprocessor need for one iteration of the loop.

    This is the longest of three times: the time in which the busiest scheduler issues its
    instructions, the time of the tensor cores, and the time of shared memory.
    """
    profile = profile_of(kernel)
    warps = blocks * profile.warps
    tensor = blocks * (profile.warps - profile.data_warps) * profile.tensor_cycles / SCHEDULERS
    issued = profile.busiest(blocks) * (warps + idle_warps) / warps
    return max(issued, tensor, blocks * profile.wavefronts)


def _ends(work: Work, profile: StaticProfile, blocks: int) -> tuple[dict[str, float], float]:
    """Return the cycles of the code before and after the loop: for each part of the kernel the
    latency of one warp, and the time in which one multiprocessor issues the instructions of all its
    warps."""
    ends = {
        "start": (profile.start, 1.0),
        "fill": (profile.fill, 1.0),
        "finish": (profile.finish, 1.0),
        "outputs": (profile.vector, work.vectors),
    }
    alone = {name: n * (code.stalls + _WAIT * code.waits) for name, (code, n) in ends.items()}
    instructions = sum(n * code.instructions for code, n in ends.values())
    issued = instructions * blocks * work.threads / 32 / SCHEDULERS
    return {**alone, "latency": LATENCY}, issued
