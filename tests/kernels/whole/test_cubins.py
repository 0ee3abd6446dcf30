"""Every kernel compiles for every architecture, in the registers and memory it is known to take."""

from collections.abc import Collection

import pytest

from kernels.device.compile import compile_all, compiler
from tests.support.kernels import resources

EVERY_ARCHITECTURE = pytest.mark.parametrize("arch", resources.ARCHITECTURES)
AGAIN = "if this is meant: python -m tests.support.kernels.resources changed"


def _compare(arch: str, sources: Collection[str]) -> None:
    """Compile the kernels of some sources, and compare what they take with the committed table."""
    made_with, table = resources.read()
    if made_with != compiler():
        pytest.skip(f"the table is {made_with}'s; this is {compiler()}")
    wanted = [each for each in resources.instantiations(arch) if each.source in sources]
    cubins = compile_all(wanted, [arch], resources.CACHE)
    compiled = {row: cells[arch] for row, cells in resources.table_of(cubins).items()}
    assert compiled == {row: table.get(row, {}).get(arch) for row in compiled}, AGAIN


@EVERY_ARCHITECTURE
def test_the_committed_table_has_a_row_for_every_kernel(arch: str) -> None:
    _, table = resources.read()
    has = {row for row, cells in table.items() if cells[arch] != resources.NONE}
    assert has == {resources.row_of(each) for each in resources.instantiations(arch)}, AGAIN


@EVERY_ARCHITECTURE
def test_kernels_of_changed_sources_take_what_the_committed_table_says(arch: str) -> None:
    _compare(arch, resources.changed_sources())


def test_the_committed_table_is_of_the_sources_as_they_are() -> None:
    """Where it is not, the test above compiles kernels each time."""
    assert not resources.changed_sources(), AGAIN


@pytest.mark.slow
@EVERY_ARCHITECTURE
def test_every_kernel_takes_what_the_committed_table_says(arch: str) -> None:
    _compare(arch, {each.source for each in resources.instantiations(arch)})


@pytest.mark.slow
@pytest.mark.parametrize("arch", resources.EMBEDDED)
def test_every_kernel_compiles_for_embedded_gpus_and_none_on_tensor_cores_spills(arch: str) -> None:
    cubins = compile_all(resources.instantiations(arch), [arch], resources.CACHE)
    cells = {row: cells[arch] for row, cells in resources.table_of(cubins).items()}
    assert cells
    assert not {row for row, cell in cells.items() if _on_tensor_cores(row) and _spills(cell)}


def test_no_kernel_on_tensor_cores_spills_anywhere() -> None:
    _, table = resources.read()
    rows = {kernel: row for kernel, row in table.items() if _on_tensor_cores(kernel)}
    assert rows
    cells = {(kernel, arch): cell for kernel, row in rows.items() for arch, cell in row.items()}
    assert not {at for at, cell in cells.items() if _spills(cell)}


def test_no_kernel_spills_on_data_centre_gpus() -> None:
    _, table = resources.read()
    cells = {(row, arch): cells[arch] for row, cells in table.items() for arch in ("80", "90a")}
    assert cells
    assert not {at for at, cell in cells.items() if _spills(cell)}


def _spills(cell: str) -> bool:
    return "stores" in cell or "loads" in cell


def _on_tensor_cores(kernel: str) -> bool:
    return "conv_tensor" in kernel or "conv_integer" in kernel
