"""Launches the kernel of kernels/src/tensor_gemm.cu, which computes convolutions as matrix products
on tensor cores."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import ceil, prod
from typing import ClassVar

import numpy as np
from typing_extensions import override

from kernels.convolution.implicit_gemm import ImplicitGemm, inner_size, unit
from kernels.convolution.split_sum import TileConfig
from kernels.convolution.work import NO_INNER_LOOPS, Trips, Work
from kernels.device.device import Instantiation
from kernels.device.launch import Value, instantiate, struct, template_arguments
from kernels.layout.operands import Filter, check_filter, padded
from kernels.operations.epilogue import finish
from kernels.problems.activation import Activation
from kernels.problems.architectures import Architectures
from kernels.problems.conv import ConvProblem, Projection
from kernels.problems.precision import Precision
from kernels.problems.refusals import after_prologue, not_floating, without_tensor_cores

ROW_BYTES = 128
"""Bytes of a pixel or a filter in one chunk of the inner dimension."""

STEP_BYTES = 32
"""Bytes of the inner dimension that an mma or a wgmma multiplies: 16 halves or 8 TF32 numbers."""


@dataclass(frozen=True, slots=True)
class TensorTile:
    """Holds the tile sizes of a block and of a warp, named like `conv_tensor`'s template
    parameters.

    A block computes bm output pixels × bn filters, and each warp computes wm × wn of them. The
    inner dimension is processed in chunks of bk elements (128 bytes). Shared memory holds `stages`
    chunks.
    """

    bm: int
    bn: int
    bk: int
    wm: int
    wn: int
    stages: int

    @property
    def multiplying(self) -> int:
        """Return the number of threads of a block that multiply, and later write the outputs."""
        return self.bm // self.wm * (self.bn // self.wn) * 32

    @property
    def threads(self) -> int:
        """Return the number of threads of a block."""
        return self.multiplying

    @property
    def sums(self) -> int:
        """Return how many floats of memory a block's output sums occupy."""
        return self.bm * (self.bn + 8)

    @property
    def shared_bytes(self) -> int:
        """Return the shared memory of a block in bytes. The first part holds chunks of inputs and
        weights, and later the output sums. The second part holds the position at which each output
        pixel's window starts."""
        return max(self.stages * (self.bm + self.bn) * ROW_BYTES, 4 * self.sums) + 16 * self.bm

    @property
    def dynamic_bytes(self) -> int:
        """Return the dynamic shared memory of a block in bytes. A block uses no static shared
        memory."""
        return self.shared_bytes

    def __str__(self) -> str:
        return f"{self.bm}x{self.bn}x{self.bk}"


TENSOR_TILES = tuple(
    TensorTile(bm=bm, bn=bn, bk=64, wm=wm, wn=wn, stages=stages)
    for bm, bn, wm, wn, stages in (
        (128, 128, 64, 64, 3),
        (128, 64, 32, 16, 3),
        (64, 128, 32, 32, 3),
        (64, 64, 32, 16, 3),
        (32, 64, 16, 16, 4),
        (32, 32, 16, 16, 6),
        (16, 64, 16, 16, 4),
    )
)
"""The tile sizes to choose from, for halves. A chunk of floats has the same number of bytes and
half as many elements. If a warp computes 64×64 outputs, tensor cores take as many clocks as shared
memory does for all copies and loads. If a warp computes 64×32 outputs, they take a quarter less.
Smaller tiles are for launches with few chunks, which spend most of their time before and after the
chunks. There, a tile with more warps is faster, because each warp has fewer copies and outputs."""

SPLITTING_TILES = (replace(TENSOR_TILES[0], wn=32), *TENSOR_TILES[1:])
"""The tile sizes for 3×TF32. With 64×64 outputs per warp, the split factors and the separate sums
of a chunk would not fit into registers."""


@dataclass(frozen=True, slots=True)
class TensorConv(ImplicitGemm[TensorTile]):
    """Computes the same matrix product as DirectConv with mma.sync, in fp16, TF32 or 3×TF32.

    3×TF32 is nearly as exact as float32. It splits each float32 factor into two TF32 numbers. Sums
    that tensor cores would truncate are computed outside the tensor cores. Source: Ootomo and
    Yokota 2022, "Recovering single precision accuracy from Tensor Cores while surpassing the FP32
    theoretical peak performance", sections 4.1 and 4.3.
    """

    WARPGROUPS: ClassVar[bool] = False
    """Whether products are computed by wgmma instead of mma.sync."""

    STATIC_BYTES: ClassVar[int] = 0
    """Bytes of shared memory that the compiler reserves before the chunks."""

    name: str = "tensor"

    def supports(self, problem: ConvProblem) -> str | None:
        """Return why the algorithm cannot compute this convolution, or None if it can. The
        algorithm supports fp16, TF32 and 3×TF32, without a fused prologue."""
        return without_tensor_cores(problem) or not_floating(problem) or after_prologue(problem)

    @override
    def blocks_of(self, problem: ConvProblem) -> tuple[TensorTile, ...]:
        """Return the tile sizes that the kernel offers for the problem. At every precision, a chunk
        has 128 bytes of each pixel and filter."""
        bk = ROW_BYTES // problem.precision.stored.itemsize
        splits = problem.precision is Precision.TF32X3
        return tuple(replace(tile, bk=bk) for tile in (SPLITTING_TILES if splits else TENSOR_TILES))

    @override
    def dynamic_bytes(self, problem: ConvProblem, config: TileConfig[TensorTile]) -> int:
        """Return the dynamic shared memory of a block in bytes. With a projection, shared memory
        also holds each pixel's position in the projection's input."""
        tile = config.tile
        return tile.dynamic_bytes + (16 * tile.bm if problem.projection else 0)

    @override
    def instantiation(
        self,
        problem: ConvProblem,
        config: TileConfig[TensorTile],
        activation: Activation | None = None,
    ) -> Instantiation:
        """Return the kernel that a configuration runs at the problem's precision."""
        return instantiate(
            "tensor_gemm.cu",
            "conv_tensor",
            self.architectures(problem),
            precision=f"Precision::{problem.precision.name}",
            warpgroups=self.WARPGROUPS,
            unit=unit(problem),
            **template_arguments(config.tile),
            finish=finish(activation),
        )

    def architectures(self, problem: ConvProblem) -> Architectures:
        """Return the architectures that the kernel is compiled for."""
        return problem.precision.architectures

    def products_of_chunk(self, problem: ConvProblem, tile: TensorTile) -> int:
        """Return the number of tensor-core instructions with which a warp multiplies one chunk."""
        products = 3 if problem.precision is Precision.TF32X3 else 1
        return products * (tile.wm // 16) * (tile.wn // 8) * (ROW_BYTES // STEP_BYTES)

    def arithmetic(self, problem: ConvProblem) -> Precision:
        """Return the problem's precision, at which tensor cores multiply."""
        return problem.precision

    @override
    def further_arguments(self, problem: ConvProblem) -> Mapping[str, Value]:
        """Return the kernel argument that describes the shortcut's 1×1 convolution (the
        projection). A problem without a projection gets a description with 0 channels."""
        axes = len(problem.window.input)
        projection = problem.projection or Projection(0, (1,) * axes, (1,) * axes)
        size, strides = (
            (1,) * (3 - axes) + extents for extents in (projection.input, projection.strides)
        )
        given = struct(
            "tensor_gemm.cu", "Projection", channels=projection.c, input=size, stride=strides
        )
        return {"projection": given}

    def work(self, problem: ConvProblem, config: TileConfig[TensorTile]) -> tuple[Work]:
        """Return a description of the launch for the cost model. Blocks prefetch and multiply
        chunks. Without clusters, the last block of each tile adds all partial sums. In a cluster,
        each block adds an equal part of the partial sums."""
        tile, split = config.tile, config.split > 1
        sharing = config.split if config.cluster else 1
        itemsize = problem.precision.stored.itemsize
        chunks = ceil(self.chunks(problem, tile) / config.split)
        outputs = tile.bm * tile.bn / sharing
        return (
            Work(
                kernel=self.instantiation(problem, config),
                blocks=self.tiles(problem, config) * config.split,
                threads=tile.threads,
                shared_bytes=self.dynamic_bytes(problem, config) + self.STATIC_BYTES,
                bytes=self.bytes_of_row(problem, chunks) * self.copied_rows(problem, config)
                + (4 if split and not config.cluster else itemsize) * outputs,
                trips=self.trips(problem, tile),
                products=self.products_of_chunk(problem, tile) * chunks,
                vectors=outputs / self.WRITTEN / tile.multiplying,
                rounds=chunks / (tile.stages - 1),
                tail_bytes=4 * tile.bm * tile.bn * (config.split - 1) // sharing,
                weight_bytes=itemsize * inner_size(problem) * problem.k,
                cluster=prod(self.cluster(config)),
                tail_in_cluster=config.cluster,
            ),
        )

    def trips(self, problem: ConvProblem, tile: TensorTile) -> Trips:  # noqa: ARG002  (no loops, no data warps)
        """Return the trip counts of the kernel's inner loops, and the number of warps that only
        copy."""
        return NO_INNER_LOOPS

    def copied_rows(self, problem: ConvProblem, config: TileConfig[TensorTile]) -> int:  # noqa: ARG002  (all of them)
        """Return the number of pixels plus the number of filters that a block copies for each
        chunk."""
        return config.tile.bm + config.tile.bn

    def bytes_of_row(self, problem: ConvProblem, chunks: int) -> int:  # noqa: ARG002  (whole chunks)
        """Return how many bytes of one pixel or filter a block copies for `chunks` chunks."""
        return ROW_BYTES * chunks

    def filter_form(self, problem: ConvProblem, config: TileConfig[TensorTile]) -> str:  # noqa: ARG002  (one layout serves all tiles)
        """Return the name of the filter's layout, which is the same for all configurations and
        batch sizes."""
        return f"{problem.groups} x filters x taps x channels, {problem.precision.value}"

    def prepare_filter(
        self,
        weight: Filter,
        problem: ConvProblem,
        config: TileConfig[TensorTile],  # noqa: ARG002  (one layout serves all tiles)
    ) -> Filter:
        """Return the filter K×(C/groups + C')×R×S as K × (R·S · C/groups + C'), in the precision's
        type. C' is the number of channels of the projection, or 0 without a projection.

        The channels are padded with zeros to a multiple of `unit(problem)`, and each row is padded
        to a multiple of 16 bytes.
        """
        check_filter(weight, problem)
        stored = problem.precision.stored
        parts = np.split(weight, [problem.c // problem.groups], axis=1)
        row = np.concatenate([taps_by_channels(part, unit(problem)) for part in parts], axis=1)
        row = row.astype(stored)
        if problem.precision is Precision.TF32:
            row = to_tf32(row)
        return np.pad(row, ((0, 0), (0, -row.shape[1] % (16 // stored.itemsize))))


def taps_by_channels(weight: Filter, to: int) -> Filter:
    """Return a filter K×C×R×S as K × (R·S · C), with C padded with zeros to a multiple of `to`."""
    k, c, *taps = weight.shape
    rows = np.moveaxis(weight.reshape(k, c, prod(taps)), 1, -1)
    return np.pad(rows, ((0, 0), (0, 0), (0, padded(c, to) - c))).reshape(k, -1)


def to_tf32(x: Filter) -> Filter:
    """Round float32 to 10 bits of mantissa, ties away from zero, as cvt.rna.tf32 does."""
    bits = x.view(np.uint32)
    finite = (bits & 0x7F800000) != 0x7F800000
    return np.where(finite, (bits + 0x1000) & np.uint32(0xFFFFE000), bits).view(np.float32)
