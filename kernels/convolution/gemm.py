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
    """Computes y = x · wᵀ, (N·H·W) × C by C × K. The pixels of an NHWC buffer already are the rows
    of x. GemmConv runs 1×1 (1×1×1) kernels at stride 1, without padding, in one group. Jordà et al.
    2021 (cuConv), section 2.3.1, show that the input then needs no transformation.
    """

    POINTWISE: ClassVar[bool] = True

    name: str = "gemm"

    def supports(self, problem: ConvProblem) -> str | None:
        """Refuse all problems except float32 problems with an unpadded 1×1 (1×1×1) kernel, stride 1
        and one group.

        A prologue is refused except in strict float32.
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
    """Refuse a prologue if tensor cores multiply, because their kernel supports no prologue."""
    if problem.prologue is None or problem.precision is Precision.FP32:
        return None
    return f"the prologue {problem.prologue} in {problem.precision.value}; supported: fp32"
