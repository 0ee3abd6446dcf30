"""The reference's elementwise operations, normalisations and moves compared with ONNX Runtime.

ONNX Runtime computes in float32, so both types are compared with it within float32's bound. The
additional accuracy of float64 is tested with values that are known to 19 digits.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from kernels.problems.activation import RELU, Activation, ActivationKind
from kernels.problems.precision import BYTE
from tests.support.kernels import reference
from tests.support.kernels.arrays import BOTH_TYPES, Array, Float, normal
from tests.support.onnx_models import onnxruntime_answer
from tests.support.tolerance import EPS32, EPS64, assert_within


@BOTH_TYPES
def test_scale_shift_equals_batch_normalisation(dtype: Float) -> None:
    x, gamma, beta, mean = normal((2, 3, 4, 5)), normal((3,), 1), normal((3,), 2), normal((3,), 3)
    var = np.abs(normal((3,), 4)) + np.float32(0.5)
    inputs = {"x": x, "gamma": gamma, "beta": beta, "mean": mean, "var": var}
    expected = onnxruntime_answer("BatchNormalization", inputs, epsilon=1e-5)
    scale = gamma / np.sqrt(var + np.float32(1e-5))
    shift = beta - mean * scale
    y = reference.scale_shift(x.astype(dtype), scale.astype(dtype), shift.astype(dtype))
    # Two products and two sums on either side, and a root and a quotient in the scale.
    terms = (np.abs(x) + np.abs(mean)[:, None, None]) * np.abs(scale)[:, None, None]
    assert_within(y, expected, EPS32 * 6 * (terms + np.abs(beta)[:, None, None]))


LRNS = [(5, 1e-4, 0.75, 1.0), (3, 0.5, 0.75, 2.0), (7, 0.1, 0.5, 1.0), (1, 1.0, 1.0, 1.0)]


@BOTH_TYPES
@pytest.mark.parametrize("parameters", LRNS, ids=str)
def test_lrn_equals_onnxruntime(parameters: tuple[int, float, float, float], dtype: Float) -> None:
    size, alpha, beta, bias = parameters
    x = normal((2, 6, 3, 4))
    expected = onnxruntime_answer("LRN", {"x": x}, size=size, alpha=alpha, beta=beta, bias=bias)
    y = reference.lrn(x.astype(dtype), size, alpha, beta, bias)
    # `size` squares summed, a power (which multiplies their error by beta <= 1), a quotient.
    assert_within(y, expected, EPS32 * (size + 4) * np.abs(expected))


def test_lrn_of_an_even_size_looks_one_channel_further_ahead_than_back() -> None:
    x = np.array([1.0, 2.0, 4.0, 8.0]).reshape(1, 4, 1, 1)
    y = reference.lrn(x, size=2, alpha=2.0, beta=1.0, bias=0.0)
    sums = np.array([1.0 + 4.0, 4.0 + 16.0, 16.0 + 64.0, 64.0]).reshape(1, 4, 1, 1)
    assert np.array_equal(y, x / sums)


@BOTH_TYPES
@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize(("shape", "axis"), [((3, 10), 0), ((2, 5, 3, 4), 0), ((2, 5, 6), 1)])
def test_softmax_equals_onnxruntime(
    shape: tuple[int, ...], axis: int, log: bool, dtype: Float
) -> None:
    x = np.float32(30) * normal(shape)
    expected = onnxruntime_answer("LogSoftmax" if log else "Softmax", {"x": x}, axis=axis + 1)
    y = reference.softmax(x.astype(dtype), axis, log)
    # exp turns the rounding of its argument, at most eps·|x - max|, into a relative error.
    spread = float(np.ptp(x)) + shape[axis + 1]
    assert_within(y, expected, EPS32 * spread * (1.0 if log else expected) + 1e-37)


@pytest.mark.parametrize("log", [False, True])
def test_softmax_of_large_logits_does_not_overflow(log: bool) -> None:
    y = reference.softmax(np.array([[1e4, 1e4, -1e4]]), 0, log)
    expected = [-np.log(2), -np.log(2), -2e4 - np.log(2)] if log else [0.5, 0.5, 0.0]
    assert np.allclose(y, [expected], rtol=4 * EPS64, atol=0)


# Elements


@dataclass(frozen=True)
class Row:
    """An activation, the ONNX node that computes it, and float64 values computed with mpmath."""

    activation: Activation
    op: str
    attributes: Mapping[str, Any] = field(default_factory=dict)
    opset: int = 22
    known: Mapping[float, float] = field(default_factory=dict)  # x → y, to 19 digits


KIND = ActivationKind
ACTIVATIONS = {
    str(row.activation): row
    for row in (
        Row(RELU, "Relu", known={-0.1: 0.0, 0.1: 0.1}),
        Row(
            Activation(KIND.CLIP, 0.0, 6.0),
            "Clip",
            {"min": 0.0, "max": 6.0},
            opset=6,
            known={-0.1: 0.0, 0.1: 0.1, 6.1: 6.0},
        ),
        Row(Activation(KIND.CLIP, -1.5, 0.5), "Clip", {"min": -1.5, "max": 0.5}, opset=6),
        Row(
            Activation(KIND.LEAKY_RELU, 0.1),
            "LeakyRelu",
            {"alpha": 0.1},
            known={-3.0: -0.3, 0.1: 0.1},
        ),
        Row(
            Activation(KIND.SIGMOID),
            "Sigmoid",
            known={-5.0: 0.006692850924284855559, 0.25: 0.562176500885798104},
        ),
        Row(
            Activation(KIND.HARD_SIGMOID, 0.2, 0.5),
            "HardSigmoid",
            {"alpha": 0.2, "beta": 0.5},
            known={-3.0: 0.0, 1.0: 0.7, 3.0: 1.0},
        ),
        Row(Activation(KIND.HARD_SWISH), "HardSwish", known={-3.5: 0.0, 1.0: 2 / 3, 4.0: 4.0}),
        Row(
            Activation(KIND.SILU),
            "Swish",
            opset=24,
            known={-5.0: -0.0334642546214242778, 3.0: 2.857722380467299657},
        ),
        Row(
            Activation(KIND.TANH),
            "Tanh",
            known={0.25: 0.2449186624037091293, 3.0: 0.9950547536867304513},
        ),
        Row(
            Activation(KIND.ERF),
            "Erf",
            known={0.25: 0.276326390168236933, 1.0: 0.8427007929497148693},
        ),
        Row(
            Activation(KIND.GELU),
            "Gelu",
            known={-5.0: -1.433257859395969558e-6, 1.0: 0.8413447460685429486},
        ),
        Row(
            Activation(KIND.GELU_TANH),
            "Gelu",
            {"approximate": "tanh"},
            known={-5.0: -2.291796196629506046e-7, 1.0: 0.8411919906082767048},
        ),
        Row(
            Activation(KIND.ELU, 0.7, 1.0),
            "Elu",
            {"alpha": 0.7},
            known={-1.0: 0.7 * -0.6321205588285577, 2.0: 2.0},
        ),
        Row(
            Activation(KIND.ELU, 1.5 * 1.25, 1.25),
            "Selu",
            {"alpha": 1.5, "gamma": 1.25},
            known={-1.0: 1.875 * -0.6321205588285577, 2.0: 2.5},
        ),
        Row(
            Activation(KIND.SOFTPLUS),
            "Softplus",
            known={0.0: 0.6931471805599453, -5.0: 0.006715348489118068},
        ),
        Row(
            Activation(KIND.MISH),
            "Mish",
            known={1.0: 0.8650983882673103, -5.0: -0.033576237730161704},
        ),
    )
}
EVERY_ACTIVATION = pytest.mark.parametrize("row", ACTIVATIONS.values(), ids=ACTIVATIONS)
SWEEP = [*np.linspace(-12, 12, 481), -1e4, -100.0, -30.0, 30.0, 100.0, 1e4]


@BOTH_TYPES
@EVERY_ACTIVATION
def test_activation_equals_onnxruntime(row: Row, dtype: Float) -> None:
    x = np.array([SWEEP], np.float32)
    expected = onnxruntime_answer(row.op, {"x": x}, row.opset, **row.attributes)
    y = reference.activate(x.astype(dtype), row.activation)
    assert y.dtype == dtype
    # Rational approximations in float32: good to a few eps of a result of size up to 1 or |x|.
    assert_within(y, expected, 4 * EPS32 * np.maximum(1.0, np.abs(x)))


@EVERY_ACTIVATION
def test_activation_in_float64_has_float64_digits(row: Row) -> None:
    x, known = np.array(list(row.known)), np.array(list(row.known.values()))
    # exp and erfc multiply the rounding of their argument by up to x² = 25.
    assert_within(reference.activate(x, row.activation), known, 2 * 25 * EPS64 * np.abs(known))


def test_every_kind_of_activation_is_compared() -> None:
    kinds = [row.activation.kind for row in ACTIVATIONS.values() if row.known]
    assert set(kinds) == set(ActivationKind) - {ActivationKind.SQRT}


def test_the_square_root_of_a_negative_number_is_nan() -> None:
    y = reference.activate(np.array([4.0, 0.0, -1.0]), Activation(ActivationKind.SQRT))
    assert y[:2].tolist() == [2.0, 0.0]
    assert np.isnan(y[2])


@EVERY_ACTIVATION
def test_activation_hands_nan_on(row: Row) -> None:
    assert np.isnan(reference.activate(np.array([np.nan]), row.activation)).all()


@EVERY_ACTIVATION
def test_activation_does_not_overflow(row: Row) -> None:
    with np.errstate(over="raise", invalid="raise", divide="raise"):
        reference.activate(np.array([-1e30, -1e4, 1e4, 1e30]), row.activation)


BINARIES = {"Add": np.add, "Sub": np.subtract, "Mul": np.multiply, "Div": np.divide}


@pytest.mark.parametrize("op", BINARIES)
@pytest.mark.parametrize("other", [(2, 3, 4, 5), (1, 3, 1, 1), (2, 1, 4, 1)], ids=str)
def test_binary_equals_onnxruntime_bit_for_bit(op: str, other: tuple[int, ...]) -> None:
    a, b = normal((2, 3, 4, 5)), normal(other, 1)
    assert np.array_equal(
        reference.binary(a, b, BINARIES[op]), onnxruntime_answer(op, {"x": a, "b": b})
    )
    fused = reference.binary(a, b, BINARIES[op], RELU)
    assert np.array_equal(fused, np.maximum(BINARIES[op](a, b), 0))


# Moves

Mover = Callable[[Array], Array]
MOVES: dict[str, tuple[str, dict[str, Any], dict[str, Any], Mover]] = {
    "slice": (
        "Slice",
        {},
        {"starts": [1], "ends": [3], "axes": [1]},
        lambda x: reference.slice_axis(x, 0, 1, 3),
    ),
    "slice of the last axis": (
        "Slice",
        {},
        {"starts": [2], "ends": [5], "axes": [3]},
        lambda x: reference.slice_axis(x, 2, 2, 5),
    ),
    "transpose": (
        "Transpose",
        {"perm": [0, 3, 1, 2]},
        {},
        lambda x: reference.transpose(x, (2, 0, 1)),
    ),
    "flatten": ("Flatten", {}, {}, lambda x: reference.reshape(x, (120,))),
    "reshape": (
        "Reshape",
        {},
        {"shape": [0, 2, 60]},
        lambda x: reference.reshape(x, (2, 60)),
    ),
    "pad": (
        "Pad",
        {},
        {"pads": [0, 0, 1, 2, 0, 3, 0, 1], "constant_value": np.float32(0.25)},
        lambda x: reference.pad(x, (0, 1, 2), (3, 0, 1), 0.25),
    ),
}


@pytest.mark.parametrize("name", MOVES)
def test_move_equals_onnxruntime_bit_for_bit(name: str) -> None:
    op, attributes, parameters, ours = MOVES[name]
    x = normal((2, 4, 6, 5))
    weights = {key: np.asarray(value) for key, value in parameters.items()}
    expected = onnxruntime_answer(op, {"x": x}, weights=weights, **attributes)
    assert np.array_equal(ours(x), expected)


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_concat_equals_onnxruntime_bit_for_bit(axis: int) -> None:
    x, y = normal((2, 4, 6, 5)), normal((2, 4, 6, 5), 1)
    expected = onnxruntime_answer("Concat", {"x": x, "y2": y, "y3": x}, axis=axis + 1)
    assert np.array_equal(reference.concat([x, y, x], axis), expected)


def test_reshape_with_channels_last_reads_h_w_c() -> None:
    x = normal((2, 3, 4, 5))
    flat = reference.reshape(x, (60,), channels_last=True)
    assert np.array_equal(flat, np.transpose(x, (0, 2, 3, 1)).reshape(2, 60))


def test_channel_shuffle_interleaves_the_groups() -> None:
    x = np.arange(6.0).reshape(1, 6, 1) * np.ones((2, 1, 2))
    y = reference.channel_shuffle(x, 2)
    assert y[1, :, 1].tolist() == [0, 3, 1, 4, 2, 5]
    assert np.array_equal(reference.channel_shuffle(y, 3), x)


@pytest.mark.parametrize(("scale", "zero_point"), [(0.0173, 0), (0.5, 128), (0.031, 77)])
def test_quantize_and_dequantize_are_onnx_runtimes_to_the_bit(
    scale: float, zero_point: int
) -> None:
    """The test includes ties and numbers outside the range of bytes; int8 values are 128 smaller
    than the bytes."""
    stored = replace(BYTE, scale=float(np.float32(scale)), zero_point=zero_point)
    x = 4 * normal((2, 3, 4, 500))
    x[0] = np.arange(-3000, 3000).reshape(x[0].shape) * np.float32(scale) / 2
    bytes_ = reference.quantize(x, stored)
    assert (bytes_[1] > zero_point).any()
    assert {0, 255} <= set(bytes_.ravel())
    for dtype, below in ((np.uint8, 0), (np.int8, 128)):
        constants: dict[str, NDArray[Any]] = {
            "scale": np.array(scale, np.float32),
            "zero": np.array(zero_point - below, dtype),
        }
        answer = onnxruntime_answer("QuantizeLinear", {"x": x, **constants})
        assert (answer.astype(int) + below == bytes_).all()
        back = onnxruntime_answer("DequantizeLinear", {"x": answer, **constants})
        assert (back == reference.dequantize(bytes_, stored, x.dtype)).all()
