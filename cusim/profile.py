"""Runs kernels in the simulator, and prints the cost of each line's memory accesses on a GPU.

    python -m cusim.profile                           lists the choices
    python -m cusim.profile "direct 64x64x16"         prints a table of a choice's lines
    python -m cusim.profile "direct 64x64x16" 149     also prints the banks of each lane at line 149
    python -m cusim.profile --write                   replaces the committed tables

A choice is an algorithm with its configuration. If kernels change, replace the committed tables,
review the difference and commit it. accesses.tsv has the wavefronts and sectors of each line.
kernels/tuning/load_wavefronts.tsv has each kernel's mean wavefronts per load, which the cost model
reads.
"""

import argparse
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.progress import track
from rich.table import Table

from cusim import build
from cusim.accesses import LANES, Instruction, banks, instructions
from cusim.build import PROFILE
from cusim.device import CusimDevice
from kernels.convolution.algorithms import ConvChoice, choices
from kernels.device.device import Instantiation
from kernels.operations.epilogue import commonest
from kernels.problems.conv import ConvProblem, same_padded
from kernels.problems.precision import Precision
from kernels.tuning.bench import Bench
from kernels.tuning.profile_table import LOADS, name_of
from kernels.tuning.search import measured_launches
from kernels.tuning.timing import time_launches

ACCESSES = Path(__file__).with_name("accesses.tsv")

_THREE = same_padded((16, 32), 3, 32, 64)
_ONE = same_padded((16, 32), 1, 32, 64)
WANTED: tuple[tuple[ConvProblem, tuple[str, ...]], ...] = (
    (
        _THREE,
        ("direct", "winograd F(2x2,3x3) i", "winograd F(4x4,3x3) m", "coalesced 56x16x32 3x3/1"),
    ),
    (_ONE, ("gemm", "coalesced 56x8x64 1x1/1")),
    (replace(_THREE, precision=Precision.TF32), ("tensor",)),
    (replace(_THREE, precision=Precision.FP16), ("tensor",)),
    (replace(_THREE, precision=Precision.INT8), ("integer",)),
)
"""Convolutions that fill every tile, each with prefixes of the names of the choices to profile."""

Lines = dict[str, str]  # place and access → executed, needed, least
Accesses = dict[str, Lines]  # choice → its lines


def profiled() -> dict[str, tuple[ConvProblem, ConvChoice]]:
    """Return the convolutions to profile, by name. Each convolution has a problem, and an algorithm
    with its configuration.

    Configurations with split sums or clusters are left out, because a profile does not distinguish
    thread blocks.
    """
    return {
        str(choice): (problem, choice)
        for problem, beginnings in WANTED
        for choice in choices(problem)
        if str(choice).startswith(beginnings)
        and all(getattr(choice.config, name, 1) == 1 for name in ("split", "together"))
    }


def kernel_of(problem: ConvProblem, choice: ConvChoice) -> Instantiation:
    """Return the only kernel that a choice launches."""
    (launch,) = measured_launches(problem, choice)
    return launch.instantiation


def profile(
    problem: ConvProblem, choice: ConvChoice, opened: Callable[[], CusimDevice] | None = None
) -> list[Instruction]:
    """Run a convolution with one algorithm and configuration, and return its memory instructions.

    Raises WrongResultError if the result is wrong.
    """
    device = opened() if opened else CusimDevice(PROFILE)
    bench = Bench(device, time_launches)
    try:
        bench.examine(bench.candidate(problem, choice))
        library = build.kernel(PROFILE, kernel_of(problem, choice), device.source_root)
        return instructions(device.recorded, library)
    finally:
        bench.close()
        device.close()


def lines_of(found: Iterable[Instruction]) -> Lines:
    """Return the lines of the committed table for the instructions of one kernel."""
    return {
        f"{cost.place} {cost.access.name.lower()} {cost.size} {cost.space}": (
            f"{cost.executed} {cost.needed:.2f} {cost.least:.2f}"
        )
        for cost in found
    }


def accesses_of(names: Iterable[str]) -> Accesses:
    """Simulate the convolutions with these names, and return their lines of the committed table."""
    every = profiled()
    return {name: lines_of(profile(*every[name])) for name in names}


def load_wavefronts(accesses: Accesses) -> str:
    """Return the text of kernels/tuning/load_wavefronts.tsv. It has the mean number of wavefronts
    that each kernel's loads of 16 bytes from shared memory need."""
    every = profiled()
    found = {
        name_of(commonest(kernel_of(*every[name]))): _load_wavefronts(lines)
        for name, lines in accesses.items()
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


def read() -> Accesses:
    """Return the committed table of accesses."""
    accesses: Accesses = {}
    for line in ACCESSES.read_text(encoding="utf-8").splitlines()[1:]:
        name, place, access, *counts = line.split("\t")
        accesses.setdefault(name, {})[f"{place} {access}"] = " ".join(counts)
    return accesses


def write(accesses: Accesses) -> None:
    """Write both committed tables."""
    LOADS.write_text(load_wavefronts(accesses), encoding="utf-8")
    rows = ["choice\tplace\taccess\texecuted\tneeded\tleast"]
    for name, lines in sorted(accesses.items()):
        for key, counts in lines.items():
            place, *access = key.rsplit(" ", 3)
            rows.append("\t".join([name, place, " ".join(access), *counts.split()]))
    ACCESSES.write_text("\n".join(rows) + "\n", encoding="utf-8")


def table(title: str, found: Sequence[Instruction]) -> Table:
    """Return a table for printing. It has a row for each instruction, sorted by the wavefronts or
    sectors beyond the least possible number."""
    shown = Table(title=title, title_justify="left")
    shown.add_column("place", overflow="fold")
    for heading in ("access", "bytes", "instructions", "needed", "least", "lost"):
        shown.add_column(heading, justify="right")
    for cost in sorted(found, key=lambda cost: -lost(cost)):
        unit = "wavefronts" if cost.shared else "sectors"
        shown.add_row(
            cost.place,
            f"{cost.access.name.lower()} {cost.space}",
            str(cost.size),
            str(cost.executed),
            f"{cost.needed:.2f} {unit}",
            f"{cost.least:.2f}",
            f"{lost(cost):.0f}",
        )
    return shown


def lost(instruction: Instruction) -> float:
    """Return the number of wavefronts or sectors beyond the least possible number, summed over all
    executions of an instruction."""
    return instruction.executed * (instruction.needed - instruction.least)


def over_banks(instruction: Instruction) -> list[str]:
    """Return the most expensive access of an instruction as text. There is one line per lane, with
    a mark for each bank that the lane touches."""
    lines = [f"lane  address  banks 0 to 31, {instruction.size} bytes a lane"]
    for lane, address in enumerate(instruction.worst):
        if address is None:
            lines.append(f"{lane:4d}        -")
        else:
            touched = banks(address, instruction.size)
            marks = "".join("#" if bank in touched else "." for bank in range(LANES))
            lines.append(f"{lane:4d}  {address:7d}  {marks}")
    return lines


def main(command_line: Sequence[str] | None = None) -> None:
    """Profile one convolution and print the result, or write the tables."""
    parser = argparse.ArgumentParser(
        prog="python -m cusim.profile", description="Counts memory accesses by source line."
    )
    parser.add_argument("choice", nargs="?", help="algorithm and configuration")
    parser.add_argument("line", nargs="?", help="line of the source; shows the banks of each lane")
    parser.add_argument(
        "--write",
        action="store_true",
        help="profile all choices whose names begin with CHOICE, and update the committed tables",
    )
    arguments = parser.parse_args(command_line)
    console = Console(highlight=False, markup=False)
    every = profiled()
    if arguments.write:
        wanted = [name for name in every if name.startswith(arguments.choice or "")]
        others = {name: lines for name, lines in read().items() if name in every}
        write(others | accesses_of(track(wanted, "profiling")))
    elif arguments.choice not in every:
        console.print("choices:", *every, sep="\n")
        raise SystemExit(
            0 if arguments.choice is None else f"{arguments.choice} is not one of these choices"
        )
    else:
        found = profile(*every[arguments.choice])
        console.print(table(f"{arguments.choice}: {every[arguments.choice][0]}", found))
        for cost in found:
            if cost.shared and f":{arguments.line}" in cost.place:
                console.print(f"\n{cost.place} {cost.access.name.lower()}, worst pattern")
                console.print(*over_banks(cost), sep="\n")


if __name__ == "__main__":
    main()
