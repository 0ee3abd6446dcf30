"""Reads profile.tsv, the committed profiles of the kernels that convolutions launch.

    profiles.py ─ rows ─ profile.tsv ─ profile_of ─ heuristic, inspect

A row has counts. For human readers, it also has percentages and ratios that are computed from these
counts.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

from kernels.device.device import Instantiation
from kernels.operations.epilogue import commonest
from kernels.tuning.static_profile import StaticProfile, Stretch

TABLE = Path(__file__).with_name("profile.tsv")
LOADS = Path(__file__).with_name("load_wavefronts.tsv")
"""The table of wavefronts that the simulator counts by kernel: `python -m cusim.profile
--write`."""

ARCHITECTURE = "90a"
"""The architecture of an H100 and an H200, for which the heuristic chooses."""

NONE = "-"
"""The cell for a kernel that lacks the column's property."""

Row = dict[str, str]
Table = dict[tuple[str, str], Row]  # (architecture, kernel) → its row

_STRETCHES = ("start", "fill", "finish", "vector")


class UnprofiledKernelError(LookupError):
    """Raised when a kernel has no row in the table; says how to add one."""


@cache
def profile_of(kernel: Instantiation, arch: str = ARCHITECTURE) -> StaticProfile:
    """Return the committed profile of a kernel. A kernel has the same profile with all activations.

    Raises UnprofiledKernelError.
    """
    try:
        return _profiles()[arch, name_of(commonest(kernel))]
    except KeyError:
        raise UnprofiledKernelError(
            f"{TABLE.name} has no profile of {name_of(kernel)} for sm_{arch}; "
            "to add it, run python -m kernels.tuning.profiles"
        ) from None


def name_of(kernel: Instantiation) -> str:
    """Return a kernel's name in the table."""
    return f"{kernel.source} {kernel.expression}"


def load_wavefronts(kernel: Instantiation) -> float:
    """Return the number of shared-memory cycles for a load of 16 bytes per lane in this kernel, as
    counted by the simulator.

    If the kernel was not simulated, return the largest number of the simulated kernels in its
    source file. If no kernel of that file was simulated, return 2.
    """
    simulated = _load_wavefronts()
    of_source = [profile for name, profile in simulated.items() if name.split()[0] == kernel.source]
    return simulated.get(name_of(kernel), max(of_source, default=2.0))


@cache
def _load_wavefronts() -> Mapping[str, float]:
    lines = LOADS.read_text(encoding="utf-8").splitlines()
    return {name: float(number) for name, number in (line.split("\t") for line in lines)}


@cache
def _profiles() -> Mapping[tuple[str, str], StaticProfile]:
    _, table = read()
    return {key: profile_in(row) for key, row in table.items()}


def read() -> tuple[str, Table]:
    """Return the name of the compiler with which the table was made, and the committed table."""
    header, *lines = TABLE.read_text(encoding="utf-8").splitlines()
    made_with, _, *columns = header.split("\t")
    rows = (line.split("\t") for line in lines)
    return made_with, {
        (arch, name): dict(zip(columns, cells, strict=True)) for name, arch, *cells in rows
    }


def write(compiler: str, table: Table) -> None:
    """Replace the committed table by `table`, made with `compiler`."""
    columns = next(iter(table.values()))
    lines: list[Iterable[str]] = [(compiler, "sm", *columns)]
    lines += [(name, arch, *row.values()) for (arch, name), row in sorted(table.items())]
    TABLE.write_text("".join("\t".join(line) + "\n" for line in lines), encoding="utf-8")


def row_of(profile: StaticProfile) -> Row:
    """Convert a profile to a row of the table, and return the row's cells by column."""
    stretches = {name: getattr(profile, name) for name in _STRETCHES}
    return {
        "registers": str(profile.registers),
        "blocks": str(profile.blocks),
        "warps": str(profile.warps),
        "code bytes": str(profile.code_bytes),
        **{
            name: _cell({"instructions": s.instructions, "stalls": s.stalls, "waits": s.waits})
            for name, s in stretches.items()
        },
        "share": _percent(profile.share),
        "ceiling": _percent(profile.ceiling),
        "shared ceiling": _percent(profile.shared_ceiling),
        "wavefronts a product": _number(profile.wavefronts_a_product),
        "load wavefronts": f"{profile.load_wavefronts:.2f}",
        "loop": _cell(profile.loop),
        "data warps": str(profile.data_warps),
        "data loop": _cell(profile.data_loop),
    }


def profile_in(row: Row) -> StaticProfile:
    """Convert a row of the table to a profile."""
    return StaticProfile(
        registers=int(row["registers"]),
        blocks=int(row["blocks"]),
        warps=int(row["warps"]),
        code_bytes=int(row["code bytes"]),
        **{name: Stretch(**counts(row[name])) for name in _STRETCHES},
        loop=counts(row["loop"]),
        data_loop=counts(row["data loop"]),
        data_warps=int(row["data warps"]),
        load_wavefronts=float(row["load wavefronts"]),
    )


def counts(cell: str) -> dict[str, int]:
    """Return the counts that follow each name in a cell such as "FFMA 512 LDS.128 32"."""
    words = cell.split()
    return dict(zip(words[::2], map(int, words[1::2]), strict=True)) if cell != NONE else {}


def _cell(numbers: Mapping[str, int]) -> str:
    by_count = sorted(numbers.items(), key=lambda item: (-item[1], item[0]))
    return " ".join(f"{name} {count}" for name, count in by_count if count) or NONE


def _number(number: float | None) -> str:
    return NONE if number is None else f"{number:.3f}"


def _percent(share: float | None) -> str:
    return NONE if share is None else f"{100 * share:.1f}"
