"""Describes the images and the filter matrix of a convolution, so that Hopper's tensor copies can
read them."""

from collections.abc import Sequence

from kernels.device.tensor_map import CORNERS, MOST_STEP, SWIZZLE_BYTES, TensorMap, Windows
from kernels.layout.pixels import Pixels
from kernels.problems.precision import Storage
from kernels.problems.window import Window

_MOST_OFFSET = 255  # of a tap from its window's start


def matrix_map(
    operand: str, stored: Storage, columns: int, height: int, pitch: int, rows: int
) -> TensorMap:
    """Return the tensor map of a matrix. The matrix has `height` rows, which are `pitch` elements
    apart. A tile has `rows` rows of 128 bytes."""
    itemsize = stored.itemsize
    return TensorMap(
        operand,
        stored,
        (columns, height),
        (pitch * itemsize,),
        SWIZZLE_BYTES // itemsize,
        rows,
    )


def pixels_map(operand: str, x: Pixels, n: int, window: Window, rows: int) -> TensorMap:
    """Return the tensor map of n images, in im2col mode. A tile has `rows` pixels of 128 bytes.

    Raises ValueError if `windows_refusal` gives a reason, or if pixels do not begin at multiples of
    16 bytes.
    """
    if reason := windows_refusal(window):
        raise ValueError(reason)
    itemsize = x.stored.itemsize
    height, width = window.input
    pitch = x.pitch * itemsize
    return TensorMap(
        operand,
        x.stored,
        (x.channels, width, height, n),
        (pitch, pitch * width, pitch * width * height),
        SWIZZLE_BYTES // itemsize,
        rows,
        _windows(window),
    )


def windows_refusal(window: Window) -> str | None:
    """Return the reason why im2col mode cannot visit the windows, or None if it can."""
    if len(window.input) != 2:
        return f"{len(window.input)}-D windows; tensor copies read only 2-D windows"
    windows = _windows(window)
    taps = [extent - 1 for extent in window.extent]
    corners = (*windows.lower, *windows.upper)
    if max(windows.steps) > MOST_STEP:
        return f"a stride of {max(windows.steps)}; tensor copies take strides up to {MOST_STEP}"
    if max(taps) > _MOST_OFFSET or any(corner not in CORNERS for corner in corners):
        return "windows that reach further beyond the image than tensor copies can"
    return None


def _windows(window: Window) -> Windows:
    """Return im2col mode's parameters for a window. In each pair, the width comes before the
    height. In `window`, the height comes first."""

    def by_width(sizes: Sequence[int]) -> tuple[int, int]:
        height, width = sizes
        return width, height

    lower = [-pad for pad in window.pads_begin]
    upper = [pad - (extent - 1) for pad, extent in zip(window.pads_end, window.extent, strict=True)]
    return Windows(by_width(window.strides), by_width(lower), by_width(upper))
