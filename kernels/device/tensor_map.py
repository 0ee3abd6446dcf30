"""Describes tensors for Hopper's tensor copies (TMA). A launch takes such a description as an
argument.

    TensorMap of an operand ─ Launch.bind ─ of an address ─ Device.launch ─ 128 bytes, a parameter

A kernel receives the description as a parameter of 128 bytes. Only NVIDIA's driver knows their
layout, and the simulator uses a layout of its own. Therefore a TensorMap holds the description
itself, and a device converts it to bytes. TensorMap refuses the same tensors as the driver. A
captured graph keeps a copy of the 128 bytes, which is valid while the operand keeps its address.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

from kernels.problems.precision import Storage

ALIGNMENT = 16
"""A tensor's address and its strides are multiples of this number of bytes."""

SWIZZLE_BYTES = 128
"""The bytes of a row of a tile. Vector v (16 bytes) of row r is stored as vector v ^ (r % 8)."""

MOST_STEP = 8
"""The largest step from one window to the next in im2col mode."""

CORNERS = range(-128, 128)
"""The allowed offsets of the first and last window from the first and last pixel, for images with
two axes."""

_MOST_ROWS = 256  # of a tile
_MOST_PIXELS = 1024  # of a tile, in im2col mode


class Windows(NamedTuple):
    """Describes the pixels that a copy in im2col mode visits. In each pair, the width comes before
    the height.

    The first window of an image begins at `lower`, relative to the image's first pixel. The last
    window begins at `upper`, relative to its last pixel. Neighbouring windows are `steps` pixels
    apart.
    """

    steps: tuple[int, int]
    lower: tuple[int, int]
    upper: tuple[int, int]


@dataclass(frozen=True, slots=True)
class TensorMap:
    """Describes a tensor, and the tile that one copy reads from it.

    `base` is an operand's name, or its address after binding. A tile has `rows` rows. Each row has
    `row` elements of the innermost dimension, at most 128 bytes. The rows follow each other along
    the second dimension. In im2col mode, the rows are the pixels of consecutive windows at one tap.
    Elements outside the tensor are copied as zeros. Raises ValueError if a driver would refuse the
    map.
    """

    base: str | int
    stored: Storage
    dims: tuple[int, ...]  # elements, the innermost first: 2, or in im2col mode C, W, H, N
    strides: tuple[int, ...]  # bytes, of all dimensions but the innermost
    row: int
    rows: int
    windows: Windows | None = None  # of im2col mode

    def __post_init__(self) -> None:
        rank, most = (2, _MOST_ROWS) if self.windows is None else (4, _MOST_PIXELS)
        if len(self.dims) != rank or len(self.strides) != rank - 1:
            raise ValueError(
                f"a tensor map of {rank} dimensions needs {rank} dims and {rank - 1} strides,"
                f" got {self.dims} and {self.strides}"
            )
        if not all(0 < size <= 1 << 32 for size in self.dims):
            raise ValueError(f"each dimension must have 1 to 2^32 elements, got {self.dims}")
        if not all(0 < size < 1 << 40 and size % ALIGNMENT == 0 for size in self.strides):
            raise ValueError(
                f"strides must be multiples of {ALIGNMENT} bytes, from {ALIGNMENT} to below 2^40,"
                f" got {self.strides}"
            )
        row_bytes = self.row * self.stored.itemsize
        if not 0 < row_bytes <= SWIZZLE_BYTES or row_bytes % ALIGNMENT:
            raise ValueError(f"a tile's rows must have 16, 32, ... or 128 bytes, got {row_bytes}")
        if not 0 < self.rows <= most:
            raise ValueError(f"a tile must have 1 to {most} rows, got {self.rows}")
        if isinstance(self.base, int) and self.base % ALIGNMENT:
            raise ValueError(
                f"a tensor's address must be a multiple of {ALIGNMENT}, got {self.base:#x}"
            )
        if self.windows is None:
            return
        if not all(1 <= step <= MOST_STEP for step in self.windows.steps):
            raise ValueError(
                f"windows must be 1 to {MOST_STEP} pixels apart, got {self.windows.steps}"
            )
        corners = (*self.windows.lower, *self.windows.upper)
        if any(corner not in CORNERS for corner in corners):
            raise ValueError(f"corners of windows must be from -128 to 127, got {corners}")
        sides = zip(self.dims[1:3], self.windows.lower, self.windows.upper, strict=True)
        if any(size + upper <= lower for size, lower, upper in sides):
            raise ValueError(
                f"a window with the corners {corners} does not fit into images of {self.dims[1:3]}"
            )

    def at(self, base: str | int) -> "TensorMap":
        """Return the map of the same tensor at another operand or address.

        Raises ValueError if the address is not aligned.
        """
        return replace(self, base=base)
