"""No estimate is less than what the hardware needs at its peak: all suites, all precisions."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import prod

import pytest

from benchmarks.kernels.suites import BATCHES, SUITES
from kernels.convolution.algorithms import ConvChoice, choices
from kernels.convolution.work import Work
from kernels.problems.conv import ConvProblem
from kernels.problems.precision import Precision
from kernels.tuning.heuristic import H200, L2_BYTES, MEMORY_BYTES, choose, estimated_cycles
from kernels.tuning.profile_table import profile_of

PEAK = {Precision.FP32: 128, Precision.TF32: 1024, Precision.TF32X3: 1024 / 3, Precision.FP16: 2048}
"""Multiply-adds of a multiprocessor in a cycle, dense: NVIDIA's data sheet of the H100."""


def least_cycles(
    problem: ConvProblem, choice: ConvChoice, of: Precision
) -> Iterator[tuple[str, float]]:
    """By what bounds them: the cycles of the whole device that no launch can do without."""
    algorithm, config = choice
    everywhere = H200.multiprocessors
    yield "products", algorithm.multiplications(problem) / PEAK[of] / everywhere
    elements = problem.n * problem.window.output_volume * problem.k + prod(problem.filter_shape)
    bytes_moved = problem.precision.stored.itemsize * elements
    yield "second-level cache", bytes_moved / L2_BYTES / everywhere
    weights = problem.precision.stored.itemsize * prod(problem.filter_shape)
    yield "memory", weights / MEMORY_BYTES / everywhere
    works: tuple[Work, ...] = algorithm.work(problem, config)
    yield "issue", sum(map(issued, works)) / 4 / everywhere
    yield "shared memory", sum(map(wavefronts, works)) / everywhere


def turns(work: Work) -> float:
    """Of a block's main loop."""
    products = profile_of(work.kernel).products
    return work.products / products if products else 0


def issued(work: Work) -> float:
    """Instructions of all warps: the way in, the loop, the way out."""
    profile = profile_of(work.kernel)
    ends = sum(each.instructions for each in (profile.start, profile.fill, profile.finish))
    data = profile.data_warps * sum(profile.data_loop.values())
    multiplying = (profile.warps - profile.data_warps) * sum(profile.loop.values())
    of_block = profile.warps * ends + turns(work) * (multiplying + data)
    # A split block that is not the last ends early.
    return work.blocks * (of_block if work.tail_bytes == 0 else turns(work) * multiplying)


def wavefronts(work: Work) -> float:
    """Cycles of shared memory for all blocks."""
    return work.blocks * turns(work) * profile_of(work.kernel).wavefronts


@pytest.mark.parametrize("precision", Precision, ids=lambda each: each.value)
@pytest.mark.parametrize("suite", SUITES)
def test_no_choice_is_estimated_above_a_ceiling(suite: str, precision: Precision) -> None:
    for layer, n in product(SUITES[suite], BATCHES):
        problem = replace(layer.problem.with_batch(n), precision=precision)
        choice = choose(problem, choices(problem, H200.max_shared_bytes), H200)
        of = precision if choice.algorithm.name == "tensor" else Precision.FP32
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
