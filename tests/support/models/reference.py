"""Runs a typed graph node by node in NumPy, as the reference for every engine."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.convolution.tensor_gemm import to_tf32
from kernels.problems.binary_operation import BinaryOp
from kernels.problems.precision import HALF, Precision, Storage
from models.graph import (
    Activate,
    Attention,
    Binary,
    ChannelShuffle,
    Concat,
    Constant,
    Conv,
    Dequantize,
    Expand,
    Gemm,
    GlobalPool,
    Graph,
    GraphError,
    Identity,
    Lrn,
    Node,
    Normalise,
    Pad,
    Pool,
    Product,
    Quantize,
    Reduce,
    Resample,
    Reshape,
    ScaleShift,
    Slice,
    Softmax,
    Transpose,
)
from models.quantized_filters import is_quantized
from tests.support.kernels import reference as ops

Array = NDArray[np.floating[Any]]
Float = type[np.float32] | type[np.float64]

_FUNCTIONS: Mapping[BinaryOp, Callable[[Array, Array], Array]] = {
    BinaryOp.ADD: np.add,
    BinaryOp.SUB: np.subtract,
    BinaryOp.MUL: np.multiply,
    BinaryOp.DIV: np.divide,
    BinaryOp.MAX: np.maximum,
    BinaryOp.MIN: np.minimum,
    BinaryOp.PRELU: ops.prelu,
}


def run_reference(
    graph: Graph,
    inputs: Mapping[str, NDArray[Any]],
    dtype: Float = np.float64,
    *,
    all_values: bool = False,
) -> dict[str, Array]:
    """Return the graph's outputs by name. Each input has n images, and so has each output.

    Weights and inputs are converted to `dtype`, in which every node computes. With `all_values`,
    every value is returned, including inputs. Otherwise each value is freed after its last reader.
    Values are rounded to their stored type, and factors are rounded as in tensor cores.

    Raises ValueError for inputs that are missing, unknown or of a wrong shape. Raises GraphError if
    a node's result does not have the shape that the graph states.
    """
    memory = _Memory(graph, _batch_size(graph, inputs), dtype)
    for name in graph.inputs:
        memory.write(name, np.asarray(inputs[name], dtype))
    kept = list(graph.values) if all_values else graph.outputs
    unused_after = _last_uses(graph, kept)
    for index, node in enumerate(graph.nodes):
        memory.write(node.output, _compute(node, memory))
        for root in unused_after.get(index, ()):
            memory.free(root)
    return {name: memory.read(name) for name in kept}


def _batch_size(graph: Graph, inputs: Mapping[str, NDArray[Any]]) -> int:
    if set(inputs) != set(graph.inputs):
        raise ValueError(f"{graph.name} takes {sorted(graph.inputs)}, got {sorted(inputs)}")
    for name, array in inputs.items():
        if array.shape[1:] != graph.shape(name) or len(array) == 0:
            wanted = ("n", *graph.shape(name))
            raise ValueError(f"input {name} has shape {array.shape}, the graph says {wanted}")
    sizes = {len(array) for array in inputs.values()}
    if len(sizes) != 1:
        raise ValueError(f"inputs need one batch size, got {sorted(sizes)}")
    return sizes.pop()


def _home(graph: Graph, name: str) -> tuple[str, int]:
    """Return the outermost value that contains `name`, and the channel offset of `name` in it. If
    no other value contains `name`, it is its own outermost value."""
    offset = 0
    while (inside := graph.values[name].inside) is not None:
        name, offset = inside.parent, offset + inside.offset
    return name, offset


def _last_uses(graph: Graph, kept: Iterable[str]) -> dict[int, list[str]]:
    """Return the outermost values that are not needed after a node, by the node's index."""
    last: dict[str, int] = {}
    for index, node in enumerate(graph.nodes):
        for name in (node.output, *node.operands()):
            if name in graph.values:
                last[_home(graph, name)[0]] = index
    for name in kept:
        last.pop(_home(graph, name)[0], None)
    unused_after: dict[int, list[str]] = {}
    for root, index in last.items():
        unused_after.setdefault(index, []).append(root)
    return unused_after


class _Memory:
    """Holds the arrays of one run. Each outermost value has an array, and the values inside it are
    slices of this array."""

    def __init__(self, graph: Graph, n: int, dtype: Float) -> None:
        self.graph = graph
        self.n = n
        self.dtype = dtype
        self._arrays: dict[str, Array] = {}

    def read(self, name: str) -> Array:
        """Return a value or a weight in the type of the run. A value has n images."""
        if name in self.graph.weights:
            return self.graph.weights[name].astype(self.dtype)
        root, offset = _home(self.graph, name)
        array = self._arrays[root]
        if root == name:
            return array
        return array[:, offset : offset + self.graph.shape(name)[0]]

    def write(self, name: str, array: Array) -> None:
        """Store `array` as the value `name`. If another value contains `name`, write into the array
        of that value."""
        expected = (self.n, *self.graph.shape(name))
        if array.shape != expected or array.dtype != self.dtype:
            raise GraphError(
                f"{name} was computed as {array.dtype} {array.shape}, "
                f"the graph says {self.dtype.__name__} {expected}"
            )
        array = _rounded_to(self.graph.values[name].stored, array)
        root, offset = _home(self.graph, name)
        if root == name:
            self._arrays[name] = array
            return
        if root not in self._arrays:
            # NaN, so that a channel that is read before it is written is noticed.
            shape = (self.n, *self.graph.shape(root))
            self._arrays[root] = np.full(shape, np.nan, self.dtype)
        self._arrays[root][:, offset : offset + expected[1]] = array

    def free(self, root: str) -> None:
        """Delete the array of an outermost value."""
        del self._arrays[root]

    def read_optional(self, name: str | None) -> Array | None:
        """Return the result of `read`, or None if the operand is absent."""
        return None if name is None else self.read(name)

    def read_aligned(self, name: str, rank: int) -> Array:
        """Return a value in which each image has `rank` axes. The missing axes have size 1 and
        follow the batch axis. So operands of different rank broadcast within an image, but never
        across the batch."""
        shape = self.graph.shape(name)
        batch = 1 if name in self.graph.weights else self.n
        return self.read(name).reshape(batch, *(1,) * (rank - len(shape)), *shape)


def _rounded_to(stored: Storage, array: Array) -> Array:
    """Return the numbers, rounded to the type `stored`, in the array's own type."""
    if is_quantized(stored):
        return ops.quantized(array, stored)
    return array.astype(HALF).astype(array.dtype) if stored == HALF else array


def _factor(precision: Precision, array: Array) -> Array:
    """Return the numbers that tensor cores multiply in place of `array`. For TF32X3, they are the
    numbers of `array` itself."""
    if precision is Precision.TF32:
        return to_tf32(array.astype(np.float32)).astype(array.dtype)
    if precision is Precision.INT8:  # values are already quantized
        return array
    return _rounded_to(precision.stored, array)


def _residual(conv: Conv, memory: _Memory) -> Array | None:
    residual = memory.read_optional(conv.residual)
    if residual is None or conv.problem.projection is None:
        return residual
    return _factor(conv.problem.precision, residual)


def _compute(node: Node, memory: _Memory) -> Array:
    """Compute the output of one node."""
    read, graph = memory.read, memory.graph
    match node:
        case Conv():
            x = read(node.x)
            if node.problem.prologue and node.scale and node.shift:
                x = ops.prologue(x, read(node.scale), read(node.shift), node.problem.prologue)
            x, weight = (
                _factor(node.problem.precision, operand) for operand in (x, read(node.weight))
            )
            problem, residual = node.problem.with_batch(memory.n), _residual(node, memory)
            bias = memory.read_optional(node.bias)
            if node.rounded is None or residual is None:
                return ops.conv(x, weight, problem, bias, residual, node.activation)
            sums = ops.quantized(ops.conv(x, weight, problem, bias), node.rounded)
            return ops.activate(sums + residual, node.activation)
        case Gemm():
            bias = memory.read_optional(node.bias)
            stored, weight = graph.values[node.x].stored, read(node.weight)
            if not is_quantized(stored):
                weight = _rounded_to(stored, weight)
            return ops.gemm(read(node.x), weight, bias, node.activation)
        case Attention():
            q, k, v = (read(name) for name in (node.q, node.k, node.v))
            bias = memory.read_optional(node.bias)
            added = np.zeros((1, 1), q.dtype) if bias is None else bias
            return ops.attention(q, k, v, added, node.scale)
        case Product():
            rank = len(graph.shape(node.output))
            a, b = memory.read_aligned(node.a, rank), memory.read_aligned(node.b, rank)
            return ops.product(a, b)
        case Pool():
            return ops.pool(read(node.x), node.problem)
        case GlobalPool():
            return ops.global_pool(read(node.x), node.kind)
        case ScaleShift():
            return ops.scale_shift(
                read(node.x), read(node.scale), read(node.shift), node.activation
            )
        case Lrn():
            return ops.lrn(read(node.x), node.size, node.alpha, node.beta, node.bias)
        case Normalise():
            return ops.normalise(
                read(node.x),
                read(node.scale),
                read(node.shift),
                node.axes,
                node.epsilon,
                node.groups,
                node.activation,
            )
        case Reduce():
            return ops.reduce(read(node.x), node.kind, node.axes)
        case Resample():
            return ops.resample(read(node.x), [read(table) for table in node.taps])
        case Binary():
            rank = len(graph.shape(node.output))
            a, b = memory.read_aligned(node.a, rank), memory.read_aligned(node.b, rank)
            return ops.binary(a, b, _FUNCTIONS[node.op], node.activation)
        case Activate():
            return ops.activate(read(node.x), node.activation)
        case Concat():
            return ops.concat([read(part) for part in node.parts], node.axis)
        case Slice():
            return ops.slice_axis(read(node.x), node.axis, node.start, node.stop, node.step)
        case Reshape():
            return ops.reshape(read(node.x), graph.shape(node.output), node.channels_last)
        case Transpose():
            return ops.transpose(read(node.x), node.axes)
        case ChannelShuffle():
            return ops.channel_shuffle(read(node.x), node.groups)
        case Pad():
            return ops.pad(read(node.x), node.begin, node.end, node.value)
        case Softmax():
            return ops.softmax(read(node.x), node.axis, node.log)
        case Quantize():
            return ops.in_blocks(read(node.x), node.block)
        case Identity() | Dequantize():
            return read(node.x)
        case Expand():
            x = memory.read_aligned(node.x, len(graph.shape(node.output)))
            return np.broadcast_to(x, (memory.n, *graph.shape(node.output)))
        case Constant():
            weight = read(node.weight)
            return np.broadcast_to(weight, (memory.n, *weight.shape))
        case _:
            raise TypeError(f"{node.name}: no reference for {type(node).__name__}")
