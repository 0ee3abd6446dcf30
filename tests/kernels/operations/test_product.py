"""Products of computed matrices at every precision, and defects planted in their kernels."""

import re
from pathlib import Path

import pytest
from hypothesis import strategies as st

from kernels.operations.product import product_launch
from kernels.problems.precision import Precision
from tests.support.cases.attention import ORDERS, lying
from tests.support.cases.product import SEVERAL_TILES, product_case
from tests.support.kernels import ptx, resources
from tests.support.kernels.arrays import FLOATING
from tests.support.kernels.kernel_case import KernelCase
from tests.support.kernels.mutations import replaced
from tests.support.kernels.rig import notices, of_drawn

FP32, TF32, TF32X3, FP16 = FLOATING
EACH_PRECISION = pytest.mark.parametrize("precision", FLOATING, ids=lambda each: each.value)

AHEAD = "__syncthreads();\n    multiply("
BEHIND = "__syncthreads();  // the tiles may still be read"

IN_BOTH = {
    "no barrier ahead of the products": (AHEAD, "multiply("),
    "no barrier behind the products": (BEHIND, ""),
    "rows as far apart as terms": ("strides.a_row,\n", "strides.a_term,\n"),
    "heads of b as far apart as heads of a": ("b + at.of[2] +", "b + at.of[1] +"),
    "terms past the end that are not zeros": (": 0.0f;\n  }", ": 1.0f;\n  }"),
    "terms of the first tile again": ("b + first * strides.b_term", "b"),
}
"""Defects in the code that both kernels share, by name."""

WRITTEN = "if (p < rows && q < columns)"

AT_THE_END = {
    "the last token left out": (WRITTEN, "if (p + 1 < rows && q < columns)"),
    "a token past the end": (WRITTEN, "if (p <= rows && q < columns)"),
}

IN_FLOAT = {**IN_BOTH, **AT_THE_END}

TWICE = ("heads of b as far apart as heads of a", *AT_THE_END)
"""Texts that occur twice in the source, the second time in product_tensor."""

ON_TENSOR_CORES = {
    **{name: (FP16, *edit) for name, edit in IN_FLOAT.items()},
    "a swapped fragment of columns": (FP16, "n * 8 + lane / 4, i);", "n * 8 + lane / 4, 1 - i);"),
    "terms of columns in another order than rows'": (
        TF32,
        "n * 8 + lane / 4, i);",
        "n * 8 + lane / 4, 1 - i);",
    ),
    "rows of a fragment where terms are": (
        TF32,
        "row + i % 2 * 8, i / 2)",
        "row + i / 2 * 8, i % 2)",
    ),
    "columns of another tile": (TF32, "part(of_b, term, n * 8", "part(of_b, term, n / 2 * 8"),
}
"""Defects in product_tensor, by name: a precision at which the defect shows, and the edit."""

IN_FRAGMENTS = {
    "columns that are not rounded": (TF32, "N && !WEIGHTS", "N && WEIGHTS"),
    "small parts of columns left out": (TF32X3, "multiply<PRECISION>(step, factors, small);", ""),
    "small parts of rows left out": (TF32X3, "multiply<PRECISION>(step, small, factors);", ""),
}


@st.composite
def drawn_cases(draw: st.DrawFn) -> KernelCase:
    """Draw any sizes; the rows or columns of each operand are contiguous, or apart like those of
    heads."""
    counts = st.integers(1, 40) | st.integers(60, 70)
    m, k, n = draw(counts), draw(counts), draw(counts)
    a, b, y = (
        lying(shape, draw(st.sampled_from(ORDERS)))
        for shape in ((2, 3, m, k), (2, 3, k, n), (2, 3, m, n))
    )
    return product_case("drawn", a, b, y, draw(st.sampled_from(FLOATING)))


test_any_product_is_its_reference, test_very_many_products_are_their_reference = of_drawn(
    lambda case: case, st.tuples(drawn_cases()), few=20, many=1000
)


def noticed(root: Path, precision: Precision) -> bool:
    """Return whether a small case fails with these sources."""
    return notices(root, [product_case("planted", *SEVERAL_TILES, precision)])


@pytest.mark.parametrize("defect", IN_FLOAT)
def test_a_defect_in_float_is_noticed(defect: str, tmp_path: Path) -> None:
    assert noticed(replaced(tmp_path, "product.cu", *IN_FLOAT[defect]), FP32)


@pytest.mark.parametrize("defect", ON_TENSOR_CORES)
def test_a_defect_on_tensor_cores_is_noticed(defect: str, tmp_path: Path) -> None:
    precision, old, new = ON_TENSOR_CORES[defect]
    second = int(defect in TWICE)
    assert noticed(replaced(tmp_path, "product.cu", old, new, second), precision)


@pytest.mark.parametrize("defect", IN_FRAGMENTS)
def test_a_product_that_is_less_exact_is_noticed(defect: str, tmp_path: Path) -> None:
    precision, old, new = IN_FRAGMENTS[defect]
    assert noticed(replaced(tmp_path, "fragments.cuh", old, new), precision)


@EACH_PRECISION
def test_nothing_planted_is_not_noticed(precision: Precision, tmp_path: Path) -> None:
    assert not noticed(replaced(tmp_path, "product.cu", "", ""), precision)


def test_operands_are_stored_as_the_precision_says() -> None:
    a, b, y = SEVERAL_TILES
    with pytest.raises(ValueError, match="stored as float16, got float32"):
        product_launch(a, b, y, FP16)


def test_factors_that_do_not_match_are_refused() -> None:
    a, b, y = SEVERAL_TILES
    with pytest.raises(ValueError, match="does not broadcast"):
        product_launch(b, a, y, FP32)


INSTRUCTIONS: dict[Precision, tuple[str, int]] = {
    FP16: ("m16n8k16.row.col.f32.f16.f16.f32", 8),
    TF32: ("m16n8k8.row.col.f32.tf32.tf32.f32", 16),
    TF32X3: ("m16n8k8.row.col.f32.tf32.tf32.f32", 48),
}
"""For each precision, an instruction, and the number that multiplies 32 terms of a warp's 16 × 32
outputs."""


@pytest.mark.parametrize("precision", INSTRUCTIONS, ids=lambda each: each.value)
def test_in_ptx_products_are_on_tensor_cores_with_sums_in_float(precision: Precision) -> None:
    made = product_case("of PTX", *SEVERAL_TILES, precision).launches[0]
    found = re.findall(r"mma\.sync\.aligned\.(\S+)", ptx.compiled(made.instantiation))
    instruction, count = INSTRUCTIONS[precision]
    assert found == [instruction] * count


def test_sums_are_in_registers_everywhere() -> None:
    rows_of = {row: cells for row, cells in resources.read().items() if "product_tensor" in row}
    assert {row.split("::")[1].split(",")[0] for row in rows_of} == {"TF32", "TF32X3", "FP16"}
    assert not [cell for cells in rows_of.values() for cell in cells.values() if "stack" in cell]
