"""ldmatrix and mma compared with the fragment layouts of the PTX ISA, which are written here
again."""

import numpy as np
import pytest
from numpy.typing import NDArray

from cusim.device import CusimDevice
from tests.cusim.selftest.launching import Passed, instantiation, launch, unwritten

LANE = np.arange(32)
GROUP, THREAD = LANE // 4, LANE % 4  # groupID and threadID_in_group


@pytest.mark.parametrize("trans", [False, True], ids=["", "trans"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_ldmatrix_gives_each_lane_two_neighbours_of_each_matrix(
    device: CusimDevice, count: int, trans: bool
) -> None:
    random = np.random.default_rng(count)
    x = random.integers(0, 2**16, (32, 8), np.uint16)
    rows = random.permutation(32).astype(np.int32)
    kernel = instantiation("matrices.cu", "load", count=count, trans=trans)
    arguments: list[Passed] = [x, rows, unwritten((32, count), np.uint32), np.int32(0)]
    y = launch(device, kernel, (1, 1, 1), (32, 1, 1), arguments)[-1]
    for i in range(count):
        matrix = x[rows[8 * i : 8 * i + 8]]
        matrix = np.ascontiguousarray(matrix.T if trans else matrix)
        assert y[:, i].tolist() == matrix.view(np.uint32).reshape(-1).tolist()


def _c_places() -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the row and column of each lane's c[i], for both shapes."""
    i = np.arange(4)
    row = np.where(i < 2, GROUP[:, None], GROUP[:, None] + 8)
    return row, THREAD[:, None] * 2 + (i & 1)


def _multiply(
    device: CusimDevice,
    operands: str,
    a: NDArray[np.generic],
    b: NDArray[np.generic],
    c: NDArray[np.float32],
    rounds: int = 1,
) -> NDArray[np.float32]:
    """Return c + rounds · a · b, with a and b in the layout of the lanes' registers."""
    row, column = _c_places()
    registers = np.ascontiguousarray(c[row, column])
    arguments: list[Passed] = [
        np.ascontiguousarray(a).view(np.uint32),
        np.ascontiguousarray(b).view(np.uint32),
        registers,
    ]
    kernel = instantiation(
        "matrices.cu", "multiply", operands=f"Operands::{operands}", rounds=rounds
    )
    result = np.empty_like(c)
    result[row, column] = launch(device, kernel, (1, 1, 1), (32, 1, 1), arguments)[-1]
    return result


def test_mma_m16n8k8_multiplies_what_its_layout_says(device: CusimDevice) -> None:
    random = np.random.default_rng(8)
    a, b, c = (
        random.integers(-9, 10, shape).astype(np.float32) for shape in ((16, 8), (8, 8), (16, 8))
    )
    i = np.arange(4)
    row = np.where((i == 0) | (i == 2), GROUP[:, None], GROUP[:, None] + 8)
    column = np.where(i < 2, THREAD[:, None], THREAD[:, None] + 4)
    left = a[row, column]
    right = np.stack([b[THREAD, GROUP], b[THREAD + 4, GROUP]], axis=1)
    assert (_multiply(device, "TF32", left, right, c) == a @ b + c).all()
    # Bits that TF32 has not are not looked at.
    noisy = (left.view(np.uint32) | 0x1FFF).view(np.float32)
    assert (_multiply(device, "TF32", noisy, right, c) == a @ b + c).all()
    assert (_multiply(device, "TF32", left, right, c, rounds=3) == 3 * (a @ b) + c).all()


@pytest.mark.parametrize("operands", ["HALF", "BFLOAT16"])
def test_mma_m16n8k16_multiplies_what_its_layout_says(device: CusimDevice, operands: str) -> None:
    random = np.random.default_rng(16)
    a, b, c = (
        random.integers(-9, 10, shape).astype(np.float32) for shape in ((16, 16), (16, 8), (16, 8))
    )
    i = np.arange(8)
    row = np.where((i < 2) | ((i >= 4) & (i < 6)), GROUP[:, None], GROUP[:, None] + 8)
    column = THREAD[:, None] * 2 + (i & 1) + np.where(i < 4, 0, 8)
    left = a[row, column]
    i = np.arange(4)
    right = b[THREAD[:, None] * 2 + (i & 1) + np.where(i < 2, 0, 8), GROUP[:, None]]

    def narrow(x: NDArray[np.float32]) -> NDArray[np.generic]:
        if operands == "HALF":
            return x.astype(np.float16)
        return (x.view(np.uint32) >> 16).astype(np.uint16)  # exact: few digits

    assert (_multiply(device, operands, narrow(left), narrow(right), c) == a @ b + c).all()


def test_mma_m16n8k32_multiplies_bytes_exactly_and_wraps_around(device: CusimDevice) -> None:
    random = np.random.default_rng(32)
    a = random.integers(0, 256, (16, 32)).astype(np.uint8)
    b = random.integers(-128, 128, (32, 8)).astype(np.int8)
    c = random.integers(-(2**31), 2**31, (16, 8)).astype(np.int32)
    a[0], b[:, 0], c[0, 0] = 255, -128, -(2**31)  # beyond 32 bits
    i = np.arange(16)
    row = np.where((i < 4) | ((i >= 8) & (i < 12)), GROUP[:, None], GROUP[:, None] + 8)
    left = a[row, THREAD[:, None] * 4 + (i & 3) + np.where(i < 8, 0, 16)]
    i = np.arange(8)
    right = b[THREAD[:, None] * 4 + (i & 3) + np.where(i < 4, 0, 16), GROUP[:, None]]
    row, column = _c_places()
    arguments: list[Passed] = [
        np.ascontiguousarray(left).view(np.uint32),
        np.ascontiguousarray(right).view(np.uint32),
        np.ascontiguousarray(c[row, column]),
    ]
    kernel = instantiation("matrices.cu", "multiply_bytes", rounds=2)
    result = np.empty_like(c)
    result[row, column] = launch(device, kernel, (1, 1, 1), (32, 1, 1), arguments)[-1]
    expected = c.astype(np.int64) + 2 * (a.astype(np.int64) @ b.astype(np.int64))
    assert not (expected == expected.astype(np.int32)).all()
    assert (result == expected.astype(np.int32)).all()


def test_a_product_that_is_rounded_is_not_fused_with_a_sum(device: CusimDevice) -> None:
    random = np.random.default_rng(7)
    a, b, c = random.standard_normal((3, 4096)).astype(np.float32)
    arguments: list[Passed] = [a, b, c, unwritten(a.shape, np.float32)]
    kernel = instantiation("matrices.cu", "multiply_then_add")
    y = launch(device, kernel, (16, 1, 1), (256, 1, 1), arguments)[-1]
    assert (y == a * b + c).all()


def test_to_tf32_rounds_to_ten_bits_ties_away_from_zero(device: CusimDevice) -> None:
    random = np.random.default_rng(10)
    x = (random.standard_normal(4096) * 2.0 ** random.integers(-60, 60, 4096)).astype(np.float32)
    x[:4] = [1 + 2.0**-11, -1 - 2.0**-11, 1 + 2.0**-11 - 2.0**-20, 0]
    mantissa, exponent = np.frexp(np.abs(x.astype(np.float64)))
    expected = np.sign(x) * np.ldexp(np.floor(np.ldexp(mantissa, 11) + 0.5), exponent - 11)
    arguments: list[Passed] = [x, unwritten(x.shape, np.uint32)]
    kernel = instantiation("matrices.cu", "round_to_tf32")
    y = launch(device, kernel, (16, 1, 1), (256, 1, 1), arguments)[-1]
    assert (y.view(np.float32) == expected).all()


def test_mma_truncates_its_sums(device: CusimDevice) -> None:
    product = 3 * 2.0**-25  # three quarters of a unit in the last place of 1
    left, right = np.zeros((32, 4), np.float32), np.full((32, 2), 2.0**-12, np.float32)
    left[THREAD == 0, :2] = product * 2.0**12  # column 0
    c = np.ones((16, 8), np.float32)
    assert np.float32(1 + product) > 1
    assert (_multiply(device, "TF32", left, right, c) == 1).all()
    assert (_multiply(device, "TF32", left, right, 0 * c) == product).all()
