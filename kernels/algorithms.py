"""The convolution algorithms, and which of them can run a problem."""

from typing import Protocol

from kernels.conv_coalesced import CoalescedConv
from kernels.conv_depthwise import DepthwiseConv
from kernels.conv_direct import DirectConv
from kernels.conv_gemm import GemmConv
from kernels.conv_problem import ConvProblem
from kernels.conv_winograd import WinogradConv


class Algorithm(Protocol):
    """A way to compute a convolution; its docstring names the paper and section it is from."""

    @property
    def name(self) -> str:
        """Short and unique: "direct", "winograd F(2x2,3x3)"."""

    def supports(self, problem: ConvProblem) -> str | None:
        """None where the algorithm can run the problem, at any N; else why it cannot."""

    def multiplications(self, problem: ConvProblem) -> int:
        """Multiplications of elements that it takes; asked only of problems it supports."""


ALGORITHMS: tuple[Algorithm, ...] = (
    DirectConv(),
    GemmConv(),
    CoalescedConv(),
    DepthwiseConv(),
    WinogradConv(m=2, r=3, axes=2),
    WinogradConv(m=4, r=3, axes=2),
    WinogradConv(m=2, r=3, axes=3),
)


def candidates(problem: ConvProblem) -> list[Algorithm]:
    """The algorithms that can run the problem, never none, in the order of ALGORITHMS."""
    return [algorithm for algorithm in ALGORITHMS if algorithm.supports(problem) is None]


def refusals(problem: ConvProblem) -> dict[str, str]:
    """Why each other algorithm cannot: its name → its reason."""
    reasons = {algorithm.name: algorithm.supports(problem) for algorithm in ALGORITHMS}
    return {name: reason for name, reason in reasons.items() if reason is not None}
