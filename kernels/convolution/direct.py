"""Implements direct convolution in float32 as an implicit matrix product. This algorithm does not
support a fused prologue (normalisation of the input) or projection (1×1 convolution of a
shortcut)."""

from dataclasses import dataclass
from typing import ClassVar

from kernels.convolution.implicit_gemm import FloatGemm
from kernels.problems.conv import ConvProblem
from kernels.problems.refusals import after_prologue, not_float, projecting


@dataclass(frozen=True, slots=True)
class DirectConv(FloatGemm):
    """Computes the convolution as a matrix product of input windows and filters (implicit GEMM).
    The matrix of windows is never stored, because the kernel reads its elements from x.

    For each group, DirectConv multiplies (N·P·Q) × (C/groups·R·S) by (C/groups·R·S) × (K/groups).
    The result is Lavin & Gray's equation 1. Jordà et al. 2021 (cuConv), section 2.3.1, describe
    this GEMM-based algorithm, in which the input is transformed while it is loaded. DirectConv runs
    2-D and 3-D problems with any stride, dilation, padding and number of groups.
    """

    POINTWISE: ClassVar[bool] = False

    name: str = "direct"

    def supports(self, problem: ConvProblem) -> str | None:
        """Return why the algorithm cannot compute this convolution, or None if it can. The
        algorithm supports float32 without a fused prologue or projection."""
        return not_float(problem) or after_prologue(problem) or projecting(problem)
