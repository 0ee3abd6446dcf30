"""The taps of a resized axis equal Pillow's: with them, both passes give bit-identical pixels."""

import numpy as np
import pytest
from PIL import Image

from kernels.image.taps import WEIGHT_BITS, Taps, taps_of
from kernels.problems.interpolation import Interpolation

EACH_FILTER = pytest.mark.parametrize("kind", Interpolation, ids=lambda kind: kind.value)


def _along(image: np.ndarray, axis: int, taps: Taps) -> np.ndarray:
    """Compute one pass with 64-bit sums: a difference from the kernel shows an overflow of 32
    bits."""
    lines = np.moveaxis(image, axis, 0).astype(np.int64)
    seen = lines[taps.starts[:, None] + np.arange(taps.count)]
    total = np.einsum("ok,ok...->o...", taps.weights.astype(np.int64), seen)
    assert abs(total).max() < 2**31 - (1 << WEIGHT_BITS)
    rounded = (total + (1 << (WEIGHT_BITS - 1))) >> WEIGHT_BITS
    return np.moveaxis(np.clip(rounded, 0, 255).astype(np.uint8), 0, axis)


def _check(kind: Interpolation, seed: int) -> None:
    random = np.random.default_rng(seed)
    width, height = (int(size) for size in random.integers(1, 200, 2))
    out = int(random.integers(1, 120)), int(random.integers(1, 120))
    if seed % 7 == 0:
        out = width, out[1]
    if seed % 11 == 0:
        out = out[0], height
    x, y = np.sort(random.uniform(0, width, 2)), np.sort(random.uniform(0, height, 2))
    box = (x[0], y[0], x[1], y[1]) if seed % 2 else (0.0, 0.0, float(width), float(height))
    if seed % 13 == 0:  # a corner of the size that is wanted
        out = max(1, width // 2), max(1, height // 2)
        box = (0.0, 0.0, float(out[0]), float(out[1]))
    pixels = random.integers(0, 256, (height, width), np.uint8)
    if seed % 3 == 0:
        pixels = (pixels & 1) * np.uint8(255)
    passes = [
        (1, taps_of(width, (box[0], box[2]), out[0], (0, out[0]), kind)),
        (0, taps_of(height, (box[1], box[3]), out[1], (0, out[1]), kind)),
    ]
    if height - out[1] > 2 * max(0, width - out[0]):
        passes.reverse()
    ours = pixels
    for axis, taps in passes:
        ours = _along(ours, axis, taps)
    theirs = Image.fromarray(pixels).resize(out, Image.Resampling[kind.name], box=box)
    assert np.array_equal(ours, np.asarray(theirs)), (width, height, out, box)


@EACH_FILTER
def test_two_passes_give_pillows_pixels(kind: Interpolation) -> None:
    for seed in range(100):
        _check(kind, seed)


@pytest.mark.slow
@EACH_FILTER
def test_two_passes_give_pillows_pixels_on_thousands_of_sizes(kind: Interpolation) -> None:
    for seed in range(100, 4000):
        _check(kind, seed)


@EACH_FILTER
def test_every_tap_is_inside_and_a_crop_takes_some_of_them(kind: Interpolation) -> None:
    for size, outputs in ((3, 50), (500, 7), (1, 1), (1, 9), (64, 64)):
        whole = taps_of(size, (0.25 * size, size), outputs, (0, outputs), kind)
        first, end = whole.span
        assert 0 <= first < end <= size
        crop = outputs // 3, outputs // 3 + 1
        part = taps_of(size, (0.25 * size, size), outputs, crop, kind)
        assert np.array_equal(_dense(part, size), _dense(whole, size)[slice(*crop)])


def _dense(taps: Taps, size: int) -> np.ndarray:
    """Return the weight of every input for every output."""
    weights = np.zeros((taps.outputs, size), np.int32)
    places = taps.starts[:, None] + np.arange(taps.count)
    np.put_along_axis(weights, places, taps.weights, axis=1)
    return weights


def test_what_is_cached_cannot_be_changed() -> None:
    taps = taps_of(9, (0.0, 9.0), 4, (0, 4), Interpolation.BILINEAR)
    with pytest.raises(ValueError, match="read-only"):
        taps.weights[0, 0] = 1
