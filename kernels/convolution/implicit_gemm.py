"""Launches the kernel of kernels/src/implicit_gemm.cu: convolution as an implicit matrix product.

`ImplicitGemm` is the base class of DirectConv, GemmConv and TensorConv. DirectConv and GemmConv
have the same tiles and filter layout, whereas TensorConv has other tiles and another layout. All
three split sums in the same way, and pass the same arguments (kernels/src/implicit_gemm.cuh).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import ceil, prod
from typing import ClassVar, Protocol, TypeVar

from typing_extensions import override

from kernels.convolution.rounding import direct_rounding
from kernels.convolution.split_sum import MIN_CHUNKS, SplitSum, TileConfig, conv_sizes
from kernels.convolution.work import Trips, Work
from kernels.device.device import Instantiation
from kernels.device.launch import Value, instantiate, int32, struct, template_arguments
from kernels.layout.operands import (
    FILTER_FORM,
    ConvTensors,
    Filter,
    padded,
    taps_by_channels_by_filters,
)
from kernels.layout.pixels import Pixels
from kernels.layout.strided import VECTOR
from kernels.operations.epilogue import finish
from kernels.operations.prologue_arguments import prologue_arguments, prologue_template
from kernels.problems.activation import Activation
from kernels.problems.conv import ConvProblem
from kernels.problems.precision import Precision


class AnyTile(Protocol):
    """The interface of tile sizes for implicit matrix products."""

    @property
    def bm(self) -> int:
        """Return the number of output pixels that a block computes."""

    @property
    def bn(self) -> int:
        """Return the number of filters that a block computes."""

    @property
    def bk(self) -> int:
        """Return the number of elements of the inner dimension in a chunk."""

    @property
    def threads(self) -> int:
        """Return the number of threads of a block."""

    @property
    def shared_bytes(self) -> int:
        """Return the bytes of shared memory that a block uses, static and dynamic."""

    @property
    def dynamic_bytes(self) -> int:
        """Return the bytes of dynamic shared memory that a launch requests for each block."""

    @property
    def sums(self) -> int:
        """Return how many floats of memory a block's output sums occupy."""


_PRODUCTS = 256  # of a thread, in an iteration of the innermost loop: implicit_gemm.cu

T = TypeVar("T", bound=AnyTile)


@dataclass(frozen=True, slots=True)
class Tile:
    """Holds the tile sizes of a block and of a thread, named like `conv_direct`'s template
    parameters.

    A block computes bm output pixels × bn filters, and each thread computes tm × tn of them. The
    inner dimension is processed in chunks of bk elements. Shared memory holds `stages` chunks.
    """

    bm: int
    bn: int
    bk: int
    tm: int
    tn: int
    stages: int

    @property
    def threads(self) -> int:
        """Return the number of threads of a block."""
        return self.bm // self.tm * (self.bn // self.tn)

    @property
    def shared_bytes(self) -> int:
        """Return the shared memory of a block in bytes. This memory holds chunks of inputs and
        weights, and the position at which each output pixel's window starts."""
        pitch = self.bk if self.bk % 32 == 16 else self.bk + VECTOR  # as X_PITCH of the kernel
        return 4 * self.stages * (self.bm * pitch + self.bk * self.bn) + 16 * self.bm

    @property
    def dynamic_bytes(self) -> int:
        """Return 0, since the kernel declares all its shared memory statically."""
        return 0

    @property
    def sums(self) -> int:
        """Return how many floats of memory a block's output sums occupy."""
        return self.bm * self.bn

    def __str__(self) -> str:
        return f"{self.bm}x{self.bn}x{self.bk}"


TILES = (
    Tile(bm=128, bn=64, bk=16, tm=8, tn=8, stages=3),
    Tile(bm=64, bn=64, bk=16, tm=8, tn=4, stages=3),
    Tile(bm=64, bn=32, bk=32, tm=8, tn=4, stages=3),
    Tile(bm=32, bn=64, bk=32, tm=4, tn=4, stages=3),
    Tile(bm=32, bn=32, bk=32, tm=4, tn=4, stages=3),
    Tile(bm=16, bn=64, bk=32, tm=4, tn=4, stages=3),
)


def unit(problem: ConvProblem) -> int:
    """Return the number of channels that the kernel copies at once. A copy moves 16 bytes. If the
    channels of a float16 pixel do not fill a multiple of 16 bytes, it moves 8 bytes."""
    wide = 16 // problem.precision.stored.itemsize
    if problem.precision is Precision.INT8:
        return wide
    every = problem.c // problem.groups, problem.projected
    return wide if all(padded(channels) % wide == 0 for channels in every) else VECTOR


def inner_size(problem: ConvProblem) -> int:
    """Return the inner dimension of the matrix product, T·R·S · C/groups + C', with padded
    channels. C' is the number of channels of the projection (the fused 1×1 convolution of a
    shortcut), or 0 without a projection."""
    channels, projected = (
        padded(channels, unit(problem))
        for channels in (problem.c // problem.groups, problem.projected)
    )
    return problem.window.kernel_volume * channels + projected


class ImplicitGemm(SplitSum[TileConfig[T]]):
    """The base class of algorithms that compute a convolution as an implicit matrix product. This
    class divides the sums between blocks, and builds the kernels' arguments."""

    __slots__ = ()
    WRITTEN: ClassVar[int] = VECTOR
    """Channels that a thread writes at once."""

    def blocks_of(self, problem: ConvProblem) -> tuple[T, ...]:
        """Return the tile sizes that the kernel offers for the problem."""
        raise NotImplementedError

    def multiplications(self, problem: ConvProblem) -> int:
        """Return the number of multiplications, N·K·P·Q·((C/groups)·R·S + C'), including products
        with padding. C' is the number of channels of the projection, or 0 without a projection."""
        return problem.macs

    def rounding(self, problem: ConvProblem, config: TileConfig[T]) -> float:  # noqa: ARG002  (the same for all)
        """Return the output's estimated relative rounding error, in units of float32's eps / 2."""
        return direct_rounding(problem)

    @override
    def unsplit(self, problem: ConvProblem) -> Iterable[TileConfig[T]]:
        """Return one configuration per tile size, in which no sum is split between blocks."""
        return map(TileConfig, self.blocks_of(problem))

    @override
    def most_parts(self, problem: ConvProblem, config: TileConfig[T]) -> int:
        return max(1, self.chunks(problem, config.tile) // MIN_CHUNKS)

    def chunks(self, problem: ConvProblem, tile: T) -> int:
        """Return the number of chunks into which the inner dimension is divided."""
        return ceil(inner_size(problem) / tile.bk)

    @override
    def tiles(self, problem: ConvProblem, config: TileConfig[T]) -> int:
        """Return the number of tiles that cover the output of all images and groups."""
        tile = config.tile
        pixels = problem.n * problem.window.output_volume
        filters = problem.k // problem.groups
        return ceil(pixels / tile.bm) * ceil(filters / tile.bn) * problem.groups

    @override
    def part_floats(self, config: TileConfig[T]) -> int:
        return config.tile.sums

    @override
    def clustered(self, config: TileConfig[T]) -> bool:
        return config.cluster

    @override
    def threads(self, config: TileConfig[T]) -> int:
        return config.tile.threads

    @override
    def dynamic_bytes(self, problem: ConvProblem, config: TileConfig[T]) -> int:
        return config.tile.dynamic_bytes

    @override
    def sizes(self, problem: ConvProblem, config: TileConfig[T], tensors: ConvTensors) -> bytes:
        """Return the bytes of the struct `Sizes` (implicit_gemm.cuh). Raises ValueError if an index
        exceeds 32 bits."""
        x, y, residual, *_ = tensors
        added, projected = (y, residual) if problem.projection else (residual or y, None)
        _check_reach(problem, config.tile, x, y, added)
        if problem.projection:
            int32(problem.n * prod(problem.projection.input) * (projected or x).pitch)
        wide = unit(problem)
        return struct(
            "implicit_gemm.cuh",
            "Sizes",
            **conv_sizes(problem, config.tile.bn, tensors, wide, self.WRITTEN),
            pixels=problem.n * problem.window.output_volume,
            padded_channels=padded(problem.c // problem.groups, wide),
            splits=config.split,
        )


class FloatGemm(ImplicitGemm[Tile]):
    """The base class of DirectConv and GemmConv, which run the same float32 kernel on different
    problems."""

    __slots__ = ()
    POINTWISE: ClassVar[bool]
    """Whether every window is a single pixel of x, at the position of its output."""

    @override
    def blocks_of(self, problem: ConvProblem) -> tuple[Tile, ...]:
        return TILES

    @override
    def instantiation(
        self, problem: ConvProblem, config: TileConfig[Tile], activation: Activation | None = None
    ) -> Instantiation:
        """Return the kernel that a configuration runs, with the problem's prologue."""
        prologue = prologue_template(problem.prologue)
        return instantiate(
            "implicit_gemm.cu",
            "conv_direct",
            **template_arguments(config.tile),
            pointwise=self.POINTWISE,
            **prologue,
            finish=finish(activation),
        )

    def arithmetic(self, problem: ConvProblem) -> Precision:  # noqa: ARG002  (the same for all)
        """Return float32, since the kernel uses no tensor cores."""
        return Precision.FP32

    @override
    def further_arguments(self, problem: ConvProblem) -> Mapping[str, Value]:
        return prologue_arguments(problem.prologue)

    def work(self, problem: ConvProblem, config: TileConfig[Tile]) -> tuple[Work]:
        """Return a description of the launch for the cost model. Each thread block prefetches
        chunks of both operands, and multiplies them. The last block of each tile adds the tile's
        partial sums."""
        tile = config.tile
        chunks = ceil(self.chunks(problem, tile) / config.split)
        moved = tile.bk * (tile.bm + tile.bn) * chunks + tile.bm * tile.bn
        if problem.prologue and problem.prologue.epsilon is not None:
            moved += tile.bm * problem.c  # for the mean and deviation of each pixel
        return (
            Work(
                kernel=self.instantiation(problem, config),
                blocks=self.tiles(problem, config) * config.split,
                threads=tile.threads,
                shared_bytes=tile.shared_bytes,
                bytes=4 * moved,
                trips=Trips({"FFMA": tile.bk * tile.tm * tile.tn // _PRODUCTS}, {}),
                products=tile.tm * tile.tn * tile.bk * chunks,
                vectors=tile.bm * tile.bn / VECTOR / tile.threads,
                rounds=chunks / (tile.stages - 1),
                tail_bytes=4 * tile.bm * tile.bn * (config.split - 1),
                weight_bytes=4 * inner_size(problem) * problem.k,
            ),
        )

    def filter_form(self, problem: ConvProblem, config: TileConfig[Tile]) -> str:  # noqa: ARG002  (one layout serves all)
        """Return the name of the filter's layout, which is the same for all configurations and
        batch sizes."""
        return FILTER_FORM.format(groups=problem.groups)

    def prepare_filter(
        self,
        weight: Filter,
        problem: ConvProblem,
        config: TileConfig[Tile],  # noqa: ARG002  (one layout serves all tiles)
    ) -> Filter:
        """Return the filter K×(C/groups)×R×S as groups × R·S × C/groups × K/groups, with channels
        padded with zeros.

        The layout is the same for every configuration.
        """
        return taps_by_channels_by_filters(weight, problem)


def _check_reach(problem: ConvProblem, tile: AnyTile, x: Pixels, *written: Pixels) -> None:
    """Raise ValueError if an index that the kernel computes exceeds 32 bits."""
    window, k = problem.window, problem.k // problem.groups
    # Windows begin before an image's first position along an axis, and end beyond its last.
    margins = map(max, window.extent, window.pads_begin, window.pads_end)
    reached = prod(2 * margin + size for size, margin in zip(window.input, margins, strict=True))
    pixels = problem.n * window.output_volume + tile.bm
    int32(problem.n * reached * x.pitch)
    int32(pixels * max(tensor.pitch for tensor in (x, *written)))
    int32((problem.groups * inner_size(problem) + tile.bk) * (padded(k) + tile.bn))
