"""Creates windows for the tests. They have ONNX's defaults, or are drawn by hypothesis."""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from kernels.problems.conv import ConvProblem
from kernels.problems.window import Window

Axes = tuple[int, ...]

ON_A_DEVICE = settings(
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much],
)
"""Settings for tests of drawn layers. The tests share one device and take very different times. If
an algorithm supports few layers, most drawn layers are filtered out."""


def floor_output(
    size: int, kernel: int, stride: int, dilation: int, pad_begin: int, pad_end: int
) -> int:
    """Return the number of windows that fit entirely inside one padded axis. It is at most 0 if no
    window fits."""
    return (size + pad_begin + pad_end - (dilation * (kernel - 1) + 1)) // stride + 1


def window(
    size: Axes,
    kernel: Axes,
    *,
    strides: Axes | None = None,
    dilations: Axes | None = None,
    pads: Axes | None = None,
    output: Axes | None = None,
) -> Window:
    """Return a window. As in ONNX, `pads` lists the padding at the begin of every axis and then the
    padding at the end of every axis."""
    axes = len(size)
    strides = strides or (1,) * axes
    dilations = dilations or (1,) * axes
    pads = pads or (0,) * (2 * axes)
    begin, end = pads[:axes], pads[axes:]
    fitting = tuple(map(floor_output, size, kernel, strides, dilations, begin, end))
    return Window(size, kernel, strides, dilations, begin, end, output or fitting)


def conv_problem(n: int, c: int, k: int, seen: Window, groups: int = 1) -> ConvProblem:
    """Return a problem. The window is the last required argument, so that lists of cases are easy
    to read."""
    return ConvProblem(n=n, c=c, k=k, window=seen, groups=groups)


@st.composite
def windows(draw: st.DrawFn) -> Window:
    """Draw any small window. Its padding is smaller than the kernel, as ONNX requires for
    pooling."""
    axes = draw(st.sampled_from((2, 2, 3)))

    def each(least: int, most: int) -> Axes:
        return tuple(draw(st.integers(least, most)) for _ in range(axes))

    kernel, strides, dilations = each(1, 4), each(1, 3), each(1, 2)
    begin = tuple(draw(st.integers(0, r - 1)) for r in kernel)
    end = tuple(draw(st.integers(0, r - 1)) for r in kernel)
    least = (
        max(1, d * (r - 1) + 1 - b - e)
        for r, d, b, e in zip(kernel, dilations, begin, end, strict=True)
    )
    size = tuple(fewest + extra for fewest, extra in zip(least, each(0, 4), strict=True))
    return window(size, kernel, strides=strides, dilations=dilations, pads=begin + end)
