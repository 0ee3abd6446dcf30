"""Every kernel compiles for every architecture, in the registers and memory it is known to take."""

import pytest

from kernels.device.compile import Cubin, compile_all
from kernels.device.device import Instantiation
from tests.support.kernels import resources

Cubins = dict[tuple[Instantiation, str], Cubin]


@pytest.fixture(scope="module")
def cubins(request: pytest.FixtureRequest) -> Cubins:
    """Everything compiled for one architecture."""
    return compile_all(resources.instantiations(request.param), [request.param], resources.CACHE)


@pytest.mark.parametrize(
    "cubins",
    [
        pytest.param(each, marks=[pytest.mark.slow] if each in resources.BETWEEN else [])
        for each in resources.ARCHITECTURES
    ],
    indirect=True,
)
def test_the_kernels_take_what_the_committed_table_says(cubins: Cubins) -> None:
    made_with, table = resources.read()
    if made_with != resources.compiler():
        pytest.skip(f"the table is {made_with}'s; this is {resources.compiler()}")
    (arch,) = {arch for _, arch in cubins}
    committed = {kernel: row[arch] for kernel, row in table.items() if row[arch] != resources.NONE}
    compiled = {kernel: row[arch] for kernel, row in resources.table_of(cubins).items()}
    assert compiled == committed, "if this is meant: python -m tests.support.kernels.resources"


def test_no_kernel_on_tensor_cores_spills_anywhere() -> None:
    _, table = resources.read()
    rows = {kernel: row for kernel, row in table.items() if "conv_tensor" in kernel}
    assert rows
    cells = {(kernel, arch): cell for kernel, row in rows.items() for arch, cell in row.items()}
    assert not {at for at, cell in cells.items() if "stores" in cell or "loads" in cell}


@pytest.mark.parametrize("cubins", resources.WITHOUT_SPILLS, indirect=True)
def test_no_kernel_spills(cubins: Cubins) -> None:
    spilling = {
        instantiation.expression: cubin.resources
        for (instantiation, _), cubin in cubins.items()
        if cubin.resources.spill_stores or cubin.resources.spill_loads
    }
    assert not spilling
