"""Launches of kernels/src/tensor_winograd.cu: fused Winograd convolution on tensor cores."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from math import ceil, prod
from typing import ClassVar

import numpy as np

from kernels.convolution.implicit_gemm import MAX_SPLIT, MAX_WORKSPACE_BYTES, MIN_CHUNKS
from kernels.convolution.winograd import WinogradConv
from kernels.convolution.work import Work
from kernels.device.device import Instantiation
from kernels.device.launch import Launch, instantiate, int32, launch, struct, window_struct
from kernels.layout.operands import Filter, check_filter, check_operands, padded, vectors_in
from kernels.layout.pixels import Pixels
from kernels.layout.strided import VECTOR
from kernels.operations.epilogue import epilogue_arguments, finish
from kernels.problems.activation import Activation
from kernels.problems.conv import ConvProblem
from kernels.problems.precision import HALF
from kernels.problems.refusals import not_half
from kernels.winograd.filter import filter_rows
from kernels.winograd.matrices import Points

_CHUNK = 16
"""Channels that a block multiplies at once: the inner dimension of an mma of halves."""

_PIXELS = 8
"""That a block's region reads, at most, for each tile that it may have."""

LARGEST_WEIGHT = float(np.finfo(HALF).max) / 9
"""A transformed filter of F(2x2,3x3) is up to 9/4 times its largest weight, and stored 4 times."""

_AT_ONCE = 32
"""Tiles of a block whose products pass through shared memory together."""


@dataclass(frozen=True, slots=True)
class TensorWinogradTile:
    """The tile of a block of `conv_tensor_winograd`; its template has the same names.

    A block computes bm tiles × bn filters, the channels in chunks of 16.
    """

    bm: int
    bn: int

    @property
    def threads(self) -> int:
        """Of a block: each transforms 2 channels of one tile of each chunk."""
        return 8 * self.bm

    def __str__(self) -> str:
        return f"{self.bm}x{self.bn}x{_CHUNK}"


TENSOR_WINOGRAD_TILES = (
    TensorWinogradTile(bm=64, bn=32),
    TensorWinogradTile(bm=32, bn=32),
)


@dataclass(frozen=True, slots=True)
class TensorWinogradConfig:
    """The points of F(m, r), a tile, and the number of blocks that share the channels."""

    points: Points
    tile: TensorWinogradTile
    split: int = 1

    def __str__(self) -> str:
        tile = str(self.tile) if self.split == 1 else f"{self.tile}/{self.split}"
        return f"{self.points.name.lower()} points, {tile}"


@dataclass(frozen=True, slots=True)
class Region:
    """The tiles of a block: rows × columns of one image, or all tiles of so many images."""

    images: int
    rows: int
    columns: int

    def pixels(self, m: int, r: int) -> int:
        """That it reads."""
        return self.images * (m * self.rows + r - 1) * (m * self.columns + r - 1)


@dataclass(frozen=True, slots=True)
class TensorWinogradConv:
    """F(m×m, r×r) in float16, its products by mma.sync, in one launch.

    As WinogradConv: Lavin & Gray 2015, algorithm 1. The transformed data and filter are rounded to
    halves; transforms, products and sums are float32. The transformed data, up to 4 times x, is
    divided by 4, and the filter multiplied: no finite x becomes infinite on the way. Below 2^-12,
    where a quarter has fewer bits, that errs by at most 2^-23. A NaN or an infinity of x may spread
    to all outputs of the tiles that read it, as NaN.
    """

    m: int
    r: int
    axes: ClassVar[int] = 2

    @property
    def name(self) -> str:
        """As in the papers: "tensor winograd F(2x2,3x3)"."""
        return f"tensor {self._winograd.name}"

    def supports(self, problem: ConvProblem) -> str | None:
        """None where the kernel is r×r, at stride 1, dilation 1, one group, in fp16."""
        return not_half(problem) or self._winograd.misfit(problem)

    def multiplications(self, problem: ConvProblem) -> int:
        """N ⌈P/m⌉ ⌈Q/m⌉ C K alpha², Lavin & Gray, equation 19; the transforms are not counted."""
        return self._winograd.multiplications(problem)

    def configs(self, problem: ConvProblem) -> tuple[TensorWinogradConfig, ...]:
        """Every tile with every split that leaves each block work and the workspace in bounds."""
        points = self._winograd.points[0]
        return tuple(
            config
            for tile in TENSOR_WINOGRAD_TILES
            for split in range(1, MAX_SPLIT + 1)
            for config in [TensorWinogradConfig(points, tile, split)]
            if config.split == 1
            or (
                config.split * MIN_CHUNKS <= ceil(problem.c / _CHUNK)
                and sum(self.workspace(problem, config).values()) <= MAX_WORKSPACE_BYTES
            )
        )

    def work(self, problem: ConvProblem, config: TensorWinogradConfig) -> tuple[Work]:
        """Every block multiplies its chunks and transforms the next ones."""
        tile, positions, outputs = config.tile, self._winograd.positions, self.m**2
        split, channels = config.split > 1, padded(problem.c, 8)
        chunks = ceil(ceil(problem.c / _CHUNK) / config.split)
        pixels = self._region(problem, tile).pixels(self.m, self.r)
        written = outputs * tile.bm * tile.bn
        return (
            Work(
                kernel=self.instantiation(config),
                blocks=self._blocks(problem, tile) * config.split,
                threads=tile.threads,
                shared_bytes=self._dynamic_bytes(tile) + -(-(16 * tile.bm + 4) // 128) * 128,
                bytes=2 * _CHUNK * (pixels + positions * tile.bn) * chunks
                + (4 if split else 2) * written,
                products=positions * tile.bm * tile.bn * 32 / (16 * 8 * tile.threads) * chunks,
                vectors=written / VECTOR / tile.threads,
                rounds=chunks,
                tail_bytes=4 * written * (config.split - 1),
                weight_bytes=2 * positions * channels * padded(problem.k),
            ),
        )

    def instantiation(
        self, config: TensorWinogradConfig, activation: Activation | None = None
    ) -> Instantiation:
        """The kernel for a configuration."""
        return instantiate(
            "tensor_winograd.cu",
            "conv_tensor_winograd",
            m=self.m,
            r=self.r,
            points=f"Points::{config.points.name}",
            **asdict(config.tile),
            finish=finish(activation),
        )

    def workspace(self, problem: ConvProblem, config: TensorWinogradConfig) -> Mapping[str, int]:
        """Every block's partial outputs; nothing where nothing is split."""
        if config.split == 1:
            return {}
        tile = config.tile
        outputs = self.m**2 * tile.bm * tile.bn
        return {"workspace": 4 * self._blocks(problem, tile) * config.split * outputs}

    def counter_bytes(self, problem: ConvProblem, config: TensorWinogradConfig) -> int:
        """A counter for each block, zero before and after the launch; 0 where nothing is split."""
        return 0 if config.split == 1 else 4 * self._blocks(problem, config.tile)

    def filter_form(self, problem: ConvProblem, config: TensorWinogradConfig) -> str:  # noqa: ARG002  (always fp16)
        """One for all configurations with the same points."""
        return f"F({self.m},{self.r}) {config.points.name} fp16"

    def prepare_filter(
        self, weight: Filter, problem: ConvProblem, config: TensorWinogradConfig
    ) -> Filter:
        """4 U, U = G g Gᵀ, as halves: K×C×R×S → (alpha² K) × C, the channels padded with zeros.

        Raises ValueError where that is beyond the halves' end: a weight beyond `LARGEST_WEIGHT`.
        """
        check_filter(weight, problem)
        largest = np.abs(weight).max(initial=0)
        if largest > LARGEST_WEIGHT:
            raise ValueError(
                f"a weight of {largest:.3g}: beyond {LARGEST_WEIGHT:.0f} {self.name} has no halves"
                " for it"
            )
        return filter_rows(4 * weight.astype(np.float32), self.m, config.points, HALF)

    def launches(
        self,
        problem: ConvProblem,
        config: TensorWinogradConfig,
        x: Pixels,
        y: Pixels,
        residual: Pixels | None = None,
        bias: bool = False,
        activation: Activation | None = None,
    ) -> tuple[Launch]:
        """One, on x, weight, y; bias and residual if there are; workspace and counters if split.

        Raises ValueError where pixels do not fit the problem, and beyond 32-bit indices.
        """
        check_operands(problem, x, y, residual)
        self._check_reach(problem, config.tile, x, y, residual or y)
        tile, split = config.tile, config.split > 1
        region = self._region(problem, tile)
        sizes = struct(
            "tensor_winograd.cu",
            "Sizes",
            images=problem.n,
            channels=problem.c,
            filters=problem.k,
            x_pitch=x.pitch,
            residual_pitch=0 if residual is None else residual.pitch,
            y_pitch=y.pitch,
            x_vectors=vectors_in(x, of=8),
            y_vectors=vectors_in(y, residual or y),
            regions=self._regions(problem, tile),
            region=(region.images, region.rows, region.columns),
            rows=self.m * region.rows + self.r - 1,
            half_columns=(self.m * region.columns + self.r - 1) // 2,
            filter_tiles=ceil(problem.k / tile.bn),
            splits=config.split,
        )
        return (
            launch(
                self.instantiation(config, activation),
                (self._blocks(problem, tile), config.split, 1),
                (tile.threads, 1, 1),
                self._dynamic_bytes(tile),
                x="x",
                weight="weight",
                bias="bias" if bias else 0,
                residual="residual" if residual else 0,
                y="y",
                workspace="workspace" if split else 0,
                counters="counters" if split else 0,
                sizes=sizes,
                window=window_struct(problem.window),
                **epilogue_arguments(activation),
            ),
        )

    @property
    def _winograd(self) -> WinogradConv:
        """The algorithm in float32, which has the same windows, tiles, positions and points."""
        return WinogradConv(self.m, self.r, self.axes)

    def _region(self, problem: ConvProblem, tile: TensorWinogradTile) -> Region:
        """The tiles of a block."""
        _, rows, columns = self._winograd.tiles_along(problem.window)
        return region_of(problem.n, rows, columns, tile.bm, self.m, self.r)

    def _regions(self, problem: ConvProblem, tile: TensorWinogradTile) -> tuple[int, ...]:
        """How many regions cover the images, and the tiles of one along either axis."""
        region = self._region(problem, tile)
        _, rows, columns = self._winograd.tiles_along(problem.window)
        return (
            ceil(problem.n / region.images),
            ceil(rows / region.rows),
            ceil(columns / region.columns),
        )

    def _blocks(self, problem: ConvProblem, tile: TensorWinogradTile) -> int:
        """Blocks for the output of all images, where the channels are not split."""
        return prod(self._regions(problem, tile)) * ceil(problem.k / tile.bn)

    def _dynamic_bytes(self, tile: TensorWinogradTile) -> int:
        """Of a block: two chunks of V, U and d; later 32 tiles' products and all outputs."""
        positions, outputs = self._winograd.positions, self.m**2
        chunks = 2 * 2 * _CHUNK * (positions * (tile.bm + tile.bn) + _PIXELS * tile.bm)
        return max(chunks, 4 * tile.bn * (positions * _AT_ONCE + outputs * tile.bm))

    def _check_reach(
        self, problem: ConvProblem, tile: TensorWinogradTile, x: Pixels, *written: Pixels
    ) -> None:
        """Raise ValueError unless every index that the kernel forms is one of 32 bits."""
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
            int32(last * max(each.pitch for each in (x, *written)))
        rows = (self._winograd.positions + 1) * (padded(problem.k) + tile.bn)
        int32(rows * (padded(problem.c, 8) + 2 * _CHUNK))


@cache
def region_of(n: int, rows: int, columns: int, bm: int, m: int, r: int) -> Region:
    """At most bm tiles of n images of rows × columns, which read at most 8 bm pixels.

    So that few regions cover a layer; of equally many, those which read fewest pixels.
    """
    most = _PIXELS * bm
    shapes = (
        Region(1, high, wide)
        for high in range(1, min(rows, bm) + 1)
        for wide in range(1, min(columns, bm // high) + 1)
    )
    fitting = [each for each in shapes if each.pixels(m, r) <= most]

    def cost(region: Region) -> tuple[int, int]:
        count = ceil(rows / region.rows) * ceil(columns / region.columns)
        return count, count * region.pixels(m, r)

    best = min(fitting, key=cost)
    if (best.rows, best.columns) != (rows, columns):
        return best
    images = min(n, bm // (rows * columns), most // best.pixels(m, r))
    return Region(images, rows, columns)
