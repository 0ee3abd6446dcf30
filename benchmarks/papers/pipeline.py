"""Counts the memory traffic of Convoy's three launches of F(2×2×2, 3×3×3), to compare with Lan et
al.

The kernels run on the simulator, which records their accesses. Bytes are counted in sectors of 32
bytes, as in memory.py. Wavefronts are cycles of shared memory. The least possible numbers follow
from the number of distinct bytes that a launch accesses.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

from benchmarks.papers.result import Cells
from cusim import build
from cusim.accesses import SECTOR, Instruction, instructions
from cusim.build import PROFILE
from cusim.device import CusimDevice
from kernels.convolution.algorithms import ConvChoice, choices
from kernels.layout.operands import padded
from kernels.problems.conv import ConvProblem, same_padded
from kernels.tuning.search import measured_launches

LAYER = same_padded((2, 7, 7), 3, 32, 32).with_batch(2)
"""C3D's conv5 with an eighth of its channels and filters, for two clips."""


@dataclass(frozen=True, slots=True)
class Moved:
    """Holds how many bytes of global memory a launch accesses, and how many cycles (wavefronts) its
    accesses to shared memory take. Also holds the least possible number of each."""

    kernel: str
    bytes: int
    least_bytes: int
    wavefronts: int
    least_wavefronts: int


def nonfused(problem: ConvProblem) -> ConvChoice:
    """Return a configuration of the non-fused Winograd algorithm that does not split the sums of
    its matrix product among blocks."""
    return next(
        choice
        for choice in choices(problem)
        if "non-fused" in choice.algorithm.name and choice.config.gemm.split == 1
    )


@cache
def moved(problem: ConvProblem = LAYER) -> tuple[Moved, ...]:
    """Run the launches of the non-fused Winograd algorithm on the simulator, and return the memory
    traffic of each launch, in order."""
    choice, device = nonfused(problem), CusimDevice(PROFILE)
    algorithm, config, _ = choice
    rng, stream = np.random.default_rng(0), device.stream()
    weight = rng.uniform(-1, 1, problem.filter_shape).astype(np.float32)
    pixels = problem.n * int(np.prod(problem.window.input))
    arrays = {
        "x": rng.uniform(-1, 1, (pixels, padded(problem.c))).astype(np.float32),
        "weight": np.ascontiguousarray(algorithm.prepare_filter(weight, problem, config)),
        "bias": np.zeros(padded(problem.k), np.float32),
        "y": np.zeros((pixels, padded(problem.k)), np.float32),
        **{
            name: np.zeros(nbytes, np.uint8)
            for name, nbytes in algorithm.workspace(problem, config).items()
        },
    }
    addresses = {}
    for name, array in arrays.items():
        addresses[name] = device.allocate(array.nbytes).address
        device.upload(addresses[name], array, stream)
    found = []
    for launch in measured_launches(problem, choice):
        kernel = device.load(launch.instantiation)
        bound = launch.bind(addresses)
        device.launch(kernel, launch.grid, launch.block, launch.shared_bytes, bound, stream)
        stream.synchronize()
        library = build.kernel(PROFILE, launch.instantiation, device.source_root)
        found.append(_of(launch.instantiation.kernel, instructions(device.recorded, library)))
    device.close()
    return tuple(found)


def _of(kernel: str, found: Sequence[Instruction]) -> Moved:
    def total(shared: bool, least: bool) -> int:
        return sum(
            round(each.executed * (each.least if least else each.needed))
            for each in found
            if each.shared is shared
        )

    return Moved(
        kernel,
        SECTOR * total(shared=False, least=False),
        SECTOR * total(shared=False, least=True),
        total(shared=True, least=False),
        total(shared=True, least=True),
    )


def table_pipeline() -> Cells:
    """Return the bytes and the wavefronts of each launch, and the least possible number of both."""
    rows: list[Sequence[str]] = [("kernel", "bytes", "least", "wavefronts", "least")]
    for each in moved():
        numbers = each.bytes, each.least_bytes, each.wavefronts, each.least_wavefronts
        rows.append((each.kernel, *(f"{number:,}" for number in numbers)))
    return rows
