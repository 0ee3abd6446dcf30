"""Launches the kernel of kernels/src/integer_gemm.cu, which computes convolutions of bytes as
implicit matrix products."""

from dataclasses import dataclass, replace
from typing import ClassVar

from typing_extensions import override

from kernels.convolution.implicit_gemm import inner_size, unit
from kernels.convolution.integer import IntegerSum, signed_bytes
from kernels.convolution.split_sum import TileConfig
from kernels.convolution.tensor_gemm import (
    SPLITTING_TILES,
    STEP_BYTES,
    TensorConv,
    TensorTile,
    taps_by_channels,
)
from kernels.convolution.warpgroup_gemm import HOPPER, WARPGROUP_TILES, WarpgroupConv
from kernels.device.device import Instantiation
from kernels.device.launch import instantiate, template_arguments
from kernels.layout.operands import Filter, check_filter
from kernels.problems.activation import Activation
from kernels.problems.architectures import Architectures
from kernels.problems.conv import ConvProblem
from kernels.problems.refusals import after_prologue, not_bytes, projecting

_ROW_BYTES = 128
"""Bytes of a pixel or a filter in one chunk of the inner dimension."""

INTEGER_TILES = (
    *(replace(tile, bk=_ROW_BYTES) for tile in SPLITTING_TILES),
    TensorTile(bm=16, bn=32, bk=_ROW_BYTES, wm=16, wn=16, stages=6),
)
"""The tile sizes to choose from. The last one exists only for bytes. A chunk of bytes has twice as
many channels as a chunk of halves, so that a sum has fewer chunks to split. In the first tile, a
warp has fewer filters than for halves, because more warps write bytes sooner."""


@dataclass(frozen=True, slots=True)
class IntegerConv(IntegerSum[TileConfig[TensorTile]], TensorConv):
    """Computes the same matrix product as TensorConv, but of unsigned bytes with signed weights."""

    name: str = "integer"

    @override
    def supports(self, problem: ConvProblem) -> str | None:
        """Return why the algorithm cannot compute this convolution, or None if it can. The
        algorithm supports quantized tensors without a fused prologue or projection."""
        return not_bytes(problem) or after_prologue(problem) or projecting(problem)

    @override
    def blocks_of(self, problem: ConvProblem) -> tuple[TensorTile, ...]:
        return INTEGER_TILES

    @override
    def instantiation(
        self,
        problem: ConvProblem,
        config: TileConfig[TensorTile],
        activation: Activation | None = None,
    ) -> Instantiation:
        return instantiate(
            "integer_gemm.cu",
            "conv_integer",
            self.architectures(problem),
            warpgroups=self.WARPGROUPS,
            **template_arguments(config.tile),
        )

    @override
    def bytes_of_row(self, problem: ConvProblem, chunks: int) -> int:
        return min(super(IntegerConv, self).bytes_of_row(problem, chunks), inner_size(problem))

    @override
    def filter_form(self, problem: ConvProblem, config: TileConfig[TensorTile]) -> str:
        return f"{problem.groups} x filters x taps x channels, int8"

    @override
    def prepare_filter(
        self, weight: Filter, problem: ConvProblem, config: TileConfig[TensorTile]
    ) -> Filter:
        """Return the filter, K×(C/groups)×R×S whole numbers, as K × (R·S · C/groups) signed bytes.

        The channels are padded with zeros to a multiple of 16. Raises ValueError if a number does
        not fit a signed byte.
        """
        check_filter(weight, problem)
        return taps_by_channels(signed_bytes(weight), unit(problem))


@dataclass(frozen=True, slots=True)
class IntegerWarpgroupConv(IntegerConv):
    """Computes the same matrix product as IntegerConv with Hopper's wgmma, which reads both factors
    from shared memory."""

    WARPGROUPS: ClassVar[bool] = True
    STATIC_BYTES: ClassVar[int] = WarpgroupConv.STATIC_BYTES

    name: str = "integer wgmma"

    @override
    def blocks_of(self, problem: ConvProblem) -> tuple[TensorTile, ...]:
        return tuple(replace(tile, bk=_ROW_BYTES) for tile in WARPGROUP_TILES)

    @override
    def architectures(self, problem: ConvProblem) -> Architectures:
        return HOPPER

    @override
    def products_of_chunk(self, problem: ConvProblem, tile: TensorTile) -> int:
        return _ROW_BYTES // STEP_BYTES
