"""Converts ONNX operators that only move elements, such as Slice, Gather and Expand, to Convoy's
typed nodes."""

from collections.abc import Sequence
from itertools import pairwise
from math import prod

import numpy as np

from models.graph import Concat, Expand, Identity, Reshape, Slice, Transpose
from models.onnx_loader.importer import Importer, ImpossibleError, OnnxNode, RefusedError

_RUNS = 16
"""The limit on runs of indices in a Gather, each of which becomes a slice."""

Cut = tuple[int, int, int, int]
"""The axis, start, stop and step of a slice."""


def slice_(to: Importer, node: OnnxNode) -> None:
    """Convert an ONNX Slice to one Slice node per axis. Steps must be positive, and the batch axis
    must remain complete."""
    shape = node.input_shape(0)
    rank = len(shape)
    starts, stops = node.constant_integers(1), node.constant_integers(2)
    axes = node.constant_integers(3) if node.has(3) else list(range(len(starts)))
    steps = node.constant_integers(4) if node.has(4) else [1] * len(starts)
    cuts: list[Cut] = []
    for start, stop, axis, step in zip(starts, stops, axes, steps, strict=True):
        size = shape[axis % rank]
        if step < 1 and size > 1:
            raise RefusedError(f"step {step} is not supported; only steps above 0 are supported")
        first, last, _ = slice(start, stop, max(step, 1)).indices(size)
        if last <= first:
            raise RefusedError(
                f"the slice {start}:{stop} of {size} elements is empty; it must keep an element"
            )
        if (first, last, step) != (0, size, 1):
            cuts.append((node.axis(axis, rank), first, last, max(step, 1)))
    _cut(to, node, cuts)


def gather(to: Importer, node: OnnxNode) -> None:
    """Convert a Gather with constant indices, such as PyTorch's x[:, 0], to Slices.

    Each run of consecutive indices becomes a Slice. A Concat joins several Slices.
    """
    shape, indices = node.input_shape(0), np.asarray(node.constant(1))
    rank, given = len(shape), node.integer("axis", 0)
    if not -rank <= given < rank:
        raise ImpossibleError(f"axis={given} does not exist; the input has {rank} axes")
    size = shape[given]
    if indices.size and not -size <= indices.min() <= indices.max() < size:
        raise ImpossibleError(f"indices {indices.tolist()}: axis {given} has only {size} entries")
    if not indices.size:
        raise RefusedError("it has no indices; at least one is required")
    axis = node.axis(given, rank)
    flat = indices.reshape(-1) % size
    ends = [0, *(np.flatnonzero(np.diff(flat) != 1) + 1).tolist(), flat.size]
    runs = [(int(flat[a]), int(flat[b - 1]) + 1) for a, b in pairwise(ends)]
    if indices.ndim > 1 or len(runs) > _RUNS:
        raise RefusedError(
            f"indices {indices.tolist()} are not supported; only one index, or up to {_RUNS} runs"
            " of consecutive indices are supported"
        )
    if len(runs) == 1:
        _cut(to, node, [(axis, *runs[0], 1)])
        return
    parts, image = [], shape[1:]
    for number, (start, stop) in enumerate(runs):
        part = to.temporary(
            f"{node.name}/run{number}", (*image[:axis], stop - start, *image[axis + 1 :])
        )
        to.nodes.append(
            Slice(name=part, output=part, x=node.x(), axis=axis, start=start, stop=stop)
        )
        parts.append(part)
    output = to.declare(node.output)
    to.nodes.append(Concat(name=node.name, output=output, parts=tuple(parts), axis=axis))


def _cut(to: Importer, node: OnnxNode, cuts: Sequence[Cut]) -> None:
    """Add a chain of Slices of the node's input. If the node's output has fewer axes than its
    input, end the chain with a Reshape."""
    x, shape = node.x(), list(node.input_shape(0)[1:])
    output = to.declare(node.output)
    squeezed = len(to.values[output].shape) < len(shape)
    for index, (axis, start, stop, step) in enumerate(cuts):
        shape[axis] = len(range(start, stop, step))
        last = index == len(cuts) - 1 and not squeezed
        name = output if last else to.temporary(f"{output}/cut{index}", tuple(shape))
        to.nodes.append(
            Slice(
                name=f"{node.name}/{index}",
                output=name,
                x=x,
                axis=axis,
                start=start,
                stop=stop,
                step=step,
            )
        )
        x = name
    if squeezed:
        to.nodes.append(Reshape(name=node.name, output=output, x=x))
    elif not cuts:
        to.nodes.append(Identity(name=node.name, output=output, x=x))


def reshape(to: Importer, node: OnnxNode) -> None:
    """Convert a Reshape, Flatten, Squeeze or Unsqueeze to a Reshape of each image."""
    before, after = node.input_shape(0), node.output_shape
    if not after or before[0] != after[0] or prod(before[1:]) != prod(after[1:]):
        raise RefusedError(f"it reshapes {before} to {after}; axis 0, the batch, must not change")
    to.nodes.append(Reshape(name=node.name, output=to.declare(node.output), x=node.x()))


def transpose(to: Importer, node: OnnxNode) -> None:
    """Convert a Transpose. The batch axis must stay first."""
    rank = len(node.output_shape)
    axes = node.integers("perm", list(reversed(range(rank))))
    if sorted(axes) != list(range(len(node.input_shape(0)))):
        raise RefusedError(f"perm={list(axes)} must contain every axis once")
    if axes[0] != 0:
        raise RefusedError(f"perm={list(axes)} moves axis 0, the batch, which must stay first")
    order = tuple(axis - 1 for axis in axes[1:])
    to.nodes.append(
        Transpose(name=node.name, output=to.declare(node.output), x=node.x(), axes=order)
    )


def expand(to: Importer, node: OnnxNode) -> None:
    """Convert an Expand. The batch axis must not change."""
    before, after = node.input_shape(0), node.output_shape
    if len(before) != len(after) or before[0] != after[0]:
        raise RefusedError(f"it expands {before} to {after}; axis 0, the batch, must not change")
    kind = Identity if before == after else Expand
    to.nodes.append(kind(name=node.name, output=to.declare(node.output), x=node.x()))


def space_to_depth(to: Importer, node: OnnxNode) -> None:
    """Convert a SpaceToDepth, which turns blocks of pixels into channels, to Reshapes and a
    Transpose."""
    _, c, h, w = node.input_shape(0)
    b = _block(node, h, w)
    _moved(to, node, (c, h // b, b, w // b, b), (2, 4, 0, 1, 3))


def depth_to_space(to: Importer, node: OnnxNode) -> None:
    """Convert a DepthToSpace, which turns channels into blocks of pixels, to Reshapes and a
    Transpose."""
    _, c, h, w = node.input_shape(0)
    b = _block(node, c)
    if node.text("mode", "DCR") == "DCR":
        _moved(to, node, (b, b, c // b**2, h, w), (2, 3, 0, 4, 1))
    else:
        _moved(to, node, (c // b**2, b, b, h, w), (0, 3, 1, 4, 2))


def _block(node: OnnxNode, *sizes: int) -> int:
    b = node.integer("blocksize", 1)
    if b < 1 or any(size % b for size in sizes):
        raise _indivisible(node, b)
    return b


def _indivisible(node: OnnxNode, b: int) -> ImpossibleError:
    if node.node.op_type == "SpaceToDepth":
        return ImpossibleError(
            f"blocksize={b} must divide the height and the width of the input {node.input_shape(0)}"
        )
    return ImpossibleError(
        f"the square of blocksize={b} must divide the channels of the input {node.input_shape(0)}"
    )


def _moved(to: Importer, node: OnnxNode, split: tuple[int, ...], axes: tuple[int, ...]) -> None:
    if prod(split) != prod(node.input_shape(0)[1:]):  # the block's square does not, only its side
        raise _indivisible(node, node.integer("blocksize", 1))
    name = node.name
    apart = to.temporary(f"{name}/apart", split)
    moved = to.temporary(f"{name}/moved", tuple(split[axis] for axis in axes))
    to.nodes += [
        Reshape(name=f"{name}/apart", output=apart, x=node.x()),
        Transpose(name=f"{name}/moved", output=moved, x=apart, axes=axes),
        Reshape(name=name, output=to.declare(node.output), x=moved),
    ]
