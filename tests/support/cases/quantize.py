"""Lists cases of quantize.cu, and of kernels that move or select bytes. Their answers are exact."""

from dataclasses import replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from kernels.layout.pixels import Pixels
from kernels.layout.strided import StridedTensor
from kernels.operations.elementwise import map_launch
from kernels.operations.pooling import global_pool_launch, pool_launch
from kernels.operations.preprocess import to_bytes_launch
from kernels.operations.quantize import (
    add_launch,
    blocks_of,
    dequantize_launch,
    global_average_launch,
    quantize_launch,
)
from kernels.problems.activation import RELU, Activation
from kernels.problems.pool import PoolKind, PoolProblem
from kernels.problems.precision import BYTE, HALF, Storage
from tests.support.kernels import byte_reference, reference
from tests.support.kernels.arrays import normal
from tests.support.kernels.conv_layers import CLIP, dense, filled, odd, within
from tests.support.kernels.kernel_case import Check, KernelCase, PlacedArray, placed
from tests.support.kernels.windows import window

_FINE = Storage(BYTE.dtype, float(np.float32(0.0237)), 128)
_COARSE = Storage(BYTE.dtype, float(np.float32(0.0411)), 3)
_OTHER = Storage(BYTE.dtype, float(np.float32(0.0173)), 201)


def _quantize_case(name: str, x: StridedTensor, y: StridedTensor) -> KernelCase:
    """Return a case that converts numbers to bytes. Some numbers lie exactly between two bytes, and
    some are outside the range of bytes."""

    def check() -> Check:
        numbers = 3 * normal(x.shape)
        numbers.flat[::3] = np.arange(numbers.flat[::3].size) * np.float32(y.stored.scale) / 2
        numbers.flat[::50] = 6e4
        stored = numbers.astype(x.stored.dtype)
        expected = reference.quantize(stored.astype(np.float32), y.stored)
        return Check({"x": placed(stored, x)}, y, expected.astype(np.float64), 0.0)

    return KernelCase(name, (quantize_launch(x, y),), check)


def _block_case(name: str, channels: int, block: int) -> KernelCase:
    """Return a case that converts 2 images of numbers to bytes. Each block of pixels becomes one
    pixel of the output."""
    x = Pixels(channels, 4).strided(2, (4, 6))
    layout = _of(dense(4 * block**2), _FINE).strided(2, (4 // block, 6 // block))
    read, y = blocks_of(x, layout, block)

    def check() -> Check:
        numbers = 3 * normal(x.shape)
        bytes_ = reference.quantize(numbers, _FINE).astype(np.float64)
        blocks = reference.in_blocks(bytes_, block)
        # Only the existing channels of each pixel are written; the rest stays unchanged.
        whole = blocks.reshape(2, block, block, 4, *layout.shape[2:])
        return Check({"x": placed(numbers, x)}, y, whole[:, :, :, :channels], 0.0)

    return KernelCase(name, (quantize_launch(read, y),), check)


def _pixels_case(name: str, channels: int, block: int, y: Pixels) -> KernelCase:
    """Return a case that converts 2 images of 8×6 pixels to bytes. Each block of pixels becomes one
    pixel of the output."""
    n, h, w = 2, 8, 6
    stored = y.stored
    layout = replace(y, channels=4 * block**2).strided(n, (h // block, w // block))

    def check() -> Check:
        images = np.random.default_rng(0).integers(0, 256, (n, h, w, channels), np.uint8)
        # Products of whole numbers and a power of 2 are exact, with a sum or without.
        multiplier = np.full(channels, 2**-6, np.float32)
        offset = np.arange(channels, dtype=np.float32) - 2
        numbers = np.moveaxis(images * multiplier + offset, -1, 1).astype(np.float32)
        expected = reference.in_blocks(np.pad(numbers, ((0, 0), (0, 4 - channels), *_NONE)), block)
        inputs = {
            "images": PlacedArray(images),
            "multiplier": PlacedArray(multiplier),
            "offset": PlacedArray(offset),
        }
        return Check(inputs, layout, reference.quantize(expected, stored).astype(np.float64), 0.0)

    return KernelCase(name, (to_bytes_launch(channels, n, (h, w), y, block),), check)


_NONE = ((0, 0), (0, 0))


def _requantize_case(name: str, x: StridedTensor, y: StridedTensor) -> KernelCase:
    """Return a case that converts every byte to the nearest byte of another scale."""

    def check() -> Check:
        bytes_ = np.arange(prod(x.shape)).astype(np.uint8).reshape(x.shape)
        numbers = reference.dequantize(bytes_, x.stored, np.dtype(np.float32))
        expected = reference.quantize(numbers, y.stored)
        return Check({"x": placed(bytes_, x)}, y, expected.astype(np.float64), 0.0)

    return KernelCase(name, (quantize_launch(x, y),), check)


def _dequantize_case(name: str, x: StridedTensor, y: StridedTensor) -> KernelCase:
    """Return a case that converts every byte to the number that it represents. The number may have
    to be rounded to float16."""

    def check() -> Check:
        bytes_ = _bytes(x.shape)
        exact = reference.dequantize(bytes_, x.stored, np.dtype(np.float32))
        expected = exact.astype(y.stored.dtype).astype(np.float64)
        return Check({"x": placed(bytes_, x)}, y, expected, 0.0)

    return KernelCase(name, (dequantize_launch(x, y),), check)


def _add_case(
    name: str,
    a: StridedTensor,
    b: StridedTensor,
    y: StridedTensor,
    activation: Activation | None = None,
    *,
    in_place: bool = False,
) -> KernelCase:
    def check() -> Check:
        left, right = _bytes(a.shape, 1), _bytes(b.shape, 2)
        expected = byte_reference.quantized_add(
            (left, a.stored), (right, b.stored), y.stored, activation
        )
        inputs = {"a": placed(left, a), "b": placed(right, b)}
        return Check(inputs, y, expected.astype(np.float64), 0.0, "a" if in_place else None)

    return KernelCase(name, (add_launch(a, b, y, activation),), check)


def _average_case(name: str, n: int, size: tuple[int, ...], x: Pixels, y: Pixels) -> KernelCase:
    x_layout, y_layout = x.strided(n, size), y.strided(n, (1,) * len(size))

    def check() -> Check:
        bytes_ = _bytes(x_layout.shape)
        expected = byte_reference.quantized_average(bytes_, x.stored, y.stored)
        return Check({"x": placed(bytes_, x_layout)}, y_layout, expected.astype(np.float64), 0.0)

    return KernelCase(name, (global_average_launch(n, prod(size), x, y),), check)


def _copy_case(name: str, x: StridedTensor, y: StridedTensor) -> KernelCase:
    def check() -> Check:
        bytes_ = _bytes(x.shape)
        return Check({"x": placed(bytes_, x)}, y, bytes_.astype(np.float64), 0.0)

    return KernelCase(name, (map_launch(x, y),), check)


def _maximum_case(name: str, n: int, x: Pixels, y: Pixels) -> KernelCase:
    problem = PoolProblem(PoolKind.MAX, x.channels, _SAME)
    x_layout, y_layout = x.strided(n, _SAME.input), y.strided(n, _SAME.output)

    def check() -> Check:
        bytes_ = _bytes(x_layout.shape)
        expected = reference.pool(bytes_.astype(np.float64), problem)
        return Check({"x": placed(bytes_, x_layout)}, y_layout, expected, 0.0)

    return KernelCase(name, (pool_launch(problem, n, x, y),), check)


def _global_maximum_case(name: str, n: int, x: Pixels, y: Pixels) -> KernelCase:
    x_layout, y_layout = x.strided(n, (5, 4)), y.strided(n, (1, 1))

    def check() -> Check:
        bytes_ = _bytes(x_layout.shape)
        expected = reference.global_pool(bytes_.astype(np.float64), PoolKind.MAX)
        return Check({"x": placed(bytes_, x_layout)}, y_layout, expected, 0.0)

    return KernelCase(name, (global_pool_launch(PoolKind.MAX, n, 20, x, y),), check)


def _bytes(shape: tuple[int, ...], seed: int = 0) -> NDArray[np.uint8]:
    return np.random.default_rng(seed).integers(0, 256, shape).astype(np.uint8)


def _of(pixels: Pixels, stored: Storage) -> Pixels:
    return replace(pixels, stored=stored)


_SAME = window((6, 7), (3, 3), pads=(1, 1, 1, 1))
_SIZE = (5, 7)
_FLOATS, _SLICE_OF_FLOATS = dense(8).strided(2, _SIZE), within(8).strided(2, _SIZE)
_HALVES = _of(dense(8), HALF).strided(2, _SIZE)
_BYTES = _of(dense(8), _FINE).strided(2, _SIZE)
_SLICE = _of(within(8), _COARSE).strided(2, _SIZE)
_WIDE = _of(filled(8), _OTHER).strided(2, _SIZE)
_ODD, _ODD_FLOATS = _of(odd(5), _FINE).strided(2, _SIZE), odd(5).strided(2, _SIZE)
_ODD_OTHER = _of(odd(5), _OTHER).strided(2, _SIZE)
# Every second of these numbers is halfway between two steps, or a rounding error beside it.
_STEPS, _HALF_STEPS = (
    _of(dense(8), Storage(BYTE.dtype, float(np.float32(scale)), 128)).strided(2, _SIZE)
    for scale in (0.0263, 0.06575)
)
_ROWS, _COLUMNS = (StridedTensor.contiguous(shape, _FINE) for shape in ((2, 35, 8), (2, 8, 35)))

QUANTIZE_CASES: tuple[KernelCase, ...] = (
    _block_case("blocks of 3 channels", 3, 2),
    _block_case("blocks of 4 channels", 4, 2),
    _pixels_case("pixels in blocks", 3, 2, _of(filled(16), _FINE)),
    _pixels_case("grey pixels in blocks", 1, 2, _of(dense(16), _COARSE)),
    _pixels_case("pixels one by one", 4, 1, _of(Pixels(4, 16), _OTHER)),
    _pixels_case("pixels of 3 channels", 3, 1, _of(Pixels(3, 16), _OTHER)),
    _quantize_case("floats", _FLOATS, _BYTES),
    _quantize_case("floats of a slice, into a slice", _SLICE_OF_FLOATS, _SLICE),
    _quantize_case("floats off vectors", _ODD_FLOATS, _ODD),
    _quantize_case("halves", _HALVES, _WIDE),
    _requantize_case("bytes of a finer scale", _SLICE, _BYTES),
    _requantize_case("bytes of a coarser scale, into a slice", _WIDE, _SLICE),
    _requantize_case("bytes, where a quotient of scales would err", _HALF_STEPS, _STEPS),
    _requantize_case("bytes off vectors, of another scale", _ODD, _ODD_OTHER),
    _dequantize_case("to floats", _BYTES, _SLICE_OF_FLOATS),
    _dequantize_case("to floats off vectors", _ODD, _ODD_FLOATS),
    _dequantize_case("to halves", _SLICE, _HALVES),
    _add_case("bytes of three scales", _BYTES, _SLICE, _WIDE),
    _add_case("bytes, at least 0", _BYTES, _SLICE, _BYTES, RELU, in_place=True),
    _add_case("bytes off vectors, within bounds", _ODD, _ODD, _ODD, CLIP),
    *(
        _average_case(f"{c} channels of {'x'.join(map(str, size))}", n, size, x, y)
        for c, n, size in ((8, 1, (7, 7)), (37, 3, (1, 5)), (64, 2, (3, 4, 5)))
        for x, y in [(_of(within(c), _FINE), _of(filled(c), _COARSE))]
    ),
    _copy_case("bytes into a slice", _of(dense(8), _COARSE).strided(2, _SIZE), _SLICE),
    _copy_case("bytes off vectors", _ODD, _ODD),
    _copy_case(
        "bytes transposed", _ROWS.transposed((0, 2, 1)), StridedTensor.contiguous((2, 8, 35), _FINE)
    ),
    _maximum_case("of bytes", 2, _of(dense(8), _FINE), _of(within(8), _FINE)),
    _maximum_case("of bytes off vectors", 1, _of(odd(5), _FINE), _of(dense(5), _FINE)),
    _global_maximum_case("of bytes", 2, _of(filled(37), _FINE), _of(dense(37), _FINE)),
)
