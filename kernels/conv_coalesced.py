"""cuConv: direct convolution in two stages, with coalesced reads and filter rows reused on chip."""

from dataclasses import dataclass

from kernels.conv_problem import ConvProblem
from kernels.conv_refusals import dilated, grouped, strided, wrong_axes, wrong_kernel


@dataclass(frozen=True, slots=True)
class CoalescedConv:
    """Jordà et al. 2021 (cuConv), section 3: a filter row is its C numbers at one tap (r, s).

    First every dot product of a filter row with an input row is taken, the filter row held in
    shared memory: R·S planes of P×Q for each image and filter. Then the R·S planes are summed. At
    1×1 the first stage's planes are the output and there is no second. The paper measures filters
    of 1×1, 3×3 and 5×5 at stride 1 and, at small images and N = 1, gains most.
    """

    name: str = "coalesced"

    def supports(self, problem: ConvProblem) -> str | None:
        """None where 2-D 1×1, 3×3 or 5×5, at stride 1, dilation 1, one group."""
        return (
            wrong_axes(problem, 2)
            or wrong_kernel(problem, (1, 1), (3, 3), (5, 5))
            or strided(problem)
            or dilated(problem)
            or grouped(problem)
        )

    def multiplications(self, problem: ConvProblem) -> int:
        """N K P Q C R S, the padding's zeros counted."""
        return problem.macs
