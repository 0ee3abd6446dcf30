"""Launches the kernel of kernels/src/tma_gemm.cu. Hopper's tensor memory accelerator (TMA) copies
tiles, and wgmma multiplies them."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import ceil, prod

from typing_extensions import override

from kernels.convolution.implicit_gemm import inner_size
from kernels.convolution.split_sum import MAX_CLUSTER, TileConfig
from kernels.convolution.tensor_gemm import ROW_BYTES, TensorTile
from kernels.convolution.warpgroup_gemm import WARPGROUP_TILES, WarpgroupConv
from kernels.convolution.work import Trips
from kernels.device.device import Dim3, Instantiation
from kernels.device.launch import Launch, Value, instantiate, struct
from kernels.layout.operands import ConvTensors, padded, vectors_in
from kernels.layout.tensor_maps import matrix_map, pixels_map, windows_refusal
from kernels.operations.epilogue import finish
from kernels.problems.activation import Activation
from kernels.problems.conv import ConvProblem, Projection
from kernels.problems.precision import Precision
from kernels.problems.refusals import grouped
from kernels.problems.window import Window

_COPYING_THREADS = 32

_STAGES = {(128, 128): 3, (128, 64): 4, (64, 128): 4, (64, 64): 4, (64, 32): 6}
_OF_FILTER_ROWS = {(16, 64): 8, (112, 128): 3}
"""The stages of tiles whose filters are wgmma's rows. The pixels of one image of 14×14 or 7×7 fill
tiles of 16 pixels better than tiles of 64. The pixels of 8 such images fill tiles of 112 better
than tiles of 128."""


@dataclass(frozen=True, slots=True)
class TmaTile(TensorTile):
    """Holds the tile sizes of a block of `conv_tensor_tma`.

    Each warp computes 16 pixels × all filters of the tile, as in WarpgroupConv. If wgmma's rows are
    filters (`has_filter_rows`), each warp computes 16 filters × all pixels instead. One additional
    warp only copies.
    """

    @property
    @override
    def threads(self) -> int:
        return self.multiplying + _COPYING_THREADS

    @property
    @override
    def sums(self) -> int:
        return self.bm * (self.bn + (4 if has_filter_rows(self) else 8))

    @property
    @override
    def shared_bytes(self) -> int:
        return max(self.stages * (self.bm + self.bn) * ROW_BYTES, 4 * self.sums)


def has_filter_rows(tile: TensorTile) -> bool:
    """Return whether wgmma's 64 rows are filters and its columns are pixels, instead of the
    reverse. `tile` is one of TMA_TILES."""
    return tile.wn < tile.bn


TMA_TILES = tuple(
    TmaTile(tile.bm, tile.bn, tile.bk, tile.wm, tile.wn, _STAGES[tile.bm, tile.bn])
    for tile in WARPGROUP_TILES
) + tuple(
    TmaTile(bm, bn, bk=64, wm=bm, wn=16, stages=stages)
    for (bm, bn), stages in _OF_FILTER_ROWS.items()
)
"""The tile sizes to choose from, for halves. First come WARPGROUP_TILES, with so many stages that
at least two blocks fit on a multiprocessor. Then come tiles whose rows are filters. TF32 does not
use the latter, because wgmma can read only its rows from registers, and TF32 pixels lie in
registers."""


@dataclass(frozen=True, slots=True)
class TmaConv(WarpgroupConv):
    """Computes the same matrix product as WarpgroupConv. One thread of each block copies whole
    tiles of both factors.

    In a cluster of 2 or 4 blocks, pairs of blocks need the same pixels or the same filters. Each
    block of a pair copies half of this data into the shared memory of both blocks. A cluster may
    also contain the blocks that compute parts of the same sums. A chunk holds the channels of only
    one tap, so most of each chunk is empty if there are few channels. If pixels do not begin at
    multiples of 16 bytes, as in some slices of tensors, WarpgroupConv's kernel is launched instead,
    with a tile of at least the same size.
    """

    name: str = "tensor tma"

    @override
    def supports(self, problem: ConvProblem) -> str | None:
        """Return why the algorithm cannot compute this convolution, or None if it can. The
        algorithm supports fp16 and TF32 with one group, if WarpgroupConv supports the convolution
        and TMA can read its pixels and window. For example, TMA cannot read pixels of 8 bytes."""
        splits = problem.precision is Precision.TF32X3
        return (
            WarpgroupConv.supports(self, problem)
            or ("3xtf32; supported: tf32 and fp16" if splits else None)
            or grouped(problem)
            or _not_copied(problem)
        )

    @override
    def blocks_of(self, problem: ConvProblem) -> tuple[TensorTile, ...]:
        bk = ROW_BYTES // problem.precision.stored.itemsize
        halves = problem.precision is Precision.FP16
        return tuple(
            replace(tile, bk=bk) for tile in TMA_TILES if halves or not has_filter_rows(tile)
        )

    @override
    def unsplit(self, problem: ConvProblem) -> Iterable[TileConfig[TensorTile]]:
        """Return the configurations in which no sum is split between blocks. Each tile size is used
        without clusters, and in clusters of 2 and 4 blocks if the problem has enough tiles."""
        for tile in self.blocks_of(problem):
            of_pixels, of_filters = _tiles(problem, tile)
            yield TileConfig(tile)
            if of_pixels > 1 or of_filters > 1:
                yield TileConfig(tile, together=2)
            if of_pixels > 1 and of_filters > 1:
                yield TileConfig(tile, together=4)

    @override
    def chunks(self, problem: ConvProblem, tile: TensorTile) -> int:
        """Return the number of chunks of the inner dimension. The channels of each tap and the
        channels of the projection are padded to whole chunks."""
        of_tap = ceil(problem.c / tile.bk)
        return problem.window.kernel_volume * of_tap + ceil(problem.projected / tile.bk)

    @override
    def tiles(self, problem: ConvProblem, config: TileConfig[TensorTile]) -> int:
        clusters = zip(_tiles(problem, config.tile), _shape(problem, config), strict=True)
        return config.together * prod(ceil(tiles / size) for tiles, size in clusters)

    @override
    def cluster(self, config: TileConfig[TensorTile]) -> Dim3:
        return (config.together, config.split if config.cluster else 1, 1)

    @override
    def copied_rows(self, problem: ConvProblem, config: TileConfig[TensorTile]) -> int:
        return sum(_copied(problem, config))

    @override
    def dynamic_bytes(self, problem: ConvProblem, config: TileConfig[TensorTile]) -> int:
        return config.tile.dynamic_bytes

    @override
    def trips(self, problem: ConvProblem, tile: TensorTile) -> Trips:
        """Return the trip counts of the kernel's inner loops. In each iteration, one warp copies a
        chunk while the other warps multiply another chunk."""
        return Trips({}, {}, data_warps=1, products=self.products_of_chunk(problem, tile))

    @override
    def instantiation(
        self,
        problem: ConvProblem,
        config: TileConfig[TensorTile],
        activation: Activation | None = None,
    ) -> Instantiation:
        tile = config.tile
        return instantiate(
            "tma_gemm.cu",
            "conv_tensor_tma",
            self.architectures(problem),
            precision=f"Precision::{problem.precision.name}",
            together=config.together,
            filter_rows=has_filter_rows(tile),
            bm=tile.bm,
            bn=tile.bn,
            bk=tile.bk,
            stages=tile.stages,
            finish=finish(activation),
        )

    @override
    def factors(
        self, problem: ConvProblem, config: TileConfig[TensorTile], tensors: ConvTensors
    ) -> Mapping[str, Value]:
        """Return the kernel's first arguments: tensor maps of x, of the weights and of the
        projection's input, and the sizes of the copies. Without a projection, the third map equals
        the map of x."""
        x, residual = tensors.x, tensors.residual
        window, stored = problem.window, problem.precision.stored
        x_rows, weight_rows = _copied(problem, config)
        _, of_filters = _tiles(problem, config.tile)
        of_cluster, filters = _shape(problem, config)
        pitch = padded(inner_size(problem), 16 // stored.itemsize)
        if window.is_pointwise:
            pixels = problem.n * window.output_volume
            of_x = matrix_map("x", stored, problem.c, pixels, x.pitch, x_rows)
        else:
            of_x = pixels_map("x", x, problem.n, window, x_rows)
        return {
            "x": of_x,
            "weight": matrix_map("weight", stored, pitch, problem.k, pitch, weight_rows),
            "projected": pixels_map(
                "residual", residual, problem.n, _window_of(problem.projection), x_rows
            )
            if residual and problem.projection
            else of_x,
            "copies": struct(
                "tma_gemm.cu",
                "Copies",
                chunks=self.chunks(problem, config.tile),
                of_x=self.chunks(replace(problem, projection=None), config.tile),
                tap_chunks=ceil(problem.c / config.tile.bk),
                pointwise=window.is_pointwise,
                pixels=of_cluster,
                filters=filters,
                filter_clusters=ceil(of_filters / filters),
            ),
        }

    @override
    def launches(
        self, problem: ConvProblem, config: TileConfig[TensorTile], tensors: ConvTensors
    ) -> tuple[Launch]:
        x, residual = tensors.x, tensors.residual
        copied = (x, residual) if residual and problem.projection else (x,)
        if vectors_in(*copied, width=16 // problem.precision.stored.itemsize):
            return WarpgroupConv.launches(self, problem, config, tensors)
        by, bm, bn = WarpgroupConv(), config.tile.bm, config.tile.bn
        covering = (tile for tile in by.blocks_of(problem) if tile.bm >= bm and tile.bn >= bn)
        tile = min(covering, key=lambda tile: tile.bm * tile.bn)
        # Of a cluster: the workspace is that of the tile that was chosen.
        split = min(config.split, MAX_CLUSTER)
        alike = TileConfig(tile, split, cluster=split > 1)
        return by.launches(problem, alike, tensors)


def _not_copied(problem: ConvProblem) -> str | None:
    """Return why TMA cannot read the problem's pixels or window, or None if it can."""
    stored = problem.precision.stored
    read = (problem.c, problem.projected) if problem.projection else (problem.c,)
    if any(stored.pitch(channels) * stored.itemsize % 16 for channels in read):
        return (
            f"pixels of {min(read)} {stored.dtype} channels; supported: sizes of 16, 32, ... bytes"
        )
    if problem.window.is_pointwise and problem.projection is None:
        return None
    return windows_refusal(problem.window)


def _window_of(projection: Projection) -> Window:
    """Return the 1×1 window with which a projection reads its input."""
    axes = len(projection.input)
    one, none = (1,) * axes, (0,) * axes
    return Window(projection.input, one, projection.strides, one, none, none, projection.output)


def _tiles(problem: ConvProblem, tile: TensorTile) -> tuple[int, int]:
    """Return the number of tiles that cover the output pixels, and the number that cover the
    filters."""
    return ceil(problem.n * problem.window.output_volume / tile.bm), ceil(problem.k / tile.bn)


def _shape(problem: ConvProblem, config: TileConfig[TensorTile]) -> tuple[int, int]:
    """Return the number of tiles in a cluster along the pixels, and along the filters.

    In a cluster of two blocks, both blocks compute the same pixels if the number of filter tiles is
    even, and if a tile has at least as many pixels as filters or has all pixels. Otherwise both
    blocks compute the same filters.
    """
    tile, together = config.tile, config.together
    of_pixels, of_filters = _tiles(problem, tile)
    same_pixels = of_filters % 2 == 0 and (tile.bm >= tile.bn or of_pixels == 1)
    filters = 1 if together == 1 or (together == 2 and not same_pixels) else 2
    return together // filters, filters


def _copied(problem: ConvProblem, config: TileConfig[TensorTile]) -> tuple[int, int]:
    """Return the number of rows of x, and of rows of the weights, that a block copies for a chunk.
    If two blocks need the same rows, each of them copies half of these rows."""
    pixels, filters = _shape(problem, config)
    return config.tile.bm // filters, config.tile.bn // pixels
