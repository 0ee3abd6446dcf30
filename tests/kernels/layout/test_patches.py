"""Patches: the bank of each place, the regions, and the table of offsets."""

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from kernels.layout.patches import (
    CHUNK_VECTORS,
    MAX_PATCH_BYTES,
    offsets_of,
    paired,
    patch_of,
    slices_of,
    window_bytes,
)
from kernels.problems.conv import ConvProblem
from kernels.problems.precision import Precision
from kernels.problems.window import Window
from tests.support.kernels.windows import conv_problem, window, windows


def half(n: int, c: int, seen: Window, precision: Precision = Precision.FP16) -> ConvProblem:
    """Return a problem in fp16; the number of filters does not matter."""
    return replace(conv_problem(n, c, 8, seen), precision=precision)


@st.composite
def problems(draw: st.DrawFn) -> ConvProblem:
    """Draw any problem of float16 or bytes with two axes whose window fits into a patch."""
    precision = draw(st.sampled_from((Precision.FP16, Precision.INT8)))
    problem = half(draw(st.integers(1, 9)), draw(st.integers(1, 150)), draw(windows()), precision)
    assume(len(problem.window.input) == 2 and window_bytes(problem) <= MAX_PATCH_BYTES)
    return problem


@given(problems(), st.sampled_from((64, 128, 256)))
def test_a_tap_reads_8_neighbouring_outputs_from_different_banks(
    problem: ConvProblem, most: int
) -> None:
    """The places differ modulo 8 and are an odd number of vectors apart."""
    slices, patch = slices_of(problem), patch_of(problem, most)
    assert slices.place_bytes % 32 == 16
    assert patch.places * slices.place_bytes <= MAX_PATCH_BYTES
    outputs = list(product(*map(range, patch.region)))
    assert len(outputs) <= most
    starts = [
        image * patch.image_places + row * patch.row_places + column
        for image, row, column in outputs
    ]
    for first in range(0, len(starts) - 7, 8):
        assert len({place % 8 for place in starts[first : first + 8]}) == 8


@given(problems(), st.sampled_from((64, 128, 256)))
def test_every_tap_of_every_output_has_the_place_that_its_offset_says(
    problem: ConvProblem, most: int
) -> None:
    slices, patch, seen = slices_of(problem), patch_of(problem, most), problem.window
    pair = 2 if paired(problem) else 1
    rows, columns = patch.read[0], patch.read[1] // pair
    every = [patch.place(row, column) for row in range(rows) for column in range(columns)]
    assert len(set(every)) == len(every)
    assert max(every) < patch.image_places
    table, vector_of = offsets_of(seen, patch, slices), {}
    for index in range(CHUNK_VECTORS * slices.chunks):
        chunk, half_warp, step = index // 8, index % 8 // 4, index % 4
        vector_of[chunk * 8 + step * 2 + half_warp] = table[index] & ~15
    last_row, last_column = (length - 1 for length in patch.region[1:])
    start = last_row * patch.row_places + last_column
    for vector in range(slices.vectors):
        tap, of_tap = divmod(vector, slices.tap_vectors)
        r, s = divmod(tap, slices.row_taps)
        row = last_row * seen.strides[0] + r * seen.dilations[0]
        column = last_column * seen.strides[1] // pair + s * seen.dilations[1]
        read = start * slices.place_bytes + vector_of[vector]
        assert read == patch.place(row, column) * slices.place_bytes + of_tap * 16
    for vector in range(slices.vectors, len(vector_of)):
        assert vector_of[vector] == slices.tap_vectors * 16  # zeros, in the window's first place
        assert slices.place_bytes > vector_of[vector]


def test_pairs_that_end_beyond_an_odd_row_of_taps_are_marked() -> None:
    seen = window((15, 17), (3, 3), strides=(2, 2), pads=(1, 1, 1, 1))
    problem = half(1, 3, seen)
    table = offsets_of(seen, patch_of(problem, 64), slices_of(problem))
    # Two pairs a row of taps: the second is the second vector of its step, or of padding.
    assert [each & 3 for each in table[:8]] == [2] * 8
    even = window((15, 17), (3, 4), strides=(2, 2), pads=(1, 1, 1, 1))
    problem = half(1, 3, even)
    assert not any(
        each & 15 for each in offsets_of(even, patch_of(problem, 64), slices_of(problem))
    )


@pytest.mark.parametrize(("n", "images"), [(8, 2), (1, 1)])
def test_small_images_share_a_patch(n: int, images: int) -> None:
    seen = window((7, 7), (3, 3), pads=(1, 1, 1, 1))
    assert patch_of(half(n, 64, seen), 128).region == (images, 7, 7)


@pytest.mark.parametrize(
    ("channels", "count", "vectors", "chunks"),
    [(64, 1, 8, 9), (72, 2, 5, 6), (96, 2, 6, 7), (16, 1, 2, 3)],
)
def test_channels_are_divided_into_slices_as_equal_as_whole_vectors_allow(
    channels: int, count: int, vectors: int, chunks: int
) -> None:
    slices = slices_of(half(1, channels, window((7, 7), (3, 3))))
    assert (slices.count, slices.tap_vectors, slices.chunks) == (count, vectors, chunks)
