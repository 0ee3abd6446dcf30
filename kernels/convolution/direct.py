"""Implements direct convolution as an implicit matrix product, the fallback that runs any
problem."""

from dataclasses import dataclass
from typing import ClassVar

from kernels.convolution.implicit_gemm import FloatGemm
from kernels.problems.conv import ConvProblem
from kernels.problems.refusals import after_prologue, not_float, projecting


@dataclass(frozen=True, slots=True)
class DirectConv(FloatGemm):
    """Computes y as a matrix product whose left factor is read from x instead of being stored.

    For each group, DirectConv multiplies (N·P·Q) × (C/groups·R·S) by (C/groups·R·S) × (K/groups).
    This is Lavin & Gray's equation 1, computed by the GEMM-based algorithm of Jordà et al. 2021
    (cuConv), section 2.3.1, in the variant that transforms the input while loading it. DirectConv
    runs 2-D and 3-D problems with any stride, dilation, padding and number of groups.
    """

    POINTWISE: ClassVar[bool] = False

    name: str = "direct"

    def supports(self, problem: ConvProblem) -> str | None:
        """Refuse problems whose tensors are not float32, and problems with a prologue or a
        projection."""
        return not_float(problem) or after_prologue(problem) or projecting(problem)
