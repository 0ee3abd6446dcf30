"""Describes where tensors are stored: the buffer, the first element and the strides.

A tensor of shape C×H×W (or C×D×H×W) is stored as pixels in the order N·H·W·C. The channels of a
pixel are contiguous and padded to a multiple of 16 bytes. A vector of C elements is stored as N
pixels. All other tensors are stored in row-major order. A tensor may be a view of another tensor's
buffer, for example a range of channels or a flattened image.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from math import prod

from kernels.layout.pixels import Pixels
from kernels.layout.strided import StridedTensor
from kernels.problems.precision import FLOAT, Storage
from models.graph import Shape

PIXEL_RANKS = (1, 3, 4)
"""The numbers of axes of values that are stored as pixels: C, C×H×W and C×D×H×W."""


@dataclass(frozen=True, slots=True)
class BufferView:
    """Describes where the tensor of n images is stored in buffer `root`. Its axes are N, C, H, W.

    `offset` is the index of its first element.
    """

    root: str
    offset: int
    strided: StridedTensor  # batch axis first; its `offset` is `offset` modulo 16 bytes
    pixels: Pixels | None  # None if the channels of a pixel are not contiguous


@dataclass(frozen=True, slots=True)
class NewBuffer:
    """Describes a new buffer for one tensor: its size, and the view of the tensor in it."""

    view: BufferView
    nbytes: int


def new_buffer(root: str, n: int, shape: Shape, stored: Storage = FLOAT) -> NewBuffer:
    """Return the size of a new buffer for n images of `shape`, and the view of the tensor in it."""
    if len(shape) not in PIXEL_RANKS:
        view = BufferView(root, 0, StridedTensor.contiguous((n, *shape), stored), None)
        return NewBuffer(view, stored.itemsize * n * prod(shape))
    channels, *spatial = shape
    pitch = stored.pitch(channels)
    view = view_of_pixels(root, 0, n, spatial, Pixels(channels, pitch, stored=stored))
    return NewBuffer(view, stored.itemsize * n * prod(spatial) * pitch)


def aligned_elements(stored: Storage) -> int:
    """Return the number of elements in 16 bytes."""
    return 16 // stored.itemsize


def view_of_pixels(
    root: str, offset: int, n: int, spatial: Sequence[int], pixels: Pixels
) -> BufferView:
    """Return the view of n images that are stored as pixels. The first image begins `offset`
    elements into the buffer."""
    pixels = replace(pixels, offset=offset % aligned_elements(pixels.stored))
    return BufferView(root, offset, pixels.strided(n, spatial), pixels)


def cut(view: BufferView, axis: int, start: int, stop: int, step: int = 1) -> BufferView:
    """Return the view of the slice start:stop:step along `axis`, where axis 0 is the batch."""
    strided = view.strided
    offset = view.offset + start * strided.strides[axis]
    size = len(range(start, stop, step))
    shape = (*strided.shape[:axis], size, *strided.shape[axis + 1 :])
    strides = (*strided.strides[:axis], step * strided.strides[axis], *strided.strides[axis + 1 :])
    past = offset % aligned_elements(strided.stored)
    pixels = None
    if view.pixels is not None and axis == 1 and step == 1:
        pixels = replace(view.pixels, channels=size, offset=past)
    strided_view = replace(strided, shape=shape, strides=strides, offset=past)
    return BufferView(view.root, offset, strided_view, pixels)


def flattened(view: BufferView, n: int) -> BufferView | None:
    """Return the view of each image as a vector, with its elements in the order of memory.

    Return None if an image has gaps between its elements. There are gaps if channels are padded, or
    if the image's channels are only a part of the channels that are stored per pixel.
    """
    if view.pixels is None:
        return None
    channels, pitch = view.pixels.channels, view.pixels.pitch
    spatial = prod(view.strided.shape[2:])
    if channels != pitch and spatial > 1:
        return None
    row = Pixels(channels * spatial, pitch * spatial, stored=view.strided.stored)
    return view_of_pixels(view.root, view.offset, n, (), row)


def with_single_axes(view: BufferView, shape: Shape) -> BufferView | None:
    """Return the view with another `shape` (of one image) that only adds or removes axes of size 1.

    Return None if the shapes also differ in other axes.
    """
    old = [
        (size, stride)
        for size, stride in zip(view.strided.shape[1:], view.strided.strides[1:], strict=True)
        if size != 1
    ]
    if [size for size, _ in old] != [size for size in shape if size != 1]:
        return None
    remaining = iter(old)
    strides = tuple(1 if size == 1 else next(remaining)[1] for size in shape)
    n, batch = view.strided.shape[0], view.strided.strides[0]
    pixels = None
    if len(shape) in PIXEL_RANKS:
        channels, spatial = shape[0], shape[1:]
        # The result has `pixels` only if the value had them, or if an image has a single pixel.
        if prod(spatial) == 1 and strides[0] == 1 and batch >= channels:
            pixels = Pixels(channels, batch, stored=view.strided.stored)
        elif view.pixels is not None and view.pixels.channels == channels:
            pixels = view.pixels
        if pixels is not None:
            return view_of_pixels(view.root, view.offset, n, spatial, pixels)
    strided = replace(view.strided, shape=(n, *shape), strides=(batch, *strides))
    return BufferView(view.root, view.offset, strided, None)


def pixels_in_order(view: BufferView, shape: Shape) -> BufferView | None:
    """Return the view of the same pixels with other spatial axes, such as C×1×HW for C×H×W.

    `shape` describes one image. Return None if the tensor is not stored as pixels, or if `shape`
    has another number of channels.
    """
    if view.pixels is None or len(shape) not in PIXEL_RANKS or shape[0] != view.pixels.channels:
        return None
    return view_of_pixels(view.root, view.offset, view.strided.shape[0], shape[1:], view.pixels)


def is_in_vectors(view: BufferView) -> bool:
    """Return whether a tensor is stored as pixels that all begin and end at multiples of 16
    bytes."""
    pixels = view.pixels
    width = aligned_elements(view.strided.stored)
    return pixels is not None and not (pixels.pitch % width or pixels.offset % width)


def transposed(view: BufferView, axes: Sequence[int]) -> BufferView:
    """Return the view whose axis i is axis `axes[i]` of `view`. Axes are counted without the
    batch."""
    strided = view.strided.transposed((0, *(axis + 1 for axis in axes)))
    return _as_it_lies(replace(view, strided=strided))


def reshaped(view: BufferView, shape: Shape) -> BufferView | None:
    """Return the view with another `shape` of each image, or None if the data must be copied."""
    axes = common_refinement(view.strided.shape[1:], shape)
    if axes is None:
        return None
    fine = refined(view.strided, axes)
    parts = list(zip(fine.shape[1:], fine.strides[1:], strict=True))
    strides: list[int] = []
    for size in shape:
        rest, inner = size, 1
        while rest > 1:
            extent, stride = parts.pop(0)
            rest //= extent
            if rest > 1 and stride != parts[0][0] * parts[0][1]:
                return None
            inner = stride
        strides.append(inner)
    strided = replace(
        view.strided,
        shape=(view.strided.shape[0], *shape),
        strides=(view.strided.strides[0], *strides),
    )
    return _as_it_lies(replace(view, strided=strided))


def _as_it_lies(view: BufferView) -> BufferView:
    """Return the view with its field `pixels` set from its strides. The field is None if the
    elements are not stored as pixels."""
    n, *shape = view.strided.shape
    if len(shape) not in PIXEL_RANKS:
        return replace(view, pixels=None)
    channels, *spatial = shape
    pitch = view.strided.strides[-1] if spatial else view.strided.strides[0]
    if pitch < channels:
        return replace(view, pixels=None)
    pixels = Pixels(channels, pitch, stored=view.strided.stored)
    found = view_of_pixels(view.root, view.offset, n, spatial, pixels)
    long = [size > 1 for size in view.strided.shape]
    lies, pixel = (
        [stride for stride, more in zip(each.strided.strides, long, strict=True) if more]
        for each in (view, found)
    )
    return found if lies == pixel else replace(view, pixels=None)


def common_refinement(a: Iterable[int], b: Iterable[int]) -> tuple[int, ...] | None:
    """Split the axes of two shapes until both have the same axes, and return these axes. Return
    None if this is impossible.

    Examples: (6, 4) and (2, 12) → (2, 3, 4); (4, 9) and (6, 6) → None.
    """
    left, right = [s for s in a if s != 1], [s for s in b if s != 1]
    axes: list[int] = []
    while left and right:
        small, large = min(left[0], right[0]), max(left[0], right[0])
        if large % small:
            return None
        axes.append(small)
        for sizes in (left, right):
            sizes[0] //= small
            if sizes[0] == 1:
                sizes.pop(0)
    return tuple(axes)


def refined(strided: StridedTensor, axes: tuple[int, ...]) -> StridedTensor:
    """Return the tensor with the axes of each image split into `axes`, a result of
    `common_refinement`.

    The batch remains the first axis. Axes of size 1 are removed.
    """
    wanted = list(axes)
    result = replace(strided, shape=strided.shape[:1], strides=strided.strides[:1])
    for size, stride in zip(strided.shape[1:], strided.strides[1:], strict=True):
        rest = size
        while rest > 1:
            part = wanted.pop(0)
            rest //= part
            result = replace(
                result, shape=(*result.shape, part), strides=(*result.strides, stride * rest)
            )
    return result
