"""The convolution algorithms, which of them can run a problem, and which have kernels to do it."""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, TypeVar

from kernels.activation import Activation
from kernels.conv_coalesced import CoalescedConv
from kernels.conv_depthwise import DepthwiseConv
from kernels.conv_direct import DirectConv
from kernels.conv_gemm import GemmConv
from kernels.conv_operands import Filter
from kernels.conv_problem import ConvProblem
from kernels.conv_winograd import WinogradConv
from kernels.conv_winograd_nonfused import NonfusedWinogradConv
from kernels.launch import Launch
from kernels.pixels import Pixels
from kernels.work import Work


class Algorithm(Protocol):
    """A way to compute a convolution; its docstring names the paper and section it is from."""

    @property
    def name(self) -> str:
        """Short and unique: "direct", "winograd F(2x2,3x3)"."""

    def supports(self, problem: ConvProblem) -> str | None:
        """None where the algorithm can run the problem, at any N; else why it cannot."""

    def multiplications(self, problem: ConvProblem) -> int:
        """Multiplications of elements that it takes; asked only of problems it supports."""


Config = TypeVar("Config")


class KernelAlgorithm(Algorithm, Protocol[Config]):
    """An algorithm with a kernel; all but `supports` is asked only of problems it supports.

    A configuration is a frozen dataclass: equal ones launch the same.
    """

    def configs(self, problem: ConvProblem) -> tuple[Config, ...]:
        """The ways to run it, never none: what a heuristic or a measurement chooses among."""

    def work(self, problem: ConvProblem, config: Config) -> tuple[Work, ...]:
        """What each of its launches asks of a device."""

    def workspace(self, problem: ConvProblem, config: Config) -> Mapping[str, int]:
        """Device memory for its own use, of any content: bytes by operand."""

    def counter_bytes(self, problem: ConvProblem, config: Config) -> int:
        """For the operand "counters", all zero before and after a launch; 0 where there is none."""

    def filter_form(self, problem: ConvProblem, config: Config) -> str:
        """Names what `prepare_filter` makes of a filter: the same wherever the form is."""

    def prepare_filter(self, weight: Filter, problem: ConvProblem, config: Config) -> Filter:
        """The operand "weight" from K×(C/groups)×R×S, once for all launches. Raises ValueError."""

    def launches(
        self,
        problem: ConvProblem,
        config: Config,
        x: Pixels,
        y: Pixels,
        residual: Pixels | None = None,
        bias: bool = False,
        activation: Activation | None = None,
    ) -> tuple[Launch, ...]:
        """y = activation(conv(x, weight) + bias + residual), on operands by these names, in order.

        y may lie where the residual lies. What pixels have between their channels and their pitch
        is neither used nor written. Raises ValueError where pixels do not have the problem's
        channels, and beyond 32-bit indices.
        """


class ConvChoice(NamedTuple):
    """An algorithm and one of its configurations of a problem."""

    algorithm: KernelAlgorithm[Any]
    config: Any

    def __str__(self) -> str:
        return f"{self.algorithm.name} {self.config}"


_WINOGRAD = (
    WinogradConv(m=2, r=3, axes=2),
    WinogradConv(m=4, r=3, axes=2),
    WinogradConv(m=2, r=5, axes=2),
    WinogradConv(m=2, r=3, axes=3),
    NonfusedWinogradConv(m=2, r=3, axes=2),
    NonfusedWinogradConv(m=4, r=3, axes=2),
    NonfusedWinogradConv(m=2, r=3, axes=3),
)

KERNEL_ALGORITHMS: tuple[KernelAlgorithm[Any], ...] = (
    DirectConv(),
    GemmConv(),
    DepthwiseConv(),
    *_WINOGRAD,
)

ALGORITHMS: tuple[Algorithm, ...] = (
    DirectConv(),
    GemmConv(),
    CoalescedConv(),
    DepthwiseConv(),
    *_WINOGRAD,
)


def candidates(problem: ConvProblem) -> list[Algorithm]:
    """The algorithms that can run the problem, never none, in the order of ALGORITHMS."""
    return [algorithm for algorithm in ALGORITHMS if algorithm.supports(problem) is None]


def choices(problem: ConvProblem, max_shared_bytes: int | None = None) -> list[ConvChoice]:
    """Every algorithm that has a kernel for the problem, with each of its configurations.

    Only those whose blocks make do with `max_shared_bytes`, a device's, where it is given.
    """
    return [
        ConvChoice(algorithm, config)
        for algorithm in KERNEL_ALGORITHMS
        if algorithm.supports(problem) is None
        for config in algorithm.configs(problem)
        if max_shared_bytes is None
        or all(work.shared_bytes <= max_shared_bytes for work in algorithm.work(problem, config))
    ]


def refusals(problem: ConvProblem) -> dict[str, str]:
    """Why each other algorithm cannot: its name → its reason."""
    reasons = {algorithm.name: algorithm.supports(problem) for algorithm in ALGORITHMS}
    return {name: reason for name, reason in reasons.items() if reason is not None}
