"""The committed table of what every kernel takes on every architecture, and of its code's digest:
resources.tsv.

A change of the kernels or of the compiler changes the table, to be looked at and committed:

    python -m tests.support.kernels.resources            # all rows
    python -m tests.support.kernels.resources linear.cu  # those of some sources
"""

import sys
from collections.abc import Mapping, Sequence
from functools import partial

from rich.progress import Progress, TaskID

from kernels.device import nvrtc
from kernels.device.compile import Cubin, compile_all
from kernels.device.device import Instantiation
from kernels.device.machine_code import digest
from kernels.operations.epilogue import commonest
from tests.support import ROOT
from tests.support.cases import INSTANTIATIONS

ARCHITECTURES = ("75", "80", "86", "89", "90a", "100", "120")
WITHOUT_SPILLS = ("80", "90a")
"""Data-centre GPUs, for which the kernels' tiles are chosen."""

BETWEEN = ("86", "89", "100")
"""Like older or newer ones: compiled by `make test-all` alone, to save minutes."""

TABLE = ROOT / "tests" / "kernels" / "resources.tsv"
CACHE = ROOT / ".cache" / "cubins"

NONE = "-"
"""In the table, where a kernel is not for an architecture."""

Table = dict[str, dict[str, str]]  # kernel → architecture → what it takes


def compiler() -> str:
    """The compiler whose numbers these are; another's may differ."""
    return "NVRTC {}.{}".format(*nvrtc.version())


def instantiations(arch: str) -> tuple[Instantiation, ...]:
    """Those in an architecture's column: not all have tensor cores for TF32.

    Kernels for rarer activations are compiled for data-centre GPUs alone, to save a minute.
    """
    able = [each for each in INSTANTIATIONS if each.precision.runs_on(arch)]
    return tuple(each for each in able if arch in WITHOUT_SPILLS or each == commonest(each))


def table_of(cubins: Mapping[tuple[Instantiation, str], Cubin]) -> Table:
    """The table as these cubins have it."""
    table: Table = {}
    for (instantiation, arch), cubin in cubins.items():
        row = f"{instantiation.source} {instantiation.expression}"
        table.setdefault(row, {})[arch] = _cell(cubin)
    return table


def _cell(cubin: Cubin) -> str:
    """Registers, numbers of bytes that are not 0, a digest: "32 shared 1024 code 1f2e3d4c"."""
    bytes_of = {
        "shared": cubin.resources.static_shared,
        "stack": cubin.resources.stack,
        "stores": cubin.resources.spill_stores,
        "loads": cubin.resources.spill_loads,
    }
    sizes = (f"{name} {size}" for name, size in bytes_of.items() if size)
    return " ".join([str(cubin.resources.registers), *sizes, f"code {digest(cubin)}"])


def read() -> tuple[str, Table]:
    """The compiler that the committed table is from, and the table."""
    header, *lines = TABLE.read_text(encoding="utf-8").splitlines()
    made_with, *architectures = header.split("\t")
    rows = (line.split("\t") for line in lines)
    return made_with, {row[0]: dict(zip(architectures, row[1:], strict=True)) for row in rows}


def write(table: Table) -> None:
    """Replace the committed table."""
    lines = [[compiler(), *ARCHITECTURES]]
    lines += [
        [row, *(cells.get(arch, NONE) for arch in ARCHITECTURES)]
        for row, cells in sorted(table.items())
    ]
    TABLE.write_text("".join("\t".join(line) + "\n" for line in lines), encoding="utf-8")


def _show(bar: Progress, task: TaskID, done: int, total: int) -> None:
    bar.update(task, completed=done, total=total)


def main(sources: Sequence[str]) -> None:
    """Compile what is in the sources, or everything, and write its rows."""
    with Progress() as bar:
        cubins: dict[tuple[Instantiation, str], Cubin] = {}
        for arch in ARCHITECTURES:
            task = bar.add_task(f"compiling for {arch}")
            wanted = [i for i in instantiations(arch) if not sources or i.source in sources]
            cubins |= compile_all(wanted, [arch], CACHE, partial(_show, bar, task))
    others = {row: cells for row, cells in read()[1].items() if row.split()[0] not in sources}
    write(table_of(cubins) | (others if sources else {}))


if __name__ == "__main__":
    main(sys.argv[1:])
