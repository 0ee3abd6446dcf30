"""Every kernel compiles for every architecture, with the registers and memory of the committed
tables.

All compilers that a user can have are tested (kernels/device/compilers.py). The pinned compiler
compiles every kernel. The others compile one kernel per source, and two of them compile all kernels
for one architecture.
"""

import pytest

from kernels.device import gpus, nvrtc
from kernels.device.compile import compile_all, compiler
from kernels.device.compilers import COMPARED, Compiler
from tests.support.kernels import resources
from tests.support.kernels.compilers import named

EVERY_COMPILER = pytest.mark.parametrize("made_by", COMPARED, ids=lambda each: each.name)
AGAIN = "if this is meant: python -m tests.support.kernels.resources changed"


def _compare_changed() -> None:
    """Compare the kernels of changed sources with the table of the loaded compiler."""
    table = resources.read(compiler())
    changed = resources.changed_sources(compiler())
    for arch in resources.columns():
        compiled = resources.column(arch, changed)
        assert compiled == {row: table.get(row, {}).get(arch) for row in compiled}, AGAIN


def test_kernels_of_changed_sources_take_what_the_committed_table_says() -> None:
    _compare_changed()


def test_a_compiler_without_a_table_fails_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.compiler", lambda: "NVRTC 99.0")
    with pytest.raises(LookupError, match=r"NVRTC 99\.0 .*constraints\.txt.*COMPARED"):
        _compare_changed()


def test_every_compared_compiler_has_a_table_and_no_other() -> None:
    tables = {file.name for file in resources.FOLDER.iterdir()} - {resources.SOURCES.name}
    assert tables == {resources.file_of(each.name).name for each in COMPARED}


@EVERY_COMPILER
def test_the_committed_table_has_a_row_for_every_kernel(made_by: Compiler) -> None:
    table = resources.read(made_by.name)
    brief = made_by.name in resources.BRIEF
    archs = {arch for cells in table.values() for arch in cells}
    assert archs >= set(resources.WITHOUT_SPILLS if brief else resources.ARCHITECTURES)
    for arch in archs:
        has = {row for row, cells in table.items() if cells[arch] != resources.NONE}
        wanted = map(resources.row_of, resources.compared(made_by.name, arch))
        assert has == {*wanted}, AGAIN


@EVERY_COMPILER
def test_the_committed_table_is_of_the_sources_as_they_are(made_by: Compiler) -> None:
    """If the loaded compiler is not the pinned one, the test above compiles kernels in every
    run."""
    assert not resources.changed_sources(made_by.name), AGAIN


def test_the_table_of_gpus_has_every_architecture_of_the_compiler() -> None:
    known = {number for number in nvrtc.architectures() if number >= 75}
    assert known <= {int(name.rstrip("a")) for name in gpus.ARCHITECTURES}


@pytest.mark.slow
@EVERY_COMPILER
def test_a_table_has_the_architectures_that_its_compiler_has(made_by: Compiler) -> None:
    (cells, *_) = resources.read(made_by.name).values()
    assert tuple(cells) == resources.columns_by(made_by), AGAIN


@pytest.mark.slow
@pytest.mark.parametrize(
    ("made_by", "arch"),
    [(each.name, arch) for each in COMPARED for arch in resources.committed_columns(each.name)],
)
def test_every_kernel_takes_what_the_committed_table_says(made_by: str, arch: str) -> None:
    """Needs the package registry for compilers that are not in .cache/compilers."""
    cells = {row: cells[arch] for row, cells in resources.read(made_by).items()}
    committed = {row: cell for row, cell in cells.items() if cell != resources.NONE}
    assert resources.column_by(named(made_by), arch) == committed, AGAIN


@pytest.mark.slow
@pytest.mark.parametrize("arch", resources.EMBEDDED)
def test_every_kernel_compiles_for_embedded_gpus_and_none_on_tensor_cores_spills(arch: str) -> None:
    cubins = compile_all(resources.instantiations(arch), [arch], resources.CACHE)
    cells = {row: cells[arch] for row, cells in resources.table_of(cubins).items()}
    assert cells
    assert not {row for row, cell in cells.items() if _on_tensor_cores(row) and _spills(cell)}


@EVERY_COMPILER
def test_no_kernel_on_tensor_cores_spills_anywhere(made_by: Compiler) -> None:
    table = resources.read(made_by.name)
    rows = {kernel: row for kernel, row in table.items() if _on_tensor_cores(kernel)}
    assert rows
    cells = {(kernel, arch): cell for kernel, row in rows.items() for arch, cell in row.items()}
    assert not {at for at, cell in cells.items() if _spills(cell)}


def test_no_kernel_spills_on_data_centre_gpus_with_the_pinned_compiler() -> None:
    table = resources.read(resources.PINNED)
    cells = {(row, arch): cells[arch] for row, cells in table.items() for arch in ("80", "90a")}
    assert cells
    assert not {at for at, cell in cells.items() if _spills(cell)}


def _spills(cell: str) -> bool:
    return "stores" in cell or "loads" in cell


_BY_TENSOR_CORES = "conv_tensor", "conv_integer", "attention_tensor", "product_tensor"


def _on_tensor_cores(kernel: str) -> bool:
    return any(name in kernel for name in _BY_TENSOR_CORES)
