"""The check of a convolution: right answers pass, and no wrong answer does."""

from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from kernels.problems.conv import ConvProblem, Projection
from kernels.problems.precision import BYTE, Precision
from kernels.tuning.examination import Exam, exam_of
from kernels.winograd.matrices import Points, winograd_matrices
from kernels.winograd.stages import winograd_conv
from tests.support.kernels import byte_reference, reference
from tests.support.kernels.windows import conv_problem, window, windows
from tests.support.tolerance import Array

_DEEP = conv_problem(1, 512, 7, window((9, 8), (3, 3), pads=(1, 1, 1, 1)))


def answer(exam: Exam, problem: ConvProblem, n: int) -> NDArray[np.float32]:
    """Return N×P×Q×K from the reference, in float32; K is padded with NaN, like memory that is not
    written."""
    channels = {"x": problem.c, "residual": problem.projected}
    inputs = {
        name: np.moveaxis(pixels[..., : channels[name]], -1, 1).astype(np.float32)
        for name, pixels in exam.inputs(n).items()
    }
    of = inputs["x"], exam.weight, replace(problem, n=n), exam.bias, inputs.get("residual")
    y = reference.conv(*of)
    return padded(np.moveaxis(y, 1, -1))


def padded(y: Array) -> Array:
    widths = [(0, 0)] * (y.ndim - 1) + [(0, -y.shape[-1] % 4)]
    return np.pad(y, widths, constant_values=np.nan)


@st.composite
def layers(draw: st.DrawFn) -> ConvProblem:
    groups = draw(st.integers(1, 3))
    c, k = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    if draw(st.integers(0, 3)) == 0:
        projection = Projection(draw(st.integers(1, 5)), (5, 4), (2, 2))
        plain = replace(conv_problem(1, c, k, window((3, 2), (1, 1))), precision=Precision.TF32)
        return replace(plain, projection=projection)
    return conv_problem(1, c * groups, k * groups, draw(windows()), groups)


@settings(max_examples=50, deadline=None)
@given(layers(), st.integers(1, 5), st.data())
def test_the_right_answer_passes_and_one_wrong_element_does_not(
    layer: ConvProblem, n: int, data: st.DataObject
) -> None:
    exam = exam_of(layer)
    y = answer(exam, layer, n)
    assert exam.fault(y) is None
    at = tuple(data.draw(st.integers(0, size - 1)) for size in (*y.shape[:-1], layer.k))
    scale = 2.0 ** (at[0] // 2)
    for wrong in (y[at] + scale, y[at] - scale, np.nan, np.inf):
        spoilt = y.copy()
        spoilt[at] = wrong
        fault = exam.fault(spoilt)
        assert fault is not None
        assert f"1 of {y[0, ..., : layer.k].size:,} elements of image {at[0]} are wrong" in fault
        assert f"of channel {at[-1]}" in fault


@settings(max_examples=50, deadline=None)
@given(layers(), st.data())
def test_a_term_that_is_missed_shows(layer: ConvProblem, data: st.DataObject) -> None:
    exam = exam_of(layer)
    weight = exam.weight.copy()
    weight[tuple(data.draw(st.integers(0, size - 1)) for size in weight.shape)] = 0
    without = answer(replace(exam, weight=weight), layer, 1)
    same = np.array_equal(without, answer(exam, layer, 1), equal_nan=True)
    assert (exam.fault(without) is None) == same  # a tap that sees nothing but padding


def test_an_image_taken_for_another_shows() -> None:
    layer = conv_problem(1, 3, 4, window((3, 3), (1, 1)))
    exam = exam_of(layer)
    y = answer(exam, layer, 64)
    assert exam.fault(y) is None
    assert np.isfinite(y).all()
    for image, other in permutations((0, 1, 2, 3, 30, 31, 62, 63), 2):
        taken = y.copy()
        taken[image] = y[other]
        assert exam.fault(taken) is not None


def test_no_factor_is_zero_for_what_is_missed_must_show() -> None:
    exam = exam_of(_DEEP)
    assert exam.images["x"].all()
    assert exam.weight.all()
    assert exam.bias.all()


@pytest.mark.parametrize("points", Points)
@pytest.mark.parametrize("m", [2, 4])
def test_winograd_passes_in_float32_with_digits_to_spare(m: int, points: Points) -> None:
    exam = exam_of(_DEEP)
    matrices = winograd_matrices(m, 3, points)
    x = np.moveaxis(exam.inputs(2)["x"][..., :512], -1, 1)
    y = winograd_conv(x, exam.weight, replace(_DEEP, n=2), matrices)
    y = padded(np.moveaxis(y, 1, -1) + exam.bias)
    assert exam.fault(y) is None
    error = np.abs(y[0, ..., :7] - (exam.expected + exam.bias)).max()
    assert error < 1 / 50


def test_numbers_of_half_the_digits_do_not_pass() -> None:
    exam = exam_of(_DEEP)
    y = answer(exam, _DEEP, 1)
    rounded = (y.view(np.uint32) & np.uint32(0xFFFF0000)).view(np.float32)
    assert exam.fault(rounded) is not None


def test_what_fills_up_pixels_is_not_to_be_used() -> None:
    exam = exam_of(conv_problem(1, 3, 4, window((3, 3), (1, 1))))
    assert exam.images["x"].shape == (3, 3, 4)
    assert np.isnan(exam.inputs(2)["x"][..., 3]).all()


@settings(max_examples=50, deadline=None)
@given(layers(), st.integers(1, 5), st.data())
def test_bytes_that_are_right_pass_and_one_that_is_not_does_not(
    layer: ConvProblem, n: int, data: st.DataObject
) -> None:
    layer = replace(layer, precision=Precision.INT8, projection=None)
    exam, x = exam_of(layer), replace(BYTE, zero_point=128)
    images = np.moveaxis(exam.inputs(n)["x"][..., : layer.c], -1, 1)
    numbers, scale = exam.weight.astype(np.int32), np.ones(1, np.float32)
    of = replace(layer, n=n), (x, BYTE), exam.bias.astype(np.int64)
    y = np.moveaxis(byte_reference.quantized_conv(images, numbers, scale, *of), 1, -1)
    assert exam.fault(y) is None
    at = tuple(data.draw(st.integers(0, size - 1)) for size in y.shape)
    for wrong in (1, 255):
        spoilt = y.copy()
        spoilt[at] = (int(y[at]) + wrong * 2 ** (at[0] // 2)) % 256
        assert f"elements of image {at[0]} are wrong" in (exam.fault(spoilt) or "")
    missing = exam.inputs(n)["x"][..., layer.c :]
    assert not np.isin(missing, exam.inputs(n)["x"][..., : layer.c]).any()
