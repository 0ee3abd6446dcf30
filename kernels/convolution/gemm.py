"""Implements a 1×1 convolution as a matrix product."""

from dataclasses import dataclass
from typing import ClassVar

from kernels.convolution.implicit_gemm import FloatGemm
from kernels.problems.conv import ConvProblem
from kernels.problems.precision import Precision
from kernels.problems.refusals import (
    grouped,
    not_float,
    padded,
    projecting,
    strided,
    wrong_kernel,
)


@dataclass(frozen=True, slots=True)
class GemmConv(FloatGemm):
    """Computes a 1×1 convolution as the matrix product y = x · wᵀ, of (N·H·W) × C and C × K.
    GemmConv supports 1×1 (1×1×1) kernels at stride 1, without padding and with one group. The input
    then needs no transformation, because the pixels of an NHWC buffer are the rows of x (cuConv,
    Jordà et al. 2021, section 2.3.1)."""

    POINTWISE: ClassVar[bool] = True

    name: str = "gemm"

    def supports(self, problem: ConvProblem) -> str | None:
        """Return why the algorithm cannot compute this convolution, or None if it can.

        It supports float32 with a 1×1 (1×1×1) kernel, stride 1, no padding and one group. With a
        fused prologue, the precision must be fp32.
        """
        one = (1,) * len(problem.window.input)
        return (
            not_float(problem)
            or wrong_kernel(problem, one)
            or strided(problem)
            or padded(problem)
            or grouped(problem)
            or _prologue_not_in_float(problem)
            or projecting(problem)
        )


def _prologue_not_in_float(problem: ConvProblem) -> str | None:
    """Return an error text if the problem has a prologue at TF32 or 3×TF32, otherwise None.
    Tensor-core kernels support no prologue."""
    if problem.prologue is None or problem.precision is Precision.FP32:
        return None
    return f"the prologue {problem.prologue} in {problem.precision.value}; supported: fp32"
