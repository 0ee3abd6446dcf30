"""A launch's arguments must have the names and the order of the declaration in the .cu file."""

import re
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kernels.convolution.algorithms import ALGORITHMS
from kernels.device import launch as launches
from kernels.device.device import SOURCE_ROOT
from kernels.device.launch import Launch, divisor, instantiate, int32, launch, struct
from kernels.layout.operands import ConvTensors
from kernels.layout.pixels import Pixels
from kernels.layout.strided import StridedTensor
from kernels.operations.linear import linear_launch
from kernels.operations.softmax import softmax_launch
from kernels.problems.conv import ConvProblem
from kernels.problems.precision import Precision
from tests.support.kernels.windows import conv_problem, window

PAIRS = [  # neighbours of one type, which C++ could not tell apart
    ("coalesced.cu", "x_pixels", "y_pixels"),
    ("depthwise.cu", "vectors", "filters"),
    ("implicit_gemm.cuh", "padded_channels", "splits"),
    ("tensor_patch.cu", "row_places", "image_places"),
    ("tensor_winograd.cu", "rows", "half_columns"),
    ("winograd_nonfused.cu", "first", "count"),
    ("window.cuh", "pad_begin", "pad_end"),
    ("common.cuh", "extent", "stride"),
]


@pytest.fixture
def sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a copy of all sources, with which launches are compared."""
    root = tmp_path / "src"
    shutil.copytree(SOURCE_ROOT, root)
    monkeypatch.setattr(launches, "SOURCE_ROOT", root)
    return root


def every_struct_is_filled() -> list[Launch]:
    """Return launches of every algorithm, and one of a kernel that uses a Walk."""
    made: list[Launch] = []
    halves = replace(layer(groups=1), precision=Precision.FP16)
    for problem in (layer(groups=1), layer(groups=8), halves):
        pixels = Pixels(8, 8, stored=problem.precision.stored)
        for algorithm in ALGORITHMS:
            if algorithm.supports(problem) is None:
                config = algorithm.configs(problem)[0]
                made += algorithm.launches(problem, config, ConvTensors(pixels, pixels))
    tensor = StridedTensor.contiguous((2, 3, 4))
    return [*made, softmax_launch(tensor, tensor, 1)]


def layer(groups: int) -> ConvProblem:
    return conv_problem(1, 8, 8, window((5, 6), (3, 3), pads=(1, 1, 1, 1)), groups=groups)


def swap(file: Path, struct_or_kernel: str, first: str, second: str) -> None:
    """Swap two names in a declaration."""
    text = file.read_text(encoding="utf-8")
    begin = re.search(struct_or_kernel, text)
    assert begin
    names = re.compile(rf"\b({first}|{second})\b")
    other = {first: second, second: first}
    declaration = names.sub(lambda name: other[name[0]], text[begin.start() :], count=2)
    file.write_text(text[: begin.start()] + declaration, encoding="utf-8")


def test_the_sources_as_they_are_take_every_launch(sources: Path) -> None:
    assert {each.instantiation.source for each in every_struct_is_filled()} >= {
        file for file, *_ in PAIRS if file.endswith(".cu")
    }


@pytest.mark.parametrize(("file", "first", "second"), PAIRS)
def test_fields_that_change_places_are_named(
    sources: Path, file: str, first: str, second: str
) -> None:
    swap(sources / file, r"struct (Sizes|Tiles|Window|Walk) ", first, second)
    with pytest.raises(TypeError, match=rf"of {file} must be {second} as declared, got {first}"):
        every_struct_is_filled()


def test_fields_of_the_common_head_that_change_places_are_named(sources: Path) -> None:
    swap(sources / "split.cuh", "struct ConvSizes ", "residual_pitch", "y_pitch")
    with pytest.raises(TypeError, match="must be y_pitch as declared, got residual_pitch"):
        every_struct_is_filled()


def test_parameters_that_change_places_are_named(sources: Path) -> None:
    swap(sources / "linear.cu", r"\blinear\(", "rows", "channels")
    with pytest.raises(TypeError, match=r"argument 5 of linear must be channels .*got rows"):
        linear_launch(1, Pixels(8, 8), Pixels(8, 8))


def test_template_arguments_that_change_places_are_named(sources: Path) -> None:
    swap(
        sources / "linear.cu",
        r"template <class X, class Y, int ROWS, int OUTPUTS",
        "ROWS",
        "OUTPUTS",
    )
    with pytest.raises(TypeError, match="argument 3 of the template of linear must be OUTPUTS"):
        linear_launch(1, Pixels(8, 8), Pixels(8, 8))


def test_a_field_that_python_does_not_know_is_named(sources: Path) -> None:
    file = sources / "winograd.cu"
    file.write_text(file.read_text().replace("int tiles;", "int tiles;\n  int extra;"))
    with pytest.raises(TypeError, match=r"argument 10 of .* must be extra as declared, got along"):
        every_struct_is_filled()


def test_numbers_become_what_the_parameter_is_in_cpp() -> None:
    kernel = instantiate("lrn.cu", "lrn", t="float")
    numbers = dict.fromkeys(("elements", "channels", "x_pitch", "y_pitch", "before", "after"), 3)
    scalars = {"scale": 0.5, "beta": 1, "bias": 2.0}
    made = launch(kernel, (1, 1, 1), (1, 1, 1), x="x", y=0, **numbers, **scalars)
    assert made.arguments == ("x", 0, 3, divisor(3), *[3] * 4, 0.5, 1.0, 2.0)
    types = [np.int32, bytes, *[np.int32] * 4, *[np.float32] * 3]
    assert [type(each) for each in made.arguments[2:]] == types
    assert made.operands == ("x",)
    assert made.cluster == (1, 1, 1)
    clustered = launch(kernel, (6, 1, 1), (1, 1, 1), 0, (2, 1, 1), x="x", y=0, **numbers, **scalars)
    assert clustered.renamed({"x": "y"}).cluster == (2, 1, 1)


@pytest.mark.parametrize("wrong", [{"x": 1.5}, {"elements": "y"}, {"scale": "x"}, {"after": b"1"}])
def test_a_value_of_another_type_is_refused(wrong: dict[str, object]) -> None:
    numbers = dict.fromkeys(("elements", "channels", "x_pitch", "y_pitch", "before", "after"), 3)
    given: dict[str, object] = {"x": "x", "y": "y", **numbers, "scale": 1, "beta": 1, "bias": 1}
    with pytest.raises(TypeError, match=f"{next(iter(wrong))} must be of the C"):
        launch(instantiate("lrn.cu", "lrn", t="float"), (1, 1, 1), (1, 1, 1), **(given | wrong))  # type: ignore[arg-type]


def test_an_array_of_another_length_is_refused() -> None:
    with pytest.raises(TypeError, match=r"Tiles\.along needs 3 numbers, got 2"):
        struct("winograd_nonfused.cu", "Tiles", first=0, count=1, along=(1, 2))


@pytest.mark.parametrize("number", [2**31, -(2**31) - 1, 1.5])
def test_a_number_that_a_struct_cannot_hold_is_refused(number: float) -> None:
    with pytest.raises(ValueError, match="does not fit its field in Tiles: "):
        struct("winograd_nonfused.cu", "Tiles", first=number, count=1, along=(1, 2, 3))


def test_what_is_not_there_is_said() -> None:
    with pytest.raises(TypeError, match=r"linear\.cu has no kernel quadratic"):
        launch(instantiate("linear.cu", "quadratic"), (1, 1, 1), (1, 1, 1))
    with pytest.raises(TypeError, match=r"linear\.cu has no struct Sizes"):
        struct("linear.cu", "Sizes")


def test_a_divisor_divides_every_dividend_below_2_to_the_31() -> None:
    powers = {1 << exponent for exponent in range(31)}
    near_powers = {power + apart for power in powers for apart in (-1, 0, 1)}
    random = np.random.default_rng(0).integers(1, 2**31, 10_000).tolist()
    numbers = sorted({*range(1, 20_000), *near_powers, *random} - {0})
    number, magic, shift = (
        np.frombuffer(b"".join(map(divisor, numbers)), np.uint32).reshape(-1, 3).T
    )
    assert number.tolist() == numbers
    # magic is not below 2^shift / number, so no quotient is too small. The error grows with the
    # dividend, so the largest that is one less than a multiple comes closest to the next quotient.
    largest = 2**31 // number.astype(np.uint64) * number - np.uint64(1)
    assert np.all(magic * number.astype(np.uint64) - (np.uint64(1) << shift) < number)
    for dividend in (
        largest,
        largest + np.uint64(1) - number,
        0 * largest,
        0 * largest + 2**31 - 1,
    ):
        assert np.array_equal(dividend * magic >> shift, dividend // number)


@pytest.mark.parametrize("number", [0, -1, 2**31])
def test_a_number_that_cannot_divide_is_refused(number: int) -> None:
    with pytest.raises(ValueError, match=f"must be from 1 to 2147483647, got {number}"):
        divisor(number)


@pytest.mark.parametrize("number", [2**31, -(2**31) - 1])
def test_a_number_beyond_32_bits_is_refused(number: int) -> None:
    with pytest.raises(ValueError, match="beyond 32 bits"):
        int32(number)
