"""The convolution problem: all that decides whether and how an algorithm runs it."""

from dataclasses import dataclass, replace

from kernels.problems.precision import Precision
from kernels.problems.prologue import Prologue
from kernels.problems.window import Window


@dataclass(frozen=True, slots=True)
class ConvProblem:
    """Convolution (cross-correlation) of N images, letters after Lavin & Gray, section 3.

    x is N×C×H×W, the filter K×(C/groups)×R×S, y is N×K×P×Q; in 3-D D, T and O come before
    H, R and P. These are logical shapes: the CUDA engine stores activations as N·H·W·C.
    """

    n: int
    c: int
    k: int
    window: Window
    groups: int = 1
    precision: Precision = Precision.FP32
    prologue: Prologue | None = None

    def __post_init__(self) -> None:
        if self.n < 1 or self.c < 1 or self.k < 1:
            raise ValueError(f"N, C and K must be at least 1, got {self.n}, {self.c}, {self.k}")
        if self.groups < 1 or self.c % self.groups or self.k % self.groups:
            raise ValueError(f"groups={self.groups} must divide C={self.c} and K={self.k}")

    def with_batch(self, n: int) -> "ConvProblem":
        """The same layer for N = n images."""
        return replace(self, n=n)

    @property
    def is_3d(self) -> bool:
        """Whether the window has a depth axis."""
        return len(self.window.input) == 3

    @property
    def is_depthwise(self) -> bool:
        """Whether every input channel is filtered by itself (K may be a multiple of C)."""
        return self.groups == self.c and self.groups > 1

    @property
    def filter_shape(self) -> tuple[int, ...]:
        """K×(C/groups)×R×S."""
        return (self.k, self.c // self.groups, *self.window.kernel)

    @property
    def output_shape(self) -> tuple[int, ...]:
        """N×K×P×Q."""
        return (self.n, self.k, *self.window.output)

    @property
    def macs(self) -> int:
        """Multiply-accumulates of the direct algorithm, padding counted: N K P Q (C/groups) R S."""
        w = self.window
        return self.n * self.k * w.output_volume * (self.c // self.groups) * w.kernel_volume

    def __str__(self) -> str:
        w = self.window
        size, kernel = ("x".join(map(str, axes)) for axes in (w.input, w.kernel))
        text = f"N{self.n} C{self.c} {size} K{self.k} {kernel}"
        if set(w.strides) != {1}:
            text += f" s{'x'.join(map(str, w.strides))}"
        if any(w.pads_begin + w.pads_end):
            text += f" p{','.join(map(str, w.pads_begin + w.pads_end))}"
        if set(w.dilations) != {1}:
            text += f" d{'x'.join(map(str, w.dilations))}"
        text += f" g{self.groups}" if self.groups > 1 else ""
        text += f" {self.precision.value}" if self.precision is not Precision.FP32 else ""
        return text + (f" after {self.prologue}" if self.prologue else "")
