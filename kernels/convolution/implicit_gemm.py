"""Launches of kernels/src/implicit_gemm.cu: convolution as an implicit matrix product.

What DirectConv and GemmConv share: tiles, the filter's layout, the split of the inner dimension.
TensorConv shares the last, and the arguments (kernels/src/implicit_gemm.cuh).
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from math import ceil, prod
from typing import ClassVar, Generic, Protocol, TypeVar

from kernels.convolution.work import Work
from kernels.device.device import Instantiation
from kernels.device.launch import (
    Launch,
    Value,
    instantiate,
    int32,
    launch,
    struct,
    window_struct,
)
from kernels.layout.operands import (
    FILTER_FORM,
    Filter,
    check_operands,
    padded,
    taps_by_channels_by_filters,
    vectors_in,
)
from kernels.layout.pixels import Pixels
from kernels.layout.strided import VECTOR
from kernels.operations.epilogue import epilogue_arguments, finish
from kernels.operations.prologue import prologue_arguments, prologue_template
from kernels.problems.activation import Activation
from kernels.problems.conv import ConvProblem

MAX_WORKSPACE_BYTES = 16 << 20
"""For the partial sums of one convolution: Lavin & Gray's workspace limit (section 6)."""

MAX_SPLIT = 16
MIN_CHUNKS = 2
"""Of the inner dimension, at least, for each block of a split."""


class AnyTile(Protocol):
    """A block's."""

    @property
    def bm(self) -> int:
        """Output pixels."""

    @property
    def bn(self) -> int:
        """Filters."""

    @property
    def bk(self) -> int:
        """Of the inner dimension, in a chunk."""

    @property
    def threads(self) -> int:
        """Of a block."""

    @property
    def shared_bytes(self) -> int:
        """Of a block, static and dynamic."""

    @property
    def dynamic_bytes(self) -> int:
        """Those that a launch asks for."""

    @property
    def sums(self) -> int:
        """Floats of a block's sums in memory."""


T = TypeVar("T", bound=AnyTile)
ConfigTile = TypeVar("ConfigTile")


@dataclass(frozen=True, slots=True)
class Tile:
    """The tile of a block and of a thread of `conv_direct`; its template has the same names.

    A block computes bm output pixels × bn filters, a thread tm × tn of them. The inner dimension
    is processed in chunks of bk, of which shared memory holds `stages`.
    """

    bm: int
    bn: int
    bk: int
    tm: int
    tn: int
    stages: int

    @property
    def threads(self) -> int:
        """Of a block."""
        return self.bm // self.tm * (self.bn // self.tn)

    @property
    def shared_bytes(self) -> int:
        """Of a block: the chunks, and the window's start for each pixel."""
        pitch = self.bk if self.bk % 32 == 16 else self.bk + VECTOR  # as X_PITCH of the kernel
        return 4 * self.stages * (self.bm * pitch + self.bk * self.bn) + 16 * self.bm

    @property
    def dynamic_bytes(self) -> int:
        """None: the kernel declares its shared memory."""
        return 0

    @property
    def sums(self) -> int:
        """Floats of a block's sums in memory."""
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


@dataclass(frozen=True, slots=True)
class TileConfig(Generic[ConfigTile]):
    """A tile, and over how many blocks its inner dimension is split."""

    tile: ConfigTile
    split: int = 1

    def __str__(self) -> str:
        return str(self.tile) if self.split == 1 else f"{self.tile}/{self.split}"


def unit(problem: ConvProblem) -> int:
    """The channels that are copied at once: 16 bytes, or 8 where fewer half channels suffice."""
    wide = 16 // problem.precision.stored.itemsize
    every = problem.c // problem.groups, problem.projected
    return wide if all(padded(channels) % wide == 0 for channels in every) else VECTOR


def inner_size(problem: ConvProblem) -> int:
    """The length of the matrix product's sums: T·R·S · C/groups + C', the channels padded."""
    channels, projected = (
        padded(each, unit(problem)) for each in (problem.c // problem.groups, problem.projected)
    )
    return problem.window.kernel_volume * channels + projected


def tiles(problem: ConvProblem, tile: AnyTile) -> int:
    """How many tiles cover the output of all images and groups."""
    pixels = problem.n * problem.window.output_volume
    filters = problem.k // problem.groups
    return -(-pixels // tile.bm) * -(-filters // tile.bn) * problem.groups


class ImplicitGemm(Generic[T]):
    """Base of all implicit matrix products: the split of their sums, and their arguments."""

    __slots__ = ()

    def tiles(self, problem: ConvProblem) -> tuple[T, ...]:
        """The tiles to choose from."""
        raise NotImplementedError

    def instantiation(
        self, problem: ConvProblem, tile: T, activation: Activation | None = None
    ) -> Instantiation:
        """The kernel for a tile."""
        raise NotImplementedError

    def dynamic_bytes(self, problem: ConvProblem, tile: T) -> int:  # noqa: ARG002  (the tile's)
        """Of a block's shared memory."""
        return tile.dynamic_bytes

    def further_arguments(self, problem: ConvProblem) -> Mapping[str, Value]:  # noqa: ARG002  (none)
        """Arguments of this kernel alone."""
        return {}

    def multiplications(self, problem: ConvProblem) -> int:
        """N K P Q ((C/groups) R S + C'), padding included."""
        return problem.macs

    def configs(self, problem: ConvProblem) -> tuple[TileConfig[T], ...]:
        """Every tile with every split that leaves each block work and the workspace in bounds."""
        return tuple(
            config
            for tile in self.tiles(problem)
            for config in (TileConfig(tile, split) for split in range(1, MAX_SPLIT + 1))
            if config.split == 1
            or (
                config.split * MIN_CHUNKS <= -(-inner_size(problem) // tile.bk)
                and sum(self.workspace(problem, config).values()) <= MAX_WORKSPACE_BYTES
            )
        )

    def workspace(self, problem: ConvProblem, config: TileConfig[T]) -> Mapping[str, int]:
        """Every block's partial sums; nothing where nothing is split."""
        if config.split == 1:
            return {}
        sums = tiles(problem, config.tile) * config.split * config.tile.sums
        return {"workspace": 4 * sums}

    def counter_bytes(self, problem: ConvProblem, config: TileConfig[T]) -> int:
        """A counter for each tile, zero before and after the launch; 0 where nothing is split."""
        return 0 if config.split == 1 else 4 * tiles(problem, config.tile)

    def launches(
        self,
        problem: ConvProblem,
        config: TileConfig[T],
        x: Pixels,
        y: Pixels,
        residual: Pixels | None = None,
        bias: bool = False,
        activation: Activation | None = None,
    ) -> tuple[Launch]:
        """One, on x, weight, y; bias and residual if there are; workspace and counters if split;
        scale and shift, padded with zeros to 4 channels, if the problem has a prologue.

        Raises ValueError where pixels do not fit the problem, and beyond 32-bit indices.
        """
        check_operands(problem, x, y, residual)
        added, projected = (None, residual) if problem.projection else (residual, None)
        _check_reach(problem, config.tile, x, y, added or y)
        if problem.projection:
            int32(problem.n * prod(problem.projection.input) * (projected or x).pitch)
        tile, groups, split = config.tile, problem.groups, config.split > 1
        c, k, wide = problem.c // groups, problem.k // groups, unit(problem)
        sizes = struct(
            "implicit_gemm.cuh",
            "Sizes",
            pixels=problem.n * problem.window.output_volume,
            channels=c,
            filters=k,
            x_pitch=x.pitch,
            residual_pitch=0 if residual is None else residual.pitch,
            y_pitch=y.pitch,
            x_vectors=vectors_in(x, projected or x, of=wide) and (groups == 1 or c % wide == 0),
            y_vectors=vectors_in(y, added or y) and (groups == 1 or k % VECTOR == 0),
            padded_channels=padded(c, wide),
            filter_tiles=-(-k // tile.bn),
            splits=config.split,
        )
        return (
            launch(
                self.instantiation(problem, tile, activation),
                (tiles(problem, tile) // groups, config.split, groups),
                (tile.threads, 1, 1),
                self.dynamic_bytes(problem, tile),
                x="x",
                weight="weight",
                bias="bias" if bias else 0,
                residual="residual" if residual else 0,
                y="y",
                workspace="workspace" if split else 0,
                counters="counters" if split else 0,
                sizes=sizes,
                window=window_struct(problem.window),
                **self.further_arguments(problem),
                **epilogue_arguments(activation),
            ),
        )


class FloatGemm(ImplicitGemm[Tile]):
    """Base of DirectConv and GemmConv, which differ in the problems that they support."""

    __slots__ = ()
    POINTWISE: ClassVar[bool]
    """Whether windows are single pixels of x, each at its output's place."""

    def tiles(self, problem: ConvProblem) -> tuple[Tile, ...]:  # noqa: ARG002  (the same for all)
        """The tiles to choose from."""
        return TILES

    def instantiation(
        self, problem: ConvProblem, tile: Tile, activation: Activation | None = None
    ) -> Instantiation:
        """The kernel for a tile, with the problem's prologue."""
        prologue = prologue_template(problem.prologue)
        return instantiate(
            "implicit_gemm.cu",
            "conv_direct",
            **asdict(tile),
            pointwise=self.POINTWISE,
            **prologue,
            finish=finish(activation),
        )

    def further_arguments(self, problem: ConvProblem) -> Mapping[str, Value]:
        """Those of the prologue."""
        return prologue_arguments(problem.prologue)

    def work(self, problem: ConvProblem, config: TileConfig[Tile]) -> tuple[Work]:
        """Every block multiplies its chunks, which are prefetched; a tile's last block adds up."""
        tile = config.tile
        chunks = ceil(ceil(inner_size(problem) / tile.bk) / config.split)
        moved = tile.bk * (tile.bm + tile.bn) * chunks + tile.bm * tile.bn
        if problem.prologue and problem.prologue.epsilon is not None:
            moved += tile.bm * problem.c  # for the mean and deviation of each pixel
        return (
            Work(
                kernel=self.instantiation(problem, tile),
                blocks=tiles(problem, tile) * config.split,
                threads=tile.threads,
                shared_bytes=tile.shared_bytes,
                bytes=4 * moved,
                products=tile.tm * tile.tn * tile.bk * chunks,
                vectors=tile.bm * tile.bn / VECTOR / tile.threads,
                rounds=chunks / (tile.stages - 1),
                tail_bytes=4 * tile.bm * tile.bn * (config.split - 1),
                weight_bytes=4 * inner_size(problem) * problem.k,
            ),
        )

    def filter_form(self, problem: ConvProblem, config: TileConfig[Tile]) -> str:  # noqa: ARG002  (one layout serves all)
        """The same for all configurations and all N."""
        return FILTER_FORM.format(groups=problem.groups)

    def prepare_filter(
        self,
        weight: Filter,
        problem: ConvProblem,
        config: TileConfig[Tile],  # noqa: ARG002  (one layout serves all tiles)
    ) -> Filter:
        """K×(C/groups)×R×S → groups × R·S × C/groups × K/groups, the channels padded with zeros.

        The same for every configuration.
        """
        return taps_by_channels_by_filters(weight, problem)


def _check_reach(problem: ConvProblem, tile: AnyTile, x: Pixels, *written: Pixels) -> None:
    """Raise ValueError unless every index that the kernel forms is one of 32 bits."""
    window, k = problem.window, problem.k // problem.groups
    # Windows begin before an image's first position along an axis, and end beyond its last.
    margins = map(max, window.extent, window.pads_begin, window.pads_end)
    reached = prod(2 * margin + size for size, margin in zip(window.input, margins, strict=True))
    pixels = problem.n * window.output_volume + tile.bm
    int32(problem.n * reached * x.pitch)
    int32(pixels * max(each.pitch for each in (x, *written)))
    int32((problem.groups * inner_size(problem) + tile.bk) * (padded(k) + tile.bn))
