"""What a kernel's accesses to memory would cost on a GPU, by source line, from the simulator.

python -m tests.cusim.profile                          the choices there are
python -m tests.cusim.profile "direct 64x64x16"        a table of its lines
python -m tests.cusim.profile "direct 64x64x16" 149    and lanes over banks, of that line
python -m tests.cusim.profile --write                  replaces tests/kernels/accesses.tsv
"""

import argparse
from collections.abc import Sequence

from rich.console import Console
from rich.progress import track
from rich.table import Table

from tests.cusim.accesses import LANES, Instruction, banks
from tests.support.kernels import access_profiles


def table(title: str, found: Sequence[Instruction]) -> Table:
    """A row for each line and access, those that cost most over the least first."""
    shown = Table(title=title, title_justify="left")
    shown.add_column("place", overflow="fold")
    for heading in ("access", "bytes", "instructions", "needed", "least", "lost"):
        shown.add_column(heading, justify="right")
    for each in sorted(found, key=lambda each: -lost(each)):
        unit = "wavefronts" if each.shared else "sectors"
        shown.add_row(
            each.place,
            f"{each.access.name.lower()} {each.space}",
            str(each.size),
            str(each.executed),
            f"{each.needed:.2f} {unit}",
            f"{each.least:.2f}",
            f"{lost(each):.0f}",
        )
    return shown


def lost(instruction: Instruction) -> float:
    """Wavefronts or sectors over the least, all times together."""
    return instruction.executed * (instruction.needed - instruction.least)


def over_banks(instruction: Instruction) -> list[str]:
    """Of its worst pattern: a line for each lane, a mark at each bank that it touches."""
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
    """Profile a choice and print what was found, or write the table."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.cusim.profile", description="Accesses to memory by source line."
    )
    parser.add_argument("choice", nargs="?", help="algorithm and configuration")
    parser.add_argument("line", nargs="?", help="of a source file, to see its lanes over banks")
    parser.add_argument(
        "--write",
        action="store_true",
        help="put the choices that begin so, or all, into the committed table",
    )
    arguments = parser.parse_args(command_line)
    console = Console(highlight=False, markup=False)
    every = access_profiles.profiled()
    if arguments.write:
        wanted = [name for name in every if name.startswith(arguments.choice or "")]
        others = {name: each for name, each in access_profiles.read().items() if name in every}
        access_profiles.write(others | access_profiles.table_of(track(wanted, "profiling")))
    elif arguments.choice not in every:
        console.print("choices:", *every, sep="\n")
        raise SystemExit(0 if arguments.choice is None else f"there is no {arguments.choice}")
    else:
        found = access_profiles.profile(*every[arguments.choice])
        console.print(table(f"{arguments.choice}: {every[arguments.choice][0]}", found))
        for each in found:
            if each.shared and f":{arguments.line}" in each.place:
                console.print(f"\n{each.place} {each.access.name.lower()}, its worst pattern")
                console.print(*over_banks(each), sep="\n")


if __name__ == "__main__":
    main()
