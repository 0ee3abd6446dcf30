"""half and bfloat16 compared with NumPy."""

import numpy as np
import pytest
from numpy.typing import NDArray

from cusim.device import CusimDevice
from tests.cusim.selftest.launching import Passed, instantiation, launch, unwritten

EVERY = np.arange(2**16, dtype=np.uint16)
TYPES = pytest.mark.parametrize("cpp", ["half", "nv_bfloat16"])


def _widened(words: NDArray[np.uint16], cpp: str) -> NDArray[np.float32]:
    if cpp == "half":
        return words.view(np.float16).astype(np.float32)
    return (words.astype(np.uint32) << 16).view(np.float32)


def _rounded(x: NDArray[np.floating], cpp: str) -> NDArray[np.float32]:
    """Return the nearest numbers of the type; ties are rounded to even."""
    if cpp == "half":
        with np.errstate(over="ignore"):
            return x.astype(np.float16).astype(np.float32)
    mantissa, exponent = np.frexp(x.astype(np.float64))
    nearest: NDArray[np.float64] = np.ldexp(np.rint(np.ldexp(mantissa, 8)), exponent - 8)
    return nearest.astype(np.float32)


@TYPES
def test_every_number_widens_and_narrows_to_itself(device: CusimDevice, cpp: str) -> None:
    kernel = instantiation("narrow.cu", "widen", t=cpp)
    _, wide = launch(device, kernel, (64, 1, 1), (1024, 1, 1), [EVERY, unwritten(EVERY.shape)])
    expected = _widened(EVERY, cpp)
    number = ~np.isnan(expected)
    assert (wide[number] == expected[number]).all()
    assert np.isnan(wide[~number]).all()
    kernel = instantiation("narrow.cu", "narrow", t=cpp)
    _, again = launch(
        device, kernel, (64, 1, 1), (1024, 1, 1), [wide, unwritten(EVERY.shape, np.uint16)]
    )
    assert (again[number] == EVERY[number]).all()
    assert np.isnan(_widened(again[~number], cpp)).all()


@TYPES
def test_narrowing_rounds_to_nearest_even(device: CusimDevice, cpp: str) -> None:
    random = np.random.default_rng(7)
    x = (random.standard_normal(2**16) * 2.0 ** random.integers(-30, 20, 2**16)).astype(np.float32)
    x[:3] = [1 + 2.0**-11, 1 + 3 * 2.0**-11, 1 + 2.0**-9]  # ties
    kernel = instantiation("narrow.cu", "narrow", t=cpp)
    _, y = launch(device, kernel, (64, 1, 1), (1024, 1, 1), [x, unwritten(x.shape, np.uint16)])
    assert (_widened(y, cpp) == _rounded(x, cpp)).all()


@TYPES
def test_arithmetic_rounds_after_every_operation(device: CusimDevice, cpp: str) -> None:
    x = np.random.default_rng(9).integers(-127, 128, 1024).astype(np.float32) / 8
    words = (
        x.astype(np.float16).view(np.uint16)
        if cpp == "half"
        else (x.view(np.uint32) >> 16).astype(np.uint16)
    )
    arguments: list[Passed] = [words, unwritten((6, 1024), np.uint16), np.int32(1024)]
    kernel = instantiation("narrow.cu", "arithmetic", t=cpp)
    y = _widened(launch(device, kernel, (4, 1, 1), (256, 1, 1), arguments)[1], cpp)
    a, b = x.astype(np.float64), x[::-1].astype(np.float64)
    for row, exact in enumerate([a + b, a - b, a * b, a * b + b, np.maximum(a, b), -a]):
        assert (y[row] == _rounded(exact, cpp)).all(), row


def test_pairs_of_halves_convert_together(device: CusimDevice) -> None:
    x = np.array([[1, 2], [-3, 0.5]], np.float16)
    kernel = instantiation("narrow.cu", "pairs")
    arguments: list[Passed] = [x, unwritten(x.shape, np.float16)]
    _, y = launch(device, kernel, (1, 1, 1), (2, 1, 1), arguments)
    assert y.tolist() == [[2, 1], [0.5, -3]]
