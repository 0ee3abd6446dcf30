"""Defines convolution in plain NumPy, as a reference for the kernels.

Arrays have ONNX's logical order with the batch axis first: N×C×H×W, or N×C×D×H×W in 3-D. A
convolution computes in the type of its input, and all inputs must have the same type. Tests use
float64 to check a kernel, and float32 to see the effect of rounding alone.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.problems.conv import ConvProblem, Projection
from kernels.problems.window import Window

Array = NDArray[np.floating[Any]]


def conv(
    x: Array,
    weight: Array,
    problem: ConvProblem,
    bias: Array | None = None,
    residual: Array | None = None,
) -> Array:
    """Return y = conv(x, weight) + bias + residual, N×C×H×W → N×K×P×Q.

    weight is K×(C/groups)×R×S, bias is K, and residual is N×K×P×Q. This is Lavin & Gray's equation
    1 with strides u and v, dilations d and e, and padding a and b before the image:

        y[n,k,p,q] = Σ_c,r,s x[n, c, u·p + d·r - a, v·q + e·s - b] · weight[k,c,r,s]

    where x is zero outside the image. If the problem has a projection, the residual is N×C'×H'×W',
    and the last C' channels of the K×(C + C')×1×1 weight convolve the residual before it is added.
    Raises ValueError if an array does not have the shape that `problem` requires.
    """
    require_one_type(x, weight, bias, residual)
    require_shape("x", x, (problem.n, problem.c, *problem.window.input))
    require_shape("weight", weight, problem.filter_shape)
    if bias is not None:
        require_shape("bias", bias, (problem.k,))
    weight, last = np.split(weight, [problem.c // problem.groups], axis=1)
    if problem.projection is not None:
        residual = _projected(residual, last, problem.projection)
    if residual is not None:
        require_shape("residual", residual, problem.output_shape)

    # One image at a time, so that only one is ever held padded and unrolled.
    y = np.stack([_conv_image(image, weight, problem) for image in x])
    if bias is not None:
        y += per_channel(bias, y.ndim)
    return y if residual is None else y + residual


def _projected(x: Array | None, weight: Array, projection: Projection) -> Array:
    """Return the residual x after its 1×1 convolution, N×C'×H'×W' → N×K×P×Q. The weight is
    K×C'×1×1, and the strides are the projection's."""
    if x is None:
        raise ValueError("the problem has a projection and needs a residual to project")
    require_shape("residual", x, (len(x), projection.c, *projection.input))
    seen = x[:, :, *(slice(None, None, stride) for stride in projection.strides)]
    return np.moveaxis(np.tensordot(seen, weight.reshape(weight.shape[:2]), (1, 1)), -1, 1)


def _conv_image(image: Array, weight: Array, problem: ConvProblem) -> Array:
    """Convolve C×H×W → K×P×Q: for each group, sum the matrix products (K/g × C/g) · (C/g × PQ) over
    the taps."""
    window, groups = problem.window, problem.groups
    k, c = problem.k // groups, problem.c // groups
    taps = weight.reshape(groups, k, c, window.kernel_volume)
    y = np.zeros((groups, k, window.output_volume), image.dtype)
    for tap, seen in enumerate(seen_by_taps(padded(image, window, 0.0), window)):
        y += taps[..., tap] @ seen.reshape(groups, c, window.output_volume)
    return y.reshape(problem.k, *window.output)


def padded(x: Array, window: Window, fill: float) -> Array:
    """Return x with a border of `fill`, so that every window lies inside the result."""
    reach = [
        (p - 1) * stride + extent
        for p, stride, extent in zip(window.output, window.strides, window.extent, strict=True)
    ]
    widths = [
        (begin, max(0, end - begin - size))
        for begin, end, size in zip(window.pads_begin, reach, window.input, strict=True)
    ]
    untouched = [(0, 0)] * (x.ndim - len(widths))
    return np.pad(x, untouched + widths, constant_values=fill)


def seen_by_taps(padded: Array, window: Window) -> Iterator[Array]:
    """For each tap (r, s) of the window, yield a view of the ...×P×Q elements that the tap
    reads."""
    for tap in np.ndindex(window.kernel):
        spans = [
            slice(d * r, d * r + stride * (p - 1) + 1, stride)
            for r, d, stride, p in zip(
                tap, window.dilations, window.strides, window.output, strict=True
            )
        ]
        every_leading_axis = [slice(None)] * (padded.ndim - len(spans))
        yield padded[tuple(every_leading_axis + spans)]


def per_channel(vector: Array, ndim: int) -> Array:
    """Return C numbers reshaped to broadcast over N×C×...."""
    return vector.reshape(-1, *(1,) * (ndim - 2))


def require_shape(name: str, array: Array, shape: tuple[int, ...]) -> None:
    """Raise ValueError if an array does not have the given shape."""
    if array.shape != shape:
        raise ValueError(f"{name} must have the problem's shape {shape}, got {array.shape}")


def require_one_type(*arrays: Array | None) -> None:
    """Raise TypeError if the arrays are neither all float32 nor all float64."""
    types = {array.dtype for array in arrays if array is not None}
    if len(types) != 1 or not types <= {np.dtype(np.float32), np.dtype(np.float64)}:
        raise TypeError(
            f"operands must all be float32 or all float64, got {sorted(map(str, types))}"
        )
