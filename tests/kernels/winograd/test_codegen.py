"""The generated header: as committed, correct as text, and correct when compiled."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pytest

from cusim.device import CusimDevice
from kernels.winograd.codegen import GENERATED, HEADER, header, specialisation
from kernels.winograd.filter import as_array
from kernels.winograd.matrices import Points, WinogradMatrices, winograd_matrices
from kernels.winograd.program import program
from tests.cusim.selftest.launching import instantiation, launch, opened, unwritten

HALF = Fraction(1, 2)
GENERATED_AND_OTHERS = pytest.mark.parametrize(
    "matrices",
    [
        *(winograd_matrices(*each) for each in GENERATED),
        # Signs alone, and sums in which no coefficient is 1.
        WinogradMatrices(1, 2, (-1,), -1),
        WinogradMatrices(3, 2, (-2, 3, -5), -1),
        WinogradMatrices(6, 3, (0, 1, -1, 2, -2, HALF, -HALF)),
    ],
    ids=lambda each: f"F({each.m},{each.r}) {','.join(map(str, each.points))}",
)
EVERY = pytest.mark.parametrize(("m", "r", "points"), GENERATED)


def test_the_committed_header_is_what_the_matrices_give() -> None:
    assert HEADER.read_text() == header(), "run: python -m kernels.winograd.codegen"


@dataclass
class Function:
    """A function of a specialisation, which is read from its text."""

    instructions: int  # as the comment above says
    source: str
    target: str
    body: str

    def __call__(self, numbers: list[Fraction], outputs: int) -> list[Fraction]:
        """Execute the statements with rational numbers."""
        statements = "\n".join(
            line.strip().removeprefix("const float ").removesuffix(";")
            for line in self.body.splitlines()
        )
        exact = re.sub(r"([\d.]+)f\b", r"Fraction('\1')", statements)
        result: list[Fraction] = [Fraction()] * outputs
        names = {"Fraction": Fraction, "fmaf": lambda a, b, c: a * b + c}
        exec(exact, names | {self.source: numbers, self.target: result})
        return result


def functions(matrices: WinogradMatrices) -> dict[str, Function]:
    text = specialisation(matrices, "SOME")
    assert f"struct Winograd<{matrices.m}, {matrices.r}, Points::SOME> {{" in text
    assert f"ALPHA = {matrices.alpha};" in text
    pattern = (
        r"// .*: (?P<instructions>\d+) instructions\.\n"
        r"  static __device__ __forceinline__ void (?P<name>\w+)\("
        r"const float \(&(?P<source>\w)\)\[\d\], float \(&(?P<target>\w)\)\[\d\]\) {\n"
        r"(?P<body>(?:    .*\n)+)  }\n"
    )
    return {
        found["name"]: Function(
            int(found["instructions"]), found["source"], found["target"], found["body"]
        )
        for found in re.finditer(pattern, text)
    }


@GENERATED_AND_OTHERS
def test_the_text_computes_the_matrices(matrices: WinogradMatrices) -> None:
    found = functions(matrices)
    assert found.keys() == {"data", "inverse"}
    for name, matrix in (("data", matrices.bt), ("inverse", matrices.at)):
        columns = []
        for j in range(matrices.alpha):
            unit = [Fraction(i == j) for i in range(matrices.alpha)]
            columns.append(found[name](unit, len(matrix)))
        assert tuple(zip(*columns, strict=True)) == matrix


@GENERATED_AND_OTHERS
def test_the_text_has_as_many_instructions_as_it_says(matrices: WinogradMatrices) -> None:
    found = functions(matrices)
    for name, matrix in (("data", matrices.bt), ("inverse", matrices.at)):
        written = len(re.findall(r"fmaf\(| [-+*] ", found[name].body))
        assert written == found[name].instructions == program(matrix).instructions


def test_a_coefficient_that_is_no_float_is_refused() -> None:
    thirds = WinogradMatrices(2, 3, (0, Fraction(1, 3), Fraction(-1, 3)))
    with pytest.raises(ValueError, match="no float equals 1/9"):
        specialisation(thirds, "SOME")


def test_the_python_and_the_cuda_names_of_points_agree() -> None:
    assert f"enum class Points {{ {', '.join(points.name for points in Points)} }};" in header()


@pytest.fixture(scope="module")
def device() -> Iterator[CusimDevice]:
    with_test_kernels = opened()
    yield with_test_kernels
    with_test_kernels.close()


@EVERY
def test_the_compiled_transforms_are_exact_in_small_integers(
    device: CusimDevice, m: int, r: int, points: Points
) -> None:
    matrices, threads = winograd_matrices(m, r, points), 64
    x = np.random.default_rng(m).integers(-99, 100, (threads, matrices.alpha)).astype(np.float32)
    kernel = instantiation("winograd.cu", "transforms", m=m, r=r, points=f"Points::{points.name}")
    arguments = [x, unwritten((threads, matrices.alpha)), unwritten((threads, m))]
    _, v, y = launch(device, kernel, (1, 1, 1), (threads, 1, 1), arguments)
    assert np.array_equal(v, x @ as_array(matrices.bt).T)
    assert np.array_equal(y, x @ as_array(matrices.at).T)
