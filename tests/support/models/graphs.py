"""Builds small typed graphs by hand, and compares a graph with its rewritten form.

A Conv that writes the value "c" is called "conv_c". An addition that writes "s" is called
"binary_s".
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kernels.problems.activation import Activation
from kernels.problems.binary_operation import BinaryOp
from kernels.problems.conv import ConvProblem
from kernels.problems.pool import PoolKind, PoolProblem
from kernels.problems.window import Window
from models.graph import (
    Activate,
    Binary,
    Concat,
    Conv,
    Gemm,
    Graph,
    Identity,
    Node,
    Pad,
    Pool,
    Reshape,
    ScaleShift,
    Shape,
    Slice,
    Transpose,
    Value,
)
from models.rewrite import RULES, RewriteResult, rewrite
from models.rewrite.rule import Rule
from tests.support.kernels.windows import floor_output
from tests.support.models.reference import run_reference
from tests.support.tolerance import EPS32, EPS64, assert_within


class GraphBuilder:
    """Collects nodes. Every method that adds a value returns the value's name.

    Filters are seeded noise. For each output, the absolute values of its weights sum to at most 1.
    So no layer enlarges an error, and rounding errors are known.
    """

    def __init__(self, seed: int = 0, **inputs: Shape) -> None:
        self.rng = np.random.default_rng(seed)
        self.shapes: dict[str, Shape] = dict(inputs)
        self.weights: dict[str, NDArray[np.float32]] = {}
        self.nodes: list[Node] = []
        self._inputs = tuple(inputs)

    def build(self, *outputs: str) -> Graph:
        """Return the graph with these outputs."""
        values = {name: Value(name, shape) for name, shape in self.shapes.items()}
        nodes = tuple(self.nodes)
        return Graph("test", self._inputs, outputs, values, nodes, self.weights)

    def weight(self, name: str, array: Any) -> str:
        self.weights[name] = np.asarray(array, np.float32)
        return name

    def noise(self, name: str, shape: Shape, low: float = -1, high: float = 1) -> str:
        return self.weight(name, self.rng.uniform(low, high, shape))

    def add(self, kind: type[Node], output: str, shape: Shape, /, **fields: Any) -> str:
        """Add a node of any kind."""
        self.shapes[output] = shape
        self.nodes.append(kind(name=f"{kind.__name__.lower()}_{output}", output=output, **fields))
        return output

    def conv(
        self,
        output: str,
        x: str,
        k: int = 8,
        kernel: int = 3,
        *,
        stride: int | tuple[int, ...] = 1,
        pad: int | None = None,
        groups: int = 1,
        bias: bool = True,
        residual: str | None = None,
        activation: Activation | None = None,
        dilation: int = 1,
    ) -> str:
        c, *size = self.shapes[x]
        axes, pad = len(size), kernel // 2 if pad is None else pad
        window = _window(size, kernel, stride, pad, dilation)
        problem = ConvProblem(n=1, c=c, k=k, window=window, groups=groups)
        fan_in = c // groups * kernel**axes
        weight = self.noise(f"{output}.w", problem.filter_shape, -1 / fan_in, 1 / fan_in)
        return self.add(
            Conv,
            output,
            problem.output_shape[1:],
            x=x,
            weight=weight,
            bias=self.noise(f"{output}.b", (k,)) if bias else None,
            residual=residual,
            problem=problem,
            activation=activation,
        )

    def gemm(self, output: str, x: str, k: int = 5, *, bias: bool = True, **fields: Any) -> str:
        *rest, c = self.shapes[x]
        weight = self.noise(f"{output}.w", (k, c), -1 / c, 1 / c)
        name = self.noise(f"{output}.b", (k,)) if bias else None
        return self.add(Gemm, output, (*rest, k), x=x, weight=weight, bias=name, **fields)

    def pool(
        self, output: str, x: str, kind: PoolKind, kernel: int, *, stride: int = 1, pad: int = 0
    ) -> str:
        c, *size = self.shapes[x]
        problem = PoolProblem(kind, c, _window(size, kernel, stride, pad))
        return self.add(Pool, output, (c, *problem.window.output), x=x, problem=problem)

    def scale_shift(self, output: str, x: str, activation: Activation | None = None) -> str:
        c = self.shapes[x][0]
        scale = self.noise(f"{output}.s", (c,), 0.5, 1.5)
        shift = self.noise(f"{output}.t", (c,))
        return self.add(
            ScaleShift, output, self.shapes[x], x=x, scale=scale, shift=shift, activation=activation
        )

    def activate(self, output: str, x: str, activation: Activation) -> str:
        return self.add(Activate, output, self.shapes[x], x=x, activation=activation)

    def binary(self, output: str, op: BinaryOp, a: str | float, b: str | float) -> str:
        """Add `a op b`. A number becomes a weight without axes."""
        names, shapes = [], []
        for side, entry in (("a", a), ("b", b)):
            name = entry if isinstance(entry, str) else self.weight(f"{output}.{side}", entry)
            names.append(name)
            shapes.append(self.shapes.get(name) or self.weights[name].shape)
        shape = tuple(int(size) for size in np.broadcast_shapes(*shapes))
        return self.add(Binary, output, shape, a=names[0], b=names[1], op=op)

    def concat(self, output: str, *parts: str, axis: int = 0) -> str:
        shape = list(self.shapes[parts[0]])
        shape[axis] = sum(self.shapes[part][axis] for part in parts)
        return self.add(Concat, output, tuple(shape), parts=parts, axis=axis)

    def slice(self, output: str, x: str, start: int, stop: int) -> str:
        return self.part(output, x, 0, start, stop)

    def part(self, output: str, x: str, axis: int, start: int, stop: int) -> str:
        """Add a slice along any axis."""
        shape = (*self.shapes[x][:axis], stop - start, *self.shapes[x][axis + 1 :])
        return self.add(Slice, output, shape, x=x, axis=axis, start=start, stop=stop)

    def roll(self, output: str, x: str, by: int, *axes: int) -> str:
        """Add slices and concatenations that roll an image back by `by` positions along each of
        `axes`."""
        for axis in axes:
            y = output if axis == axes[-1] else f"{output}.{axis}"
            last = self.part(f"{y}.last", x, axis, by, self.shapes[x][axis])
            x = self.concat(y, last, self.part(f"{y}.first", x, axis, 0, by), axis=axis)
        return x

    def windows(self, output: str, x: str, size: int) -> str:
        """Add the nodes that divide an image into windows of size × size. The result has the shape
        windows × size² tokens × C."""
        c, side, _ = self.shapes[x]
        many = side // size
        last = self.transpose(f"{output}.last", x, 1, 2, 0)
        apart = self.reshape(f"{output}.apart", last, (many, size, many, size, c))
        turned = self.transpose(f"{output}.turned", apart, 0, 2, 1, 3, 4)
        return self.reshape(output, turned, (many**2, size**2, c))

    def joined(self, output: str, x: str, side: int) -> str:
        """Add the nodes that reverse `windows`: they join the windows to an image."""
        many, tokens, c = self.shapes[x]
        rows, size = int(many**0.5), int(tokens**0.5)
        apart = self.reshape(f"{output}.apart", x, (rows, rows, size, size, c))
        turned = self.transpose(f"{output}.turned", apart, 0, 2, 1, 3, 4)
        image = self.reshape(f"{output}.image", turned, (side, side, c))
        return self.transpose(output, image, 2, 0, 1)

    def reshape(self, output: str, x: str, shape: Shape) -> str:
        return self.add(Reshape, output, shape, x=x)

    def transpose(self, output: str, x: str, *axes: int) -> str:
        shape = tuple(self.shapes[x][axis] for axis in axes)
        return self.add(Transpose, output, shape, x=x, axes=axes)

    def identity(self, output: str, x: str) -> str:
        return self.add(Identity, output, self.shapes[x], x=x)

    def pad(self, output: str, x: str, begin: Shape, end: Shape, value: float = 0.0) -> str:
        shape = tuple(a + b + c for a, b, c in zip(begin, self.shapes[x], end, strict=True))
        return self.add(Pad, output, shape, x=x, begin=begin, end=end, value=value)


def _window(
    size: list[int], kernel: int, stride: int | tuple[int, ...], pad: int, dilation: int = 1
) -> Window:
    axes = len(size)

    def each(entry: int) -> tuple[int, ...]:
        return (entry,) * axes

    strides = stride if isinstance(stride, tuple) else each(stride)
    output = tuple(
        floor_output(length, kernel, step, dilation, pad, pad)
        for length, step in zip(size, strides, strict=True)
    )
    return Window(tuple(size), each(kernel), strides, each(dilation), each(pad), each(pad), output)


def rewritten(
    graph: Graph,
    *,
    rules: tuple[Rule, ...] = RULES,
    rounds: bool = False,
    n: int = 2,
    seed: int = 0,
) -> RewriteResult:
    """Rewrite the graph, check in float64 that the rewritten graph computes the same, and return
    it.

    Without `rounds`, rewriting must not have computed new weights. Then both graphs compute the
    same sums, possibly in another order. With `rounds`, rewriting may have rounded new weights to
    float32, once for each node of the original graph.
    """
    result = rewrite(graph, rules)
    rng = np.random.default_rng(seed)
    inputs = {name: rng.uniform(-2, 2, (n, *graph.shape(name))) for name in graph.inputs}
    before = run_reference(graph, inputs, all_values=True)
    after = run_reference(result.graph, inputs)
    # No layer of a GraphBuilder enlarges an error. But a scale of 1.5 does, and a product enlarges
    # the error of a factor by the other factor. The 8 covers this in small graphs.
    largest = max(1.0, *(float(np.max(np.abs(array))) for array in before.values()))
    bound = 8 * len(graph.nodes) * largest * (EPS32 if rounds else 16 * EPS64)
    assert result.graph.inputs == graph.inputs
    assert result.graph.outputs == graph.outputs
    for name in graph.outputs:
        assert_within(after[name], before[name], bound)
    return result


def kinds(result: RewriteResult) -> list[str]:
    """Return the types of the rewritten graph's nodes in order, such as ["Conv", "Gemm"]."""
    return [type(node).__name__ for node in result.graph.nodes]


def refusals(result: RewriteResult, rule: str) -> dict[str, str]:
    """Return the nodes that a rule refuses, each with the reason."""
    return {entry.node: entry.reason for entry in result.refused if entry.rule == rule}


def only_scale_shift(result: RewriteResult) -> tuple[ScaleShift, NDArray[Any], NDArray[Any]]:
    """Return the only node of the rewritten graph, which must be a ScaleShift. Also return its
    scales and shifts."""
    (node,) = result.graph.nodes
    assert isinstance(node, ScaleShift)
    return node, result.graph.weights[node.scale], result.graph.weights[node.shift]
