"""The committed table of what machine code says of speed: tests/kernels/profile.tsv.

A change of the kernels or of the compiler changes the table, to be looked at and committed:

    python -m tests.support.kernels.profiles
"""

from collections.abc import Iterable
from functools import cache
from math import prod

from rich.progress import track

from kernels.device.compile import compile_all
from kernels.device.device import Instantiation
from kernels.device.launch import Launch
from kernels.tuning.static_profile import SHARED_BYTES, StaticProfile, static_profile
from tests.support import ROOT
from tests.support.cases import CASES
from tests.support.kernels import resources

TABLE = ROOT / "tests" / "kernels" / "profile.tsv"
ARCHITECTURES = tuple(SHARED_BYTES)

SOURCES = ("implicit_gemm.cu", "tensor_gemm.cu", "coalesced.cu", "winograd.cu", "linear.cu")
"""Of kernels with a loop that multiplies."""

MAIN = (
    "conv_direct<128, 64, 16, 8, 8, 3, true, Prologue::NONE, Activation::NONE>",
    "conv_direct<32, 64, 32, 4, 4, 3, false, Prologue::NONE, Activation::NONE>",
    "conv_winograd<2, 3, 2, Points::INTEGER, 32, 64, 8, 8, 8, 4, 1>",
    "conv_winograd<4, 3, 2, Points::MIXED, 32, 32, 8, 8, 8, 2, 1>",
    "conv_coalesced<1, 1, 8, 7, 1, 2, 64, 3>",
    "conv_coalesced<3, 3, 8, 7, 1, 2, 64, 2>",
    "linear<float, float, 1, 4, 8>",
)
"""Kernels whose rows are compared wherever the tests run; the others are in the longer sweeps."""

COLUMNS = (
    "registers",
    "blocks",
    "code bytes",
    "before copy",
    "waits",
    "share",
    "ceiling",
    "loop",
    "data loop",
)

Row = dict[str, str]
Table = dict[tuple[str, str], Row]  # (architecture, kernel) → its row


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
        if each.source in SOURCES and (names is None or each.expression in names)
    ]


def table_of(arch: str, instantiations: Iterable[Instantiation]) -> Table:
    """Their rows as the compiler at hand makes them. Raises DisassemblerNotFoundError."""
    cubins = compile_all(instantiations, [arch], resources.CACHE)
    table: Table = {}
    for instantiation, _ in track(cubins, f"disassembling for {arch}", transient=True):
        launch = _launches()[instantiation]
        cubin = cubins[instantiation, arch]
        made = static_profile(instantiation, arch, cubin, prod(launch.block), launch.shared_bytes)
        table[arch, f"{instantiation.source} {instantiation.expression}"] = _row(made)
    return table


def _row(profile: StaticProfile) -> Row:
    def percent(share: float | None) -> str:
        return resources.NONE if share is None else f"{100 * share:.1f}"

    def classes(turn: dict[str, int]) -> str:
        by_count = sorted(turn.items(), key=lambda item: (-item[1], item[0]))
        return " ".join(f"{name} {count}" for name, count in by_count) or resources.NONE

    cells = (
        str(profile.registers),
        str(profile.blocks),
        str(profile.code_bytes),
        str(profile.before_copy),
        str(profile.waits),
        percent(profile.share),
        percent(profile.ceiling),
        classes(dict(profile.loop)),
        classes(dict(profile.data_loop)),
    )
    return dict(zip(COLUMNS, cells, strict=True))


def read() -> tuple[str, Table]:
    """The compiler that the committed table is from, and the table."""
    header, *lines = TABLE.read_text(encoding="utf-8").splitlines()
    made_with, _, *columns = header.split("\t")
    rows = (line.split("\t") for line in lines)
    return made_with, {
        (arch, name): dict(zip(columns, cells, strict=True)) for name, arch, *cells in rows
    }


def write(table: Table) -> None:
    """Replace the committed table."""
    lines: list[tuple[str, ...]] = [(resources.compiler(), "sm", *COLUMNS)]
    lines += [(name, arch, *row.values()) for (arch, name), row in sorted(table.items())]
    TABLE.write_text("".join("\t".join(line) + "\n" for line in lines), encoding="utf-8")


def differences(committed: Row, made: Row, tolerance: float = 0.02) -> list[str]:
    """What differs by more than a share of itself: "ceiling: 81.0 -> 74.2"."""
    found = []
    for column in COLUMNS:
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
        return {} if cell == resources.NONE else {"": float(cell)}
    return {name: float(count) for name, count in zip(words[::2], words[1::2], strict=True)}


def main() -> None:
    """Compile and disassemble everything, and write the table."""
    table: Table = {}
    for arch in ARCHITECTURES:
        table |= table_of(arch, profiled(arch))
    write(table)


if __name__ == "__main__":
    main()
