"""Defines every operation as a function in plain NumPy, as a reference for the kernels.

The reference for convolutions is in kernels/reference.py, because the tuner also checks candidates
with it.

Arrays have ONNX's logical order with the batch axis first: N×C×H×W, or N×C×D×H×W in 3-D. A function
computes in the type of its input, and refuses inputs of different types. Kernels are checked with
float64. float32 shows the effect of rounding alone. Axes are counted without the batch axis: axis 0
is C.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import erf, erfc, pi, sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels import reference
from kernels.problems.activation import Activation, ActivationKind
from kernels.problems.conv import ConvProblem
from kernels.problems.pool import PoolKind, PoolProblem
from kernels.problems.precision import Storage
from kernels.problems.prologue import Prologue
from kernels.problems.reduction import ReduceKind
from kernels.problems.window import Window
from kernels.reference import padded, per_channel, require_one_type, require_shape, seen_by_taps

Array = NDArray[np.floating[Any]]


def conv(
    x: Array,
    weight: Array,
    problem: ConvProblem,
    bias: Array | None = None,
    residual: Array | None = None,
    activation: Activation | None = None,
) -> Array:
    """Return y = activation(conv(x, weight) + bias + residual), with kernels/reference.py."""
    return activate(reference.conv(x, weight, problem, bias, residual), activation)


def gemm(
    x: Array,
    weight: Array,
    bias: Array | None = None,
    activation: Activation | None = None,
) -> Array:
    """Return y = activation(x · weightᵀ + bias), N×...×C → N×...×K, with weight K×C and bias K."""
    require_one_type(x, weight, bias)
    y = x @ weight.T
    return activate(y if bias is None else y + bias, activation)


def product(a: Array, b: Array) -> Array:
    """Return y = a · b, a product of matrices along the last two axes. The other axes broadcast."""
    require_one_type(a, b)
    return a @ b


def attention(q: Array, k: Array, v: Array, bias: Array, scale: float) -> Array:
    """Return softmax(scale · q · kᵀ + bias) · v. The matrices lie along the last two axes."""
    scores = product(q, k.swapaxes(-1, -2)) * q.dtype.type(scale) + bias
    return product(softmax(scores, scores.ndim - 2), v)


def pool(x: Array, problem: PoolProblem) -> Array:
    """Return the maximum or average of each window, N×C×H×W → N×C×P×Q.

    A maximum ignores padding. An average divides by the number of positions of the window that are
    inside the image or, for AVERAGE_PADDED, inside the explicitly padded image. The last windows of
    `ceil_mode` may extend beyond the padding. Positions there never count.
    """
    window = problem.window
    require_shape("x", x, (len(x), problem.c, *window.input))
    if problem.kind is PoolKind.MAX:
        y = np.full((len(x), problem.c, *window.output), -np.inf, x.dtype)
        for seen in seen_by_taps(padded(x, window, -np.inf), window):
            np.maximum(y, seen, out=y)
        return y
    return _window_sum(x, window) / _divisor(problem, x.dtype)


def _window_sum(x: Array, window: Window) -> Array:
    y = np.zeros((*x.shape[: -len(window.input)], *window.output), x.dtype)
    for seen in seen_by_taps(padded(x, window, 0.0), window):
        y += seen
    return y


def _divisor(problem: PoolProblem, dtype: np.dtype[Any]) -> Array:
    """Return the number of positions that count in the average of each window, P×Q."""
    counted = np.ones(problem.window.input, dtype)
    if problem.kind is PoolKind.AVERAGE:
        return _window_sum(counted, problem.window)
    explicit = tuple(zip(problem.window.pads_begin, problem.window.pads_end, strict=True))
    counted = np.pad(counted, explicit, constant_values=1.0)
    none = (0,) * counted.ndim
    padding_is_image = replace(problem.window, input=counted.shape, pads_begin=none, pads_end=none)
    return _window_sum(counted, padding_is_image)


def global_pool(x: Array, kind: PoolKind) -> Array:
    """Return the maximum or average over each whole channel, N×C×H×W → N×C×1×1. In 3-D, a channel
    is D×H×W."""
    spatial = tuple(range(2, x.ndim))
    if kind is PoolKind.MAX:
        return np.asarray(x.max(axis=spatial, keepdims=True))
    return np.asarray(x.mean(axis=spatial, keepdims=True))


def scale_shift(
    x: Array, scale: Array, shift: Array, activation: Activation | None = None
) -> Array:
    """Return y = activation(x · scale + shift), N×C×.... scale and shift have one number per
    channel."""
    require_one_type(x, scale, shift)
    return activate(x * per_channel(scale, x.ndim) + per_channel(shift, x.ndim), activation)


def lrn(x: Array, size: int, alpha: float, beta: float, bias: float) -> Array:
    """Return x, N×C×..., after local response normalisation across channels (ONNX LRN).

    y[c] = x[c] / (bias + alpha / size · Σ x[i]²)^beta. The sum has the channels i from c -
    floor((size - 1) / 2) to c + ceil((size - 1) / 2), as far as they exist.
    """
    before, after = (size - 1) // 2, size // 2
    squares = np.square(x)
    channels = x.shape[1]
    total = np.stack(
        [squares[:, max(0, c - before) : c + after + 1].sum(axis=1) for c in range(channels)],
        axis=1,
    )
    return np.asarray(x / (bias + alpha / size * total) ** beta)


def normalise(
    x: Array,
    scale: Array,
    shift: Array,
    axes: Sequence[int],
    epsilon: float,
    groups: int = 1,
    activation: Activation | None = None,
) -> Array:
    """Return y = activation((x - mean) / sqrt(variance + epsilon) · scale + shift), N×C×....

    Mean and variance are computed over `axes`. If axis 0 is one of them, it is divided into
    `groups` ranges. Scale and shift broadcast to one image (ONNX LayerNormalization,
    GroupNormalization, InstanceNormalization).
    """
    require_one_type(x, scale, shift)
    n, c, *rest = x.shape
    runs = x.reshape(n, groups, c // groups, *rest)
    over = tuple(axis + 2 for axis in axes)
    centred = runs - runs.mean(axis=over, keepdims=True)
    variance = np.square(centred).mean(axis=over, keepdims=True)
    y = (centred / np.sqrt(variance + x.dtype.type(epsilon))).reshape(x.shape)
    return activate(y * scale + shift, activation)


def prologue(x: Array, scale: Array, shift: Array, problem: Prologue) -> Array:
    """Apply a prologue to a convolution's input, N×C×.... scale and shift have one number per
    channel."""
    if problem.epsilon is None:
        return scale_shift(x, scale, shift, problem.activation)
    scale, shift = (per_channel(vector, x.ndim) for vector in (scale, shift))
    return normalise(x, scale, shift, (0,), problem.epsilon, activation=problem.activation)


_REDUCTIONS: Mapping[ReduceKind, Callable[..., Array]] = {
    ReduceKind.SUM: np.sum,
    ReduceKind.MEAN: np.mean,
    ReduceKind.MAX: np.max,
    ReduceKind.MIN: np.min,
    ReduceKind.L2: lambda x, **along: np.sqrt(np.sum(np.square(x), **along)),
}


def reduce(x: Array, kind: ReduceKind, axes: Sequence[int]) -> Array:
    """Return x reduced along `axes`. These axes remain, with size 1."""
    along = tuple(axis + 1 for axis in axes)
    return np.asarray(_REDUCTIONS[kind](x, axis=along, keepdims=True))


def resample(x: Array, taps: Sequence[Array]) -> Array:
    """Return y[c, p, q] = Σ_i,j h[p, i] · w[q, j] · x[c, h'[p, i], w'[q, j]], N×C×H×W → N×C×P×Q.

    `taps` has an array P×T×2 for each spatial axis. For each output position, the array has T pairs
    of an input position and its factor.
    """
    for axis, table in enumerate(taps, start=2):
        positions, factors = table[..., 0].astype(np.int64), table[..., 1]
        along = [1] * x.ndim
        along[axis] = len(table)
        seen = [
            x.take(positions[:, tap], axis) * factors[:, tap].reshape(along)
            for tap in range(table.shape[1])
        ]
        x = np.sum(seen, axis=0)
    return x


def prelu(a: Array, b: Array) -> Array:
    """Return a where a >= 0, and a · b elsewhere (ONNX PRelu). b broadcasts."""
    return np.where(a >= 0.0, a, a * b)


def binary(
    a: Array, b: Array, op: Callable[[Array, Array], Array], activation: Activation | None = None
) -> Array:
    """Return y = activation(op(a, b)), broadcast like NumPy. op is np.add, np.maximum, prelu,
    ...."""
    require_one_type(a, b)
    return activate(op(a, b), activation)


def activate(x: Array, activation: Activation | None) -> Array:
    """Return activation(x), with the formula of `ActivationKind`. If there is no activation, return
    x."""
    if activation is None:
        return x
    a, b = activation.a, activation.b
    match activation.kind:
        case ActivationKind.RELU:
            return np.maximum(x, 0.0)
        case ActivationKind.CLIP:
            return np.minimum(np.maximum(x, a), b)
        case ActivationKind.LEAKY_RELU:
            return np.where(x >= 0.0, x, a * x)
        case ActivationKind.SIGMOID:
            return _sigmoid(x)
        case ActivationKind.HARD_SIGMOID:
            return np.asarray(np.clip(a * x + b, 0.0, 1.0))
        case ActivationKind.HARD_SWISH:
            return np.asarray(x * np.clip(x / 6.0 + 0.5, 0.0, 1.0))
        case ActivationKind.SILU:
            return x * _sigmoid(x)
        case ActivationKind.TANH:
            return np.tanh(x)
        case ActivationKind.ERF:
            return _each(erf, x)
        case ActivationKind.GELU:
            # 1 + erf(z) = erfc(-z), which keeps its digits where erf(z) nears -1.
            return np.asarray(x / 2.0 * _each(erfc, -x / sqrt(2.0)))
        case ActivationKind.GELU_TANH:
            # 1 + tanh(z) = 2 sigmoid(2z), likewise.
            return x * _sigmoid(2.0 * sqrt(2.0 / pi) * (x + 0.044715 * x**3))
        case ActivationKind.ELU:
            return np.where(x > 0.0, b * x, a * np.expm1(np.minimum(x, 0.0)))
        case ActivationKind.SOFTPLUS:
            return _softplus(x)
        case ActivationKind.MISH:
            return x * np.tanh(_softplus(x))
        case ActivationKind.SQRT:
            with np.errstate(invalid="ignore"):  # NaN below 0, as everywhere
                return np.sqrt(x)


def _sigmoid(x: Array) -> Array:
    """Return 1 / (1 + exp(-x)), in a form that cannot overflow."""
    e = np.exp(-np.abs(x))
    return np.asarray(np.where(x >= 0.0, 1.0, e) / (1.0 + e))


def _softplus(x: Array) -> Array:
    """Return log(1 + exp(x)), in a form that cannot overflow."""
    return np.maximum(x, 0.0) + np.log1p(np.exp(-np.abs(x)))


def _each(function: Callable[[float], float], x: Array) -> Array:
    """Apply `function` to each element in float64, and round to x's type."""
    return np.asarray(np.vectorize(function, otypes=[x.dtype])(x))


def softmax(x: Array, axis: int, log: bool = False) -> Array:
    """Return exp(x) / Σ exp(x) along `axis`, or the logarithm of this. x is shifted so that exp
    cannot overflow."""
    shifted = x - x.max(axis=axis + 1, keepdims=True)
    total = np.exp(shifted).sum(axis=axis + 1, keepdims=True)
    return np.asarray(shifted - np.log(total) if log else np.exp(shifted) / total)


def top_k(scores: Array, k: int, *, logits: bool) -> Array:
    """Return a row for each image. It has all scores, the indices of the k largest scores, the
    probabilities of these, and a 1. `scores` is N×classes.

    The largest score comes first, and among equal scores the lowest index. Probabilities are the
    softmax of `logits`, or the scores themselves. If a score of the row is NaN or infinite, all
    probabilities of the row are NaN.
    """
    indices = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    probabilities = softmax(scores, 0) if logits else scores
    chosen = np.take_along_axis(probabilities, indices, axis=1)
    chosen[~np.isfinite(scores).all(axis=1)] = np.nan
    return np.concatenate([scores, indices, chosen, np.ones_like(scores[:, :1])], axis=1)


def concat(parts: Sequence[Array], axis: int) -> Array:
    """Join the parts along `axis`."""
    require_one_type(*parts)
    return np.concatenate(parts, axis=axis + 1)


def slice_axis(x: Array, axis: int, start: int, stop: int, step: int = 1) -> Array:
    """Return x[start:stop:step] along `axis`."""
    return x[(slice(None),) * (axis + 1) + (slice(start, stop, step),)]


def reshape(x: Array, shape: Sequence[int], channels_last: bool = False) -> Array:
    """Convert N×(any shape) to N×shape. Elements keep the order C, H, W or, with `channels_last`,
    H, W, C."""
    return (np.moveaxis(x, 1, -1) if channels_last else x).reshape(len(x), *shape)


def transpose(x: Array, axes: Sequence[int]) -> Array:
    """Return x with its axes in another order. Axis i of the result is axis `axes[i]` of x."""
    return x.transpose(0, *(axis + 1 for axis in axes))


def channel_shuffle(x: Array, groups: int) -> Array:
    """Move channel g · (C/groups) + i to channel i · groups + g (ShuffleNet, section 3.1)."""
    n, c, *rest = x.shape
    return x.reshape(n, groups, c // groups, *rest).swapaxes(1, 2).reshape(x.shape)


def pad(x: Array, begin: Sequence[int], end: Sequence[int], value: float) -> Array:
    """Return x surrounded by `value`. `begin` and `end` have one entry per axis, C first."""
    widths = ((0, 0), *zip(begin, end, strict=True))
    return np.pad(x, widths, constant_values=value)


def quantize(x: Array, stored: Storage) -> NDArray[np.uint8]:
    """Return x quantized to bytes like ONNX's QuantizeLinear, computed in the type of x."""
    scale = x.dtype.type(stored.scale)
    bytes_ = np.clip(np.rint(x / scale) + stored.zero_point, 0, 255)
    return np.asarray(bytes_, np.uint8)


def dequantize(x: NDArray[np.uint8], stored: Storage, dtype: np.dtype[Any]) -> Array:
    """Return the numbers of quantized bytes as floats, like ONNX's DequantizeLinear."""
    return np.asarray((x.astype(dtype) - stored.zero_point) * dtype.type(stored.scale))


def quantized(x: Array, stored: Storage) -> Array:
    """Return x rounded to the nearest numbers that bytes can represent."""
    return dequantize(quantize(x, stored), stored, x.dtype)


def in_blocks(x: Array, block: int) -> Array:
    """Return N×C×H×W as N × 4·block² × H/block × W/block, with one pixel per block of pixels.

    Each of the block's pixels contributes four channels, row by row. Missing channels are 0.
    """
    if block == 1:
        return x
    n, c, h, w = x.shape
    four = np.pad(x, ((0, 0), (0, 4 - c), (0, 0), (0, 0)))
    split = four.reshape(n, 4, h // block, block, w // block, block)
    return split.transpose(0, 3, 5, 1, 2, 4).reshape(n, -1, h // block, w // block)
