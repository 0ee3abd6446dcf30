"""Defects planted in the kernel of attention fail its cases."""

from pathlib import Path

import pytest

from cusim.build import PLAIN
from cusim.device import CusimDevice, Order
from kernels.device.device import DeviceError
from kernels.layout.strided import StridedTensor
from kernels.operations.attention import attention_launch
from tests.support.cases.attention import ATTENTION_CASES
from tests.support.kernels.kernel_case import KernelCase, run
from tests.support.kernels.mutations import replaced

DEFECTS = {
    "no barrier behind the queries and keys": (
        "__syncthreads();  // the tile, and at first the queries, are there",
        "",
    ),
    "no barrier ahead of the next keys": (
        "__syncthreads();  // the tile before may still be read\n",
        "",
    ),
    "no barrier before the products with v": (
        "__syncthreads();  // the tile before may still be read; at first the shares are there",
        "",
    ),
    "another head's keys": ("k + at.of[2] +", "k + at.of[0] +"),
    "the largest score is not subtracted": ("- largest);", ");"),
    "a row's largest of too few keys": (
        "apart = 16; apart > 0; apart /= 2)\n      l",
        "apart = 8; apart > 0; apart /= 2)\n      l",
    ),
    "keys past the end": ("key < keys; key += 32) {", "key < (keys + 31) / 32 * 32; key += 32) {"),
    "the bias of another query": ("bias[at.of[4] + (first_query + row)", "bias[at.of[4] + (row)"),
}


@pytest.mark.slow
@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_is_noticed(defect: str, tmp_path: Path) -> None:
    root = replaced(tmp_path, "attention.cu", *DEFECTS[defect])
    device = CusimDevice(PLAIN, Order.RANDOM, source_root=root, timeout_s=60)
    assert not all(holds(case, device) for case in ATTENTION_CASES)
    device.close()


def holds(case: KernelCase, device: CusimDevice) -> bool:
    try:
        run(case, device)
    except (AssertionError, DeviceError):
        return False
    return True


@pytest.mark.parametrize(("keys", "depth"), [(257, 8), (8, 129)])
def test_what_a_block_cannot_hold_is_refused(keys: int, depth: int) -> None:
    q, k, v, y = (
        StridedTensor.contiguous(shape)
        for shape in ((1, 4, depth), (1, keys, depth), (1, keys, 4), (1, 4, 4))
    )
    with pytest.raises(ValueError, match="256 of 128 fit a block"):
        attention_launch(q, k, v, y)
