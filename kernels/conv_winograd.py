"""Winograd's minimal filtering: fewer multiplications, for more additions and larger error."""

from dataclasses import dataclass
from math import prod

from kernels.conv_problem import ConvProblem
from kernels.conv_refusals import dilated, grouped, strided, wrong_axes, wrong_kernel


@dataclass(frozen=True, slots=True)
class WinogradConv:
    """F(m, r) nested along each of `axes` spatial axes: m outputs from alpha = m + r - 1 inputs.

    Y = Aᵀ[(G g Gᵀ) ⊙ (Bᵀ d B)]A for each tile, the product summed over C in between: Lavin & Gray
    2015, section 4.1, equation 8 and algorithm 1; F(4×4, 3×3) is their section 4.3; in 3-D Lan et
    al. 2017, section 3.2. Stride 1, dilation 1, one group; any padding.
    """

    m: int
    r: int
    axes: int

    @property
    def name(self) -> str:
        """As in the papers: "winograd F(2x2,3x3)"."""
        m, r = ("x".join([str(size)] * self.axes) for size in (self.m, self.r))
        return f"winograd F({m},{r})"

    @property
    def alpha(self) -> int:
        """Length of an input tile along an axis, and multiplications along it: m + r - 1."""
        return self.m + self.r - 1

    def tiles(self, problem: ConvProblem) -> int:
        """Output tiles of one image and filter, the last of an axis perhaps in part beyond it."""
        return prod(-(-size // self.m) for size in problem.window.output)

    def supports(self, problem: ConvProblem) -> str | None:
        """None where the kernel is r along every axis, at stride 1, dilation 1, one group."""
        return (
            wrong_axes(problem, self.axes)
            or wrong_kernel(problem, (self.r,) * self.axes)
            or strided(problem)
            or dilated(problem)
            or grouped(problem)
        )

    def multiplications(self, problem: ConvProblem) -> int:
        """N ⌈P/m⌉ ⌈Q/m⌉ C K alpha², Lavin & Gray, equation 19; the transforms need none more."""
        per_tile: int = self.alpha**self.axes
        return problem.n * self.tiles(problem) * problem.c * problem.k * per_tile
