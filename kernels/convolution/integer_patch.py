"""Launches the kernel conv_integer_patch of kernels/src/tensor_patch.cu, which computes direct
convolutions of bytes."""

from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from kernels.convolution.integer import IntegerSum, signed_bytes
from kernels.convolution.split_sum import TileConfig
from kernels.convolution.tensor_patch import PATCH_TILES, PatchConv, PatchTile, unfit_window
from kernels.device.device import Instantiation
from kernels.device.launch import instantiate, template_arguments
from kernels.layout.operands import Filter
from kernels.problems.activation import Activation
from kernels.problems.conv import ConvProblem
from kernels.problems.refusals import after_prologue, grouped, not_bytes, projecting, wrong_axes

INTEGER_PATCH_TILES = (
    *PATCH_TILES,
    PatchTile(32, 32, 16, 16, 8),
    PatchTile(32, 16, 16, 16, 8),
)
"""The tile sizes to choose from. Two of them are smaller than for halves. A chunk of bytes has
twice as many channels as a chunk of halves, so that a sum has fewer chunks to split."""


@dataclass(frozen=True, slots=True)
class IntegerPatchConv(IntegerSum[TileConfig[PatchTile]], PatchConv):
    """Computes the same convolution as PatchConv, but of unsigned bytes with signed weights."""

    TILES: ClassVar[tuple[PatchTile, ...]] = INTEGER_PATCH_TILES
    MULTIPLIES: ClassVar[str] = "IMMA"

    name: str = "integer patch"

    @override
    def supports(self, problem: ConvProblem) -> str | None:
        """Return why the algorithm cannot compute this convolution, or None if it can. The
        algorithm supports bytes in 2-D and one group, with a window of at least 4 taps whose patch
        fits in shared memory."""
        return (
            not_bytes(problem)
            or after_prologue(problem)
            or wrong_axes(problem, 2)
            or grouped(problem)
            or projecting(problem)
            or unfit_window(problem)
        )

    @override
    def instantiation(
        self,
        problem: ConvProblem,
        config: TileConfig[PatchTile],
        activation: Activation | None = None,
    ) -> Instantiation:
        return instantiate(
            "tensor_patch.cu",
            "conv_integer_patch",
            self.arithmetic(problem).architectures,
            **template_arguments(config.tile),
        )

    @override
    def filter_form(self, problem: ConvProblem, config: TileConfig[PatchTile]) -> str:
        return "filters x slices x taps x channels, int8"

    @override
    def stored_filter(self, weight: Filter) -> Filter:
        return signed_bytes(weight)
