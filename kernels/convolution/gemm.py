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
    """Computes y = x · wᵀ, (N·H·W) × C by C × K. GemmConv runs 1×1 (1×1×1) kernels at stride 1,
    without padding, in one group. The input then needs no transformation, because the pixels of an
    NHWC buffer are the rows of x (cuConv, Jordà et al. 2021, section 2.3.1)."""

    POINTWISE: ClassVar[bool] = True

    name: str = "gemm"

    def supports(self, problem: ConvProblem) -> str | None:
        """Refuse all problems except float32 problems with an unpadded 1×1 (1×1×1) kernel, stride 1
        and one group.

        Also refuse a prologue at TF32 and 3×TF32.
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
    """Refuse a prologue at TF32 and 3×TF32, because their kernel does not support it."""
    if problem.prologue is None or problem.precision is Precision.FP32:
        return None
    return f"the prologue {problem.prologue} in {problem.precision.value}; supported: fp32"
