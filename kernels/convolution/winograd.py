"""Implements Winograd's minimal filtering. Compared with direct convolution, it needs fewer
multiplications and more additions, and has larger rounding errors."""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from math import ceil, prod

from typing_extensions import override

from kernels.convolution.rounding import winograd_rounding
from kernels.convolution.split_sum import MIN_CHUNKS, SplitSum, WinogradConfig, conv_sizes
from kernels.convolution.work import Trips, Work
from kernels.device.device import Instantiation
from kernels.device.launch import instantiate, int32, struct, template_arguments
from kernels.layout.operands import ConvTensors, Filter, check_filter, padded
from kernels.layout.pixels import Pixels
from kernels.layout.strided import VECTOR
from kernels.operations.epilogue import finish
from kernels.problems.activation import Activation
from kernels.problems.conv import ConvProblem
from kernels.problems.precision import Precision
from kernels.problems.refusals import (
    after_prologue,
    dilated,
    grouped,
    not_float,
    strided,
    wrong_axes,
    wrong_kernel,
)
from kernels.problems.window import Window
from kernels.winograd.filter import filter_transform
from kernels.winograd.matrices import Points


@dataclass(frozen=True, slots=True)
class WinogradTile:
    """Holds the tile sizes of a block and of a thread, named like `conv_winograd`'s template
    parameters.

    A block computes bm Winograd tiles × bn filters, and processes the channels in chunks of bc.
    Most threads multiply: each of them computes tm × tn products at one of the tiles' alpha² (or
    alpha³) positions. Meanwhile `data_warps` warps transform the data. The number of registers per
    thread is limited, so that `resident` blocks fit on a multiprocessor.
    """

    bm: int
    bn: int
    bc: int
    tm: int
    tn: int
    data_warps: int
    resident: int

    def threads(self, positions: int) -> int:
        """Return the number of threads of a block."""
        return positions * (self.bm // self.tm) * (self.bn // self.tn) + 32 * self.data_warps

    def dynamic_shared_bytes(self, positions: int) -> int:
        """Return the dynamic shared memory of a block in bytes. This memory holds two chunks of the
        transformed data and the transformed filter, and one chunk of the input. The products later
        reuse this memory."""
        v = self.bc * (positions * self.bm + 32 // self.bc)
        u, data = positions * self.bc * self.bn, positions * self.bm * self.bc
        return 4 * max(2 * v + 2 * u + data, positions * self.bm * self.bn)

    def shared_bytes(self, positions: int) -> int:
        """Return the shared memory of a block in bytes. It consists of the dynamic shared memory,
        and a table of tile positions that is padded to a multiple of 128 bytes."""
        return self.dynamic_shared_bytes(positions) + -(-(16 * self.bm + 4) // 128) * 128

    def __str__(self) -> str:
        return f"{self.bm}x{self.bn}x{self.bc}"


TILES = {
    16: (
        WinogradTile(bm=32, bn=64, bc=8, tm=8, tn=8, data_warps=4, resident=1),
        WinogradTile(bm=32, bn=32, bc=8, tm=8, tn=8, data_warps=2, resident=2),
        WinogradTile(bm=16, bn=64, bc=8, tm=8, tn=8, data_warps=2, resident=2),
        WinogradTile(bm=16, bn=32, bc=8, tm=8, tn=8, data_warps=1, resident=3),
    ),
    36: (
        WinogradTile(bm=32, bn=32, bc=8, tm=8, tn=8, data_warps=2, resident=1),
        WinogradTile(bm=16, bn=64, bc=8, tm=8, tn=8, data_warps=2, resident=1),
        WinogradTile(bm=32, bn=32, bc=4, tm=8, tn=8, data_warps=2, resident=1),
        WinogradTile(bm=16, bn=32, bc=8, tm=8, tn=8, data_warps=2, resident=1),
        WinogradTile(bm=16, bn=32, bc=4, tm=8, tn=8, data_warps=1, resident=2),
    ),
    64: (
        WinogradTile(bm=16, bn=32, bc=8, tm=8, tn=8, data_warps=4, resident=1),
        WinogradTile(bm=16, bn=32, bc=4, tm=8, tn=8, data_warps=2, resident=1),
    ),
}
"""The tile sizes to choose from, by the number of positions in an input tile (alpha² or alpha³)."""


@dataclass(frozen=True, slots=True)
class WinogradConv(SplitSum[WinogradConfig[WinogradTile]]):
    """Computes F(m, r) nested along `axes` axes. Along each axis, a tile has m outputs, which are
    computed from alpha = m + r - 1 inputs.

    For each tile, Y = Aᵀ[(G g Gᵀ) ⊙ (Bᵀ d B)]A, where the products are summed over C before the
    inverse transform. Sources: Lavin & Gray 2015, section 4.1, equation 8 and algorithm 1, and
    section 4.3 for F(4×4, 3×3); Lan et al. 2017, section 3.2, for 3-D. WinogradConv supports stride
    1, dilation 1, one group and any padding. One launch computes all three stages. A NaN or an
    infinity in x turns all outputs of the tiles that read it into NaN.
    """

    m: int
    r: int
    axes: int

    @property
    def name(self) -> str:
        """Return the algorithm's name, such as "winograd F(2x2,3x3)"."""
        m, r = ("x".join([str(size)] * self.axes) for size in (self.m, self.r))
        return f"winograd F({m},{r})"

    @property
    def alpha(self) -> int:
        """Return m + r - 1, the length of an input tile along an axis. It is also the number of
        multiplications along that axis."""
        return self.m + self.r - 1

    @property
    def positions(self) -> int:
        """Return alpha² or alpha³, the number of positions in an input tile. Each position has one
        product per channel and filter."""
        positions: int = self.alpha**self.axes
        return positions

    @property
    def points(self) -> tuple[Points, ...]:
        """Return the sets of interpolation points to choose from, beginning with the most accurate
        set. F(2, 3) has only one set, because it uses three points, and both sets begin with the
        same three points."""
        return (Points.INTEGER,) if self.alpha <= 4 else (Points.MIXED, Points.INTEGER)

    def image_tiles(self, problem: ConvProblem) -> int:
        """Return how many output tiles an image has per filter. The last tile along an axis may be
        partial."""
        return prod(self.tiles_along(problem.window))

    def tiles_along(self, window: Window) -> tuple[int, ...]:
        """Return how many tiles an image has along each of three axes. In 2-D, the first number is
        1."""
        along = tuple(-(-size // self.m) for size in window.output)
        return (1,) * (3 - len(along)) + along

    def supports(self, problem: ConvProblem) -> str | None:
        """Return why the algorithm cannot compute this convolution, or None if it can. The
        algorithm supports float32 with a kernel of size r along every axis, stride 1, dilation 1
        and one group."""
        return not_float(problem) or self.misfit(problem)

    def misfit(self, problem: ConvProblem) -> str | None:
        """Return why F(m, r) cannot compute this convolution, or None if it can. The type of the
        tensors is not checked."""
        return (
            after_prologue(problem)
            or wrong_axes(problem, self.axes)
            or wrong_kernel(problem, (self.r,) * self.axes)
            or strided(problem)
            or dilated(problem)
            or grouped(problem)
        )

    def multiplications(self, problem: ConvProblem) -> int:
        """Return the number of multiplications, N·⌈P/m⌉·⌈Q/m⌉·C·K·alpha² (Lavin & Gray, equation
        19). The transforms are not counted."""
        return problem.n * self.image_tiles(problem) * problem.c * problem.k * self.positions

    def arithmetic(self, problem: ConvProblem) -> Precision:  # noqa: ARG002  (the same for all)
        """Return float32, since the kernel uses no tensor cores."""
        return Precision.FP32

    def rounding(self, problem: ConvProblem, config: WinogradConfig[WinogradTile]) -> float:
        """Return the output's estimated relative rounding error, in units of float32's eps / 2.
        All arithmetic is float32."""
        return winograd_rounding(problem, self.m, self.r, config.points, factors=0)

    @override
    def unsplit(self, problem: ConvProblem) -> Iterable[WinogradConfig[WinogradTile]]:
        return (
            WinogradConfig(points, tile) for points in self.points for tile in TILES[self.positions]
        )

    @override
    def most_parts(self, problem: ConvProblem, config: WinogradConfig[WinogradTile]) -> int:
        return max(1, ceil(problem.c / config.tile.bc) // MIN_CHUNKS)

    @override
    def tiles(self, problem: ConvProblem, config: WinogradConfig[WinogradTile]) -> int:
        """Return how many blocks compute the output of all images if no sum is split."""
        tile = config.tile
        images = ceil(problem.n * self.image_tiles(problem) / tile.bm)
        return images * ceil(problem.k / tile.bn)

    @override
    def part_floats(self, config: WinogradConfig[WinogradTile]) -> int:
        outputs: int = self.m**self.axes
        return outputs * config.tile.bm * config.tile.bn

    @override
    def threads(self, config: WinogradConfig[WinogradTile]) -> int:
        return config.tile.threads(self.positions)

    @override
    def dynamic_bytes(self, problem: ConvProblem, config: WinogradConfig[WinogradTile]) -> int:
        return config.tile.dynamic_shared_bytes(self.positions)

    def work(self, problem: ConvProblem, config: WinogradConfig[WinogradTile]) -> tuple[Work]:
        """Return a description of the launch for the cost model. In each block, some warps
        transform a chunk of channels while the others multiply the previous chunk."""
        tile, positions, outputs = config.tile, self.positions, self.m**self.axes
        chunks = ceil(ceil(problem.c / tile.bc) / config.split)
        threads = tile.threads(positions)
        return (
            Work(
                # The same for all points: fewer instructions must not favour the less accurate.
                kernel=self.instantiation(problem, replace(config, points=self.points[0])),
                blocks=self.tiles(problem, config) * config.split,
                threads=threads,
                shared_bytes=tile.shared_bytes(positions),
                # The cache serves 8 channels of a pixel at a time.
                bytes=4 * positions * (8 * tile.bm + tile.bc * tile.bn) * chunks
                + 4 * outputs * tile.bm * tile.bn,
                trips=_trips(tile, threads),
                products=tile.tm * tile.tn * tile.bc * chunks,
                vectors=outputs * tile.bm * tile.bn / VECTOR / threads,
                rounds=chunks,
                tail_bytes=4 * outputs * tile.bm * tile.bn * (config.split - 1),
                weight_bytes=4 * positions * padded(problem.c) * padded(problem.k),
            ),
        )

    @override
    def instantiation(
        self,
        problem: ConvProblem,
        config: WinogradConfig[WinogradTile],
        activation: Activation | None = None,
    ) -> Instantiation:
        return instantiate(
            "winograd.cu",
            "conv_winograd",
            m=self.m,
            r=self.r,
            axes=self.axes,
            points=f"Points::{config.points.name}",
            **template_arguments(config.tile),
            finish=finish(activation),
        )

    def filter_form(self, problem: ConvProblem, config: WinogradConfig[WinogradTile]) -> str:  # noqa: ARG002  (one serves all)
        """Return the name of the filter's layout, which names F(m, r) and the interpolation points.
        The non-fused algorithm uses the same layout in fp32."""
        return f"F({self.m},{self.r}) {config.points.name}"

    def prepare_filter(
        self, weight: Filter, problem: ConvProblem, config: WinogradConfig[WinogradTile]
    ) -> Filter:
        """Return the transformed filter U = G g Gᵀ. The transform converts K×C×R×S to alpha² × C ×
        K, with channels padded with zeros."""
        check_filter(weight, problem)
        return filter_transform(weight, self.m, config.points)

    @override
    def sizes(
        self, problem: ConvProblem, config: WinogradConfig[WinogradTile], tensors: ConvTensors
    ) -> bytes:
        x, y, residual, *_ = tensors
        self._check_reach(problem, config.tile, x, y, residual or y)
        return struct(
            "winograd.cu",
            "Sizes",
            **conv_sizes(problem, config.tile.bn, tensors),
            tiles=problem.n * self.image_tiles(problem),
            along=self.tiles_along(problem.window),
            splits=config.split,
        )

    def _check_reach(
        self, problem: ConvProblem, tile: WinogradTile, x: Pixels, *written: Pixels
    ) -> None:
        """Raise ValueError if an index that the kernel computes exceeds 32 bits."""
        window = problem.window
        # Tiles begin before an image's first position along an axis, and end beyond its last.
        reached = prod(
            max(size, output) + 2 * (pad + self.alpha)
            for size, output, pad in zip(
                window.input, window.output, window.pads_begin, strict=True
            )
        )
        images = problem.n + 1 + tile.bm // self.image_tiles(problem)
        int32(images * reached * max(tensor.pitch for tensor in (x, *written)))
        int32(self.positions * (padded(problem.c) + tile.bc) * (padded(problem.k) + tile.bn))


def _trips(tile: WinogradTile, threads: int) -> Trips:
    apart = (tile.bm // tile.tm) * (tile.bn // tile.tn) // (tile.bn // 4)
    items = tile.bm // tile.data_warps * tile.bc // 32  # of a data warp's lane; or two at once
    return Trips(
        {"STS": items, "STS.64": items // 2, "LDGSTS": tile.bc // apart},
        {"STS": ceil(tile.bm * tile.bn / threads)},
        tile.data_warps,
        tile.tm * tile.tn * tile.bc,
    )
