"""The reference's sums over windows and channels, and properties of all of its functions.

ONNX Runtime computes in float32 (it has no float64 kernel for most of these operations), so both
types are compared with it within float32's bound. The additional accuracy of float64 is tested
separately: with onnx's own evaluator, or with integers, whose sums are exact.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx.reference import ReferenceEvaluator

from kernels.problems.activation import RELU, Activation
from kernels.problems.conv import ConvProblem, Projection
from kernels.problems.pool import PoolKind, PoolProblem
from kernels.problems.precision import Precision
from kernels.problems.window import Window
from tests.support.kernels import reference
from tests.support.kernels.arrays import BOTH_TYPES, Array, Float, normal
from tests.support.kernels.windows import conv_problem, window, windows
from tests.support.onnx_models import onnxruntime_answer, single_node
from tests.support.tolerance import EPS32, EPS64, assert_within

# Convolution


CONVOLUTIONS = [
    conv_problem(1, 1, 1, window((1, 1), (1, 1))),
    conv_problem(2, 3, 5, window((1, 1), (3, 3), pads=(1, 1, 1, 1))),
    conv_problem(2, 4, 6, window((7, 5), (1, 1))),
    conv_problem(3, 5, 4, window((8, 9), (3, 3), pads=(1, 1, 1, 1))),
    conv_problem(1, 3, 8, window((23, 19), (7, 7), strides=(2, 2), pads=(3, 3, 3, 3))),
    conv_problem(2, 3, 4, window((9, 10), (3, 2), strides=(2, 3), pads=(0, 1, 2, 3))),
    conv_problem(2, 3, 4, window((11, 12), (3, 3), dilations=(2, 3), pads=(2, 3, 2, 3))),
    conv_problem(2, 8, 12, window((6, 7), (3, 3), pads=(1, 1, 1, 1)), groups=4),
    conv_problem(2, 6, 6, window((8, 8), (3, 3), strides=(2, 2), pads=(0, 0, 1, 1)), groups=6),
    conv_problem(2, 3, 9, window((5, 6), (5, 1), pads=(2, 0, 2, 0)), groups=3),
    conv_problem(2, 3, 4, window((5, 6, 7), (3, 2, 1), pads=(1, 0, 0, 1, 1, 0))),
    conv_problem(
        1,
        4,
        6,
        window((6, 7, 5), (2, 3, 3), strides=(1, 2, 1), dilations=(2, 1, 2), pads=(0, 1, 2) * 2),
        groups=2,
    ),
]


def conv_attributes(problem: ConvProblem) -> dict[str, Any]:
    w = problem.window
    return {
        "strides": w.strides,
        "dilations": w.dilations,
        "pads": w.pads_begin + w.pads_end,
        "group": problem.groups,
    }


def conv_arrays(problem: ConvProblem) -> dict[str, Array]:
    return {
        "x": normal((problem.n, problem.c, *problem.window.input), 1),
        "weight": normal(problem.filter_shape, 2),
        "bias": normal((problem.k,), 3),
    }


def in_type(arrays: Mapping[str, Array], dtype: Float) -> dict[str, Array]:
    return {name: array.astype(dtype) for name, array in arrays.items()}


def convolve(
    problem: ConvProblem, arrays: Mapping[str, Array], activation: Activation | None = None
) -> Array:
    residual = arrays.get("residual")
    return reference.conv(
        arrays["x"], arrays["weight"], problem, arrays["bias"], residual, activation
    )


def conv_bound(problem: ConvProblem, arrays: Mapping[str, Array], eps: float) -> Array:
    """(L + 2)·eps·(Σ|x|·|w| + |bias|), L = (C/groups)·R·S."""
    magnitudes = {name: np.abs(array).astype(np.float64) for name, array in arrays.items()}
    return eps * (prod(problem.filter_shape[1:]) + 2) * convolve(problem, magnitudes)


@BOTH_TYPES
@pytest.mark.parametrize("problem", CONVOLUTIONS, ids=str)
def test_conv_equals_onnxruntime(problem: ConvProblem, dtype: Float) -> None:
    arrays = conv_arrays(problem)
    expected = onnxruntime_answer("Conv", arrays, **conv_attributes(problem))
    y = convolve(problem, in_type(arrays, dtype))
    assert_within(y, expected, conv_bound(problem, arrays, EPS32))


@pytest.mark.parametrize("problem", CONVOLUTIONS, ids=str)
def test_conv_in_float64_rounds_as_float64(problem: ConvProblem) -> None:
    arrays = in_type(conv_arrays(problem), np.float64)
    model = single_node("Conv", arrays, conv_attributes(problem))
    (expected,) = ReferenceEvaluator(model).run(None, arrays)
    y = convolve(problem, arrays)
    assert_within(y, np.asarray(expected), conv_bound(problem, arrays, EPS64))


@settings(max_examples=100, deadline=None)
@given(seen=windows(), groups=st.integers(1, 3), c=st.integers(1, 3), k=st.integers(1, 3))
def test_conv_over_any_window_equals_onnxruntime(seen: Window, groups: int, c: int, k: int) -> None:
    problem = conv_problem(2, c * groups, k * groups, seen, groups)
    arrays = conv_arrays(problem)
    expected = onnxruntime_answer("Conv", arrays, **conv_attributes(problem))
    assert_within(convolve(problem, arrays), expected, conv_bound(problem, arrays, EPS32))


def test_conv_adds_the_residual_before_the_activation() -> None:
    problem = CONVOLUTIONS[3]
    arrays = conv_arrays(problem)
    residual = normal(problem.output_shape, 4)
    fused = convolve(problem, {**arrays, "residual": residual}, RELU)
    assert np.array_equal(fused, np.maximum(convolve(problem, arrays) + residual, 0))
    assert 0 < np.mean(fused == 0) < 1


def test_a_projection_is_a_convolution_of_the_residual() -> None:
    main = replace(conv_problem(2, 5, 6, window((3, 4), (1, 1))), precision=Precision.TF32)
    of = window((6, 10), (1, 1), strides=(2, 3))
    shortcut = conv_problem(2, 7, 6, of)
    x, residual = normal((2, 5, 3, 4)), normal((2, 7, 6, 10), 1)
    weights = normal((6, 5, 1, 1), 2), normal((6, 7, 1, 1), 3)
    apart = reference.conv(residual, weights[1], shortcut)
    expected = reference.conv(x, weights[0], main, residual=apart)
    problem = replace(main, projection=Projection(7, of.input, of.strides))
    both = np.concatenate(weights, axis=1)
    y = reference.conv(x, both, problem, residual=residual)
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match="needs a residual to project"):
        reference.conv(x, both, problem)
    with pytest.raises(ValueError, match="residual must have"):
        reference.conv(x, both, problem, residual=apart)


@pytest.mark.parametrize(
    ("wrong", "shape"),
    [("x", (3, 5, 8, 8)), ("weight", (4, 5, 3, 2)), ("bias", (5,)), ("residual", (3, 4, 8, 8))],
)
def test_conv_refuses_arrays_of_another_shape(wrong: str, shape: tuple[int, ...]) -> None:
    arrays = {**conv_arrays(CONVOLUTIONS[3]), wrong: normal(shape)}
    with pytest.raises(ValueError, match=f"{wrong} must have"):
        convolve(CONVOLUTIONS[3], arrays)


# Pooling


def check_pool(kind: PoolKind, seen: Window, ceil_mode: bool) -> None:
    """Both types are compared with ONNX Runtime, whose answer also shows where `ceil_mode` ends the
    output."""
    x = normal((2, 3, *seen.input))
    op = "MaxPool" if kind is PoolKind.MAX else "AveragePool"
    attributes: dict[str, Any] = {
        "kernel_shape": seen.kernel,
        "strides": seen.strides,
        "dilations": seen.dilations,
        "pads": seen.pads_begin + seen.pads_end,
        "ceil_mode": int(ceil_mode),
    }
    if kind is PoolKind.AVERAGE_PADDED:
        attributes["count_include_pad"] = 1
    expected = onnxruntime_answer(op, {"x": x}, **attributes)
    problem = PoolProblem(kind, 3, replace(seen, output=expected.shape[2:]))
    with np.errstate(invalid="ignore"):
        narrow, wide = (reference.pool(x.astype(t), problem) for t in (np.float32, np.float64))
        size = np.abs(x) if kind is not PoolKind.MAX else np.zeros_like(x)
        bound = EPS32 * (seen.kernel_volume + 2) * reference.pool(size, problem)
    # A window that meets padding alone has no maximum and no average: ONNX leaves it undefined.
    defined = np.isfinite(wide)
    assert_within(wide[defined], expected[defined], bound[defined])
    assert_within(narrow[defined], expected[defined], bound[defined])


POOLS = {
    "halving": (window((8, 8), (2, 2), strides=(2, 2)), False),
    "ceil_mode reaches beyond the image": (window((8, 8), (3, 3), strides=(2, 2)), True),
    "ceil_mode reaches beyond the padding": (
        window((7, 6), (3, 3), strides=(3, 2), pads=(1, 0, 1, 1)),
        True,
    ),
    "asymmetric pads": (window((7, 6), (3, 2), strides=(2, 1), pads=(0, 1, 2, 0)), False),
    "dilated": (window((9, 9), (3, 2), dilations=(2, 3), pads=(1, 1, 1, 0)), False),
    "one pixel": (window((1, 1), (3, 3), pads=(1, 1, 1, 1)), False),
    "3-D": (window((5, 6, 7), (3, 2, 3), strides=(2, 2, 1), pads=(1, 0, 1, 1, 1, 0)), False),
    "3-D, ceil_mode": (window((6, 6, 7), (3, 3, 2), strides=(2, 2, 2)), True),
}


@pytest.mark.parametrize("kind", PoolKind)
@pytest.mark.parametrize("name", POOLS)
def test_pool_equals_onnxruntime(kind: PoolKind, name: str) -> None:
    seen, ceil_mode = POOLS[name]
    check_pool(kind, seen, ceil_mode)


@settings(max_examples=150, deadline=None)
@given(kind=st.sampled_from(PoolKind), seen=windows(), ceil_mode=st.booleans())
def test_pool_over_any_window_equals_onnxruntime(
    kind: PoolKind, seen: Window, ceil_mode: bool
) -> None:
    check_pool(kind, seen, ceil_mode)


def test_an_average_divides_by_the_positions_that_its_kind_counts() -> None:
    # Ones on 4 positions, 1 of padding on each side, windows of 3 in steps of 4: the first covers
    # 1 of padding and 2 of image, the second 1 of image, 1 of padding and 1 beyond that.
    seen = window((4, 1), (3, 1), strides=(4, 1), pads=(1, 0, 1, 0), output=(2, 1))
    x = np.ones((1, 1, 4, 1))
    inside = reference.pool(x, PoolProblem(PoolKind.AVERAGE, 1, seen))
    padded = reference.pool(x, PoolProblem(PoolKind.AVERAGE_PADDED, 1, seen))
    assert inside.ravel().tolist() == [1.0, 1.0]
    assert padded.ravel().tolist() == [2 / 3, 1 / 2]


def test_padding_never_wins_a_maximum() -> None:
    problem = PoolProblem(PoolKind.MAX, 1, window((2, 2), (3, 3), pads=(1, 1, 1, 1)))
    assert np.all(reference.pool(np.full((1, 1, 2, 2), -5.0), problem) == -5.0)


@BOTH_TYPES
@pytest.mark.parametrize("shape", [(2, 3, 7, 5), (2, 3, 1, 1), (2, 3, 4, 5, 6)], ids=str)
def test_global_pool_equals_onnxruntime(shape: tuple[int, ...], dtype: Float) -> None:
    x = normal(shape)
    y = x.astype(dtype)
    largest = onnxruntime_answer("GlobalMaxPool", {"x": x})
    mean = onnxruntime_answer("GlobalAveragePool", {"x": x})
    assert_within(reference.global_pool(y, PoolKind.MAX), largest, 0.0)
    magnitude = reference.global_pool(np.abs(x), PoolKind.AVERAGE)
    bound = EPS32 * (prod(shape[2:]) + 2) * magnitude
    assert_within(reference.global_pool(y, PoolKind.AVERAGE), mean, bound)


@BOTH_TYPES
@pytest.mark.parametrize("shape", [(4, 7), (3, 2, 7)], ids=str)
def test_gemm_equals_onnxruntime(shape: tuple[int, ...], dtype: Float) -> None:
    x, weight, bias = normal(shape), normal((5, 7), 1), normal((5,), 2)
    product = onnxruntime_answer("MatMul", {"x": x, "weight": np.ascontiguousarray(weight.T)})
    y = reference.gemm(x.astype(dtype), weight.astype(dtype), bias.astype(dtype))
    bound = EPS32 * (7 + 2) * reference.gemm(np.abs(x), np.abs(weight), np.abs(bias))
    assert_within(y, product + bias, bound)
    without_bias = reference.gemm(x.astype(dtype), weight.astype(dtype), activation=RELU)
    assert_within(without_bias, np.maximum(product, 0), bound)


def test_sums_of_integers_are_exact_in_float64() -> None:
    rng = np.random.default_rng(0)
    x, weight = rng.integers(-(2**24), 2**24, (2, 3, 8)), rng.integers(-(2**24), 2**24, (5, 8))
    assert np.array_equal(reference.gemm(x * 1.0, weight * 1.0), x @ weight.T)
    halving = PoolProblem(PoolKind.AVERAGE, 3, window((4, 8), (2, 2), strides=(2, 2)))
    pixels = rng.integers(-(2**50), 2**50, (2, 3, 4, 8))
    sums = pixels.reshape(2, 3, 2, 2, 4, 2).sum(axis=(3, 5))
    assert np.array_equal(reference.pool(pixels * 1.0, halving), sums / 4.0)
    mean = reference.global_pool(pixels * 1.0, PoolKind.AVERAGE)
    assert np.array_equal(mean[..., 0, 0], pixels.sum(axis=(2, 3)) / 32.0)


def test_of_equals_the_lower_index_ranks_first_and_no_infinite_score_has_a_probability() -> None:
    scores = np.array([[0.5, -0.0, 2.0, 0.0, 2.0], [1.0, np.inf, 0.0, 0.0, 0.0]])
    rows = reference.top_k(scores, 4, logits=False)
    assert rows[0].tolist() == [*scores[0], 2, 4, 0, 1, 2.0, 2.0, 0.5, 0.0, 1]
    assert rows[1, 5:9].tolist() == [1, 0, 2, 3]
    assert np.isnan(rows[1, 9:13]).all()
    assert reference.top_k(scores[:1], 1, logits=True)[0, 6] == reference.softmax(scores, 0)[0, 2]


# Types


CONV = CONVOLUTIONS[3]
POOL = PoolProblem(PoolKind.AVERAGE, 5, CONV.window)
IN_TYPE: dict[str, Callable[[Array, Array, Array], Array]] = {
    "conv": lambda x, w, v: reference.conv(x, w, CONV, v[:4], activation=RELU),
    "gemm": lambda x, w, v: reference.gemm(x, np.ones((4, 9), w.dtype), v[:4]),
    "pool": lambda x, w, v: reference.pool(x, POOL),
    "max pool": lambda x, w, v: reference.pool(x, PoolProblem(PoolKind.MAX, 5, CONV.window)),
    "global pool": lambda x, w, v: reference.global_pool(x, PoolKind.AVERAGE),
    "scale_shift": lambda x, w, v: reference.scale_shift(x, v, v),
    "lrn": lambda x, w, v: reference.lrn(x, 3, 0.1, 0.75, 1.0),
    "binary": lambda x, w, v: reference.binary(x, v[:, None, None], np.divide),
    "concat": lambda x, w, v: reference.concat([x, x.astype(v.dtype)], 0),
    "softmax": lambda x, w, v: reference.softmax(x, 0),
    "log_softmax": lambda x, w, v: reference.softmax(x, 0, log=True),
    "pad": lambda x, w, v: reference.pad(x, (0, 1, 1), (0, 1, 1), 0.5),
}
OF_SEVERAL = ("conv", "gemm", "scale_shift", "binary", "concat")


@BOTH_TYPES
@pytest.mark.parametrize("name", IN_TYPE)
def test_answer_has_the_type_of_the_input(name: str, dtype: Float) -> None:
    arrays = (normal((3, 5, 8, 9)), normal(CONV.filter_shape), normal((5,)))
    assert IN_TYPE[name](*(array.astype(dtype) for array in arrays)).dtype == dtype


@pytest.mark.parametrize("name", OF_SEVERAL)
def test_types_are_never_mixed(name: str) -> None:
    x, weight, vector = normal((3, 5, 8, 9)), normal(CONV.filter_shape), normal((5,))
    with pytest.raises(TypeError, match="float32 or all float64"):
        IN_TYPE[name](x, weight.astype(np.float64), vector.astype(np.float64))
