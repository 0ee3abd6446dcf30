"""Describes where a tensor's elements lie, and how a kernel loops over several tensors at once."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from kernels.device.launch import int32, struct
from kernels.problems.precision import FLOAT, Storage

VECTOR = 4
"""Elements of a thread's widest load and store: 16 bytes of floats, 8 of halves."""


@dataclass(frozen=True, slots=True)
class StridedTensor:
    """Describes a tensor in device memory by its axes' sizes and strides, in any order of axes.

    `strides` are in elements. An axis along which elements repeat has stride 0. The tensor's
    address points to its first element, which lies `offset` elements after a multiple of 16 bytes.
    """

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int = 0
    stored: Storage = FLOAT

    def __post_init__(self) -> None:
        if len(self.shape) != len(self.strides):
            raise ValueError(
                f"the shape {self.shape} needs one stride per axis, got {self.strides}"
            )
        if min(self.shape, default=1) < 1 or min(self.strides, default=0) < 0:
            raise ValueError(
                f"sizes must be at least 1 and strides at least 0,"
                f" got {self.shape} and {self.strides}"
            )

    @classmethod
    def contiguous(cls, shape: Sequence[int], stored: Storage = FLOAT) -> "StridedTensor":
        """Return a row-major tensor, whose last axis is contiguous."""
        strides = tuple(prod(shape[axis + 1 :]) for axis in range(len(shape)))
        return cls(tuple(shape), strides, stored=stored)

    @property
    def reach(self) -> int:
        """Return the distance in memory from the first to the last element, in elements."""
        return _reach(self.shape, self.strides)

    @property
    def has_vector_rows(self) -> bool:
        """Return whether the last axis is contiguous and each of its rows begins at a multiple of
        16 bytes."""
        width = 16 // self.stored.itemsize
        *outer, inner = self.strides
        return inner == 1 and all(number % width == 0 for number in (self.offset, *outer))

    def transposed(self, axes: Sequence[int]) -> "StridedTensor":
        """Return the tensor with axis `axes[i]` as its axis i. An axis that is not in `axes` is
        sliced at index 0."""
        return replace(
            self,
            shape=tuple(self.shape[axis] for axis in axes),
            strides=tuple(self.strides[axis] for axis in axes),
        )

    def split(self, axis: int, outer: int) -> "StridedTensor":
        """Split `axis` into two axes of size `outer` and size / `outer`. Raises ValueError if
        `outer` does not divide the size."""
        size, stride = self.shape[axis], self.strides[axis]
        if size % outer:
            raise ValueError(f"an axis of size {size} does not split into {outer} equal parts")
        shape = (*self.shape[:axis], outer, size // outer, *self.shape[axis + 1 :])
        strides = (*self.strides[:axis], stride * (size // outer), *self.strides[axis:])
        return replace(self, shape=shape, strides=strides)

    def broadcast(self, shape: Sequence[int]) -> "StridedTensor":
        """Return the tensor broadcast to `shape` by NumPy's rules. Raises ValueError if these rules
        do not allow this shape."""
        missing = len(shape) - len(self.shape)
        have = (1,) * missing + self.shape
        if missing < 0 or any(a not in (1, b) for a, b in zip(have, shape, strict=True)):
            raise ValueError(f"the shape {self.shape} does not broadcast to {tuple(shape)}")
        strides = (0,) * missing + self.strides
        repeated = tuple(
            0 if size == 1 else stride for size, stride in zip(have, strides, strict=True)
        )
        return replace(self, shape=tuple(shape), strides=repeated)


@dataclass(frozen=True, slots=True)
class Walk:
    """Describes nested loops over several tensors of the same shape, beginning with the outermost
    loop. Axes are merged, so that there are few loops.

    The innermost loop advances in steps of `v` elements. In each tensor, these elements are
    contiguous, or are the same element repeated. The kernel's type is `Walk<RANK, OPERANDS>` of
    kernels/src/common.cuh.
    """

    extents: tuple[int, ...]  # steps along each axis
    strides: tuple[tuple[int, ...], ...]  # for each tensor, elements a step
    v: int

    @property
    def rank(self) -> int:
        """Return the number of axes, at least 1."""
        return len(self.extents)

    @property
    def steps(self) -> int:
        """Return the total number of steps. Each step is the work of one thread."""
        return prod(self.extents)

    def struct(self) -> bytes:
        """Return the kernel's argument `Walk`. Raises ValueError if an index into a tensor exceeds
        32 bits."""
        int32(max(_reach(self.extents, strides) for strides in self.strides))
        stride = [step for strides in self.strides for step in strides]
        return struct("common.cuh", "Walk", steps=self.steps, extent=self.extents, stride=stride)


def walk(written: StridedTensor, *read: StridedTensor, vectors: bool = True) -> Walk:
    """Return the loops that write one tensor and read others, in descending order of the written
    tensor's strides.

    All tensors have the same shape. Axes that are contiguous in every tensor are merged. Without
    `vectors`, each step is one element. Raises ValueError if shapes differ, or if two written
    elements have the same address.
    """
    _check(written, *read)
    axes = _merged_axes(written, *read)
    if not vectors or not _vectorises(axes, [tensor.offset for tensor in (written, *read)]):
        return _walk(axes, 1)
    extent, strides = axes.pop()
    axes.append((extent // VECTOR, [stride * VECTOR for stride in strides]))
    return _walk(axes, VECTOR)


def walk_rows(
    axis: int, written: StridedTensor, *read: StridedTensor
) -> tuple[Walk, tuple[int, ...]]:
    """Return loops that visit all rows along `axis`, and the stride of each tensor along `axis`.
    The elements of a row differ only in their index along `axis`.

    The loops are like the loops of `walk`, but each step is one row.
    """
    _check(written, *read)
    others = [_without(axis, tensor) for tensor in (written, *read)]
    strides = tuple(tensor.strides[axis] for tensor in (written, *read))
    return _walk(_merged_axes(*others), 1), strides


def walk_matrices(written: StridedTensor, *read: StridedTensor) -> Walk:
    """Return loops that visit all matrices of the tensors. A matrix consists of a tensor's last two
    axes. Matrices of different tensors may have different shapes.

    The loops are like the loops of `walk`, but each step is one matrix. Raises ValueError for the
    same reasons as `walk`, and if an index into a tensor exceeds 32 bits.
    """
    tensors = (written, *read)
    for tensor in tensors:
        int32(tensor.reach)
    before = range(len(written.shape) - 2)
    return walk(*(tensor.transposed(before) for tensor in tensors), vectors=False)


Axes = list[tuple[int, list[int]]]  # for each axis its extent and every tensor's stride


def _reach(shape: Sequence[int], strides: Sequence[int]) -> int:
    return sum((size - 1) * stride for size, stride in zip(shape, strides, strict=True))


def _check(written: StridedTensor, *read: StridedTensor) -> None:
    if any(tensor.shape != written.shape for tensor in read):
        raise ValueError(
            f"all tensors must have the shape {written.shape},"
            f" got {[tensor.shape for tensor in read]}"
        )
    sizes = zip(written.shape, written.strides, strict=True)
    if any(size > 1 and stride == 0 for size, stride in sizes):
        raise ValueError(f"a tensor to write must not have a stride of 0: {written}")


def _without(axis: int, tensor: StridedTensor) -> StridedTensor:
    shape, strides = (
        tensor[:axis] + tensor[axis + 1 :] for tensor in (tensor.shape, tensor.strides)
    )
    return replace(tensor, shape=shape, strides=strides)


def _merged_axes(written: StridedTensor, *read: StridedTensor) -> Axes:
    """Merge axes that are contiguous in every tensor, and drop axes of size 1. Return the other
    axes in descending order of the written tensor's strides."""
    every = zip(written.shape, written.strides, *(tensor.strides for tensor in read), strict=True)
    axes = [(extent, strides) for extent, *strides in every if extent > 1]
    axes.sort(key=lambda axis: axis[1][0], reverse=True)
    merged: Axes = []
    for extent, strides in axes:
        if merged and merged[-1][1] == [stride * extent for stride in strides]:
            merged[-1] = (merged[-1][0] * extent, strides)
        else:
            merged.append((extent, strides))
    return merged or [(1, [1] * (1 + len(read)))]


def _vectorises(axes: Axes, offsets: list[int]) -> bool:
    """Return whether, in every tensor, a thread can load or store VECTOR elements of the innermost
    axis at once."""
    *outer, (extent, inner) = axes
    if extent % VECTOR or inner[0] != 1:
        return False
    for tensor, (stride, offset) in enumerate(zip(inner, offsets, strict=True)):
        aligned = all(strides[tensor] % VECTOR == 0 for _, strides in outer)
        if stride != 0 and not (stride == 1 and offset % VECTOR == 0 and aligned):
            return False
    return True


def _walk(axes: Axes, v: int) -> Walk:
    by_tensor = zip(*(strides for _, strides in axes), strict=True)
    return Walk(tuple(extent for extent, _ in axes), tuple(by_tensor), v)
