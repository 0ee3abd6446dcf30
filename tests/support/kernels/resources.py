"""Keeps the committed tables: each kernel's resources by architecture, and its sources' digests.

The tables are resources.tsv and sources.tsv; the digests are of the sources that the rows were
compiled from. A change of the kernels or of the compiler changes them; look at the difference and
commit it:

    python -m tests.support.kernels.resources            # all rows
    python -m tests.support.kernels.resources changed    # those of the sources that changed
    python -m tests.support.kernels.resources linear.cu  # those of some sources
"""

import sys
from collections.abc import Mapping, Sequence
from functools import partial

from rich.progress import Progress, TaskID

from kernels.device import gpus
from kernels.device.compile import Cubin, compile_all, compiler, source_digest
from kernels.device.device import Instantiation
from kernels.operations.epilogue import commonest
from tests.support import ROOT
from tests.support.cases import INSTANTIATIONS

EMBEDDED = ("87", "110")
"""Jetson's, which have no column in the tables: the long suite compiles all kernels for them."""
ARCHITECTURES = tuple(arch for arch in gpus.ARCHITECTURES if arch not in EMBEDDED)
WITHOUT_SPILLS = ("80", "90a")
"""Data-centre GPUs, for which the kernels' tiles are chosen."""

TABLE = ROOT / "tests" / "kernels" / "resources.tsv"
SOURCES = ROOT / "tests" / "kernels" / "sources.tsv"
CACHE = ROOT / ".cache" / "cubins"

NONE = "-"
"""In the table, where a kernel is not for an architecture."""

Table = dict[str, dict[str, str]]  # kernel → architecture → what it takes


def instantiations(arch: str) -> tuple[Instantiation, ...]:
    """Return the kernels in an architecture's column: not all have tensor cores for TF32.

    Kernels for rarer activations are compiled for data-centre GPUs alone, to save a minute.
    """
    able = [each for each in INSTANTIATIONS if each.architectures.includes(arch)]
    return tuple(each for each in able if arch in WITHOUT_SPILLS or each == commonest(each))


def changed_sources() -> set[str]:
    """Return the sources whose text, or an include's, is not the one that the rows are from."""
    lines = SOURCES.read_text(encoding="utf-8").splitlines()
    committed = dict(line.split("\t") for line in lines)
    return {name for name in _sources() if committed.get(name) != source_digest([name])}


def row_of(instantiation: Instantiation) -> str:
    """Return the name of a kernel's row."""
    return f"{instantiation.source} {instantiation.expression}"


def _sources() -> list[str]:
    return sorted({each.source for each in INSTANTIATIONS})


def table_of(cubins: Mapping[tuple[Instantiation, str], Cubin]) -> Table:
    """Return the table that these cubins give."""
    table: Table = {}
    for (instantiation, arch), cubin in cubins.items():
        table.setdefault(row_of(instantiation), {})[arch] = _cell(cubin)
    return table


def _cell(cubin: Cubin) -> str:
    """Return the registers and the sizes in bytes that are not 0: "32 shared 1024"."""
    bytes_of = {
        "shared": cubin.resources.static_shared,
        "stack": cubin.resources.stack,
        "stores": cubin.resources.spill_stores,
        "loads": cubin.resources.spill_loads,
    }
    sizes = (f"{name} {size}" for name, size in bytes_of.items() if size)
    return " ".join([str(cubin.resources.registers), *sizes])


def read() -> tuple[str, Table]:
    """Return the compiler that made the committed table, and the table."""
    header, *lines = TABLE.read_text(encoding="utf-8").splitlines()
    made_with, *architectures = header.split("\t")
    rows = (line.split("\t") for line in lines)
    return made_with, {row[0]: dict(zip(architectures, row[1:], strict=True)) for row in rows}


def write(table: Table, compiled: Sequence[str]) -> None:
    """Replace the committed table, and the digests of the sources that were `compiled`."""
    lines = SOURCES.read_text(encoding="utf-8").splitlines() if SOURCES.exists() else []
    digests = dict(line.split("\t") for line in lines)
    digests |= {name: source_digest([name]) for name in compiled}
    SOURCES.write_text(
        "".join(f"{name}\t{digests[name]}\n" for name in _sources() if name in digests),
        encoding="utf-8",
    )
    rows = [[compiler(), *ARCHITECTURES]]
    rows += [
        [row, *(cells.get(arch, NONE) for arch in ARCHITECTURES)]
        for row, cells in sorted(table.items())
    ]
    TABLE.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")


def _show(bar: Progress, task: TaskID, done: int, total: int) -> None:
    bar.update(task, completed=done, total=total)


def main(sources: Sequence[str]) -> None:
    """Compile the kernels of `sources`, or all, and write their rows."""
    if "changed" in sources:
        sources = sorted(changed_sources())
    elif not sources:
        sources = _sources()
    with Progress() as bar:
        cubins: dict[tuple[Instantiation, str], Cubin] = {}
        for arch in ARCHITECTURES:
            task = bar.add_task(f"compiling for {arch}")
            wanted = [each for each in instantiations(arch) if each.source in sources]
            cubins |= compile_all(wanted, [arch], CACHE, partial(_show, bar, task))
    kept = {*_sources()} - {*sources}
    others = {row: cells for row, cells in read()[1].items() if row.split()[0] in kept}
    write(table_of(cubins) | others, sources)


if __name__ == "__main__":
    main(sys.argv[1:])
