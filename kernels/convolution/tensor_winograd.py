"""Launches the kernel of kernels/src/tensor_winograd.cu, which computes fused Winograd convolutions
on tensor cores."""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from math import ceil, prod, sqrt
from typing import ClassVar

import numpy as np
from typing_extensions import override

from kernels.convolution.rounding import ROUNDED, winograd_rounding
from kernels.convolution.split_sum import MIN_CHUNKS, SplitSum, WinogradConfig, conv_sizes
from kernels.convolution.winograd import WinogradConv
from kernels.convolution.work import NO_INNER_LOOPS, Work
from kernels.device.device import Instantiation
from kernels.device.launch import instantiate, int32, struct, template_arguments
from kernels.layout.operands import ConvTensors, Filter, check_filter, padded
from kernels.layout.pixels import Pixels
from kernels.layout.strided import VECTOR
from kernels.operations.epilogue import finish
from kernels.problems.activation import Activation
from kernels.problems.conv import ConvProblem
from kernels.problems.precision import HALF, Precision
from kernels.problems.refusals import not_half
from kernels.winograd.filter import filter_rows

_CHUNK = 16
"""Channels that a block multiplies at once, the inner dimension of an mma of halves."""

_PIXELS = 8
"""The most pixels that a block's region reads per tile."""

LARGEST_WEIGHT = float(np.finfo(HALF).max) / 9
"""The largest weight for which the transformed filter fits in float16. For F(2x2,3x3), the
transformed filter is up to 9/4 times the largest weight, and is stored multiplied by 4."""

_AT_ONCE = 32
"""The number of a block's tiles whose products pass through shared memory together."""


@dataclass(frozen=True, slots=True)
class TensorWinogradTile:
    """Holds the tile sizes of a block, named like `conv_tensor_winograd`'s template parameters.

    A block computes bm Winograd tiles × bn filters, and processes the channels in chunks of 16.
    """

    bm: int
    bn: int

    @property
    def threads(self) -> int:
        """Return the number of threads of a block. In each chunk, a thread transforms 2 channels of
        one tile."""
        return 8 * self.bm

    def __str__(self) -> str:
        return f"{self.bm}x{self.bn}x{_CHUNK}"


TENSOR_WINOGRAD_TILES = (
    TensorWinogradTile(bm=64, bn=32),
    TensorWinogradTile(bm=32, bn=32),
)


@dataclass(frozen=True, slots=True)
class Region:
    """Describes the Winograd tiles that one block computes: rows × columns tiles of one image, or
    all tiles of `images` images."""

    images: int
    rows: int
    columns: int

    def pixels(self, m: int, r: int) -> int:
        """Return the number of input pixels that a region reads."""
        return self.images * (m * self.rows + r - 1) * (m * self.columns + r - 1)


@dataclass(frozen=True, slots=True)
class TensorWinogradConv(SplitSum[WinogradConfig[TensorWinogradTile]]):
    """Computes F(m×m, r×r) in float16 in one launch, and multiplies with mma.sync.

    Like WinogradConv, it implements algorithm 1 of Lavin & Gray 2015. The transformed data and
    filter are rounded to float16. Transforms, products and sums are float32. The transformed data
    may be 4 times as large as x, and could overflow float16. Therefore the transformed data is
    divided by 4, and the transformed filter is multiplied by 4. The division adds an error of at
    most 2^-23, because numbers below 2^-12 lose bits. A NaN or an infinity in x may turn all
    outputs of the tiles that read it into NaN.
    """

    m: int
    r: int
    axes: ClassVar[int] = 2

    @property
    def name(self) -> str:
        """Return the algorithm's name, such as "tensor winograd F(2x2,3x3)"."""
        return f"tensor {self._winograd.name}"

    def supports(self, problem: ConvProblem) -> str | None:
        """Return why the algorithm cannot compute this convolution, or None if it can. The
        algorithm supports fp16 with an r×r kernel, stride 1, dilation 1 and one group."""
        return not_half(problem) or self._winograd.misfit(problem)

    def multiplications(self, problem: ConvProblem) -> int:
        """Return the number of multiplications, N·⌈P/m⌉·⌈Q/m⌉·C·K·alpha² (Lavin & Gray, equation
        19). The transforms are not counted."""
        return self._winograd.multiplications(problem)

    def arithmetic(self, problem: ConvProblem) -> Precision:
        """Return the problem's precision, at which tensor cores multiply."""
        return problem.precision

    def rounding(self, problem: ConvProblem, config: WinogradConfig[TensorWinogradTile]) -> float:
        """Return the output's estimated relative rounding error, in units of float32's eps / 2.
        The transformed data and filter are rounded to the 11 bits of float16."""
        factors = sqrt(2) * ROUNDED
        return winograd_rounding(problem, self.m, self.r, config.points, factors)

    @override
    def unsplit(self, problem: ConvProblem) -> Iterable[WinogradConfig[TensorWinogradTile]]:
        points = self._winograd.points[0]
        return (WinogradConfig(points, tile) for tile in TENSOR_WINOGRAD_TILES)

    @override
    def most_parts(self, problem: ConvProblem, config: WinogradConfig[TensorWinogradTile]) -> int:
        return max(1, ceil(problem.c / _CHUNK) // MIN_CHUNKS)

    @override
    def tiles(self, problem: ConvProblem, config: WinogradConfig[TensorWinogradTile]) -> int:
        """Return how many blocks compute the output of all images if no sum is split."""
        return prod(self._regions(problem, config.tile)) * ceil(problem.k / config.tile.bn)

    @override
    def part_floats(self, config: WinogradConfig[TensorWinogradTile]) -> int:
        outputs: int = self.m**2
        return outputs * config.tile.bm * config.tile.bn

    @override
    def threads(self, config: WinogradConfig[TensorWinogradTile]) -> int:
        return config.tile.threads

    @override
    def dynamic_bytes(
        self,
        problem: ConvProblem,
        config: WinogradConfig[TensorWinogradTile],
    ) -> int:
        """Return the dynamic shared memory of a block in bytes. This memory holds two chunks of the
        input, the transformed data and the transformed filter. The products of 32 tiles and the
        outputs later reuse this memory."""
        tile, positions, outputs = config.tile, self._winograd.positions, self.m**2
        chunks = 2 * 2 * _CHUNK * (positions * (tile.bm + tile.bn) + _PIXELS * tile.bm)
        return max(chunks, 4 * tile.bn * (positions * _AT_ONCE + outputs * tile.bm))

    def work(self, problem: ConvProblem, config: WinogradConfig[TensorWinogradTile]) -> tuple[Work]:
        """Return a description of the launch for the cost model. In each iteration, a block
        multiplies one chunk of channels and transforms the next."""
        tile, positions, outputs = config.tile, self._winograd.positions, self.m**2
        split, channels = config.split > 1, padded(problem.c, 8)
        chunks = ceil(ceil(problem.c / _CHUNK) / config.split)
        pixels = self._region(problem, tile).pixels(self.m, self.r)
        written = outputs * tile.bm * tile.bn
        return (
            Work(
                kernel=self.instantiation(problem, config),
                blocks=self.tiles(problem, config) * config.split,
                threads=tile.threads,
                shared_bytes=self.dynamic_bytes(problem, config)
                + -(-(16 * tile.bm + 4) // 128) * 128,
                bytes=2 * _CHUNK * (pixels + positions * tile.bn) * chunks
                + (4 if split else 2) * written,
                trips=NO_INNER_LOOPS,
                products=positions * tile.bm * tile.bn * 32 / (16 * 8 * tile.threads) * chunks,
                vectors=written / VECTOR / tile.threads,
                rounds=chunks,
                tail_bytes=4 * written * (config.split - 1),
                weight_bytes=2 * positions * channels * padded(problem.k),
            ),
        )

    @override
    def instantiation(
        self,
        problem: ConvProblem,
        config: WinogradConfig[TensorWinogradTile],
        activation: Activation | None = None,
    ) -> Instantiation:
        return instantiate(
            "tensor_winograd.cu",
            "conv_tensor_winograd",
            problem.precision.architectures,
            m=self.m,
            r=self.r,
            points=f"Points::{config.points.name}",
            **template_arguments(config.tile),
            finish=finish(activation),
        )

    def filter_form(self, problem: ConvProblem, config: WinogradConfig[TensorWinogradTile]) -> str:  # noqa: ARG002  (always fp16)
        """Return the name of the filter's layout. It depends only on F(m, r) and the interpolation
        points."""
        return f"F({self.m},{self.r}) {config.points.name} fp16"

    def prepare_filter(
        self, weight: Filter, problem: ConvProblem, config: WinogradConfig[TensorWinogradTile]
    ) -> Filter:
        """Return the transformed filter in float16, multiplied by 4. The transform U = G g Gᵀ
        converts K×C×R×S to (alpha² K) × C, with channels padded with zeros.

        Raises ValueError for a weight above `LARGEST_WEIGHT`, for which the range of float16 is too
        small.
        """
        check_filter(weight, problem)
        largest = np.abs(weight).max(initial=0)
        if largest > LARGEST_WEIGHT:
            raise ValueError(
                f"{self.name} computes in float16 and takes weights up to {LARGEST_WEIGHT:.0f};"
                f" the largest weight is {largest:.3g}"
            )
        return filter_rows(4 * weight.astype(np.float32), self.m, config.points, HALF)

    @override
    def sizes(
        self, problem: ConvProblem, config: WinogradConfig[TensorWinogradTile], tensors: ConvTensors
    ) -> bytes:
        x, y, residual, *_ = tensors
        tile = config.tile
        self._check_reach(problem, tile, x, y, residual or y)
        region = self._region(problem, tile)
        return struct(
            "tensor_winograd.cu",
            "Sizes",
            **conv_sizes(problem, tile.bn, tensors, unit=8),
            images=problem.n,
            regions=self._regions(problem, tile),
            region=(region.images, region.rows, region.columns),
            rows=self.m * region.rows + self.r - 1,
            half_columns=(self.m * region.columns + self.r - 1) // 2,
            splits=config.split,
        )

    @property
    def _winograd(self) -> WinogradConv:
        """Return the float32 algorithm for the same F(m, r). Both algorithms support the same
        windows, and use the same tiles and interpolation points."""
        return WinogradConv(self.m, self.r, self.axes)

    def _region(self, problem: ConvProblem, tile: TensorWinogradTile) -> Region:
        """Return the region of tiles that a block computes."""
        _, rows, columns = self._winograd.tiles_along(problem.window)
        return region_of(problem.n, rows, columns, tile.bm, self.m, self.r)

    def _regions(self, problem: ConvProblem, tile: TensorWinogradTile) -> tuple[int, ...]:
        """Return the number of regions along the images, the rows and the columns."""
        region = self._region(problem, tile)
        _, rows, columns = self._winograd.tiles_along(problem.window)
        return (
            ceil(problem.n / region.images),
            ceil(rows / region.rows),
            ceil(columns / region.columns),
        )

    def _check_reach(
        self, problem: ConvProblem, tile: TensorWinogradTile, x: Pixels, *written: Pixels
    ) -> None:
        """Raise ValueError if an index that the kernel computes exceeds 32 bits."""
        window, region = problem.window, self._region(problem, tile)
        # Tiles begin in the padding and end beyond the last pixel; a block has threads for more.
        images = problem.n + tile.bm // (region.rows * region.columns)
        down, right = (
            self.m * (tiles + tile.bm) + pad + self.r
            for tiles, pad in zip(
                self._winograd.tiles_along(window)[1:], window.pads_begin, strict=True
            )
        )
        for height, width in (window.input, window.output):
            last = (images * height + down) * width + right
            int32(last * max(tensor.pitch for tensor in (x, *written)))
        rows = (self._winograd.positions + 1) * (padded(problem.k) + tile.bn)
        int32(rows * (padded(problem.c, 8) + 2 * _CHUNK))


@cache
def region_of(n: int, rows: int, columns: int, bm: int, m: int, r: int) -> Region:
    """Return the region of tiles that one block computes, for n images of `rows` × `columns` tiles.

    A region has at most `bm` tiles, and reads at most 8 · `bm` pixels. Its shape is chosen so that
    an image needs the fewest blocks, and then so that these blocks read the fewest pixels. If one
    block computes a whole image, the region has as many images as fit.
    """
    max_pixels = _PIXELS * bm
    shapes = (
        Region(1, high, wide)
        for high in range(1, min(rows, bm) + 1)
        for wide in range(1, min(columns, bm // high) + 1)
    )
    fitting = [shape for shape in shapes if shape.pixels(m, r) <= max_pixels]

    def cost(region: Region) -> tuple[int, int]:
        count = ceil(rows / region.rows) * ceil(columns / region.columns)
        return count, count * region.pixels(m, r)

    best = min(fitting, key=cost)
    if (best.rows, best.columns) != (rows, columns):
        return best
    images = min(n, bm // (rows * columns), max_pixels // best.pixels(m, r))
    return Region(images, rows, columns)
