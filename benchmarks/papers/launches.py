"""Counts the thread blocks of Convoy's launches for the convolutions that cuConv's tables profile.

No kernel is run. Times are estimates of the cost model for an H200.
"""

from collections.abc import Sequence
from math import prod

from benchmarks.kernels.suites import CUCONV_NETWORKS, NAMED
from benchmarks.papers.result import Cells
from kernels.convolution.algorithms import ConvChoice, choices
from kernels.convolution.winograd import WinogradConv
from kernels.device.gpus import H200
from kernels.problems.conv import ConvProblem
from kernels.tuning.heuristic import choose, launch_cycles, resident_blocks
from kernels.tuning.search import measured_launches
from kernels.winograd.matrices import winograd_matrices
from kernels.winograd.program import program

THREADS = 2048
"""The most threads that a multiprocessor can hold."""

BLOCKS = {"cuConv, table 3, A": (256, 16, 4), "cuConv, table 3, B": (1024, 224, 32)}
"""The numbers of blocks in section 4.2: of cuConv, and of two implicit matrix products."""

SECOND_STAGE = {"cuConv, table 4, A": 0.085, "cuConv, table 4, B": 0.0114}
"""The share of the time that the second stage takes in the paper."""

ONES = 52.3
"""The percentage of 1×1 filters among all tested configurations (section 4.1)."""

FILTER_SIZES = {
    "GoogLeNet": (57.2, 23.8, 19.0),
    "SqueezeNet": (71.4, 28.6, 0.0),
    "AlexNet": (0.0, 75.0, 25.0),
    "ResNet-50": (66.7, 33.3, 0.0),
    "VGG-19": (0.0, 100.0, 0.0),
}
"""Table 1: the percentages of each network's configurations with 1×1, 3×3 and 5×5 filters."""


def named(where: str) -> ConvProblem:
    """Return the convolution that a paper names. `where` is its position in the paper, such as
    "cuConv, table 3, A"."""
    (found,) = (each for each in NAMED if each.where == where)
    return found.layer.problem.with_batch(found.n)


def best(problem: ConvProblem, algorithm: str, *, stages: int = 1) -> ConvChoice:
    """Return the configuration of `algorithm` with `stages` launches that the cost model estimates
    to be the fastest on an H200."""
    of_algorithm = [
        choice
        for choice in choices(problem, H200.max_shared_bytes, H200.architecture)
        if choice.algorithm.name == algorithm
        and len(choice.algorithm.work(problem, choice.config)) == stages
    ]
    return choose(problem, of_algorithm, H200)


def blocks(problem: ConvProblem, choice: ConvChoice) -> int:
    """Return the number of blocks in a choice's first launch."""
    return prod(measured_launches(problem, choice)[0].grid)


def occupancy(problem: ConvProblem, choice: ConvChoice) -> float:
    """Return the occupancy of a choice's first launch: the resident threads of a multiprocessor,
    divided by the most threads that it can hold."""
    work = choice.algorithm.work(problem, choice.config)[0]
    return resident_blocks(work) * work.threads / THREADS


def second_stage(problem: ConvProblem) -> float:
    """Return the estimated time of the second launch of Convoy's coalesced algorithm, divided by
    the estimated time of both launches."""
    first, second = launch_cycles(problem, best(problem, "coalesced", stages=2), H200)
    return second / (first + second)


def transform_share(problem: ConvProblem, algorithm: WinogradConv) -> float:
    """Return the fraction of a convolution's arithmetic that the data and inverse transforms of
    `algorithm` take."""
    matrices = winograd_matrices(algorithm.m, algorithm.r, algorithm.points[0])
    m, alpha = algorithm.m, algorithm.alpha
    data, inverse = program(matrices.bt).instructions, program(matrices.at).instructions
    transforms = data * 2 * alpha * problem.c + inverse * (alpha + m) * problem.k
    return transforms / (transforms + alpha**2 * problem.c * problem.k)


def table_blocks() -> Cells:
    """Return the number of thread blocks for each convolution in BLOCKS: for cuConv, for the two
    matrix products with which the paper compares it, and for Convoy's algorithms."""
    rows: list[Sequence[str]] = [
        ("configuration", "cuConv's, and two rivals'", "coalesced", "gemm", "chosen", "occupancy")
    ]
    for where, theirs in BLOCKS.items():
        problem = named(where)
        ours = best(problem, "coalesced")
        chosen = choose(
            problem, choices(problem, H200.max_shared_bytes, H200.architecture), H200
        )  # fmt: skip
        found = (ours, best(problem, "gemm"), chosen)
        cells = (f"{blocks(problem, each)}: {each}" for each in found)
        shown = ", ".join(f"{number:,}" for number in theirs)
        rows.append((where, shown, *cells, f"{occupancy(problem, ours):.0%}"))
    return rows


def table_stages() -> Cells:
    """Return the fraction of the time that the second launch takes, as measured in the paper and as
    estimated by Convoy's cost model."""
    rows: list[Sequence[str]] = [("configuration", "paper", "Convoy", "Convoy's kernel")]
    for where, theirs in SECOND_STAGE.items():
        problem = named(where)
        choice = best(problem, "coalesced", stages=2)
        rows.append((where, f"{theirs:.2%}", f"{second_stage(problem):.2%}", str(choice)))
    return rows


AFTER_POOLING = (
    *("28-1-32-192", "28-1-64-256", "14-1-64-480"),
    *("14-1-64-512", "14-1-128-528", "7-1-128-832"),
)
"""GoogLeNet's 1×1 configurations after a pooling, which the paper leaves out."""


def configurations(network: str) -> tuple[str, ...]:
    """Return the labels of the convolutions that the paper counts for a network."""
    labels = CUCONV_NETWORKS[network]
    return tuple(each for each in labels if network != "GoogLeNet" or each not in AFTER_POOLING)


def sizes(labels: Sequence[str]) -> tuple[float, ...]:
    """Return the percentages of the labelled convolutions that have 1×1, 3×3 and 5×5 filters."""
    kernels = [label.split("-")[1] for label in labels]
    return tuple(100 * kernels.count(size) / len(kernels) for size in "135")


def table_sizes() -> Cells:
    """Return the percentages of convolutions with each filter size, in table 1 of the paper and in
    the suites of this repository."""
    rows: list[Sequence[str]] = [("network", "configurations", "1×1", "3×3", "5×5")]
    for network, theirs in FILTER_SIZES.items():
        labels = configurations(network)
        pairs = zip(theirs, sizes(labels), strict=True)
        rows.append((network, str(len(labels)), *(f"{a:.1f} → {b:.1f}" for a, b in pairs)))
    every = [label for network in FILTER_SIZES for label in configurations(network)]
    ones, *others = sizes(every)
    rows.append(("all", str(len(every)), f"{ONES} → {ones:.1f}", *(f"{b:.1f}" for b in others)))
    return rows
