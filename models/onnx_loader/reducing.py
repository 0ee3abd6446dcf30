"""Converts ONNX's reductions and normalisations to Convoy's typed nodes."""

from math import prod

import numpy as np

from kernels.problems.binary_operation import BinaryOp
from kernels.problems.pool import PoolKind
from kernels.problems.reduction import ReduceKind
from models.graph import Binary, GlobalPool, Identity, Normalise, Reduce, Reshape
from models.onnx_loader.importer import (
    Importer,
    ImpossibleError,
    OnnxNode,
    RefusedError,
    extends,
)

_POOLS = {ReduceKind.MEAN: PoolKind.AVERAGE, ReduceKind.MAX: PoolKind.MAX}


def reduce(to: Importer, node: OnnxNode) -> None:
    """Convert a ReduceSum, ReduceMean, ReduceMax, ReduceMin or ReduceL2. The axes must be constant
    and must not include the batch."""
    x, output, shape = node.x(), to.declare(node.output), node.input_shape(0)
    rank = len(shape)
    given = node.constant_integers(1) if node.has(1) else []
    if not given and node.integer("noop_with_empty_axes", 0):
        # The sum, mean, maximum and minimum of a single number are the number itself. Its L2 norm
        # is not.
        if ReduceKind(node.node.op_type) is ReduceKind.L2:
            absolute(to, node)
        else:
            to.nodes.append(Identity(name=node.name, output=output, x=x))
        return
    axes = tuple(sorted({node.axis(axis, rank) for axis in given or range(rank)}))
    if 0 in shape[1:]:
        raise RefusedError(f"it reduces {shape}, which has no elements")
    kept = tuple(1 if axis in axes else size for axis, size in enumerate(shape[1:]))
    is_kept = to.values[output].shape == kept
    name = output if is_kept else to.temporary(f"{output}/kept", kept)
    kind = ReduceKind(node.node.op_type)
    if kind in _POOLS and rank in (4, 5) and axes == tuple(range(1, rank - 1)):
        to.nodes.append(GlobalPool(name=node.name, output=name, x=x, kind=_POOLS[kind]))
    else:
        to.nodes.append(Reduce(name=node.name, output=name, x=x, kind=kind, axes=axes))
    if not is_kept:
        to.nodes.append(Reshape(name=f"{node.name}/squeeze", output=output, x=name))


def absolute(to: Importer, node: OnnxNode) -> None:
    """Convert Abs to the maximum of x and -x."""
    output, x = to.declare(node.output), node.x()
    minus = to.temporary(f"{output}/minus", to.shape(x))
    weight = to.weight(f"{node.name}/number", np.array(-1.0))
    to.nodes.append(Binary(name=minus, output=minus, a=x, b=weight, op=BinaryOp.MUL))
    to.nodes.append(Binary(name=node.name, output=output, a=x, b=minus, op=BinaryOp.MAX))


def layer_normalisation(to: Importer, node: OnnxNode) -> None:
    """Convert a LayerNormalization to a Normalise node over the last axes of an image."""
    if node.gives(1) or node.gives(2):
        raise RefusedError("its other outputs, mean and deviation, are not supported")
    rank = len(node.output_shape)
    first = node.axis(node.integer("axis", -1), rank)
    _normalise(to, node, tuple(range(first, rank - 1)), axes_of_weights=None)


def instance_normalisation(to: Importer, node: OnnxNode) -> None:
    """Convert an InstanceNormalization to a Normalise node over all axes except the channels."""
    rank = len(node.output_shape)
    _normalise(to, node, tuple(range(1, rank - 1)), axes_of_weights=rank - 1)


def group_normalisation(to: Importer, node: OnnxNode) -> None:
    """Convert a GroupNormalization to a Normalise node over all axes, within groups of channels."""
    rank, groups = len(node.output_shape), node.integer("num_groups", 1)
    channels = node.output_shape[1]
    if groups < 1 or channels % groups:
        raise ImpossibleError(f"num_groups={groups} does not divide {channels} channels")
    _normalise(to, node, tuple(range(rank - 1)), axes_of_weights=rank - 1, groups=groups)


def _normalise(
    to: Importer,
    node: OnnxNode,
    axes: tuple[int, ...],
    *,
    axes_of_weights: int | None,
    groups: int = 1,
) -> None:
    """Add a Normalise node over `axes`.

    If `axes_of_weights` is given, scale and shift have one number per channel or group. They are
    reshaped to this number of axes, with one number per channel.
    """
    image = node.output_shape[1:]
    if not axes or not prod(image):
        raise RefusedError(
            f"it normalises images of shape {image} over the axes {axes}; at least one axis is"
            " required, and no size may be 0"
        )
    scale = node.constant(1)
    shift = node.constant(2) if node.has(2) else np.zeros_like(scale)
    names = []
    for role, weight in (("scale", scale), ("shift", shift)):
        shape = weight.shape
        if axes_of_weights is not None:
            if weight.size not in (groups, image[0]):
                raise ImpossibleError(f"its {role} {shape} does not fit {image[0]} channels")
            weight = np.repeat(weight.reshape(-1), image[0] // weight.size)  # noqa: PLW2901
            weight = weight.reshape(-1, *(1,) * (axes_of_weights - 1))  # noqa: PLW2901
        if not extends(weight.shape, image):
            raise ImpossibleError(f"its {role} {shape} does not fit images of shape {image}")
        names.append(to.weight(f"{node.name}/{role}", weight))
    to.nodes.append(
        Normalise(
            name=node.name,
            output=to.declare(node.output),
            x=node.x(),
            scale=names[0],
            shift=names[1],
            axes=axes,
            epsilon=node.number("epsilon", 1e-5),
            groups=groups,
        )
    )
