"""Converts nodes that reduce, normalise or resample to kernel launches."""

from dataclasses import replace

from kernels.layout.strided import StridedTensor
from kernels.operations.normalise import normalise_launch
from kernels.operations.reduce import reduce_launch
from kernels.operations.resample import resample_launch
from models.graph import Expand, Normalise, Reduce, Resample
from models.lowering.context import Context, pixels_of
from models.lowering.tape import Operand, at


def lower_normalise(to: Context, node: Normalise) -> None:
    """Convert a Normalise to one launch, in which each thread block normalises a row."""
    x, y = to.views[node.x], to.output(node.output)

    def by_group(tensor: StridedTensor) -> StridedTensor:
        return tensor.broadcast(y.strided.shape).split(1, node.groups)

    launch = normalise_launch(
        by_group(x.strided),
        by_group(StridedTensor.contiguous(to.graph.shape(node.scale))),
        by_group(StridedTensor.contiguous(to.graph.shape(node.shift))),
        by_group(y.strided),
        [axis + 2 for axis in node.axes],
        node.epsilon,
        node.activation,
    )
    weights = {"scale": to.weight(node.scale), "shift": to.weight(node.shift)}
    to.tape.emit(launch, x=at(x), y=at(y), **weights)


def lower_reduce(to: Context, node: Reduce) -> None:
    """Convert a Reduce to one launch."""
    x, y = to.views[node.x], to.output(node.output)
    axes = [axis + 1 for axis in node.axes]
    to.tape.emit(reduce_launch(node.kind, x.strided, y.strided, axes), x=at(x), y=at(y))


def lower_resample(to: Context, node: Resample) -> None:
    """Convert a Resample to one launch on pixels."""
    x, x_pixels = to.pixels(node.x)
    y = to.output(node.output)
    shapes = [to.graph.shape(table) for table in node.taps]
    tables = [(positions, taps) for positions, taps, _ in shapes]
    launch = resample_launch(to.n, to.graph.shape(node.x)[1:], tables, x_pixels, pixels_of(y))
    names = ("depths", "heights", "widths")[-len(tables) :]
    weights: dict[str, Operand] = {
        name: to.weight(table) for name, table in zip(names, node.taps, strict=True)
    }
    to.tape.emit(launch, x=at(x), y=at(y), **weights)


def lower_expand(to: Context, node: Expand) -> None:
    """Convert an Expand to a copy that reads the same element for several elements of the
    output."""
    x, y = to.views[node.x], to.output(node.output)
    missing = (1,) * (len(y.strided.shape) - len(x.strided.shape))
    n, *rest = x.strided.shape
    batch, *strides = x.strided.strides
    aligned = replace(
        x.strided, shape=(n, *missing, *rest), strides=(batch, *(0 for _ in missing), *strides)
    )
    to.tape.copy(aligned.broadcast(y.strided.shape), at(x), y.strided, at(y))
