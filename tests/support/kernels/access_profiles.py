"""The committed table of wavefronts and sectors by source line: tests/kernels/accesses.tsv.

A change of the kernels changes the table, to be looked at and committed:

    python -m tests.cusim.profile --write
"""

from collections.abc import Callable, Iterable
from dataclasses import replace

from kernels.convolution.algorithms import ConvChoice, choices
from kernels.problems.conv import ConvProblem
from kernels.problems.precision import Precision
from kernels.tuning.profile_table import LOADS, name_of
from tests.cusim import build
from tests.cusim.accesses import Instruction, instructions
from tests.cusim.build import PROFILE
from tests.cusim.device import CusimDevice
from tests.support import ROOT
from tests.support.cases.conv import conv_case
from tests.support.kernels.conv_layers import Layer, filled
from tests.support.kernels.kernel_case import KernelCase, run
from tests.support.kernels.windows import conv_problem, window

TABLE = ROOT / "tests" / "kernels" / "accesses.tsv"

THREE = conv_problem(1, 32, 64, window((16, 32), (3, 3), pads=(1, 1, 1, 1)))
ONE = conv_problem(1, 32, 64, window((16, 32), (1, 1)))
WANTED: tuple[tuple[ConvProblem, tuple[str, ...]], ...] = (
    (
        THREE,
        ("direct", "winograd F(2x2,3x3) i", "winograd F(4x4,3x3) m", "coalesced 56x16x32 3x3/1"),
    ),
    (ONE, ("gemm", "coalesced 56x8x64 1x1/1")),
    (replace(THREE, precision=Precision.TF32), ("tensor",)),
    (replace(THREE, precision=Precision.FP16), ("tensor",)),
)
"""Problems that fill every tile, and how the choices begin that are profiled."""

MAIN = (
    "direct 64x64x16",
    "gemm 32x64x32",
    "winograd F(2x2,3x3) integer points, 16x32x8",
    "winograd F(4x4,3x3) mixed points, 16x32x4",
    "tensor 64x64x64",
)
"""Choices whose rows are compared wherever the tests run; the others are in the longer sweeps."""

Lines = dict[str, str]  # place and access → executed, needed, least
Table = dict[str, Lines]  # choice → its lines


def profiled() -> dict[str, tuple[ConvProblem, ConvChoice]]:
    """By choice; none that shares the channels among blocks."""
    return {
        str(choice): (problem, choice)
        for problem, beginnings in WANTED
        for choice in choices(problem)
        if str(choice).startswith(beginnings) and getattr(choice.config, "split", 1) == 1
    }


def kernel_case(problem: ConvProblem, choice: ConvChoice) -> KernelCase:
    """The problem computed by one choice, on pixels of whole vectors."""
    stored = problem.precision.stored
    x, y = (replace(filled(channels), stored=stored) for channels in (problem.c, problem.k))
    return conv_case(Layer("profiled", problem, x, y), choice)


def profile(
    problem: ConvProblem, choice: ConvChoice, opened: Callable[[], CusimDevice] | None = None
) -> list[Instruction]:
    """The instructions that access memory in a launch that computes the problem, and rightly."""
    case = kernel_case(problem, choice)
    (launch,) = case.launches
    device = opened() if opened else CusimDevice(PROFILE)
    try:
        run(case, device)
        library = build.kernel(PROFILE, launch.instantiation, device.source_root)
        return instructions(device.recorded, library)
    finally:
        device.close()


def lines_of(found: Iterable[Instruction]) -> Lines:
    """A table's lines of one choice."""
    return {
        f"{each.place} {each.access.name.lower()} {each.size} {each.space}": (
            f"{each.executed} {each.needed:.2f} {each.least:.2f}"
        )
        for each in found
    }


def load_wavefronts(table: Table) -> str:
    """Return the text of kernels/tuning/load_wavefronts.tsv: a load's wavefronts, by kernel."""
    found = {
        name_of(kernel_case(*profiled()[name]).launches[0].instantiation): _load_wavefronts(lines)
        for name, lines in table.items()
    }
    return "".join(f"{name}\t{number:.4f}\n" for name, number in sorted(found.items()))


def _load_wavefronts(lines: Lines) -> float:
    loads = [
        (int(executed), float(needed))
        for place, counts in lines.items()
        if place.endswith("load 16 shared")
        for executed, needed, _ in (counts.split(),)
    ]
    return sum(n * needed for n, needed in loads) / sum(n for n, _ in loads)


def table_of(names: Iterable[str]) -> Table:
    """The lines of these choices."""
    every = profiled()
    return {name: lines_of(profile(*every[name])) for name in names}


def read() -> Table:
    """The committed table."""
    table: Table = {}
    for line in TABLE.read_text(encoding="utf-8").splitlines()[1:]:
        name, place, access, *counts = line.split("\t")
        table.setdefault(name, {})[f"{place} {access}"] = " ".join(counts)
    return table


def write(table: Table) -> None:
    """Replace the committed table, and what the kernels' profiles take from it."""
    LOADS.write_text(load_wavefronts(table), encoding="utf-8")
    rows = ["choice\tplace\taccess\texecuted\tneeded\tleast"]
    for name, lines in sorted(table.items()):
        for key, counts in lines.items():
            place, *access = key.rsplit(" ", 3)
            rows.append("\t".join([name, place, " ".join(access), *counts.split()]))
    TABLE.write_text("\n".join(rows) + "\n", encoding="utf-8")
