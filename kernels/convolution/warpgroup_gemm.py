"""Launches kernels/src/tensor_gemm.cu with Hopper's products of warpgroups (wgmma)."""

from dataclasses import dataclass, replace
from typing import ClassVar

from typing_extensions import override

from kernels.convolution.tensor_gemm import ROW_BYTES, STEP_BYTES, TensorConv, TensorTile
from kernels.problems.architectures import Architectures
from kernels.problems.conv import ConvProblem
from kernels.problems.precision import Precision

WARPGROUP_TILES = tuple(
    TensorTile(bm=bm, bn=bn, bk=64, wm=16, wn=bn, stages=stages)
    for bm, bn, stages in ((128, 128, 3), (128, 64, 3), (64, 128, 3), (64, 64, 4), (64, 32, 4))
)
"""The tiles to choose from, for halves like TENSOR_TILES. A warpgroup multiplies 64 pixels by all
filters of the tile, and each of its 4 warps 16 of these pixels."""

HOPPER = Architectures(90, 90)
"""The only architecture that has wgmma."""


@dataclass(frozen=True, slots=True)
class WarpgroupConv(TensorConv):
    """Computes TensorConv's matrix product in fp16 and TF32 by wgmma, which reads shared memory
    itself.

    Only pixels of TF32 pass through registers, to be rounded: wgmma would truncate them. A warp has
    4 instructions that multiply a chunk instead of 16 to 128.
    """

    WARPGROUPS: ClassVar[bool] = True
    STATIC_BYTES: ClassVar[int] = 1024  # so that they begin at a multiple of it

    name: str = "tensor wgmma"

    @override
    def supports(self, problem: ConvProblem) -> str | None:
        """Refuse what TensorConv refuses, and 3×TF32, which splits each factor."""
        splits = problem.precision is Precision.TF32X3
        return TensorConv.supports(self, problem) or (
            "3xtf32; it runs tf32 and fp16" if splits else None
        )

    @override
    def blocks_of(self, problem: ConvProblem) -> tuple[TensorTile, ...]:
        bk = ROW_BYTES // problem.precision.stored.itemsize
        return tuple(replace(tile, bk=bk) for tile in WARPGROUP_TILES)

    @override
    def architectures(self, problem: ConvProblem) -> Architectures:
        return HOPPER

    @override
    def products_of_chunk(self, problem: ConvProblem, tile: TensorTile) -> int:
        return ROW_BYTES // STEP_BYTES
