"""Attention of any layout at every precision, and defects planted in its kernels."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import strategies as st

from kernels.layout.strided import StridedTensor
from kernels.operations.attention import attention_launch
from kernels.problems.precision import HALF, Precision
from tests.support.cases.attention import ORDERS, WINDOWS, attention_case, lying, qkv, rows
from tests.support.kernels import ptx, resources
from tests.support.kernels.arrays import FLOATING
from tests.support.kernels.kernel_case import KernelCase
from tests.support.kernels.mutations import replaced
from tests.support.kernels.rig import notices, of_drawn

FP32, TF32, TF32X3, FP16 = FLOATING

AT_ONCE = "__syncthreads();  // the tile, and at first the queries, are there"
BEFORE = "__syncthreads();  // the tile before may still be read\n"
SHARES = "__syncthreads();  // the tile before may still be read; at first the shares are there"
CHUNK = "__syncthreads();  // this chunk is there for all, and the one before it read by all"
SOFTMAX = "__syncthreads();  // the largest of all warps are there, and the queries read by all"
FRAGMENT = "factors.b[i / 2][i % 2] = two[i];"
SWAPPED = "factors.b[i / 2][1 - i % 2] = two[i];"

IN_FLOAT = {
    "no barrier behind the queries and keys": (AT_ONCE, ""),
    "no barrier ahead of the next keys": (BEFORE, ""),
    "no barrier before the products with v": (SHARES, ""),
    "another head's keys": ("k + at.of[2] +", "k + at.of[0] +"),
    "the largest score is not subtracted": ("scores[key][row] - largest);", "scores[key][row]);"),
    "a row's largest of too few keys": (
        "apart = 16; apart > 0; apart /= 2)\n      l",
        "apart = 8; apart > 0; apart /= 2)\n      l",
    ),
    "keys past the end": ("key < keys; key += 32) {", "key < (keys + 31) / 32 * 32; key += 32) {"),
    "the bias of another query": ("bias[at.of[4] + (first_query + row)", "bias[at.of[4] + (row)"),
}
"""Defects in attention, by name."""

ON_TENSOR_CORES = {
    "no barrier between chunks": (FP16, CHUNK, ""),
    "no barrier between the products with keys and softmax": (FP16, SOFTMAX, ""),
    "a chunk that is not waited for": (TF32, "cp_async_wait<STAGES - 2>();", ""),
    "a chunk over the one that is read": (FP16, "STAGES - 1 : reading - 1", "0 : reading"),
    "another head's keys": (FP16, ": k + at.of[2];", ": k + at.of[0];"),
    "values as far apart as keys": (TF32, "of_v ? strides.row[3] :", "of_v ? strides.row[2] :"),
    "values of as many channels as keys": (FP16, "(of_v ? width : depth)", "depth"),
    "the largest score is not subtracted": (
        FP16,
        "expf(pair[i] - largest[later])",
        "expf(pair[i])",
    ),
    "the largest score of a warp's own keys": (FP16, "largest[later] = over_row(", "over_row("),
    "keys past the end": (FP16, "key < keys ? pair[i]", "true ? pair[i]"),
    "the bias of another query": (FP16, "first_query + min(lane", "min(lane"),
    "a swapped fragment of keys": (FP16, FRAGMENT, SWAPPED),
    "a swapped fragment of values": (FP16, FRAGMENT, SWAPPED),
    "odd keys first": (TF32, "vector + i)) = pair[i]", "vector + i)) = pair[1 - i]"),
    "queries that are not swizzled": (TF32, "vector_at(lane % 16, lane / 16);", "lane % 16 * 128;"),
}
"""Defects in attention_tensor, by name: a precision at which the defect shows, and the edit."""


@st.composite
def drawn_cases(draw: st.DrawFn) -> KernelCase:
    """Draw any tokens, keys and channels, with heads next to each other or channels of all tokens
    next to each other."""
    heads = draw(st.integers(1, 3))
    queries, keys = draw(st.integers(1, 40)), draw(st.integers(1, 9) | st.integers(1, 256))
    depth, width = draw(st.integers(1, 128)), draw(st.integers(1, 9) | st.integers(1, 140))
    every = [(queries, depth), (keys, depth), (keys, width), (queries, width)]
    if draw(st.booleans()):
        every = [(tokens, -(-channels // 8) * 8) for tokens, channels in every]
    axes = draw(st.sampled_from(ORDERS))
    q, k, v, y = (lying((2, heads, *each), axes) for each in every)
    bias = rows(heads, queries, keys) if draw(st.booleans()) else None
    precision = draw(st.sampled_from(FLOATING))
    return attention_case("drawn", q, k, v, y, bias, scale=depth**-0.5, precision=precision)


test_any_attention_is_its_reference, test_very_many_attentions_are_their_reference = of_drawn(
    lambda case: case, st.tuples(drawn_cases()), few=20, many=1000
)


def noticed(root: Path, precision: Precision, shift: float = -300.0) -> bool:
    """Return whether a small case fails with these sources; without care, all its exponentials
    would vanish."""
    return notices(
        root, [attention_case("planted", *WINDOWS, scale=0.5, shift=shift, precision=precision)]
    )


@pytest.mark.parametrize("defect", IN_FLOAT)
def test_a_defect_in_float_is_noticed(defect: str, tmp_path: Path) -> None:
    assert noticed(replaced(tmp_path, "attention.cu", *IN_FLOAT[defect]), FP32)


@pytest.mark.parametrize("defect", ON_TENSOR_CORES)
def test_a_defect_on_tensor_cores_is_noticed(defect: str, tmp_path: Path) -> None:
    precision, old, new = ON_TENSOR_CORES[defect]
    second = int(defect.endswith("of values"))
    assert noticed(replaced(tmp_path, "attention.cu", old, new, second), precision)


PRODUCTS = {
    "keys that are not rounded": (TF32, "N && !WEIGHTS", "N && WEIGHTS"),
    "small parts of keys left out": (TF32X3, "multiply<PRECISION>(step, factors, small);", ""),
    "small parts of queries left out": (TF32X3, "multiply<PRECISION>(step, small, factors);", ""),
}


@pytest.mark.parametrize("defect", PRODUCTS)
def test_a_product_that_is_less_exact_is_noticed(defect: str, tmp_path: Path) -> None:
    precision, old, new = PRODUCTS[defect]
    assert noticed(replaced(tmp_path, "fragments.cuh", old, new), precision, shift=0.0)


@pytest.mark.parametrize("precision", FLOATING, ids=lambda each: each.value)
def test_nothing_planted_is_not_noticed(precision: Precision, tmp_path: Path) -> None:
    assert not noticed(replaced(tmp_path, "attention.cu", "", ""), precision)


@pytest.mark.parametrize(("keys", "depth"), [(257, 8), (8, 129)])
@pytest.mark.parametrize("precision", FLOATING, ids=lambda each: each.value)
def test_what_a_block_cannot_hold_is_refused(keys: int, depth: int, precision: Precision) -> None:
    q, k, v, y = (
        StridedTensor.contiguous(shape, precision.stored)
        for shape in ((1, 4, depth), (1, keys, depth), (1, keys, 4), (1, 4, 4))
    )
    with pytest.raises(ValueError, match="at most 256 keys with at most 128 channels"):
        attention_launch(q, k, v, y, precision=precision)


def test_operands_are_stored_as_the_precision_says() -> None:
    halves = StridedTensor.contiguous((1, 4, 8), HALF)
    with pytest.raises(ValueError, match="stored as float32, got float16"):
        attention_launch(halves, halves, halves, halves, precision=TF32)


def test_few_tokens_of_one_image_are_many_blocks() -> None:
    """ViT-S/16 at N = 1: 197 tokens and 6 heads."""
    for precision in FLOATING:
        q, k, v, y = (replace(t, stored=precision.stored) for t in qkv(197, 6, 64, images=1))
        assert attention_launch(q, k, v, y, precision=precision).grid == (6, 13, 1)


PRODUCTS_OF: dict[Precision, tuple[str, int]] = {
    FP16: ("m16n8k16.row.col.f32.f16.f16.f32", 40),
    TF32: ("m16n8k8.row.col.f32.tf32.tf32.f32", 40),
    TF32X3: ("m16n8k8.row.col.f32.tf32.tf32.f32", 120),
}
"""For each precision, an instruction and its count: 2 for each of 4 steps of 4 tiles, plus 8 for
v."""


@pytest.mark.parametrize("precision", PRODUCTS_OF, ids=lambda each: each.value)
def test_in_ptx_both_products_are_on_tensor_cores_with_sums_in_float(precision: Precision) -> None:
    made = attention_case("of PTX", *qkv(16, 1, 8), precision=precision).launches[0]
    found = re.findall(r"mma\.sync\.aligned\.(\S+)", ptx.compiled(made.instantiation))
    instruction, count = PRODUCTS_OF[precision]
    assert found == [instruction] * count


def test_scores_are_in_registers_everywhere() -> None:
    rows_of = {row: cells for row, cells in resources.read().items() if "attention_tensor" in row}
    assert {row.split("::")[1].split(",")[0] for row in rows_of} == {"TF32", "TF32X3", "FP16"}
    assert not [cell for cells in rows_of.values() for cell in cells.values() if "stack" in cell]
