"""Maintains the committed tables of kernels' resources by architecture. Each compiler has a file.

    tests/kernels/resources/NVRTC-13.4.tsv   of the pinned compiler: the resources of all kernels
    tests/kernels/resources/NVRTC-13.0.tsv   of another: one kernel of each source, or more (WHOLE)
    tests/kernels/resources/sources.tsv      the digests of the sources of the rows

A change of the kernels or of `kernels.device.compilers.COMPARED` changes these files. Write them
again, check the difference and commit it:

    python -m tests.support.kernels.resources            # all rows
    python -m tests.support.kernels.resources changed    # the rows of the sources that changed
    python -m tests.support.kernels.resources linear.cu  # the rows of some sources

Each compiler runs in a separate process, and is downloaded from the package registry if it is not
in .cache. With `--compiler "NVRTC 13.0"`, only the table of this compiler is written.
"""

import argparse
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.progress import Progress, TaskID

from kernels.device.compile import (
    Cubin,
    architectures,
    compile_all,
    compiler,
    source_digest,
)
from kernels.device.compilers import COMPARED, Compiler
from kernels.device.device import Instantiation
from kernels.operations.epilogue import commonest
from tests.support import ROOT
from tests.support.cases import INSTANTIATIONS
from tests.support.kernels.compilers import named, run_with

MODULE = "tests.support.kernels.resources"

EMBEDDED = ("87", "110")
"""Jetson architectures. The long suite compiles all kernels for them, but they have no table."""
ARCHITECTURES = ("75", "80", "86", "89", "90a", "100", "120")
"""Architectures for which the pinned compiler's table has every kernel."""
WITHOUT_SPILLS = ("80", "90a")
"""Data-centre GPUs, for which the kernels' tiles are chosen."""

PINNED = "NVRTC 13.4"
"""The compiler in constraints.txt, which is also used for the profiles."""

WHOLE: Mapping[str, Collection[str]] = {
    "NVRTC 12.9": ("80",),
    "NVRTC 13.0": ("90a",),
    PINNED: ARCHITECTURES,
}
"""For each compiler, the architectures for which its table has every kernel. For all other
architectures, the table has one kernel per source."""

BRIEF = ("NVRTC 12.8", "NVRTC 13.1", "NVRTC 13.2", "NVRTC 13.3")
"""The compilers whose tables have only data-centre GPUs. They are neither the oldest nor the newest
that the extras install."""

FOLDER = ROOT / "tests" / "kernels" / "resources"
SOURCES = FOLDER / "sources.tsv"
CACHE = ROOT / ".cache" / "cubins"

NONE = "-"
"""The cell of a kernel that does not exist for an architecture, or is not compiled for it."""

Table = dict[str, dict[str, str]]
"""Cells by row and column. For resources: kernel → architecture → the kernel's resources."""


def instantiations(arch: str) -> tuple[Instantiation, ...]:
    """Return the kernels that exist for an architecture. For example, kernels for TF32 exist only
    for architectures with tensor cores for TF32.

    To save a minute, kernels for rare activations are compiled only for data-centre GPUs.
    """
    able = [each for each in INSTANTIATIONS if each.architectures.includes(arch)]
    return tuple(each for each in able if arch in WITHOUT_SPILLS or each == commonest(each))


def sample(arch: str) -> tuple[Instantiation, ...]:
    """Return a few kernels for an architecture. For each source, there is one kernel for each range
    of architectures that the source distinguishes."""
    firsts: dict[object, Instantiation] = {}
    for each in INSTANTIATIONS:
        if each.architectures.includes(arch):
            firsts.setdefault((each.source, each.architectures), each)
    return tuple(firsts.values())


def compared(made_by: str, arch: str) -> tuple[Instantiation, ...]:
    """Return the kernels that a compiler's table lists for an architecture."""
    return instantiations(arch) if arch in WHOLE.get(made_by, ()) else sample(arch)


def columns() -> tuple[str, ...]:
    """Return the architectures in the loaded compiler's table."""
    return WITHOUT_SPILLS if compiler() in BRIEF else architectures()


def changed_sources(made_by: str) -> set[str]:
    """Return the sources that have changed since a compiler's rows were written. A change of an
    included header counts."""
    committed = _read(SOURCES)[1]
    return {
        name for name in _sources() if committed.get(name, {}).get(made_by) != source_digest([name])
    }


def row_of(instantiation: Instantiation) -> str:
    """Return the name of a kernel's row."""
    return f"{instantiation.source} {instantiation.expression}"


def _sources() -> list[str]:
    return sorted({each.source for each in INSTANTIATIONS})


def table_of(cubins: Mapping[tuple[Instantiation, str], Cubin]) -> Table:
    """Return the table for these cubins."""
    table: Table = {}
    for (instantiation, arch), cubin in cubins.items():
        table.setdefault(row_of(instantiation), {})[arch] = _cell(cubin)
    return table


def _cell(cubin: Cubin) -> str:
    """Return the text of a cell, such as "32 shared 1024". It has the number of registers, and each
    size in bytes that is not 0."""
    bytes_of = {
        "shared": cubin.resources.static_shared,
        "stack": cubin.resources.stack,
        "stores": cubin.resources.spill_stores,
        "loads": cubin.resources.spill_loads,
    }
    sizes = (f"{name} {size}" for name, size in bytes_of.items() if size)
    return " ".join([str(cubin.resources.registers), *sizes])


def column(arch: str, sources: Collection[str]) -> dict[str, str]:
    """Compile the kernels of some sources for an architecture, and return their cells by row."""
    wanted = [each for each in compared(compiler(), arch) if each.source in sources]
    cubins = compile_all(wanted, [arch], CACHE)
    return {row: cells[arch] for row, cells in table_of(cubins).items()}


def column_by(made_by: Compiler, arch: str) -> dict[str, str]:
    """Run `column` with another compiler, in a separate process, for all sources. Return its
    result."""
    if made_by.name == compiler():
        return column(arch, _sources())
    program = (
        "import json; from tests.support.kernels import resources as r;"
        f" print(json.dumps(r.column({arch!r}, r._sources())))"
    )
    cells: dict[str, str] = json.loads(run_with(made_by, ["-c", program]))
    return cells


def columns_by(made_by: Compiler) -> tuple[str, ...]:
    """Run `columns` with another compiler, in a separate process. Return its result."""
    if made_by.name == compiler():
        return columns()
    program = "from tests.support.kernels import resources; print(*resources.columns())"
    return tuple(run_with(made_by, ["-c", program]).split())


# The files


def file_of(made_by: str) -> Path:
    """Return the file of a compiler's table."""
    return FOLDER / f"{made_by.replace(' ', '-')}.tsv"


def read(made_by: str = PINNED) -> Table:
    """Return a compiler's committed table. Raises LookupError if there is none."""
    file = file_of(made_by)
    if not file.exists():
        raise LookupError(
            f"no table says what kernels of {made_by} take: install a compiler that has one"
            " (pip install -c constraints.txt -e '.[dev]'), or add this one to COMPARED in"
            " kernels/device/compilers.py and make its table: python -m"
            f" tests.support.kernels.resources --compiler {made_by!r}"
        )
    corner, table = _read(file)
    if corner != made_by:
        raise ValueError(f"{file} is of {corner}")
    return table


def committed_columns(made_by: str) -> tuple[str, ...]:
    """Return the architectures in a compiler's committed table. If there is no table, return
    none."""
    file = file_of(made_by)
    return tuple(next(iter(_read(file)[1].values()))) if file.exists() else ()


def _read(file: Path) -> tuple[str, Table]:
    """Return the first cell of a file's header, and its table."""
    header, *lines = file.read_text(encoding="utf-8").splitlines()
    corner, *names = header.split("\t")
    rows = (line.split("\t") for line in lines)
    return corner, {row[0]: dict(zip(names, row[1:], strict=True)) for row in rows}


def _write(file: Path, corner: str, names: Iterable[str], table: Table) -> None:
    rows = [[corner, *names]]
    rows += [
        [row, *(cells.get(name, NONE) for name in names)] for row, cells in sorted(table.items())
    ]
    file.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")


def write(table: Table, compiled: Collection[str]) -> None:
    """Replace the loaded compiler's table, and the digests of the `compiled` sources."""
    by = compiler()
    _write(file_of(by), by, columns(), table)
    committed = _read(SOURCES)[1] if SOURCES.exists() else {}
    digests = {name: committed.get(name, {}) for name in _sources()}
    for name in compiled:
        digests[name] = {**digests[name], by: source_digest([name])}
    _write(SOURCES, "source", [each.name for each in COMPARED], digests)


def _show(bar: Progress, task: TaskID, done: int, total: int) -> None:
    bar.update(task, completed=done, total=total)


def make(sources: Collection[str]) -> None:
    """Compile the kernels of `sources` with the loaded compiler, and write their rows."""
    made_by = compiler()
    cubins: dict[tuple[Instantiation, str], Cubin] = {}
    with Progress(console=Console(stderr=True)) as bar:
        for arch in columns():
            task = bar.add_task(f"{made_by} compiles for {arch}")
            wanted = [each for each in compared(made_by, arch) if each.source in sources]
            cubins |= compile_all(wanted, [arch], CACHE, partial(_show, bar, task))
    kept = {*_sources()} - {*sources}
    before = read(made_by) if file_of(made_by).exists() else {}
    others = {row: cells for row, cells in before.items() if row.split()[0] in kept}
    write(table_of(cubins) | others, sources)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the tables that the arguments name."""
    parser = argparse.ArgumentParser(MODULE)
    parser.add_argument("sources", nargs="*", help="changed, or files of kernels/src; all if none")
    names = [each.name for each in COMPARED]
    parser.add_argument("--compiler", choices=names, help="write only this one's table")
    options = parser.parse_args(arguments)
    wanted = [named(options.compiler)] if options.compiler else COMPARED
    for each in wanted:
        sources = options.sources or _sources()
        if sources == ["changed"]:
            sources = sorted(changed_sources(each.name))
        if sources and each.name == compiler():
            make(sources)
        elif sources:
            run_with(each, ["-m", MODULE, "--compiler", each.name, *sources])


if __name__ == "__main__":
    main()
