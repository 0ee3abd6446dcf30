"""Checks whether an algorithm supports a convolution. Each function returns an error text that
names an unsupported property, or None if the convolution does not have this property."""

from kernels.problems.conv import ConvProblem
from kernels.problems.precision import BYTE, FLOAT, HALF, Precision
from kernels.problems.window import by_axis


def wrong_axes(problem: ConvProblem, axes: int) -> str | None:
    """Return an error text if the problem's number of spatial axes is not `axes`, otherwise
    None."""
    have = len(problem.window.input)
    return None if have == axes else f"{have}-D; supported: {axes}-D"


def wrong_kernel(problem: ConvProblem, *kernels: tuple[int, ...]) -> str | None:
    """Return an error text if the problem's kernel size R×S is not in `kernels`, otherwise None."""
    kernel = problem.window.kernel
    return None if kernel in kernels else f"kernel {by_axis(kernel)}; supported: {_listed(kernels)}"


def strided(problem: ConvProblem) -> str | None:
    """Return an error text if the problem's stride is not 1, otherwise None."""
    strides = problem.window.strides
    return None if set(strides) == {1} else f"stride {by_axis(strides)}; supported: stride 1"


def dilated(problem: ConvProblem) -> str | None:
    """Return an error text if the problem's dilation is not 1, otherwise None."""
    dilations = problem.window.dilations
    if set(dilations) == {1}:
        return None
    return f"dilation {by_axis(dilations)}; supported: dilation 1"


def padded(problem: ConvProblem) -> str | None:
    """Return an error text if the problem has padding, otherwise None."""
    pads = problem.window.pads_begin + problem.window.pads_end
    return f"padding {','.join(map(str, pads))}; supported: none" if any(pads) else None


def grouped(problem: ConvProblem) -> str | None:
    """Return an error text if the problem has more than one group, otherwise None."""
    return None if problem.groups == 1 else f"groups {problem.groups}; supported: 1 group"


def not_float(problem: ConvProblem) -> str | None:
    """Return an error text if the problem's tensors are not float32, otherwise None."""
    stored = problem.precision.stored
    return None if stored == FLOAT else f"{stored.dtype} tensors; supported: float32"


def not_half(problem: ConvProblem) -> str | None:
    """Return an error text if the problem's tensors are not float16, otherwise None."""
    stored = problem.precision.stored
    return None if stored == HALF else f"{stored.dtype} tensors; supported: float16"


def after_prologue(problem: ConvProblem) -> str | None:
    """Return an error text if the problem has a prologue, otherwise None."""
    return f"the prologue {problem.prologue}; supported: none" if problem.prologue else None


def projecting(problem: ConvProblem) -> str | None:
    """Return an error text if the problem has a projection, otherwise None."""
    return "a projection; supported: none" if problem.projection else None


def without_tensor_cores(problem: ConvProblem) -> str | None:
    """Return an error text if the problem's precision is strict float32, otherwise None."""
    return "strict float32" if problem.precision is Precision.FP32 else None


def not_floating(problem: ConvProblem) -> str | None:
    """Return an error text if the problem's tensors are neither float32 nor float16, otherwise
    None."""
    stored = problem.precision.stored
    return None if stored in (FLOAT, HALF) else f"{stored.dtype} tensors; supported: floats"


def not_bytes(problem: ConvProblem) -> str | None:
    """Return an error text if the problem's tensors are not bytes, otherwise None."""
    stored = problem.precision.stored
    return None if stored == BYTE else f"{stored.dtype} tensors; supported: uint8"


def _listed(kernels: tuple[tuple[int, ...], ...]) -> str:
    return ", ".join(map(by_axis, kernels))
