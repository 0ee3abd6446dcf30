"""The derived properties of problem descriptions, and their refusals."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.problems.activation import RELU
from kernels.problems.conv import ConvProblem, Projection
from kernels.problems.precision import BYTE, FLOAT, HALF, Precision, one_type
from kernels.problems.prologue import Prologue
from kernels.problems.window import Window
from tests.support.kernels.windows import conv_problem, floor_output, window

SAME_3X3 = window((56, 56), (3, 3), pads=(1, 1, 1, 1))


@given(
    size=st.integers(1, 12),
    kernel=st.integers(1, 5),
    stride=st.integers(1, 4),
    dilation=st.integers(1, 3),
    begin=st.integers(0, 4),
    end=st.integers(0, 4),
)
def test_floor_output_counts_the_windows_that_fit(
    size: int, kernel: int, stride: int, dilation: int, begin: int, end: int
) -> None:
    last_tap = dilation * (kernel - 1)
    starts = range(-begin, size + end, stride)
    fitting = sum(start + last_tap < size + end for start in starts)
    assert max(0, floor_output(size, kernel, stride, dilation, begin, end)) == fitting


def test_extent_counts_the_gaps_of_dilation() -> None:
    seen = window((16, 16), (3, 1), dilations=(4, 2))
    assert seen.extent == (9, 1)
    assert seen.output == (8, 16)


def test_volumes_multiply_every_axis() -> None:
    seen = window((6, 8, 10), (3, 1, 2), strides=(1, 2, 2))
    assert seen.kernel_volume == 6
    assert seen.output_volume == 4 * 4 * 5


@pytest.mark.parametrize(
    ("seen", "pointwise"),
    [
        (window((7, 7), (1, 1)), True),
        (window((7, 7), (1, 1), dilations=(3, 3)), True),
        (window((7, 7), (1, 1), strides=(2, 2)), False),
        (window((7, 7), (1, 1), pads=(1, 0, 0, 0)), False),
        (window((7, 7), (3, 3), pads=(1, 1, 1, 1)), False),
    ],
    ids=str,
)
def test_pointwise_reads_the_position_below(seen: Window, pointwise: bool) -> None:
    assert seen.is_pointwise is pointwise


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"input": (8,)}, "2 or 3 spatial axes"),
        ({"input": (8, 8, 8, 8)}, "2 or 3 spatial axes"),
        ({"kernel": (3, 3, 3)}, "kernel=.* needs 2 entries"),
        ({"pads_end": (1,)}, "pads_end=.* needs 2 entries"),
        ({"kernel": (3, 0)}, "kernel=.* at least 1"),
        ({"strides": (0, 1)}, "strides=.* at least 1"),
        ({"dilations": (1, -1)}, "dilations=.* at least 1"),
        ({"pads_begin": (-1, 0)}, "pads_begin=.* at least 0"),
        ({"output": (0, 8)}, "output=.* at least 1"),
    ],
    ids=lambda entry: str(entry) if isinstance(entry, dict) else None,
)
def test_window_refuses(change: dict[str, Any], message: str) -> None:
    fields: dict[str, Any] = {
        "input": (8, 8),
        "kernel": (3, 3),
        "strides": (1, 1),
        "dilations": (1, 1),
        "pads_begin": (1, 1),
        "pads_end": (1, 1),
        "output": (8, 8),
    }
    Window(**fields)
    with pytest.raises(ValueError, match=message):
        Window(**(fields | change))


@pytest.mark.parametrize(
    ("n", "c", "k", "groups", "message"),
    [
        (0, 4, 4, 1, "at least 1"),
        (1, 0, 4, 1, "at least 1"),
        (1, 4, 0, 1, "at least 1"),
        (1, 4, 4, 0, "must divide"),
        (1, 6, 4, 4, "must divide C=6"),
        (1, 4, 6, 4, "K=6"),
    ],
)
def test_conv_problem_refuses(n: int, c: int, k: int, groups: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        conv_problem(n, c, k, SAME_3X3, groups)


def test_conv_problem_derives_shapes_and_work() -> None:
    problem = conv_problem(2, 64, 128, window((56, 28), (3, 1), strides=(2, 1)), groups=2)
    assert problem.filter_shape == (128, 32, 3, 1)
    assert problem.output_shape == (2, 128, 27, 28)
    assert problem.macs == 2 * 128 * 27 * 28 * 32 * 3


def test_macs_of_vgg_conv1_2_are_those_of_the_paper() -> None:
    # Lavin & Gray, table 3: conv 1.2 of VGG is 3.70 GFLOPs an image, two a multiply-accumulate.
    problem = conv_problem(1, 64, 64, window((224, 224), (3, 3), pads=(1, 1, 1, 1)))
    assert round(2 * problem.macs / 1e9, 2) == 3.70


def test_macs_grow_with_the_batch() -> None:
    problem = conv_problem(1, 8, 8, SAME_3X3)
    assert problem.with_batch(8).macs == 8 * problem.macs
    assert problem.with_batch(8).with_batch(1) == problem


@pytest.mark.parametrize(
    ("c", "k", "groups", "depthwise"),
    [(8, 8, 8, True), (8, 16, 8, True), (8, 8, 4, False), (1, 8, 1, False)],
)
def test_depthwise_filters_every_channel_alone(
    c: int, k: int, groups: int, depthwise: bool
) -> None:
    assert conv_problem(1, c, k, SAME_3X3, groups).is_depthwise is depthwise


@pytest.mark.parametrize(
    ("problem", "text"),
    [
        (conv_problem(8, 64, 64, SAME_3X3), "N8 C64 56x56 K64 3x3 p1,1,1,1"),
        (conv_problem(1, 3, 9, window((9, 8), (1, 2))), "N1 C3 9x8 K9 1x2"),
        (
            conv_problem(
                1, 4, 4, window((9, 9, 9), (3, 3, 3), strides=(2, 1, 1), dilations=(1, 2, 1)), 4
            ),
            "N1 C4 9x9x9 K4 3x3x3 s2x1x1 d1x2x1 g4",
        ),
        (
            replace(conv_problem(1, 8, 9, window((9, 8), (1, 1))), prologue=Prologue(1e-6)),
            "N1 C8 9x8 K9 1x1 after LayerNorm(1e-06)",
        ),
        (
            replace(conv_problem(1, 8, 9, window((9, 8), (1, 1))), prologue=Prologue(None, RELU)),
            "N1 C8 9x8 K9 1x1 after ScaleShift, Relu",
        ),
    ],
)
def test_conv_problem_prints_what_differs_from_the_default(problem: ConvProblem, text: str) -> None:
    assert str(problem) == text
    assert problem.is_3d is (text.count("x") > 4)


def test_a_projection_is_more_of_the_sum() -> None:
    plain = replace(conv_problem(2, 128, 512, window((28, 28), (1, 1))), precision=Precision.FP16)
    problem = replace(plain, projection=Projection(256, (56, 55), (2, 2)))
    assert problem.filter_shape == (512, 128 + 256, 1, 1)
    assert problem.output_shape == plain.output_shape
    assert problem.macs == 3 * plain.macs
    assert str(problem) == "N2 C128 28x28 K512 1x1 + C256 56x55 s2x2 fp16"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"window": SAME_3X3}, "needs a 1×1 convolution"),
        ({"groups": 2}, "with one group"),
        ({"precision": Precision.FP32}, "must not be fp32"),
        ({"projection": Projection(4, (4, 8), (2, 2))}, r"size \(4, 4\), got \(2, 4\)"),
    ],
    ids=["3x3", "groups", "fp32", "size"],
)
def test_a_projection_that_does_not_fit_is_refused(change: dict[str, Any], message: str) -> None:
    fitting = Projection(4, (8, 8), (2, 2))
    problem = ConvProblem(
        1, 4, 4, window((4, 4), (1, 1)), precision=Precision.FP16, projection=fitting
    )
    with pytest.raises(ValueError, match=message):
        replace(problem, **change)


@pytest.mark.parametrize(
    ("channels", "floats", "halves", "bytes_"),
    [
        (1, 4, 4, 16),
        (3, 4, 4, 16),
        (4, 4, 4, 16),
        (5, 8, 8, 16),
        (16, 16, 16, 16),
        (17, 20, 24, 32),
    ],
)
def test_pixels_are_filled_up_to_16_bytes_but_those_of_few_channels(
    channels: int, floats: int, halves: int, bytes_: int
) -> None:
    assert [each.pitch(channels) for each in (FLOAT, HALF, BYTE)] == [floats, halves, bytes_]


def test_bytes_of_another_scale_are_another_storage() -> None:
    fine, coarse = (replace(BYTE, scale=scale, zero_point=128) for scale in (0.1, 0.2))
    assert one_type(fine, replace(fine)) == fine
    with pytest.raises(ValueError, match=r"uint8 · 0.1, 128 for 0, got uint8 · 0.2"):
        one_type(fine, coarse)
    assert str(HALF) == "float16"
