"""Defines the convolution problem, from which an algorithm decides whether and how it can compute
the convolution."""

from dataclasses import dataclass, replace

from kernels.problems.precision import Precision
from kernels.problems.prologue import Prologue
from kernels.problems.window import Window, by_axis


@dataclass(frozen=True, slots=True)
class Projection:
    """A 1×1 convolution of another input x'. Its result is added to the result of the main 1×1
    convolution, as in ResNet's shortcuts.

    x' is N×C'×H'×W'. With strides u' and v', output position (p, q) reads position (u'·p, v'·q) of
    x'.
    """

    c: int
    input: tuple[int, ...]
    strides: tuple[int, ...]

    @property
    def output(self) -> tuple[int, ...]:
        """Return the extents of an output image, P×Q."""
        return tuple(-(-h // u) for h, u in zip(self.input, self.strides, strict=True))


@dataclass(frozen=True, slots=True)
class ConvProblem:
    """A convolution (cross-correlation) of N images. The letters are the same as in Lavin & Gray,
    section 3.

    x is N×C×H×W, the filter is K×(C/groups)×R×S, and y is N×K×P×Q. In 3-D, the axes D, T and O
    stand before H, R and P. These are logical shapes: the CUDA engine stores activations as
    N·H·W·C.
    """

    n: int
    c: int
    k: int
    window: Window
    groups: int = 1
    precision: Precision = Precision.FP32
    prologue: Prologue | None = None
    projection: Projection | None = None

    def __post_init__(self) -> None:
        if self.n < 1 or self.c < 1 or self.k < 1:
            raise ValueError(f"N, C and K must be at least 1, got {self.n}, {self.c}, {self.k}")
        if self.groups < 1 or self.c % self.groups or self.k % self.groups:
            raise ValueError(f"groups={self.groups} must divide C={self.c} and K={self.k}")
        if self.projection is None:
            return
        if self.groups > 1 or self.window.kernel_volume > 1:
            raise ValueError("a projection needs a 1×1 convolution with one group")
        if self.precision is Precision.FP32:
            raise ValueError("a projection needs tensor cores, so the precision must not be fp32")
        if self.projection.output != self.window.output:
            raise ValueError(
                f"the projection must have the output's size {self.window.output},"
                f" got {self.projection.output}"
            )

    def with_batch(self, n: int) -> "ConvProblem":
        """Return this problem with N = n images."""
        return replace(self, n=n)

    @property
    def is_3d(self) -> bool:
        """Return whether the window has a depth axis."""
        return len(self.window.input) == 3

    @property
    def is_depthwise(self) -> bool:
        """Return whether every input channel is filtered separately. K may be a multiple of C."""
        return self.groups == self.c and self.groups > 1

    @property
    def filter_shape(self) -> tuple[int, ...]:
        """Return the filter's shape K×(C/groups)×R×S, or K×(C + C')×1×1 with a projection."""
        return (self.k, self.c // self.groups + self.projected, *self.window.kernel)

    @property
    def projected(self) -> int:
        """Return the projection's number of channels, or 0 without a projection."""
        return self.projection.c if self.projection else 0

    @property
    def output_shape(self) -> tuple[int, ...]:
        """Return the shape of the output, N×K×P×Q."""
        return (self.n, self.k, *self.window.output)

    @property
    def macs(self) -> int:
        """Return the number of multiply-adds of direct convolution, N K P Q ((C/groups) R S + C').

        C' is the number of channels of `projection`, or 0 if there is none. Products with padding
        count, too.
        """
        w = self.window
        inner = self.c // self.groups * w.kernel_volume + self.projected
        return self.n * self.k * w.output_volume * inner

    def __str__(self) -> str:
        w = self.window
        size, kernel = by_axis(w.input), by_axis(w.kernel)
        text = f"N{self.n} C{self.c} {size} K{self.k} {kernel}"
        if set(w.strides) != {1}:
            text += f" s{by_axis(w.strides)}"
        if any(w.pads_begin + w.pads_end):
            text += f" p{','.join(map(str, w.pads_begin + w.pads_end))}"
        if set(w.dilations) != {1}:
            text += f" d{by_axis(w.dilations)}"
        text += f" g{self.groups}" if self.groups > 1 else ""
        if self.projection is not None:
            size, strides = (
                by_axis(sizes) for sizes in (self.projection.input, self.projection.strides)
            )
            text += f" + C{self.projection.c} {size} s{strides}"
        text += f" {self.precision.value}" if self.precision is not Precision.FP32 else ""
        return text + (f" after {self.prologue}" if self.prologue else "")


def same_padded(size: tuple[int, ...], kernel: int, c: int, k: int, stride: int = 1) -> ConvProblem:
    """Return a convolution of one H×W (D×H×W) image. At stride 1, the padding keeps the image's
    size.

    The kernel has the same odd size along every axis.
    """
    axes = len(size)
    pads = (kernel // 2,) * axes
    return ConvProblem(
        n=1,
        c=c,
        k=k,
        window=Window(
            input=size,
            kernel=(kernel,) * axes,
            strides=(stride,) * axes,
            dilations=(1,) * axes,
            pads_begin=pads,
            pads_end=pads,
            output=tuple((extent - 1) // stride + 1 for extent in size),
        ),
    )
