"""Launches the kernel conv_tensor_patch of kernels/src/tensor_patch.cu, which computes direct
convolutions on tensor cores."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, prod, sqrt
from typing import ClassVar

import numpy as np
from typing_extensions import override

from kernels.convolution.rounding import direct_rounding
from kernels.convolution.split_sum import SplitSum, TileConfig, conv_sizes
from kernels.convolution.work import Trips, Work
from kernels.device.device import Instantiation
from kernels.device.launch import instantiate, int32, struct, template_arguments
from kernels.layout.operands import ConvTensors, Filter, check_filter
from kernels.layout.patches import (
    CHUNK_VECTORS,
    MAX_PATCH_BYTES,
    MAX_VECTORS,
    Patch,
    in_vector,
    offsets_of,
    paired,
    patch_of,
    slices_of,
    window_bytes,
)
from kernels.layout.pixels import Pixels
from kernels.layout.strided import VECTOR
from kernels.operations.epilogue import finish
from kernels.problems.activation import Activation
from kernels.problems.conv import ConvProblem
from kernels.problems.precision import HALF, Precision
from kernels.problems.refusals import after_prologue, grouped, not_half, projecting, wrong_axes
from kernels.problems.window import by_axis

_STATIC_BYTES = 128
"""Bytes of static shared memory, for alignment and for the flag that marks a tile's last block."""

CHUNK_BYTES = 16 * CHUNK_VECTORS
"""Bytes of a filter that a block multiplies at once."""

STEP_BYTES = 32
"""Bytes of a filter that one mma multiplies."""

_LEAST_TAPS = 4
"""The smallest number of taps for which this algorithm is used. With fewer taps, a slice of
channels may have fewer chunks than there are stages."""


@dataclass(frozen=True, slots=True)
class PatchTile:
    """Holds the tile sizes of a block and of a warp, named like `conv_tensor_patch`'s template
    parameters.

    A block computes bm output pixels × bn filters, and each warp computes wm × wn of them. Shared
    memory holds `stages` chunks of weights.
    """

    bm: int
    bn: int
    wm: int
    wn: int
    stages: int

    @property
    def threads(self) -> int:
        """Return the number of threads of a block."""
        return self.bm // self.wm * (self.bn // self.wn) * 32

    @property
    def sums(self) -> int:
        """Return how many floats of memory a block's output sums occupy."""
        return self.bm * (self.bn + 8)

    def __str__(self) -> str:
        return f"{self.bm}x{self.bn}"


PATCH_TILES = tuple(
    PatchTile(*sizes)
    for sizes in (
        (256, 64, 64, 32, 4),
        (128, 64, 32, 32, 4),
        (128, 32, 32, 32, 6),
        (128, 16, 32, 16, 8),
        (64, 64, 32, 32, 6),
        (64, 32, 32, 16, 8),
        (64, 16, 16, 16, 8),
    )
)


@dataclass(frozen=True, slots=True)
class PatchConv(SplitSum[TileConfig[PatchTile]]):
    """Computes direct convolution in fp16 with mma.sync.

    A block copies all input pixels of its windows (the patch) to shared memory. PatchConv therefore
    reads an input pixel from the second-level cache only once per block, whereas TensorConv reads
    it once per tap of the filter.
    """

    TILES: ClassVar[tuple[PatchTile, ...]] = PATCH_TILES
    MULTIPLIES: ClassVar[str] = "HMMA"
    """The opcode of the instruction that multiplies."""

    WRITTEN: ClassVar[int] = VECTOR
    """Channels that a thread writes at once."""

    name: str = "tensor patch"

    def supports(self, problem: ConvProblem) -> str | None:
        """Return why the algorithm cannot compute this convolution, or None if it can. The
        algorithm supports 2-D fp16 convolutions with one group. The window needs at least 4 taps,
        and a block's patch of the input must fit in shared memory."""
        return (
            not_half(problem)
            or after_prologue(problem)
            or wrong_axes(problem, 2)
            or grouped(problem)
            or projecting(problem)
            or unfit_window(problem)
        )

    def multiplications(self, problem: ConvProblem) -> int:
        """Return the number of multiplications, N·K·P·Q·C·R·S, including products with padding."""
        return problem.macs

    def arithmetic(self, problem: ConvProblem) -> Precision:
        """Return the problem's precision, at which tensor cores multiply."""
        return problem.precision

    def rounding(self, problem: ConvProblem, config: TileConfig[PatchTile]) -> float:  # noqa: ARG002  (the same for all)
        """Return the output's estimated relative rounding error, in units of float32's eps / 2."""
        return direct_rounding(problem)

    @override
    def unsplit(self, problem: ConvProblem) -> Iterable[TileConfig[PatchTile]]:
        """Return one configuration per tile size, in which no sum is split between blocks. If the
        channels are divided into several slices, each slice must have enough chunks to fill the
        tile's stages."""
        slices = slices_of(problem)
        return (
            TileConfig(tile)
            for tile in self.TILES
            if slices.count == 1 or slices.chunks >= tile.stages - 1
        )

    @override
    def most_parts(self, problem: ConvProblem, config: TileConfig[PatchTile]) -> int:
        """Return the number of slices into which the channels are divided. A sum cannot have more
        parts, since each part needs at least one slice."""
        return slices_of(problem).count

    def work(self, problem: ConvProblem, config: TileConfig[PatchTile]) -> tuple[Work]:
        """Return a description of the launch for the cost model. Blocks copy patches, and multiply
        chunks of weights by them. The last block of each tile adds the partial sums of all
        blocks."""
        tile, split, slices = config.tile, config.split > 1, slices_of(problem)
        patch, of_block = patch_of(problem, tile.bm), ceil(slices.count / config.split)
        chunks = of_block * slices.chunks
        met = patch.images * prod(map(min, patch.read, problem.window.input))
        of_pixel = of_block * slices.tap_vectors * 16 // patch.pair  # bytes
        filter_bytes = slices.chunks * CHUNK_BYTES
        return (
            Work(
                kernel=self.instantiation(problem, config),
                blocks=self.tiles(problem, config) * config.split,
                threads=tile.threads,
                shared_bytes=self.dynamic_bytes(problem, config) + _STATIC_BYTES,
                bytes=met * of_pixel
                + tile.bn * of_block * filter_bytes
                + (4 if split else problem.precision.stored.itemsize) * tile.bm * tile.bn,
                trips=_trips(tile, self.MULTIPLIES),
                products=tile.wm // 16 * (tile.wn // 8) * (CHUNK_BYTES // STEP_BYTES) * chunks,
                vectors=tile.bm * tile.bn / self.WRITTEN / tile.threads,
                rounds=chunks / (tile.stages - 1),
                tail_bytes=4 * tile.bm * tile.bn * (config.split - 1),
                weight_bytes=problem.k * slices.count * filter_bytes,
            ),
        )

    @override
    def instantiation(
        self,
        problem: ConvProblem,
        config: TileConfig[PatchTile],
        activation: Activation | None = None,
    ) -> Instantiation:
        return instantiate(
            "tensor_patch.cu",
            "conv_tensor_patch",
            problem.precision.architectures,
            unit=in_vector(problem) // (2 if paired(problem) else 1),
            **template_arguments(config.tile),
            finish=finish(activation),
        )

    @override
    def tiles(self, problem: ConvProblem, config: TileConfig[PatchTile]) -> int:
        """Return the number of tiles that cover the output of all images."""
        return prod(self._regions(problem, config.tile)) * ceil(problem.k / config.tile.bn)

    @override
    def part_floats(self, config: TileConfig[PatchTile]) -> int:
        return config.tile.sums

    @override
    def threads(self, config: TileConfig[PatchTile]) -> int:
        return config.tile.threads

    @override
    def dynamic_bytes(self, problem: ConvProblem, config: TileConfig[PatchTile]) -> int:
        """Return the dynamic shared memory of a block in bytes. This memory holds weights, patches
        and sums, followed by tables of offsets."""
        patch = patch_of(problem, config.tile.bm)
        tables = 4 * CHUNK_VECTORS * slices_of(problem).chunks + 8 * patch.images * prod(patch.read)
        return self._tables(problem, config) + tables + 8 * config.tile.bm

    def filter_form(self, problem: ConvProblem, config: TileConfig[PatchTile]) -> str:  # noqa: ARG002  (one layout serves all tiles)
        """Return the name of the filter's layout, which is the same for all configurations and
        batch sizes."""
        taps = "pairs of taps" if paired(problem) else "taps"
        return f"filters x slices x {taps} x channels, {problem.precision.value}"

    def prepare_filter(
        self,
        weight: Filter,
        problem: ConvProblem,
        config: TileConfig[PatchTile],  # noqa: ARG002  (one layout serves all tiles)
    ) -> Filter:
        """Return the filter K×C×R×S with its axes in the order filter, slice of channels, tap (or
        pair of taps), channel. The axes are padded with zeros."""
        check_filter(weight, problem)
        weight = self.stored_filter(weight)
        k, c, r, s = weight.shape
        slices, pair = slices_of(problem), 2 if paired(problem) else 1
        channels = slices.tap_vectors * in_vector(problem) // pair
        of_slices = (k, slices.count * channels, r, slices.row_taps * pair)
        whole = np.zeros(of_slices, weight.dtype)
        whole[:, :c, :, :s] = weight
        by_tap = whole.reshape(k, slices.count, channels, -1).swapaxes(2, 3)
        rows = by_tap.reshape(k, slices.count, -1)
        chunk = CHUNK_VECTORS * in_vector(problem)
        return np.pad(rows, ((0, 0), (0, 0), (0, -rows.shape[2] % chunk)))

    def stored_filter(self, weight: Filter) -> Filter:
        """Return a filter converted to the type that the kernel reads."""
        return weight.astype(HALF)

    @override
    def sizes(
        self, problem: ConvProblem, config: TileConfig[PatchTile], tensors: ConvTensors
    ) -> bytes:
        x, y, residual, *_ = tensors
        tile, slices = config.tile, slices_of(problem)
        patch = patch_of(problem, tile.bm)
        self._check_reach(problem, patch, x, y, residual or y)
        return struct(
            "tensor_patch.cu",
            "Sizes",
            **conv_sizes(problem, tile.bn, tensors, in_vector(problem) // patch.pair, self.WRITTEN),
            images=problem.n,
            regions=self._regions(problem, tile),
            region=patch.region,
            read=patch.read,
            apart=patch.apart,
            phase=patch.phase,
            row_places=patch.row_places,
            image_places=patch.image_places,
            place_bytes=slices.place_bytes,
            patch_bytes=patch.places * slices.place_bytes,
            tables=self._tables(problem, config),
            tap_vectors=slices.tap_vectors,
            copied_vectors=slices.used_vectors,
            slices=slices.count,
            slice_chunks=slices.chunks,
            splits=config.split,
            offsets=offsets_of(problem.window, patch, slices),
        )

    def _regions(self, problem: ConvProblem, tile: PatchTile) -> tuple[int, ...]:
        """Return the number of regions along the images, the rows and the columns. Each block
        computes one region of the output."""
        sizes = (problem.n, *problem.window.output)
        region = patch_of(problem, tile.bm).region
        return tuple(ceil(size / part) for size, part in zip(sizes, region, strict=True))

    def _patches(self, problem: ConvProblem, config: TileConfig[PatchTile]) -> int:
        """Return how many patches shared memory holds at once: 2 if a block processes several
        slices of channels, otherwise 1."""
        return min(2, ceil(slices_of(problem).count / config.split))

    def _tables(self, problem: ConvProblem, config: TileConfig[PatchTile]) -> int:
        """Return the offset in bytes of the tables in shared memory. The memory before the tables
        holds the weights and patches, and later the output sums."""
        tile, slices = config.tile, slices_of(problem)
        patch_bytes = patch_of(problem, tile.bm).places * slices.place_bytes
        row_bytes = CHUNK_BYTES + 16  # an odd number of vectors
        weights = row_bytes * tile.stages * tile.bn
        return max(weights + self._patches(problem, config) * patch_bytes, 4 * tile.sums)

    def _check_reach(self, problem: ConvProblem, patch: Patch, x: Pixels, *written: Pixels) -> None:
        """Raise ValueError if an index that the kernel computes exceeds 32 bits."""
        window = problem.window
        int32(problem.n * prod(window.input) * x.pitch)
        int32(problem.n * window.output_volume * max(tensor.pitch for tensor in written))
        for length, region, stride, extent in zip(
            window.output, patch.region[1:], window.strides, window.extent, strict=True
        ):
            int32((length + region) * stride + extent)


def unfit_window(problem: ConvProblem) -> str | None:
    """Return why the kernel does not support the problem's window, or None if it does. The window
    must have enough taps to benefit from a patch, and its patch must fit in shared memory. With few
    channels, the strides must be even."""
    window = problem.window
    if not _LEAST_TAPS <= window.kernel_volume <= MAX_VECTORS:
        return f"kernel {by_axis(window.kernel)}; supported: {_LEAST_TAPS} to {MAX_VECTORS} taps"
    if problem.c <= VECTOR and problem.precision is Precision.FP16 and not paired(problem):
        return f"{problem.c} channels at stride {by_axis(window.strides)}; supported: even strides"
    if (nbytes := window_bytes(problem)) > MAX_PATCH_BYTES:
        return f"a window of {nbytes} bytes; supported: up to {MAX_PATCH_BYTES} bytes"
    return None


def _trips(tile: PatchTile, multiplies: str) -> Trips:
    """Return the trip counts of the inner loops for a typical problem, with a 3×3 window and 8
    vectors of channels."""
    read = (sqrt(tile.bm) + 2) ** 2
    return Trips({multiplies: 9, "STS": ceil(8 * read / tile.threads)}, {})
