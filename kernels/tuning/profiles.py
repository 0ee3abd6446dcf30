"""Regenerates the committed profiles from machine code, without a GPU. A profile describes what
limits a kernel's speed.

A change of the kernels or of the compiler changes the table. Check the difference and commit it:

    python -m kernels.tuning.profiles                    # all rows
    python -m kernels.tuning.profiles linear.cu          # rows of given sources
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from math import prod
from pathlib import Path
from typing import NamedTuple

from rich.progress import track

from kernels.convolution.algorithms import choices
from kernels.convolution.work import NO_INNER_LOOPS, Trips
from kernels.device.compile import DEFAULT_CACHE, compile_all, compiler
from kernels.device.device import Instantiation
from kernels.layout.operands import ConvTensors
from kernels.layout.pixels import Pixels
from kernels.operations.epilogue import commonest
from kernels.operations.linear import linear_launch
from kernels.problems.activation import RELU
from kernels.problems.conv import ConvProblem, same_padded
from kernels.problems.precision import FLOAT, HALF, Precision
from kernels.problems.prologue import Prologue
from kernels.tuning.profile_table import Table, load_wavefronts, name_of, read, row_of, write
from kernels.tuning.static_profile import PROFILED, static_profile


def _depthwise(kernel: int, stride: int) -> ConvProblem:
    return replace(same_padded((16, 32), kernel, 64, 64, stride), groups=64)


_SQUARE = same_padded((16, 32), 3, 64, 64)
_PLANES = (
    _SQUARE,
    same_padded((16, 32), 1, 64, 64),
    same_padded((16, 32), 1, 64, 256),  # of which several blocks share pixels, too
    same_padded((16, 32), 5, 64, 64),
    same_padded((8, 16, 16), 3, 32, 32),
    *(_depthwise(kernel, stride) for kernel in (3, 5, 7) for stride in (1, 2)),
    same_padded((16, 32), 7, 3, 64, stride=2),  # a first layer
    replace(_SQUARE, c=66),  # pixels that do not begin at 16 bytes
    replace(_SQUARE, c=65),
    replace(_SQUARE, c=3),
)

PROBLEMS: tuple[ConvProblem, ...] = (
    *(replace(plane, precision=precision) for precision in Precision for plane in _PLANES),
    replace(same_padded((16, 32), 1, 64, 64), prologue=Prologue(activation=RELU)),
    replace(same_padded((16, 32), 1, 64, 64), prologue=Prologue(epsilon=1e-5)),
)
"""Problems whose choices together launch every kernel of a convolution. They fill all tiles."""


class LaunchShape(NamedTuple):
    """Holds the properties of a launch that affect the profile of its kernel."""

    threads: int  # of a block
    shared_bytes: int  # of a block, dynamic
    trips: Trips


@cache
def launches() -> dict[Instantiation, LaunchShape]:
    """Return the kernels that have a row in the table of profiles. With each kernel, return the
    properties of its launch with the most shared memory."""
    largest: dict[Instantiation, LaunchShape] = {}
    for kernel, launch in (*_convolutions(), *_linear()):
        before = largest.setdefault(commonest(kernel), launch)
        if launch.shared_bytes > before.shared_bytes:
            largest[commonest(kernel)] = launch
    return largest


def _convolutions() -> Iterator[tuple[Instantiation, LaunchShape]]:
    for problem in PROBLEMS:
        x, y = (
            Pixels(channels, channels, stored=problem.precision.stored)
            for channels in (problem.c, problem.k)
        )
        for choice in choices(problem):
            algorithm, config, _ = choice
            made = algorithm.launches(problem, config, ConvTensors(x, y))
            for launch, work in zip(made, algorithm.work(problem, config), strict=True):
                threads = prod(launch.block)
                yield launch.instantiation, LaunchShape(threads, launch.shared_bytes, work.trips)


def _linear() -> Iterator[tuple[Instantiation, LaunchShape]]:
    for rows in (1, 2, 4, 8):
        for x, y in ((FLOAT, FLOAT), (HALF, FLOAT), (HALF, HALF)):
            launch = linear_launch(rows, Pixels(4096, 4096, stored=x), Pixels(64, 64, stored=y))
            threads = prod(launch.block)
            yield launch.instantiation, LaunchShape(threads, launch.shared_bytes, NO_INNER_LOOPS)


def profiled(arch: str, sources: Iterable[str] = ()) -> list[Instantiation]:
    """Return the kernels that have a row for an architecture in the table of profiles. If `sources`
    is not empty, return only kernels of these files."""
    only = set(sources)
    return [
        launch
        for launch in launches()
        if launch.architectures.includes(arch) and (not only or launch.source in only)
    ]


def table_of(arch: str, kernels: Iterable[Instantiation], cache: Path = DEFAULT_CACHE) -> Table:
    """Compile and disassemble `kernels` with the installed tools, and return their rows for the
    table of profiles. Raises DisassemblerNotFoundError."""
    cubins = compile_all(kernels, [arch], cache)
    table: Table = {}
    for kernel, _ in track(cubins, f"disassembling for {arch}", transient=True):
        made = static_profile(cubins[kernel, arch], arch, *launches()[kernel])
        table[arch, name_of(kernel)] = row_of(
            replace(made, load_wavefronts=load_wavefronts(kernel))
        )
    return table


def main(sources: Sequence[str]) -> None:
    """Recompute the rows of profile.tsv for the kernels in the files `sources`, or for all kernels
    if `sources` is empty."""
    table = {row: cells for row, cells in read()[1].items() if row[1].split()[0] not in sources}
    table = table if sources else {}
    for arch in PROFILED:
        table |= table_of(arch, profiled(arch, sources))
    write(compiler(), table)


if __name__ == "__main__":
    main(sys.argv[1:])
