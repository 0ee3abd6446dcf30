"""Merges several nodes that only reorder whole pixels into one gather.

    y[c, q] = x[c, p(q)]        p is a table of pixel indices

Swin and MobileViT roll an image, cut it into windows or patches, and join these again. Their
Slices, Concats, Transposes and Reshapes copy the image several times. A Resample node that reads
one pixel per output pixel copies the image only once. If p(q) = q, nothing is copied.

If other nodes also read an intermediate tensor, it is kept for them. The rule does not apply to
quantized images. It also does not apply to images with too many pixels, because their tables would
take long to compute.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod

import numpy as np
from numpy.typing import NDArray

from models.graph import Concat, Node, Resample, Reshape, Shape, Slice, Transpose, Value
from models.quantized_filters import is_quantized
from models.rewrite.folding import weight_of
from models.rewrite.rule import GraphView, Outcome, Refusal, Rewrite

Places = NDArray[np.int64]
"""For each pixel of a tensor, the index of the same pixel in another tensor."""

_MOST_PIXELS, _MOST_NUMBERS = 2**14, 2**21
"""The limits on the size of an image whose moves are examined: 128 × 128 pixels of 128 channels."""

_MOST_MOVES = 16
"""The limit on successive moves that are examined. Swin has 7."""


@dataclass(frozen=True, slots=True)
class Moved:
    """Describes a tensor whose pixel q is the pixel `places[q]` of the tensor `x`."""

    x: str
    places: Places

    @property
    def stays(self) -> bool:
        """Return whether all pixels are in their original order."""
        return np.array_equal(self.places, np.arange(len(self.places)))

    def undoes(self, other: "Moved") -> bool:
        """Return whether this reordering restores the original order of pixels after the reordering
        `other`."""
        if len(self.places) != len(other.places):
            return False
        return np.array_equal(other.places[self.places], np.arange(len(self.places)))


def gather_pixels(view: GraphView, node: Node) -> Outcome:
    """Return a rewrite that merges several nodes that reorder pixels into one gather. `node` is the
    last of these nodes."""
    if not isinstance(node, Concat | Resample | Reshape | Transpose):
        return None
    if isinstance(node, Transpose) and (seen := _seen_last(view, node)) is not None:
        return seen
    steps = _steps(view, view.shape(node.output), node.output)
    copies = sum(step.copies for step in steps)
    if not copies or (copies == 1 and all(step.keeps_first for step in steps)):
        return None
    shape = view.shape(node.output)
    if copies > 1 and not _is_small(shape):
        size = f"{prod(shape[1:])} pixels of {shape[0]} channels"
        most = f"{_MOST_PIXELS} pixels and {_MOST_NUMBERS} numbers"
        return Refusal(f"it moves {size}; at most {most} are supported")
    moved = moved_pixels(view, node.output)
    if moved is None:
        return None
    if moved.stays:
        return Rewrite(nodes=(Reshape(name=node.name, output=node.output, x=moved.x),))
    if copies == 1:
        return None
    if is_quantized(view.value(moved.x).stored):
        return Refusal(f"{moved.x} consists of bytes, but a Resample reads floats")
    return gathered(view, view.value(moved.x), moved.places, node.output)


def gathered(view: GraphView, x: Value, places: Places, y: str) -> Rewrite:
    """Return a rewrite with nodes that compute `y`, whose pixel q is the pixel `places[q]` of x.
    The height and width of `y` may differ from those of x."""
    channels, *spatial = x.shape
    before = Value(view.fresh(f"{y}.before"), (channels, 1, prod(spatial)))
    after = Value(view.fresh(f"{y}.after"), (channels, 1, len(places)))
    row, table = view.fresh(f"{y}.row"), view.fresh(f"{y}.places")
    return Rewrite(
        nodes=(
            Reshape(name=before.name, output=before.name, x=x.name),
            Resample(name=y, output=after.name, x=before.name, taps=(row, table)),
            Reshape(name=after.name, output=y, x=after.name),
        ),
        values=(before, after),
        weights={
            name: np.stack([at, np.ones_like(at)], -1)[:, None].astype(np.float32)
            for name, at in ((row, np.zeros(1, np.int64)), (table, places))
        },
    )


def _seen_last(view: GraphView, node: Transpose) -> Rewrite | None:
    """Return a rewrite of a Transpose that reorders pixels and also moves the channel axis to the
    end. The result has one gather, and a Transpose that only moves the channels.

    Return None for other Transposes.
    """
    shape, rank = view.shape(node.output), len(node.axes)
    last = (*range(1, rank), 0)
    if not _is_of_pixels(shape) or node.axes[-1] != 0 or node.axes == last:
        return None
    pixels = Value(view.fresh(f"{node.output}.pixels"), (shape[-1], *shape[:-1]))
    ahead = _turned(view, node.x, pixels.shape, (0, *node.axes[:-1]))
    steps = _steps(view, pixels.shape, node.x, ahead)
    moved = _moved(pixels.shape, steps) if sum(step.copies for step in steps) > 1 else None
    if moved is None or is_quantized(view.value(moved.x).stored):
        return None
    made = gathered(view, view.value(moved.x), moved.places, pixels.name)
    turn = Transpose(name=node.name, output=node.output, x=pixels.name, axes=last)
    return replace(made, nodes=(*made.nodes, turn), values=(*made.values, pixels))


def source_of_pixels(view: GraphView, name: str) -> str | None:
    """Return the tensor from which the pixels of `name` probably come, or None. Only a sample of
    the pixels is checked; `moved_pixels` checks all pixels."""
    steps = _steps(view, view.shape(name), name)
    return steps[-1].x if steps else None


def moved_pixels(view: GraphView, name: str) -> Moved | None:
    """Follow the pixels of the tensor `name` back through nodes that only move them. Return the
    first tensor that contains them, and the index of each pixel in it.

    Return None if `name` does not consist of whole pixels of another tensor.
    """
    shape = view.shape(name)
    return _moved(shape, _steps(view, shape, name))


def _moved(shape: Shape, steps: Sequence["_Step"]) -> Moved | None:
    """Combine several moves of elements into one reordering of pixels. Return None if the moves do
    not keep the channels of each pixel together. `steps` begins with the last move."""
    if not steps or not _is_small(shape):
        return None
    # If the first axis stays as it is, all channels move like one channel.
    channels = 1 if all(step.keeps_first for step in steps) else shape[0]
    area = prod(shape[1:])
    at = np.arange(channels * area).reshape(channels, area)
    for step in steps:
        at = step.source(at)
    return Moved(steps[-1].x, at[0]) if _are_whole(at, area) else None


@dataclass(frozen=True, slots=True)
class _Step:
    """Describes a node that moves elements. `x` is the node's input. `source` converts the index of
    an element in the node's result to the element's index in x."""

    x: str
    source: Callable[[Places], Places]
    copies: int  # the most copies
    keeps_first: bool  # whether the first axis stays as it is


def _steps(view: GraphView, shape: Shape, x: str, *steps: _Step) -> list[_Step]:
    """Return the nodes that probably make `x` from whole pixels of another tensor, as `_Step`s. The
    last node comes first. Only a sample of the pixels is checked.

    `steps` are moves that are applied to `x` but have no node in the graph.
    """
    if not _is_of_pixels(shape):
        return []
    channels, area = shape[0], prod(shape[1:])
    at = np.array([[0], [area // 3], [area - 1]]) + area * np.arange(channels)
    for unmade in steps:
        at = unmade.source(at)
    every, found = list(steps), 0
    while len(every) < _MOST_MOVES and (step := _step(view, x)) is not None:
        x, at = step.x, step.source(at)
        every.append(step)
        before = view.shape(x)
        is_alike = before[:1] == shape[:1] and prod(before) == prod(shape)
        if is_alike and _is_of_pixels(before) and _are_whole(at.T, area):
            found = len(every)
    return every[:found]


def _step(view: GraphView, name: str) -> _Step | None:
    """Return the `_Step` for the node that writes a value, or None if the node does more than move
    elements."""
    node, shape = view.producer(name), view.shape(name)
    match node:
        case Reshape(x=x, channels_last=False):
            keeps_first = view.shape(x)[:1] == shape[:1]
            return _Step(x, lambda at: at, int(not keeps_first), keeps_first)
        case Transpose(x=x, axes=axes):
            return _turned(view, x, shape, axes)
        case Concat(parts=parts, axis=axis):
            cuts = [cut for cut in map(view.producer, parts) if isinstance(cut, Slice)]
            if len(cuts) < len(parts) or {(cut.x, cut.axis) for cut in cuts} != {(cuts[0].x, axis)}:
                return None
            runs = [np.arange(cut.start, cut.stop, cut.step) for cut in cuts]
            return _taken(view, cuts[0].x, shape, {axis: np.concatenate(runs)}, len(cuts))
        case Resample(x=x, taps=taps):
            tables = [weight_of(view, table) for table in taps]
            if any(table.shape[1] > 1 or (table[..., 1] != 1).any() for table in tables):
                return None
            places = {
                axis: table[:, 0, 0].astype(np.int64) for axis, table in enumerate(tables, start=1)
            }
            return _taken(view, x, shape, places, 1)
        case _:
            return None


def _turned(view: GraphView, x: str, shape: Shape, axes: Sequence[int]) -> _Step:
    """Return the `_Step` for a Transpose of x by `axes`. `shape` is the shape of its result."""
    before = view.shape(x)

    def source(at: Places) -> Places:
        indices = np.unravel_index(at, shape)
        return _number([indices[axes.index(axis)] for axis in range(len(axes))], before)

    return _Step(x, source, 1, axes[0] == 0)


def _taken(
    view: GraphView, x: str, shape: Shape, places: Mapping[int, Places], copies: int
) -> _Step:
    """Return the `_Step` for a node that selects elements of x.

    `places` has the selected indices for each axis along which the node selects. `shape` is the
    shape of the result.
    """
    before = view.shape(x)

    def source(at: Places) -> Places:
        indices = list(np.unravel_index(at, shape))
        for axis, table in places.items():
            indices[axis] = table[indices[axis]]
        return _number(indices, before)

    return _Step(x, source, copies, 0 not in places)


def _number(indices: Sequence[Places], shape: Shape) -> Places:
    return np.asarray(np.ravel_multi_index(tuple(indices), shape))


def _is_of_pixels(shape: Shape) -> bool:
    return len(shape) in (3, 4)


def _is_small(shape: Shape) -> bool:
    return prod(shape[1:]) <= _MOST_PIXELS and prod(shape) <= _MOST_NUMBERS


def _are_whole(at: Places, area: int) -> bool:
    """Return whether each column of `at` holds the element indices of all channels of one pixel, in
    order.

    `at` has one row per channel. A channel has `area` pixels.
    """
    whole = at[0] + area * np.arange(len(at))[:, None]
    return bool((at[0] < area).all()) and np.array_equal(at, whole)
