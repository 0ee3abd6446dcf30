"""The algorithms that run each convolution, the refusals of the others, and their
multiplications."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import reduce

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.kernels import accuracy
from cusim.device import CusimDevice
from kernels.convolution.algorithms import ALGORITHMS, candidates, choices, refusals
from kernels.device.gpus import H200
from kernels.problems.activation import RELU
from kernels.problems.conv import ConvProblem
from kernels.problems.precision import Precision
from kernels.problems.prologue import Prologue
from kernels.problems.window import Window
from tests.support.kernels import reference
from tests.support.kernels.arrays import Array
from tests.support.kernels.windows import conv_problem, window, windows

DIRECT, GEMM, COALESCED, DEPTHWISE = "direct", "gemm", "coalesced", "depthwise"
F2, F4, F2_3D = "winograd F(2x2,3x3)", "winograd F(4x4,3x3)", "winograd F(2x2x2,3x3x3)"
F2_5X5 = "winograd F(2x2,5x5)"
F2_TENSOR = f"tensor {F2}"
WGMMA, TMA = "tensor wgmma", "tensor tma"
F2_NONFUSED, F4_NONFUSED, F2_3D_NONFUSED = (f"{name} non-fused" for name in (F2, F4, F2_3D))
BY_NAME = {algorithm.name: algorithm for algorithm in ALGORITHMS}

VGG_3_1 = conv_problem(1, 128, 256, window((56, 56), (3, 3), pads=(1, 1, 1, 1)))
RESNET_1X1 = conv_problem(1, 256, 64, window((56, 56), (1, 1)))
INCEPTION_5X5 = conv_problem(1, 16, 32, window((28, 28), (5, 5), pads=(2, 2, 2, 2)))
RESNET_STEM = conv_problem(1, 3, 64, window((224, 224), (7, 7), strides=(2, 2), pads=(3, 3, 3, 3)))
MOBILENET = conv_problem(1, 32, 32, window((112, 112), (3, 3), pads=(1, 1, 1, 1)), 32)
RESNEXT = conv_problem(1, 128, 128, window((56, 56), (3, 3), pads=(1, 1, 1, 1)), 32)
STRIDED_1X1 = conv_problem(1, 256, 512, window((56, 56), (1, 1), strides=(2, 2)))
DILATED = conv_problem(1, 64, 64, window((28, 28), (3, 3), dilations=(2, 2)))
C3D = conv_problem(1, 64, 128, window((16, 56, 56), (3, 3, 3), pads=(1,) * 6))
POINTWISE_3D = conv_problem(1, 64, 128, window((4, 7, 7), (1, 1, 1)))
CONVNEXT, DENSENET = (
    replace(RESNET_1X1, prologue=prologue)
    for prologue in (Prologue(1e-6), Prologue(activation=RELU))
)
ROW_KERNEL = conv_problem(1, 128, 128, window((17, 17), (1, 7), pads=(0, 3, 0, 3)))


@pytest.mark.parametrize(
    ("problem", "names"),
    [
        (VGG_3_1, [DIRECT, COALESCED, F2, F4, F2_NONFUSED, F4_NONFUSED]),
        (RESNET_1X1, [DIRECT, GEMM, COALESCED]),
        (INCEPTION_5X5, [DIRECT, COALESCED, F2_5X5]),
        (RESNET_STEM, [DIRECT]),
        (MOBILENET, [DIRECT, DEPTHWISE]),
        (RESNEXT, [DIRECT]),
        (STRIDED_1X1, [DIRECT]),
        (DILATED, [DIRECT]),
        (C3D, [DIRECT, F2_3D, F2_3D_NONFUSED]),
        (POINTWISE_3D, [DIRECT, GEMM]),
        (ROW_KERNEL, [DIRECT]),
        (CONVNEXT, [GEMM]),
        (DENSENET, [GEMM]),
        (
            replace(VGG_3_1, precision=Precision.FP16),
            ["tensor", WGMMA, TMA, "tensor patch", F2_TENSOR, F2_NONFUSED, F4_NONFUSED],
        ),
        (replace(C3D, precision=Precision.FP16), ["tensor", WGMMA, F2_3D_NONFUSED]),
    ],
    ids=str,
)
def test_which_algorithms_run_a_layer(problem: ConvProblem, names: list[str]) -> None:
    assert [algorithm.name for algorithm in candidates(problem)] == names


def test_a_gpu_is_offered_only_what_its_tensor_cores_multiply() -> None:
    half = replace(VGG_3_1, precision=Precision.FP16)
    of_turing, of_ampere, of_hopper, of_blackwell = (
        {choice.algorithm.name for choice in choices(half, architecture=each)}
        for each in ("75", "80", "90a", "100")
    )
    assert of_turing == {"tensor", "tensor patch", F2_TENSOR}
    assert of_ampere == {*of_turing, F2_NONFUSED, F4_NONFUSED}  # by products in TF32
    assert of_hopper == {*of_ampere, WGMMA, TMA}
    assert of_blackwell == of_ampere


@pytest.mark.parametrize(
    ("name", "problem", "reason"),
    [
        (GEMM, VGG_3_1, "kernel 3x3; supported: 1x1"),
        (GEMM, STRIDED_1X1, "stride 2x2; supported: stride 1"),
        (
            GEMM,
            conv_problem(1, 8, 8, window((7, 7), (1, 1), pads=(0, 1, 0, 0))),
            "padding 0,1,0,0; supported: none",
        ),
        (GEMM, conv_problem(1, 8, 8, window((7, 7), (1, 1)), 2), "groups 2; supported: 1 group"),
        (
            GEMM,
            replace(CONVNEXT, precision=Precision.TF32),
            "the prologue LayerNorm(1e-06) in tf32; supported: fp32",
        ),
        (DIRECT, DENSENET, "the prologue ScaleShift, Relu; supported: none"),
        (COALESCED, DENSENET, "the prologue ScaleShift, Relu; supported: none"),
        (
            DEPTHWISE,
            replace(MOBILENET, prologue=Prologue()),
            "the prologue ScaleShift; supported: none",
        ),
        (F2, replace(VGG_3_1, prologue=Prologue()), "the prologue ScaleShift; supported: none"),
        (
            "tensor",
            replace(DENSENET, precision=Precision.FP16),
            "the prologue ScaleShift, Relu; supported: none",
        ),
        (
            TMA,
            replace(RESNET_STEM, precision=Precision.FP16),
            "pixels of 3 float16 channels; supported: sizes of 16, 32, ... bytes",
        ),
        (
            TMA,
            replace(C3D, precision=Precision.FP16),
            "3-D windows; tensor copies read only 2-D windows",
        ),
        (GEMM, C3D, "kernel 3x3x3; supported: 1x1x1"),
        (COALESCED, C3D, "3-D; supported: 2-D"),
        (COALESCED, ROW_KERNEL, "kernel 1x7; supported: 1x1, 3x3, 5x5"),
        (COALESCED, STRIDED_1X1, "stride 2x2; supported: stride 1"),
        (COALESCED, DILATED, "dilation 2x2; supported: dilation 1"),
        (COALESCED, RESNEXT, "groups 32; supported: 1 group"),
        (DEPTHWISE, VGG_3_1, "groups 1; supported: one channel per group"),
        (DEPTHWISE, RESNEXT, "groups 32; supported: one channel per group"),
        (
            DEPTHWISE,
            conv_problem(1, 8, 8, window((4, 7, 7), (3, 3, 3)), 8),
            "3-D; supported: 2-D",
        ),
        (F2, C3D, "3-D; supported: 2-D"),
        (F2, INCEPTION_5X5, "kernel 5x5; supported: 3x3"),
        (F4, RESNET_STEM, "kernel 7x7; supported: 3x3"),
        (F2_5X5, VGG_3_1, "kernel 3x3; supported: 5x5"),
        (
            F4,
            conv_problem(1, 8, 8, window((7, 7), (3, 3), strides=(1, 2))),
            "stride 1x2; supported: stride 1",
        ),
        (F2, DILATED, "dilation 2x2; supported: dilation 1"),
        (F4, MOBILENET, "groups 32; supported: 1 group"),
        (F2_3D, VGG_3_1, "2-D; supported: 3-D"),
        (F2_3D, POINTWISE_3D, "kernel 1x1x1; supported: 3x3x3"),
        (F2_TENSOR, VGG_3_1, "float32 tensors; supported: float16"),
        (WGMMA, VGG_3_1, "strict float32"),
        (WGMMA, replace(VGG_3_1, precision=Precision.INT8), "uint8 tensors; supported: floats"),
        (
            WGMMA,
            replace(DENSENET, precision=Precision.FP16),
            "the prologue ScaleShift, Relu; supported: none",
        ),
        (
            F2_TENSOR,
            replace(DILATED, precision=Precision.FP16),
            "dilation 2x2; supported: dilation 1",
        ),
        (F2_NONFUSED, DILATED, "dilation 2x2; supported: dilation 1"),
        (F4_NONFUSED, C3D, "3-D; supported: 2-D"),
        (F2_3D_NONFUSED, VGG_3_1, "2-D; supported: 3-D"),
    ],
    ids=str,
)
def test_why_an_algorithm_refuses_a_layer(name: str, problem: ConvProblem, reason: str) -> None:
    assert refusals(problem)[name] == reason


@pytest.mark.parametrize(
    ("name", "problem", "count"),
    [
        (DIRECT, VGG_3_1, 56 * 56 * 9 * 128 * 256),
        (DIRECT, RESNEXT, 56 * 56 * 9 * 4 * 128),
        (DEPTHWISE, MOBILENET, 112 * 112 * 9 * 32),
        (GEMM, RESNET_1X1, 56 * 56 * 256 * 64),
        (COALESCED, INCEPTION_5X5, 28 * 28 * 25 * 16 * 32),
        (F2, VGG_3_1, 28 * 28 * 16 * 128 * 256),
        (F4, VGG_3_1, 14 * 14 * 36 * 128 * 256),
        (F4, VGG_3_1.with_batch(8), 8 * 14 * 14 * 36 * 128 * 256),
        # 7 is no multiple of 2 or 4: the last tiles reach beyond the image.
        (F2, conv_problem(2, 8, 8, window((7, 7), (3, 3), pads=(1,) * 4)), 2 * 4 * 4 * 16 * 64),
        (F4, conv_problem(2, 8, 8, window((7, 6), (3, 3), pads=(1,) * 4)), 2 * 2 * 2 * 36 * 64),
        (F2_3D, C3D, 8 * 28 * 28 * 64 * 64 * 128),
        (F2_5X5, INCEPTION_5X5, 14 * 14 * 36 * 16 * 32),
        (F2_TENSOR, replace(VGG_3_1, precision=Precision.FP16), 28 * 28 * 16 * 128 * 256),
        (F4_NONFUSED, VGG_3_1, 14 * 14 * 36 * 128 * 256),
        (F2_3D_NONFUSED, C3D, 8 * 28 * 28 * 64 * 64 * 128),
    ],
    ids=str,
)
def test_what_an_algorithm_multiplies(name: str, problem: ConvProblem, count: int) -> None:
    assert BY_NAME[name].multiplications(problem) == count


@pytest.mark.parametrize(
    ("name", "problem", "reduction"),
    [  # Lavin & Gray, 4.1 and 4.3
        (F2, VGG_3_1, 2.25),
        (F4, VGG_3_1, 4.0),
        (F2_3D, C3D, 3.375),
        (F2_5X5, INCEPTION_5X5, 100 / 36),
    ],
)
def test_winograd_multiplies_less_by_the_papers_factor(
    name: str, problem: ConvProblem, reduction: float
) -> None:
    fewer = BY_NAME[name].multiplications(problem)
    assert BY_NAME[DIRECT].multiplications(problem) / fewer == reduction


@given(windows(), st.sampled_from((1, 2, 4, 8)), st.integers(1, 8))
def test_every_problem_is_run_by_direct_and_answered_by_all_alike_at_any_n(
    seen: Window, groups: int, n: int
) -> None:
    problem = conv_problem(1, 8, 16, seen, groups)
    runs = [algorithm.name for algorithm in candidates(problem)]
    assert runs[0] == DIRECT
    assert {*runs} | refusals(problem).keys() == BY_NAME.keys()
    assert not {*runs} & refusals(problem).keys()
    assert refusals(problem.with_batch(n)) == refusals(problem)


def test_names_are_unique() -> None:
    assert len(BY_NAME) == len(ALGORITHMS)


@pytest.fixture(scope="module")
def device() -> Iterator[CusimDevice]:
    device = CusimDevice()
    yield device
    device.close()


def _any_signs(problem: ConvProblem) -> tuple[Array, Array]:
    """Return an x in which all numbers are the largest float16 numbers, with any signs."""
    rng = np.random.default_rng(4)
    x = 65504 * rng.choice([-1.0, 1.0], (problem.n, problem.c, *problem.window.input))
    return x, 0.002 * rng.normal(size=problem.filter_shape)


def _cancelling(problem: ConvProblem) -> tuple[Array, Array]:
    """Return an x for which d0 - d2 and the products are as large as possible along each axis, but
    the sums are 0."""

    def along_each(pattern: Array, sizes: tuple[int, ...]) -> Array:
        return reduce(np.multiply.outer, [np.resize(pattern, size) for size in sizes])

    x = 40000 * along_each(np.array([1.0, 1.0, -1.0, -1.0]), problem.window.input)
    weight = along_each(np.array([1.0, 0.0, 1.0]), problem.window.kernel) / problem.c
    shape = (problem.n, problem.c, *problem.window.input)
    return np.broadcast_to(x, shape), np.broadcast_to(weight, problem.filter_shape)


@pytest.mark.parametrize("factors", [_any_signs, _cancelling])
@pytest.mark.parametrize("size", [(12, 11), (6, 5, 7)], ids=["2-D", "3-D"])
def test_in_fp16_no_algorithm_makes_infinite_what_is_finite_by_another(
    device: CusimDevice,
    size: tuple[int, ...],
    factors: Callable[[ConvProblem], tuple[Array, Array]],
) -> None:
    kernel = (3,) * len(size)
    exact = conv_problem(1, 32, 16, window(size, kernel, pads=(1,) * (2 * len(size))))
    problem = replace(exact, precision=Precision.FP16)
    x, weight = (each.astype(np.float16).astype(np.float32) for each in factors(problem))
    truth = reference.conv(x.astype(np.float64), weight.astype(np.float64), exact)
    assert np.abs(truth).max() < 65504
    assert np.abs(x).max() > 16376
    of = reference.conv(np.abs(x.astype(np.float64)), np.abs(weight.astype(np.float64)), exact)
    by = accuracy.variants(problem, H200)
    assert len(by) == (7 if len(size) == 2 else 3)
    for name, choice in by.items():
        y = accuracy.convolve(device, problem, choice, x, weight)
        assert np.isfinite(y).all(), name
        assert np.abs(y - truth).max() < 2.0**-9 * of.max(), name
