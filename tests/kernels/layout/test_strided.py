"""Walks over tensors with strides, and pixels: the memory that a launch will access, in plain
Python."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.layout.pixels import Pixels, vector_width
from kernels.layout.strided import StridedTensor, Walk, walk, walk_matrices, walk_rows
from kernels.problems.precision import HALF


def visited(steps: Walk) -> list[tuple[int, ...]]:
    """Follow a walk as kernels do: for each element in order, return its place in every tensor."""
    places = []
    for position in product(*map(range, steps.extents)):
        base = [sum(p * s for p, s in zip(position, each, strict=True)) for each in steps.strides]
        for i in range(steps.v):
            repeats = [steps.v > 1 and each[-1] == 0 for each in steps.strides]
            places.append(tuple(b + i * (not r) for b, r in zip(base, repeats, strict=True)))
    return places


def elements(*tensors: StridedTensor) -> set[tuple[int, ...]]:
    """Return the same places, from the definition of strides."""
    return {
        tuple(sum(p * s for p, s in zip(at, each.strides, strict=True)) for each in tensors)
        for at in product(*map(range, tensors[0].shape))
    }


@st.composite
def views(draw: st.DrawFn, shape: tuple[int, ...]) -> StridedTensor:
    """Draw a tensor of this shape, with its axes in any order and optional gaps between
    elements."""
    strides = [0] * len(shape)
    step = draw(st.sampled_from((1, 1, 1, 2, 4)))
    for axis in draw(st.permutations(range(len(shape)))):
        strides[axis] = step
        step = step * shape[axis] + draw(st.sampled_from((0, 0, 0, 1, 4)))
    return StridedTensor(shape, tuple(strides), draw(st.sampled_from((0, 0, 1, 4))))


@st.composite
def pairs(draw: st.DrawFn) -> tuple[StridedTensor, StridedTensor]:
    """Draw a written tensor and read tensors, some with fewer axes or with repeated elements."""
    shape = tuple(draw(st.lists(st.sampled_from((1, 2, 3, 4, 8)), min_size=1, max_size=4)))
    read = tuple(draw(st.sampled_from((size, size, 1))) for size in shape)
    return draw(views(shape)), draw(views(read[draw(st.integers(0, len(shape) - 1)) :]))


@given(pairs())
@settings(max_examples=300, deadline=None)
def test_a_walk_visits_every_element_once_beside_the_one_it_is_computed_from(
    pair: tuple[StridedTensor, StridedTensor],
) -> None:
    written, read = pair[0], pair[1].broadcast(pair[0].shape)
    steps = walk(written, read)
    places = visited(steps)
    assert len(places) == np.prod(written.shape)
    assert set(places) == elements(written, read)
    written_at = [place[0] for place in places]
    assert written_at == sorted(written_at)  # neighbouring threads write neighbouring addresses


@given(pairs())
@settings(max_examples=300, deadline=None)
def test_vectors_are_aligned_in_every_tensor(pair: tuple[StridedTensor, StridedTensor]) -> None:
    written, read = pair[0], pair[1].broadcast(pair[0].shape)
    steps = walk(written, read)
    if steps.v == 1:
        return
    for tensor, strides in zip((written, read), steps.strides, strict=True):
        if strides[-1] != 0:
            assert strides[-1] == steps.v
            assert all(stride % steps.v == 0 for stride in (*strides, tensor.offset))


@given(pairs(), st.data())
@settings(max_examples=100, deadline=None)
def test_a_walk_over_rows_leaves_one_axis_out(
    pair: tuple[StridedTensor, StridedTensor], data: st.DataObject
) -> None:
    written, read = pair[0], pair[1].broadcast(pair[0].shape)
    axis = data.draw(st.integers(0, len(written.shape) - 1))
    rows, along = walk_rows(axis, written, read)
    places = {
        tuple(at + i * stride for at, stride in zip(place, along, strict=True))
        for place in visited(rows)
        for i in range(written.shape[axis])
    }
    assert rows.v == 1
    assert places == elements(written, read)


def test_whole_tensors_are_one_axis_and_a_channel_slice_two() -> None:
    whole = Pixels(64, 64).strided(8, (56, 56))
    part = Pixels(64, 192, offset=128).strided(8, (56, 56))
    assert walk(whole, whole).extents == (8 * 56 * 56 * 16,)
    assert walk(part, whole).extents == (8 * 56 * 56, 16)


def test_a_number_a_channel_is_two_axes_and_moves_in_vectors() -> None:
    x = Pixels(64, 64).strided(8, (7, 7))
    scale = StridedTensor.contiguous((64, 1, 1)).broadcast(x.shape)
    steps = walk(x, x, scale)
    assert (steps.extents, steps.v) == ((8 * 49, 16), 4)
    assert steps.strides[2] == (0, 4)


def test_writing_to_elements_that_repeat_is_refused() -> None:
    repeated = StridedTensor((4,), (0,))
    with pytest.raises(ValueError, match="stride of 0"):
        walk(repeated, StridedTensor.contiguous((4,)))


def test_tensors_of_different_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="must have the shape"):
        walk(StridedTensor.contiguous((4,)), StridedTensor.contiguous((8,)))


@pytest.mark.parametrize("shape", [(3,), (2, 4, 4), (5, 4)])
def test_what_numpy_does_not_broadcast_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="broadcast"):
        StridedTensor.contiguous(shape).broadcast((4, 4))


def test_a_tensor_beyond_32_bit_indices_is_refused() -> None:
    huge = StridedTensor.contiguous((2**20, 2**12))
    with pytest.raises(ValueError, match="32 bits"):
        walk(huge, huge).struct()


def test_matrices_are_walked_whatever_their_rows_and_columns_are() -> None:
    y, x = StridedTensor.contiguous((2, 3, 4, 5)), StridedTensor.contiguous((2, 3, 7, 1))
    steps = walk_matrices(y, x)
    assert (steps.extents, steps.strides) == ((6,), ((20,), (7,)))


def test_a_matrix_beyond_32_bit_indices_is_refused() -> None:
    fits = StridedTensor((2, 2**10, 2), (1, 2**20, 2))
    assert walk_matrices(fits).extents == (2,)
    with pytest.raises(ValueError, match="32 bits"):
        walk_matrices(fits, StridedTensor((2, 2**11 + 1, 2), (1, 2**20, 2)))


@pytest.mark.parametrize(
    ("tensor", "expected"),
    [
        (StridedTensor.contiguous((2, 3, 4)), True),
        (StridedTensor.contiguous((2, 3, 4), HALF), False),
        (StridedTensor.contiguous((2, 3, 8), HALF), True),
        (StridedTensor((2, 3, 5), (24, 8, 1), 4), True),
        (StridedTensor((2, 3, 4), (24, 8, 1), 4, HALF), False),
        (StridedTensor((2, 4, 4), (16, 1, 4)), False),
    ],
    ids=["floats", "4 halves", "8 halves", "with a gap", "in the middle", "turned"],
)
def test_rows_that_begin_at_16_bytes_are_of_vectors(tensor: StridedTensor, expected: bool) -> None:
    assert tensor.has_vector_rows == expected


def test_an_axis_splits_into_runs() -> None:
    x = Pixels(6, 8).strided(2, (3, 3)).split(1, 2)
    assert (x.shape, x.strides) == ((2, 2, 3, 3, 3), (72, 3, 1, 24, 8))
    with pytest.raises(ValueError, match="does not split"):
        x.split(3, 2)


def test_pixels_lie_channels_last() -> None:
    memory = np.arange(2 * 3 * 5 * 4)
    layout = Pixels(4, 4).strided(2, (3, 5))
    strides = [stride * memory.itemsize for stride in layout.strides]
    seen = np.lib.stride_tricks.as_strided(memory, layout.shape, strides)
    assert np.array_equal(seen, memory.reshape(2, 3, 5, 4).transpose(0, 3, 1, 2))


@pytest.mark.parametrize(
    ("pixels", "width"),
    [
        (Pixels(64, 64), 4),
        (Pixels(64, 96, offset=32), 4),
        (Pixels(10, 12), 1),
        (Pixels(8, 10), 1),
        (Pixels(8, 16, offset=2), 1),
    ],
)
def test_pixels_move_in_vectors_where_everything_is_a_multiple_of_4(
    pixels: Pixels, width: int
) -> None:
    assert vector_width(pixels) == width
    assert vector_width(pixels, Pixels(1, 1)) == 1


def test_a_pitch_shorter_than_a_pixel_is_refused() -> None:
    with pytest.raises(ValueError, match="pitch"):
        Pixels(8, 4)
