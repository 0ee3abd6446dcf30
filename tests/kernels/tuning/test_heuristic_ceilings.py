"""No estimate is less than the time at the hardware's peak: all suites, all precisions."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import cast

import pytest

from benchmarks.kernels.suites import BATCHES, SUITES
from kernels.convolution.algorithms import Algorithm, ConvChoice, choices
from kernels.convolution.winograd_nonfused import NonfusedWinogradConv
from kernels.convolution.work import NO_INNER_LOOPS, Work
from kernels.device.device import Instantiation
from kernels.device.gpus import H200
from kernels.problems.conv import ConvProblem
from kernels.problems.precision import Precision
from kernels.tuning import heuristic
from kernels.tuning.constants import ASSUMED
from kernels.tuning.heuristic import MEMORY_BYTES, choose, estimated_cycles
from kernels.tuning.profile_table import profile_of
from kernels.tuning.static_profile import StaticProfile
from tests.support.kernels.arrays import FLOATING

PEAK = {Precision.FP32: 128, Precision.TF32: 1024, Precision.TF32X3: 1024 / 3, Precision.FP16: 2048}
"""Dense multiply-adds per multiprocessor and cycle, from NVIDIA's data sheet of the H100."""


def least_cycles(
    problem: ConvProblem, choice: ConvChoice, of: Precision
) -> Iterator[tuple[str, float]]:
    """Yield, for each resource, the cycles of the whole device that every launch needs."""
    algorithm, config = choice.algorithm, choice.config
    everywhere = H200.multiprocessors
    yield "products", algorithm.multiplications(problem) / PEAK[of] / everywhere
    elements = problem.n * problem.window.output_volume * problem.k + prod(problem.filter_shape)
    bytes_moved = problem.precision.stored.itemsize * elements
    yield "second-level cache", bytes_moved / ASSUMED.cache_bytes_per_cycle / everywhere
    weights = problem.precision.stored.itemsize * prod(problem.filter_shape)
    yield "memory", weights / MEMORY_BYTES / everywhere
    works: tuple[Work, ...] = algorithm.work(problem, config)
    yield "issue", sum(map(issued, works)) / 4 / everywhere
    yield "shared memory", sum(map(wavefronts, works)) / everywhere


def turns(work: Work) -> float:
    """Return the turns of a block's main loop."""
    products = profile_of(work.kernel).products
    return work.products / products if products else 0


def issued(work: Work) -> float:
    """Return the instructions of all warps: before the loop, in the loop, and after it."""
    profile = profile_of(work.kernel)
    ends = sum(each.instructions for each in (profile.start, profile.fill, profile.finish))
    data = profile.data_warps * sum(profile.data_loop.values())
    multiplying = (profile.warps - profile.data_warps) * sum(profile.loop.values())
    of_block = profile.warps * ends + turns(work) * (multiplying + data)
    # A split block that is not the last ends early.
    return work.blocks * (of_block if work.tail_bytes == 0 else turns(work) * multiplying)


def wavefronts(work: Work) -> float:
    """Return the cycles of shared memory for all blocks."""
    return work.blocks * turns(work) * profile_of(work.kernel).wavefronts


@pytest.mark.parametrize(
    ("suite", "precision"),
    [
        # cuConv's are the most layers.
        pytest.param(
            suite,
            precision,
            marks=[pytest.mark.slow] * (suite == "cuconv" and precision is not Precision.FP32),
            id=f"{suite}-{precision.value}",
        )
        for suite, precision in product(SUITES, FLOATING)
    ],
)
def test_no_choice_is_estimated_above_a_ceiling(suite: str, precision: Precision) -> None:
    for layer, n in product(SUITES[suite], BATCHES):
        problem = replace(layer.problem.with_batch(n), precision=precision)
        choice = choose(problem, choices(problem, H200.max_shared_bytes), H200)
        of = precision if choice.algorithm.name.startswith("tensor") else Precision.FP32
        if isinstance(choice.algorithm, NonfusedWinogradConv):
            of = choice.algorithm.arithmetic(problem)
        estimate = estimated_cycles(problem, choice, H200)
        for name, least in least_cycles(problem, choice, of):
            assert estimate >= least, (layer.name, n, str(choice), name)


def test_no_candidate_is_estimated_above_a_ceiling() -> None:
    for layer in (*SUITES["vgg-e"][3:9:2], *SUITES["cuconv"][::11]):
        problem = layer.problem.with_batch(8)
        for choice in choices(problem, H200.max_shared_bytes):
            estimate = estimated_cycles(problem, choice, H200)
            for name, least in least_cycles(problem, choice, Precision.FP32):
                assert estimate >= least, (layer.name, str(choice), name)


@dataclass(frozen=True)
class Taking:
    """Yield the choices of algorithms with a single launch."""

    of: Work

    def work(self, problem: ConvProblem, config: object) -> tuple[Work]:
        return (self.of,)


PROFILE = StaticProfile(registers=64, blocks=2, warps=4, code_bytes=0, loop={"FFMA": 100})
WORK = Work(
    Instantiation("made.cu", "up"),
    1320,
    128,
    1 << 10,
    bytes=10,
    trips=NO_INNER_LOOPS,
    products=10_000,
    vectors=0,
    rounds=0,
    tail_bytes=0,
    weight_bytes=0,
)


@pytest.mark.parametrize(
    ("work", "profile", "cycles"),
    [
        (WORK, PROFILE, 10 * 10_000),
        (WORK, replace(PROFILE, loop={"FFMA": 100, "integer": 100}), 10 * 20_000),
        # A load of 16 bytes: 4 warps take two cycles each.
        (WORK, replace(PROFILE, loop={"FFMA": 100, "LDS.128": 100}), 10 * 80_000),
        # An mma takes 4 cycles of one of 4 schedulers at the peak, which mma.sync does not reach.
        (WORK, replace(PROFILE, loop={"tensor": 100}), 10 * 40_000 / 0.63),
        # A warp's part of a wgmma of 64 filters takes 32, and 8 of shared memory.
        (WORK, replace(PROFILE, loop={"HGMMA.64": 100}), 10 * 320_000),
        (replace(WORK, bytes=10**7), PROFILE, 10 * 10**7 / ASSUMED.cache_bytes_per_cycle),
        (replace(WORK, weight_bytes=10**10), PROFILE, 10**10 / MEMORY_BYTES / 132),
        (replace(WORK, rounds=10**4), PROFILE, 10**4 * 263),
    ],
    ids=["products", "issue", "shared memory", "mma", "wgmma", "cache", "memory", "latency"],
)
def test_each_thing_that_a_launch_needs_bounds_it_alone(
    work: Work, profile: StaticProfile, cycles: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heuristic, "profile_of", lambda _: profile)
    monkeypatch.setattr(
        heuristic, "_iteration", heuristic._iteration.__wrapped__
    )  # it keeps its results
    choice = ConvChoice(cast(Algorithm[None], Taking(work)), None)
    assert estimated_cycles(SUITES["vgg-e"][0].problem, choice, H200) >= cycles
