"""Lists the convolution algorithms, and finds the algorithms that support a convolution."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple, Protocol, TypeVar

from kernels.convolution.coalesced import CoalescedConv
from kernels.convolution.depthwise import DepthwiseConv
from kernels.convolution.direct import DirectConv
from kernels.convolution.gemm import GemmConv
from kernels.convolution.integer_depthwise import IntegerDepthwiseConv
from kernels.convolution.integer_gemm import IntegerConv, IntegerWarpgroupConv
from kernels.convolution.integer_patch import IntegerPatchConv
from kernels.convolution.tensor_gemm import TensorConv
from kernels.convolution.tensor_patch import PatchConv
from kernels.convolution.tensor_winograd import TensorWinogradConv
from kernels.convolution.tma_gemm import TmaConv
from kernels.convolution.warpgroup_gemm import WarpgroupConv
from kernels.convolution.winograd import WinogradConv
from kernels.convolution.winograd_nonfused import NonfusedWinogradConv
from kernels.convolution.work import Work
from kernels.device.device import Trigger
from kernels.device.launch import Launch
from kernels.layout.operands import ConvTensors, Filter
from kernels.problems.conv import ConvProblem
from kernels.problems.precision import Precision

Config = TypeVar("Config")


class Algorithm(Protocol[Config]):
    """The interface of all convolution algorithms. The docstring of each algorithm names the paper
    and the section that it implements.

    Every method except `supports` takes only problems that the algorithm supports. A configuration
    is a frozen dataclass with the algorithm's parameters, such as tile sizes. Equal configurations
    give equal launches, and different configurations of a problem have different strings (`str`).
    """

    @property
    def name(self) -> str:
        """Return a short and unique name, such as "direct" or "winograd F(2x2,3x3)"."""

    def supports(self, problem: ConvProblem) -> str | None:
        """Return why the algorithm cannot compute this convolution, or None if it can. The result
        does not depend on the number of images."""

    def multiplications(self, problem: ConvProblem) -> int:
        """Return the number of multiplications. Winograd's transforms are not counted."""

    def arithmetic(self, problem: ConvProblem) -> Precision:
        """Return the precision at which elements are multiplied, which may differ from the
        problem's precision."""

    def rounding(self, problem: ConvProblem, config: Config) -> float:
        """Return the output's estimated relative rounding error, in units of float32's eps / 2."""

    def configs(self, problem: ConvProblem) -> tuple[Config, ...]:
        """Return all configurations with which the algorithm can run the problem, at least one."""

    def work(self, problem: ConvProblem, config: Config) -> tuple[Work, ...]:
        """Return a description of each launch, from which the cost model estimates the time."""

    def workspace(self, problem: ConvProblem, config: Config) -> Mapping[str, int]:
        """Return the size in bytes of each temporary buffer of the launches, by operand name."""

    def counter_bytes(self, problem: ConvProblem, config: Config) -> int:
        """Return the size in bytes of the buffer "counters", in which blocks count how many partial
        sums of a tile are written. Return 0 if the launches use no counters. All counters are zero
        before and after a launch."""

    def filter_form(self, problem: ConvProblem, config: Config) -> str:
        """Return a name for the memory layout of the filter that `prepare_filter` returns. Equal
        names mean equal layouts."""

    def prepare_filter(self, weight: Filter, problem: ConvProblem, config: Config) -> Filter:
        """Return the filter K×(C/groups)×R×S in the layout that the launches read as the operand
        "weight". Raises ValueError for a filter that this layout cannot hold."""

    def launches(
        self, problem: ConvProblem, config: Config, tensors: ConvTensors
    ) -> tuple[Launch, ...]:
        """Return the launches that compute y = activation(conv(x, weight) + bias + residual).

        The operands have the names in this formula. y and residual may be the same buffer. The
        kernels neither use nor write the padding between two pixels. Raises ValueError if a tensor
        does not have the problem's number of channels, or if an index exceeds 32 bits.
        """


class ConvChoice(NamedTuple):
    """Holds an algorithm and one of its configurations. `trigger` is the point in each launch at
    which the GPU may begin the next launch."""

    algorithm: Algorithm[Any]
    config: Any
    trigger: Trigger = Trigger.START

    def triggered(self, launches: Iterable[Launch]) -> tuple[Launch, ...]:
        """Return copies of the launches, with this choice's `trigger`."""
        return tuple(
            replace(launch, instantiation=replace(launch.instantiation, trigger=self.trigger))
            for launch in launches
        )

    def __str__(self) -> str:
        return f"{self.algorithm.name} {self.config}"


ALGORITHMS: tuple[Algorithm[Any], ...] = (
    DirectConv(),
    GemmConv(),
    CoalescedConv(),
    DepthwiseConv(),
    TensorConv(),
    WarpgroupConv(),
    TmaConv(),
    PatchConv(),
    IntegerConv(),
    IntegerWarpgroupConv(),
    IntegerPatchConv(),
    IntegerDepthwiseConv(),
    WinogradConv(m=2, r=3, axes=2),
    WinogradConv(m=4, r=3, axes=2),
    WinogradConv(m=2, r=5, axes=2),
    WinogradConv(m=2, r=3, axes=3),
    TensorWinogradConv(m=2, r=3),
    NonfusedWinogradConv(m=2, r=3, axes=2),
    NonfusedWinogradConv(m=4, r=3, axes=2),
    NonfusedWinogradConv(m=2, r=3, axes=3),
)


def candidates(problem: ConvProblem) -> list[Algorithm[Any]]:
    """Return the algorithms that can run the problem, at least one, in the order of ALGORITHMS."""
    return [algorithm for algorithm in ALGORITHMS if algorithm.supports(problem) is None]


def choices(
    problem: ConvProblem, max_shared_bytes: int | None = None, architecture: str | None = None
) -> list[ConvChoice]:
    """Return every algorithm that can run the problem, with each of its configurations.

    With `max_shared_bytes`, leave out choices whose blocks need more shared memory. With
    `architecture`, leave out choices whose kernels do not support this architecture.
    """

    def fits(work: Work) -> bool:
        small = max_shared_bytes is None or work.shared_bytes <= max_shared_bytes
        return small and (architecture is None or work.kernel.architectures.includes(architecture))

    restricted = max_shared_bytes is not None or architecture is not None
    return [
        ConvChoice(algorithm, config)
        for algorithm in ALGORITHMS
        if algorithm.supports(problem) is None
        for config in algorithm.configs(problem)
        if not restricted or all(map(fits, algorithm.work(problem, config)))
    ]


def refusals(problem: ConvProblem) -> dict[str, str]:
    """Return the algorithms that cannot run the problem, as a mapping from name to reason."""
    reasons = {algorithm.name: algorithm.supports(problem) for algorithm in ALGORITHMS}
    return {name: reason for name, reason in reasons.items() if reason is not None}
