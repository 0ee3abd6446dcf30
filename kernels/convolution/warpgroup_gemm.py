"""Launches the kernel of kernels/src/tensor_gemm.cu with wgmma, the instruction with which a group
of four warps multiplies matrices on Hopper GPUs."""

from dataclasses import dataclass, replace
from typing import ClassVar

from typing_extensions import override

from kernels.convolution.split_sum import MAX_CLUSTER, TileConfig
from kernels.convolution.tensor_gemm import ROW_BYTES, STEP_BYTES, TensorConv, TensorTile
from kernels.problems.architectures import Architectures
from kernels.problems.conv import ConvProblem
from kernels.problems.precision import Precision

WARPGROUP_TILES = tuple(
    TensorTile(bm=bm, bn=bn, bk=64, wm=16, wn=bn, stages=stages)
    for bm, bn, stages in ((128, 128, 3), (128, 64, 3), (64, 128, 3), (64, 64, 4), (64, 32, 4))
)
"""The tiles to choose from, for halves like TENSOR_TILES. A warpgroup multiplies 64 pixels by all
filters of the tile, and each of its 4 warps has 16 of these pixels."""

HOPPER = Architectures(90, 90)
"""The only architecture that has wgmma. All of its GPUs have clusters of MAX_CLUSTER blocks."""


@dataclass(frozen=True, slots=True)
class WarpgroupConv(TensorConv):
    """Computes the same matrix product as TensorConv with wgmma, which reads its factors directly
    from shared memory.

    Only TF32 pixels pass through registers, where a warp rounds or splits them, because wgmma would
    truncate them. In 3×TF32, each weight is split into two numbers in shared memory. In fp16 and
    TF32 a warp multiplies a chunk with 4 instructions instead of 16 to 128. Blocks that compute
    parts of the same sums may form a cluster, which adds the parts in its shared memory.
    """

    WARPGROUPS: ClassVar[bool] = True
    STATIC_BYTES: ClassVar[int] = 1024  # so that they begin at a multiple of it

    name: str = "tensor wgmma"

    @override
    def configs(self, problem: ConvProblem) -> tuple[TileConfig[TensorTile], ...]:
        """Return every combination of a tile size and a possible number of parts per sum. If the
        blocks of these parts fit in a cluster, also return the configuration in which they form a
        cluster."""
        return TensorConv.configs(self, problem) + tuple(
            replace(one, split=split, cluster=True)
            for one in self.unsplit(problem)
            for split in range(
                2, min(MAX_CLUSTER // one.together, self.most_parts(problem, one)) + 1
            )
        )

    @override
    def dynamic_bytes(self, problem: ConvProblem, config: TileConfig[TensorTile]) -> int:
        """Return the dynamic shared memory of a block in bytes. In 3×TF32, each weight is split
        into two numbers, and two more chunks hold the second numbers."""
        rest = 2 * config.tile.bn * ROW_BYTES if problem.precision is Precision.TF32X3 else 0
        return TensorConv.dynamic_bytes(self, problem, config) + rest

    @override
    def blocks_of(self, problem: ConvProblem) -> tuple[TensorTile, ...]:
        bk = ROW_BYTES // problem.precision.stored.itemsize
        return tuple(replace(tile, bk=bk) for tile in WARPGROUP_TILES)

    @override
    def architectures(self, problem: ConvProblem) -> Architectures:
        return HOPPER

    @override
    def products_of_chunk(self, problem: ConvProblem, tile: TensorTile) -> int:
        products = 3 if problem.precision is Precision.TF32X3 else 1
        return products * (ROW_BYTES // STEP_BYTES)
