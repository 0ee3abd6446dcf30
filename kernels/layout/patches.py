"""Computes the layout of a patch (the input pixels that a block's outputs read) for
kernels/src/tensor_patch.cu.

ConvProblem ─ slices_of ─ Slices ─┐
                                  ├─ patch_of ─ Patch ─ offsets_of ─ the offset of each tap
outputs of a block ───────────────┘
"""

from dataclasses import dataclass
from functools import cache
from math import ceil, prod

import numpy as np

from kernels.layout.operands import padded
from kernels.layout.strided import VECTOR
from kernels.problems.conv import ConvProblem
from kernels.problems.window import Window

CHUNK_VECTORS = 8
"""The number of 16-byte vectors per filter, and per pixel of a patch, that a block multiplies at
once."""

MAX_PATCH_BYTES = 72 << 10
"""The most bytes of a patch. Shared memory may hold two patches."""

MAX_VECTORS = 256
"""The most vectors in all taps of a slice. A launch has one offset per vector."""


@dataclass(frozen=True, slots=True)
class Patch:
    """Describes the input that a region of outputs reads, and the layout of this input in shared
    memory.

    A region is the output pixels of one tile: rows × columns of one image, or all pixels of several
    images. In shared memory, each input pixel has a place, which holds one slice of its channels.
    If images have few channels, two neighbouring pixels share a place.
    """

    images: int
    rows: int
    columns: int
    pair: int  # pixels of a place
    read: tuple[int, int]  # rows and columns of pixels, of each image
    apart: tuple[int, int]  # places between what neighbouring outputs read
    phase: tuple[int, int]  # rows and columns of places, of those so far apart
    row_places: int  # from one row to the next
    image_places: int  # from one image to the next

    @property
    def region(self) -> tuple[int, int, int]:
        """Return the size of the region of outputs: images, rows and columns."""
        return self.images, self.rows, self.columns

    def place(self, row: int, column: int) -> int:
        """Return the index of the place in shared memory that holds a pixel of the first image.
        `row` and `column` are the pixel's position in the patch."""
        (down, row_phase), (right, column_phase) = map(divmod, (row, column), self.apart)
        line = row_phase * self.phase[0] + down
        return line * self.row_places + column_phase * self.phase[1] + right

    @property
    def places(self) -> int:
        """Return the number of places in shared memory, including unused places."""
        return self.images * self.image_places


def _of_region(window: Window, pair: int, images: int, rows: int, columns: int) -> Patch:
    """Return the patch that a region of `images` × `rows` × `columns` outputs reads.

    An mma reads the inputs of 8 neighbouring outputs at once. The patch is padded, so that the
    indices of these inputs in shared memory differ modulo 8. This avoids bank conflicts.
    """
    stride, extent = window.strides, window.extent
    high, wide = (
        (length - 1) * step + taps
        for length, step, taps in zip((rows, columns), stride, extent, strict=True)
    )
    wide = padded(wide, pair)
    apart = stride[0], stride[1] // pair
    phase = ceil(high / apart[0]), ceil(wide // pair / apart[1])
    row_places = _congruent(apart[1] * phase[1], columns)
    image_places = _congruent(apart[0] * phase[0] * row_places, rows * columns)
    return Patch(images, rows, columns, pair, (high, wide), apart, phase, row_places, image_places)


def _congruent(least: int, outputs: int) -> int:
    """Return the smallest number that is at least `least` and congruent to `outputs` modulo 8. If 8
    divides `outputs`, return `least` itself."""
    return least if outputs % 8 == 0 else least + (outputs - least) % 8


@dataclass(frozen=True, slots=True)
class Slices:
    """Describes how channels are divided into slices, because shared memory cannot hold all
    channels of a patch. Kernels copy and multiply one slice at a time.

    A pixel's slice consists of whole vectors of 16 bytes. A filter's slice has these vectors for
    each tap. If taps are paired, it instead has one vector for each pair of taps, with 4 channels
    of each tap. Vectors of zeros pad a slice to whole chunks.
    """

    count: int
    tap_vectors: int
    row_taps: int  # S, or the pairs
    vectors: int  # of all taps

    @property
    def chunks(self) -> int:
        """Return the number of chunks of CHUNK_VECTORS vectors in a slice."""
        return ceil(self.vectors / CHUNK_VECTORS)

    @property
    def used_vectors(self) -> int:
        """Return the number of vectors of a pixel in shared memory. This includes one vector of
        zeros if the last chunk is not full."""
        return self.tap_vectors + (self.vectors % CHUNK_VECTORS != 0)

    @property
    def place_bytes(self) -> int:
        """Return the bytes of a pixel's place in shared memory. The number of vectors is odd, which
        avoids bank conflicts."""
        return 16 * (self.used_vectors | 1)


def paired(problem: ConvProblem) -> bool:
    """Return whether taps are paired: a vector of 16 bytes then holds 4 float16 channels of each of
    two neighbouring pixels.

    Taps are paired if there are at most 4 channels, the stride along rows is even, and the dilation
    along rows is 1.
    """
    window, are_halves = problem.window, in_vector(problem) == 2 * VECTOR
    few = are_halves and problem.c <= VECTOR
    return few and window.strides[1] % 2 == 0 and window.dilations[1] == 1


def in_vector(problem: ConvProblem) -> int:
    """Return how many numbers a vector of 16 bytes holds."""
    return 16 // problem.precision.stored.itemsize


def offsets_of(window: Window, patch: Patch, slices: Slices) -> list[int]:
    """Return the offset of each vector of a slice, in the order of the kernel's table.

    An offset is the number of bytes from the start of a window to the vector. Padding has the
    offset of a vector of zeros. An mma reads two vectors, so a chunk has 4 pairs of vectors.
    Offsets are multiples of 16. Their two lowest bits mark the vectors of a pair whose second pixel
    lies outside the window.
    """

    def offset(vector: int) -> int:
        tap, of_tap = divmod(vector, slices.tap_vectors)
        if vector >= slices.vectors:
            return slices.tap_vectors * 16
        (r, s), (down, right) = divmod(tap, slices.row_taps), window.dilations
        return patch.place(r * down, s * right) * slices.place_bytes + of_tap * 16

    def beyond(vector: int) -> bool:
        last = vector % slices.row_taps == slices.row_taps - 1
        return patch.pair == 2 and window.kernel[1] % 2 == 1 and last

    steps = range(0, slices.chunks * CHUNK_VECTORS, 2)
    masks = [beyond(step) + 2 * beyond(step + 1) for step in steps]
    halves = [
        [offset(step + half) + mask for step, mask in zip(steps, masks, strict=True)]
        for half in (0, 1)
    ]
    table = np.array(halves).reshape(2, slices.chunks, 4).swapaxes(0, 1).ravel()
    return [*map(int, table), *[0] * (MAX_VECTORS - len(table))]


def slices_of(problem: ConvProblem) -> Slices:
    """Divide the channels of a problem into slices of nearly equal size, with at most 8 vectors of
    16 bytes each."""
    (r, s), pair = problem.window.kernel, paired(problem)
    row_taps = ceil(s / 2) if pair else s
    vectors, numbers = min(CHUNK_VECTORS, MAX_VECTORS // (r * row_taps)), in_vector(problem)
    count = ceil(problem.c / (vectors * numbers))
    tap_vectors = 1 if pair else ceil(problem.c / count / numbers)
    return Slices(count, tap_vectors, row_taps, r * row_taps * tap_vectors)


def patch_of(problem: ConvProblem, outputs: int) -> Patch:
    """Return the patch of input that a thread block reads.

    A block computes a region of at most `outputs` outputs. The region's shape is chosen so that the
    images need the fewest blocks, and then so that the patch is smallest.
    """
    place_bytes = slices_of(problem).place_bytes
    return _smallest(problem.window, problem.n, _pair(problem), place_bytes, outputs)


def window_bytes(problem: ConvProblem) -> int:
    """Return the bytes of shared memory that the window of one output needs."""
    patch = _of_region(problem.window, _pair(problem), 1, 1, 1)
    return patch.places * slices_of(problem).place_bytes


def _pair(problem: ConvProblem) -> int:
    return 2 if paired(problem) else 1


@cache
def _smallest(window: Window, n: int, pair: int, place_bytes: int, outputs: int) -> Patch:
    p, q = window.output

    def fits(patch: Patch) -> bool:
        return patch.places * place_bytes <= MAX_PATCH_BYTES

    def cost(patch: Patch) -> tuple[int, int]:
        count = ceil(p / patch.rows) * ceil(q / patch.columns)
        return count, count * prod(patch.read)

    shapes = (
        _of_region(window, pair, 1, high, wide)
        for high in range(1, min(p, outputs) + 1)
        for wide in range(1, min(q, outputs // high) + 1)
    )
    best = min(filter(fits, shapes), key=cost)
    several = (
        _of_region(window, pair, images, p, q)
        for images in range(min(n, outputs // (p * q)), 1, -1)
    )
    return next(filter(fits, several), best)
