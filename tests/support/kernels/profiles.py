"""The committed table of what machine code says of speed: kernels/tuning/profile.tsv.

A change of the kernels or of the compiler changes the table, to be looked at and committed:

    python -m tests.support.kernels.profiles            # all rows
    python -m tests.support.kernels.profiles linear.cu  # those of some sources
"""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from math import prod

from rich.progress import track

from kernels.device.compile import compile_all
from kernels.device.device import Instantiation
from kernels.device.launch import Launch
from kernels.operations.epilogue import commonest
from kernels.tuning.profile_table import NONE, Row, Table, name_of, read, row_of, write
from kernels.tuning.static_profile import PROFILED, static_profile
from tests.support.cases import CASES
from tests.support.kernels import access_profiles, resources

ARCHITECTURES = PROFILED

SOURCES = (
    "implicit_gemm.cu",
    "tensor_gemm.cu",
    "tensor_patch.cu",
    "tensor_winograd.cu",
    "coalesced.cu",
    "depthwise.cu",
    "winograd.cu",
    "winograd_nonfused.cu",
    "linear.cu",
)
"""Of the kernels that convolutions launch, and of linear layers."""

MAIN = (
    "conv_direct<128, 64, 16, 8, 8, 3, true, Prologue::NONE, Activation::NONE, Finish::CLAMP>",
    "conv_direct<32, 64, 32, 4, 4, 3, false, Prologue::NONE, Activation::NONE, Finish::CLAMP>",
    "conv_winograd<2, 3, 2, Points::INTEGER, 32, 64, 8, 8, 8, 4, 1, Finish::CLAMP>",
    "conv_winograd<4, 3, 2, Points::MIXED, 32, 32, 8, 8, 8, 2, 1, Finish::CLAMP>",
    "conv_coalesced<1, 1, 8, 7, 1, 2, 64, 3, Finish::CLAMP>",
    "conv_coalesced<3, 3, 8, 7, 1, 2, 64, 2, Finish::CLAMP>",
    "linear<float, float, 1, 4, 8, Finish::CLAMP>",
)
"""Kernels whose rows are compared wherever the tests run; the others are in the longer sweeps."""


@cache
def _launches() -> dict[Instantiation, Launch]:
    """Of each kernel one launch, that with the most shared memory."""
    largest: dict[Instantiation, Launch] = {}
    for launch in (launch for case in CASES for launch in case.launches):
        before = largest.setdefault(launch.instantiation, launch)
        if launch.shared_bytes > before.shared_bytes:
            largest[launch.instantiation] = launch
    return largest


def profiled(arch: str, only: Iterable[str] | None = None) -> list[Instantiation]:
    """Those with a row for an architecture, or those of them whose expressions are in `only`."""
    names = None if only is None else set(only)
    return [
        each
        for each in resources.instantiations(arch)
        if each.source in SOURCES
        and each == commonest(each)
        and (names is None or each.expression in names)
    ]


def table_of(arch: str, instantiations: Iterable[Instantiation]) -> Table:
    """Their rows as the compiler at hand makes them. Raises DisassemblerNotFoundError."""
    cubins = compile_all(instantiations, [arch], resources.CACHE)
    table: Table = {}
    for kernel, _ in track(cubins, f"disassembling for {arch}", transient=True):
        launch = _launches()[kernel]
        threads = prod(launch.block)
        made = static_profile(kernel, arch, cubins[kernel, arch], threads, launch.shared_bytes)
        made = replace(made, load_wavefronts=_load_wavefronts(kernel))
        table[arch, name_of(kernel)] = row_of(made)
    return table


def _load_wavefronts(kernel: Instantiation) -> float:
    """Of a load of 16 bytes, as simulated; of a kernel not simulated, the most of its source's."""
    simulated = access_profiles.load_wavefronts()
    of_source = [each for key, each in simulated.items() if key.source == kernel.source]
    return simulated.get(kernel, max(of_source, default=2))


def differences(committed: Row, made: Row, tolerance: float = 0.02) -> list[str]:
    """What differs by more than a share of itself: "ceiling: 81.0 -> 74.2"."""
    found = []
    for column in committed:
        before, after = _numbers(committed[column]), _numbers(made[column])
        if before.keys() != after.keys() or any(
            abs(after[name] - number) > tolerance * number for name, number in before.items()
        ):
            found.append(f"{column}: {committed[column]} -> {made[column]}")
    return found


def _numbers(cell: str) -> dict[str, float]:
    """A cell's numbers by the names before them; few of a class are compared with one another."""
    words = cell.split()
    if len(words) == 1:
        return {} if cell == NONE else {"": float(cell)}
    return {name: float(count) for name, count in zip(words[::2], words[1::2], strict=True)}


def main(sources: Sequence[str]) -> None:
    """Compile and disassemble what is in the sources, or everything, and write its rows."""
    table = {row: cells for row, cells in read()[1].items() if row[1].split()[0] not in sources}
    table = table if sources else {}
    for arch in ARCHITECTURES:
        wanted = [each for each in profiled(arch) if not sources or each.source in sources]
        table |= table_of(arch, wanted)
    write(resources.compiler(), table)


if __name__ == "__main__":
    main(sys.argv[1:])
