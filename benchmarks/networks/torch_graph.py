"""Turns a rewritten graph into a PyTorch module, so that Convoy and PyTorch compute the same
network.

The graph is already rewritten, so BatchNormalization and padding are folded for PyTorch too.
Activations stay N×H×W×C in memory. The nodes of the networks in benchmarks/networks/light.py are
supported. Other nodes raise TypeError. PyTorch is imported only when a module is created.
"""

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np

from kernels.problems.activation import Activation, ActivationKind
from kernels.problems.binary_operation import BinaryOp
from kernels.problems.pool import PoolKind, PoolProblem
from kernels.problems.reduction import ReduceKind
from models.graph import (
    Activate,
    Attention,
    Binary,
    Concat,
    Constant,
    Conv,
    Expand,
    Gemm,
    GlobalPool,
    Graph,
    Identity,
    Lrn,
    Node,
    Normalise,
    Pool,
    Product,
    Reduce,
    Resample,
    Reshape,
    ScaleShift,
    Shape,
    Slice,
    Softmax,
    Transpose,
    Weight,
)

Values = dict[str, Any]

_ACTIVATIONS: Mapping[ActivationKind, Callable[[Any, Any], Any]] = {
    ActivationKind.RELU: lambda torch, x: torch.relu(x),
    ActivationKind.GELU: lambda torch, x: torch.nn.functional.gelu(x),
    ActivationKind.GELU_TANH: lambda torch, x: torch.nn.functional.gelu(x, approximate="tanh"),
    ActivationKind.SILU: lambda torch, x: torch.nn.functional.silu(x),
    ActivationKind.HARD_SWISH: lambda torch, x: torch.nn.functional.hardswish(x),
    ActivationKind.SIGMOID: lambda torch, x: torch.sigmoid(x),
}

_OPERATIONS: Mapping[BinaryOp, Callable[[Any, Any, Any], Any]] = {
    BinaryOp.ADD: lambda _, a, b: a + b,
    BinaryOp.SUB: lambda _, a, b: a - b,
    BinaryOp.MUL: lambda _, a, b: a * b,
    BinaryOp.DIV: lambda _, a, b: a / b,
    BinaryOp.MAX: lambda torch, a, b: torch.maximum(a, b),
}

_REDUCTIONS: Mapping[ReduceKind, Callable[[Any, Any, tuple[int, ...]], Any]] = {
    ReduceKind.SUM: lambda _, x, axes: x.sum(axes, keepdim=True),
    ReduceKind.MEAN: lambda _, x, axes: x.mean(axes, keepdim=True),
    ReduceKind.L2: lambda torch, x, axes: torch.linalg.vector_norm(x, dim=axes, keepdim=True),
}


def torch_module(torch: Any, graph: Graph, multiplier: Any, offset: Any, dtype: Any = None) -> Any:
    """Return a torch.nn.Module that takes uint8 pixels, N×H×W×C (or N×D×H×W×C), and returns the
    graph's first output.

    As in an engine, pixels become x = pixel · multiplier + offset, with one multiplier and one
    offset per channel. x and the module have the type `dtype`, by default float32.
    """
    numbers = dtype or torch.float32
    resampled = [node for node in graph.nodes if isinstance(node, Resample)]
    tables = {name for node in resampled for name in node.taps}

    class Network(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.multiplier, self.offset = (
                torch.nn.Buffer(torch.tensor(np.asarray(factor, np.float32)))
                for factor in (multiplier, offset)
            )
            self.weights = torch.nn.ParameterDict()
            for name, weight in graph.weights.items():
                tensor = torch.tensor(weight if name not in tables else _positions(name, weight))
                if tensor.ndim >= 4:
                    tensor = tensor.contiguous(memory_format=_channels_last(torch, tensor.ndim))
                self.weights[_key(name)] = torch.nn.Parameter(tensor, requires_grad=False)

        def forward(self, images: Any) -> Any:
            x = images.to(numbers) * self.multiplier + self.offset
            run = _Run(torch, graph, self.weights)
            run.values[graph.inputs[0]] = x.movedim(-1, 1)  # a view: nothing is copied
            for node in graph.nodes:
                run.values[node.output] = run.compute(node)
            return run.read(graph.outputs[0]).flatten(1)

    # The traced module is straight-line code, which frees a value after its last use.
    return torch.fx.symbolic_trace(Network().eval())


class _Run:
    """Computes one forward pass, and holds the tensors that its nodes have computed. A concatenated
    tensor may be stored in parts, which are joined when it is read."""

    def __init__(self, torch: Any, graph: Graph, weights: Mapping[str, Any]) -> None:
        self.torch, self.graph, self.values = torch, graph, Values()
        self._weights = weights

    def read(self, name: str) -> Any:
        """Return the tensor with this name, which is a weight or has been computed."""
        if name in self.graph.weights:
            return self._weights[_key(name)]
        if name not in self.values:
            self.values[name] = self._channels(name, 0, self.graph.shape(name)[0])
        return self.values[name]

    def _channels(self, name: str, start: int, stop: int) -> Any:
        """Return channels `start` to `stop` - 1 of a tensor. The result is a view if one part
        contains these channels. Otherwise, the parts that contain them are joined."""
        parts = [
            (value.inside.offset, value)
            for value in self.graph.values.values()
            if value.inside is not None and value.inside.parent == name
        ]
        if not parts or name in self.values:
            whole = self.values[name]
            is_whole = stop - start == self.graph.shape(name)[0]
            return whole if is_whole else whole.narrow(1, start, stop - start)
        runs = (
            (part.name, max(start - offset, 0), min(stop - offset, part.shape[0]))
            for offset, part in sorted(parts, key=itemgetter(0))
        )
        return self.torch.cat([self._channels(*run) for run in runs if run[1] < run[2]], 1)

    def compute(self, node: Node) -> Any:
        """Compute a node, and return its output."""
        read, functional = self.read, self.torch.nn.functional
        match node:
            case Conv():
                return self._conv(node)
            case Gemm():
                bias = None if node.bias is None else read(node.bias)
                y = functional.linear(read(node.x), read(node.weight), bias)
                return self._activate(y, node.activation)
            case Pool():
                return self._pool(read(node.x), node.problem)
            case GlobalPool():
                x, axes = read(node.x), tuple(range(2, 1 + len(self.graph.shape(node.x))))
                maximum = node.kind is PoolKind.MAX
                return x.amax(axes, keepdim=True) if maximum else x.mean(axes, keepdim=True)
            case Lrn() if node.size % 2:
                return functional.local_response_norm(
                    read(node.x), node.size, node.alpha, node.beta, node.bias
                )
            case Slice(axis=0, step=1):
                return self._channels(node.x, node.start, node.stop)
            case Slice(axis=axis):
                whole = (slice(None),) * (axis + 1)
                return read(node.x)[(*whole, slice(node.start, node.stop, node.step))]
            case Attention():
                bias = None if node.bias is None else read(node.bias)
                return functional.scaled_dot_product_attention(
                    read(node.q), read(node.k), read(node.v), bias, scale=node.scale
                )
            case Product():
                return self.torch.matmul(read(node.a), read(node.b))
            case Binary(op=op) if op in _OPERATIONS:
                y = _OPERATIONS[op](self.torch, read(node.a), read(node.b))
                return self._activate(y, node.activation)
            case Activate():
                return self._activate(read(node.x), node.activation)
            case ScaleShift():
                axes = (1,) * (len(self.graph.shape(node.x)) - 1)
                scale, shift = (read(name).reshape(-1, *axes) for name in (node.scale, node.shift))
                return self._activate(read(node.x) * scale + shift, node.activation)
            case Reduce(kind=kind) if kind in _REDUCTIONS:
                axes = tuple(axis + 1 for axis in node.axes)
                return _REDUCTIONS[kind](self.torch, read(node.x), axes)
            case Expand():
                return read(node.x).expand(-1, *self.graph.shape(node.output))
            case Concat():
                return self.torch.cat([read(part) for part in node.parts], node.axis + 1)
            case Constant():
                images = read(self.graph.inputs[0]).shape[0]
                return read(node.weight).expand(images, *self.graph.shape(node.weight))
            case Normalise(axes=axes, groups=groups) if len(axes) == len(self.graph.shape(node.x)):
                channels = self.graph.shape(node.x)[:1]
                scale, shift = (
                    read(name).flatten().expand(channels) for name in (node.scale, node.shift)
                )
                normalise = self.torch.nn.functional.group_norm
                y = normalise(read(node.x), groups, scale, shift, node.epsilon)
                return self._activate(y, node.activation)
            case Normalise(axes=(axis,), groups=1):
                size = self.graph.shape(node.x)[axis : axis + 1]
                scale, shift = (
                    read(name).flatten().expand(size) for name in (node.scale, node.shift)
                )
                y = self._normalised(read(node.x), scale, shift, node.epsilon, axis + 1)
                return self._activate(y, node.activation)
            case Resample(x=x, taps=taps):
                return self._gathered(read(x), self.graph.shape(x), taps)
            case Identity():
                return read(node.x)
            case Transpose():
                return read(node.x).permute(0, *(axis + 1 for axis in node.axes))
            case Reshape():
                x = read(node.x)
                x = x.movedim(1, -1) if node.channels_last else x
                return x.reshape(-1, *self.graph.shape(node.output))
            case Softmax():
                function = functional.log_softmax if node.log else functional.softmax
                return function(read(node.x), node.axis + 1)
            case _:
                raise TypeError(
                    f"{node.name}: torch_graph.py does not support this {type(node).__name__}"
                )

    def _gathered(self, x: Any, shape: Shape, taps: Sequence[str]) -> Any:
        for axis, table in enumerate(taps, 1):
            positions = _positions(table, self.graph.weights[table])
            if not np.array_equal(positions, np.arange(shape[axis])):  # it would only copy
                x = x.index_select(axis + 1, self.read(table))
        return x

    def _conv(self, node: Conv) -> Any:
        window, functional = node.problem.window, self.torch.nn.functional
        x, padding = self.read(node.x), window.pads_begin
        prologue = node.problem.prologue
        if prologue is not None and node.scale is not None and node.shift is not None:
            factors = self.read(node.scale), self.read(node.shift)
            x = self._activate(self._normalised(x, *factors, prologue.epsilon), prologue.activation)
        if window.pads_begin != window.pads_end:
            x = functional.pad(x, _pad_list(window.pads_begin, window.pads_end))
            padding = (0,) * len(padding)
        convolve = functional.conv3d if node.problem.is_3d else functional.conv2d
        weight, projection = self.read(node.weight), node.problem.projection
        if projection is not None:
            weight, last = weight.split([node.problem.c, projection.c], 1)
        y = convolve(
            x,
            weight,
            None if node.bias is None else self.read(node.bias),
            window.strides,
            padding,
            window.dilations,
            node.problem.groups,
        )
        if node.residual is not None:
            residual = self.read(node.residual)
            if projection is not None:
                residual = convolve(residual, last, stride=projection.strides)
            y = y + residual
        return self._activate(y, node.activation)

    def _pool(self, x: Any, problem: PoolProblem) -> Any:
        """Pad the input, and then pool. Padding is a separate step because windows may need
        different padding at each edge of the image."""
        window, functional = problem.window, self.torch.nn.functional
        ends = [
            (p - 1) * stride + extent - size - begin
            for p, stride, extent, size, begin in zip(
                window.output,
                window.strides,
                window.extent,
                window.input,
                window.pads_begin,
                strict=True,
            )
        ]
        pads = _pad_list(window.pads_begin, [max(end, 0) for end in ends])
        if problem.kind is not PoolKind.MAX:
            return self._average(x, problem, pads)
        pool = functional.max_pool3d if len(window.input) == 3 else functional.max_pool2d
        if any(pads):
            x = functional.pad(x, pads, value=float("-inf"))
        return pool(x, window.kernel, window.strides, 0, window.dilations)

    def _average(self, x: Any, problem: PoolProblem, pads: Sequence[int]) -> Any:
        window = problem.window
        is_plain = len(window.input) == 2 and window.pads_begin == window.pads_end
        if not is_plain or set(window.dilations) != {1} or any(pads[::2]) != any(window.pads_begin):
            raise TypeError(f"torch_graph.py does not support this pooling: {problem}")
        padded = problem.kind is PoolKind.AVERAGE_PADDED
        average = self.torch.nn.functional.avg_pool2d
        return average(
            x, window.kernel, window.strides, window.pads_begin, count_include_pad=padded
        )

    def _activate(self, x: Any, activation: Activation | None) -> Any:
        if activation is None:
            return x
        if activation.kind is ActivationKind.CLIP:
            return x.clamp(activation.a, activation.b)
        if activation.kind not in _ACTIVATIONS:
            raise TypeError(f"torch_graph.py does not support the activation {activation}")
        return _ACTIVATIONS[activation.kind](self.torch, x)

    def _normalised(
        self, x: Any, scale: Any, shift: Any, epsilon: float | None, axis: int = 1
    ) -> Any:
        """Return x normalised over an axis. Without an epsilon, x is only scaled and shifted."""
        last, scale, shift = x.movedim(axis, -1), scale.flatten(), shift.flatten()
        if epsilon is None:
            return (last * scale + shift).movedim(-1, axis)
        normalise = self.torch.nn.functional.layer_norm
        return normalise(last, scale.shape, scale, shift, epsilon).movedim(-1, axis)


def _pad_list(begin: Any, end: Any) -> list[int]:
    """Return the padding in the order of torch.nn.functional.pad, the last axis first."""
    pairs = list(zip(begin, end, strict=True))
    return [pad for pair in reversed(pairs) for pad in pair]


def _channels_last(torch: Any, axes: int) -> Any:
    return torch.channels_last if axes == 4 else torch.channels_last_3d


def _key(name: str) -> str:
    """Return a weight's key in a ParameterDict. A key must have no dots, and must differ from the
    names of the ParameterDict's attributes."""
    return "weight_" + name.replace(".", "_")


def _positions(name: str, table: Weight) -> Any:
    """Return, for each output position of a Resample along an axis, the input position that it
    copies. Raises TypeError if an output position mixes several input positions."""
    if table.shape[1] > 1 or (table[..., 1] != 1).any():
        raise TypeError(f"{name}: a Resample must copy its input, without interpolation")
    return table[:, 0, 0].astype(np.int64)
