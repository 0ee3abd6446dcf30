"""Depthwise convolution: each channel alone, so no matrix product and no reuse across channels."""

from dataclasses import dataclass

from kernels.conv_problem import ConvProblem
from kernels.conv_refusals import wrong_axes


@dataclass(frozen=True, slots=True)
class DepthwiseConv:
    """y[n, c·j + i] = x[n, c] ∗ w[c·j + i], j = K/C filters a channel: groups = C > 1, 2-D.

    Bound by memory, R·S multiplications for each output: threads hold a run of rows in registers
    and vectors of neighbouring channels. Howard et al. 2017 (MobileNets), section 3.1, equation 3.
    """

    name: str = "depthwise"

    def supports(self, problem: ConvProblem) -> str | None:
        """None where groups = C > 1 and 2-D; else why not."""
        if not problem.is_depthwise:
            return f"groups {problem.groups}; it runs one channel a group"
        return wrong_axes(problem, 2)

    def multiplications(self, problem: ConvProblem) -> int:
        """N K P Q R S, the padding's zeros counted."""
        return problem.macs
