"""Defines the typed graph of a network, with one frozen node for each operation.

Shapes are those of one image, in ONNX's logical order (C, H, W): the batch axis is not written, it
always comes first, and no node changes it. The planner decides how tensors lie in memory. Axes in
nodes count without the batch axis too: axis 0 is C.

One namespace holds every tensor: an operand names either a value (computed per image) or a weight
(constant). Strings that choose behaviour stop at the loader; nodes carry types.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from kernels.problems.activation import Activation
from kernels.problems.binary_operation import BinaryOp
from kernels.problems.conv import ConvProblem
from kernels.problems.pool import PoolKind, PoolProblem
from kernels.problems.precision import FLOAT, Precision, Storage
from kernels.problems.reduction import ReduceKind

Weight = NDArray[np.float32]
Shape = tuple[int, ...]


def operand(**options: Any) -> Any:
    """Return a dataclass field for a node's operand: a name (`str`), an optional one, or several
    names."""
    return field(metadata={"operand": True}, **options)


@dataclass(frozen=True, slots=True)
class ChannelSlice:
    """Locates a value that is a range of channels of a larger value (made by a fused Concat)."""

    parent: str
    offset: int  # in channels


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor computed for each image; `shape` is that of one image, without the batch axis.

    Where it is stored in bytes it is quantized: its numbers are those that its bytes stand for.
    """

    name: str
    shape: Shape
    inside: ChannelSlice | None = None
    stored: Storage = FLOAT


@dataclass(frozen=True, kw_only=True)
class Node:
    """An operation with one output value."""

    name: str
    output: str

    def operands(self) -> Iterator[str]:
        """Yield the names of the values and weights that the node reads, in field order."""
        for f in fields(self):
            if f.metadata.get("operand"):
                entry = getattr(self, f.name)
                if isinstance(entry, str):
                    yield entry
                elif entry is not None:
                    yield from entry

    def renamed(self, names: Mapping[str, str]) -> Self:
        """Return the node with `names[x]` instead of every operand x that `names` has."""

        def rename(entry: Any) -> Any:
            if isinstance(entry, tuple):
                return tuple(rename(name) for name in entry)
            return names.get(entry, entry)

        changes: dict[str, Any] = {
            f.name: rename(getattr(self, f.name)) for f in fields(self) if f.metadata.get("operand")
        }
        return replace(self, **changes)


@dataclass(frozen=True, kw_only=True)
class Conv(Node):
    """Computes y = activation(conv(x, weight) + bias + residual), weight K×(C/groups)×R×S, bias K.

    scale and shift are C numbers each, of the prologue of a problem that has one. Where the problem
    has a projection, the residual is its input, of C' channels, and the weight is K×(C + C')×1×1.
    """

    x: str = operand()
    weight: str = operand()
    bias: str | None = operand(default=None)
    residual: str | None = operand(default=None)  # of the output's shape, or to be projected
    scale: str | None = operand(default=None)
    shift: str | None = operand(default=None)
    problem: ConvProblem  # for one image; `problem.with_batch(n)` for n
    activation: Activation | None = None
    rounded: Storage | None = None  # of bytes: what the sum is rounded to ahead of the residual


@dataclass(frozen=True, kw_only=True)
class Gemm(Node):
    """Computes y = activation(x · weightᵀ + bias) over the last axis, weight K×C, bias K."""

    x: str = operand()
    weight: str = operand()
    bias: str | None = operand(default=None)
    activation: Activation | None = None


@dataclass(frozen=True, kw_only=True)
class Product(Node):
    """Computes y = a · b, M×C by C×N along the last two axes; axes before broadcast like NumPy.

    One operand may be a weight, whose shape has no batch axis.
    """

    a: str = operand()
    b: str = operand()
    precision: Precision = Precision.FP32


@dataclass(frozen=True, kw_only=True)
class Attention(Node):
    """Computes y = softmax(scale · q · kᵀ + bias) · v, matrices along the last two axes.

    q is ...×T×C, k ...×S×C, v ...×S×E, and y ...×T×E; bias is a weight that broadcasts to ...×T×S.
    """

    q: str = operand()
    k: str = operand()
    v: str = operand()
    bias: str | None = operand(default=None)
    scale: float = 1.0
    precision: Precision = Precision.FP32


@dataclass(frozen=True, kw_only=True)
class Pool(Node):
    """Computes the maximum or average over a window."""

    x: str = operand()
    problem: PoolProblem


@dataclass(frozen=True, kw_only=True)
class GlobalPool(Node):
    """Computes the maximum or average over H×W (D×H×W); the output keeps these axes with size 1."""

    x: str = operand()
    kind: PoolKind


@dataclass(frozen=True, kw_only=True)
class ScaleShift(Node):
    """Computes y = activation(x · scale + shift), where scale and shift have one number per channel
    (axis 0).

    The loader's form of BatchNormalization: scale = gamma / sqrt(var + eps),
    shift = beta - mean · scale.
    """

    x: str = operand()
    scale: str = operand()
    shift: str = operand()
    activation: Activation | None = None


@dataclass(frozen=True, kw_only=True)
class Lrn(Node):
    """Computes local response normalisation across channels.

    y = x / (bias + alpha / size · Σ x²)^beta, the sum over the channels
    c - floor((size - 1) / 2) .. c + ceil((size - 1) / 2) that exist.
    """

    x: str = operand()
    size: int
    alpha: float
    beta: float
    bias: float


@dataclass(frozen=True, kw_only=True)
class Normalise(Node):
    """Computes y = activation((x - mean) / sqrt(variance + epsilon) · scale + shift).

    Mean and variance are over `axes`, axis 0 cut into `groups` runs first: LayerNormalization has
    one axis, GroupNormalization all of them and groups, InstanceNormalization all but axis 0. scale
    and shift are weights that broadcast to x's shape after NumPy.
    """

    x: str = operand()
    scale: str = operand()
    shift: str = operand()
    axes: tuple[int, ...]
    epsilon: float
    groups: int = 1
    activation: Activation | None = None


@dataclass(frozen=True, kw_only=True)
class Reduce(Node):
    """Computes a sum, mean, maximum, minimum or L2 norm over `axes`, which remain with size 1."""

    x: str = operand()
    kind: ReduceKind
    axes: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Resample(Node):
    """Computes y[c, p, q] = Σ_i,j h[p, i] · w[q, j] · x[c, h'[p, i], w'[q, j]] over 2 or 3 spatial
    axes.

    Resizing, and padding by what is inside the image. `taps` names a weight for each spatial axis,
    P×T×2: for each output position the input positions that it reads, and their factors.
    """

    x: str = operand()
    taps: tuple[str, ...] = operand()


@dataclass(frozen=True, kw_only=True)
class Binary(Node):
    """Computes y = activation(a op b), broadcast like NumPy; one operand may be a weight.

    A weight operand's shape has no batch axis: it is that of one image, or fewer axes.
    """

    a: str = operand()
    b: str = operand()
    op: BinaryOp
    activation: Activation | None = None


@dataclass(frozen=True, kw_only=True)
class Activate(Node):
    """Computes y = activation(x) elementwise."""

    x: str = operand()
    activation: Activation


@dataclass(frozen=True, kw_only=True)
class Concat(Node):
    """Joins its parts along `axis`."""

    parts: tuple[str, ...] = operand()
    axis: int


@dataclass(frozen=True, kw_only=True)
class Slice(Node):
    """Computes x[start:stop:step] along `axis`, with 0 <= start < stop <= size and step >= 1."""

    x: str = operand()
    axis: int
    start: int
    stop: int
    step: int = 1


@dataclass(frozen=True, kw_only=True)
class Reshape(Node):
    """Gives the elements of one image the output value's shape.

    With `channels_last` x (C, H, W) is read in the order H, W, C, as it lies in an NHWC buffer, so
    that flattening moves nothing there.
    """

    x: str = operand()
    channels_last: bool = False


@dataclass(frozen=True, kw_only=True)
class Transpose(Node):
    """Makes axis `axes[i]` of the input axis i of the output."""

    x: str = operand()
    axes: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class ChannelShuffle(Node):
    """Moves channel g · (C/groups) + i to i · groups + g (ShuffleNet)."""

    x: str = operand()
    groups: int


@dataclass(frozen=True, kw_only=True)
class Pad(Node):
    """Surrounds x by `value`; `begin` and `end` have one entry for each axis, none of them
    negative."""

    x: str = operand()
    begin: tuple[int, ...]
    end: tuple[int, ...]
    value: float


@dataclass(frozen=True, kw_only=True)
class Softmax(Node):
    """Computes softmax, or its logarithm, along `axis`."""

    x: str = operand()
    axis: int
    log: bool = False


@dataclass(frozen=True, kw_only=True)
class Quantize(Node):
    """Rounds x to the nearest numbers that y's storage has, in bytes, by ONNX's QuantizeLinear.

    A byte is round(x / scale) + zero point, ties to even, at least 0 and at most 255. ONNX's int8
    numbers are stored as bytes 128 larger, and so is their zero point. x may be bytes of another
    scale, which stand for numbers.

    Where `block` is not 1, block × block pixels are one pixel of y: channel c of row i and column j
    of a block is channel (i · block + j) · 4 + c. There are at most 4; those missing are 0.
    """

    x: str = operand()
    block: int = 1


@dataclass(frozen=True, kw_only=True)
class Dequantize(Node):
    """Converts x to the numbers that its bytes mean, by ONNX's DequantizeLinear."""

    x: str = operand()


@dataclass(frozen=True, kw_only=True)
class Identity(Node):
    """Computes y = x; Dropout is one too, since inference drops nothing."""

    x: str = operand()


@dataclass(frozen=True, kw_only=True)
class Expand(Node):
    """Repeats x along its axes of size 1 to the output value's shape."""

    x: str = operand()


@dataclass(frozen=True, kw_only=True)
class Constant(Node):
    """Repeats a weight for every image, for an operand that must be a value."""

    weight: str = operand()


@dataclass(frozen=True, eq=False)
class Grid:
    """Holds whole numbers and scales whose product, numbers · scale, is a quantized weight.

    There is one scale, or one for each entry of the weight's first axis.
    """

    numbers: NDArray[np.int32]
    scale: NDArray[np.float32]

    @property
    def weight(self) -> Weight:
        """Return the weight's numbers, after DequantizeLinear if it is quantized."""
        scale = self.scale.reshape(-1, *[1] * (self.numbers.ndim - 1))
        return self.numbers.astype(np.float32) * scale


Move = ChannelShuffle | Concat | Constant | Expand | Identity | Pad | Reshape | Slice | Transpose
"""A node that computes nothing: its output's numbers are those of its operands."""


@dataclass(frozen=True)
class Graph:
    """A network whose `nodes` are in an order in which every value is written before it is read."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    values: Mapping[str, Value]
    nodes: tuple[Node, ...]
    weights: Mapping[str, Weight]
    # Of weights that were quantized, by name. A weight that a rule computes has another name.
    grids: Mapping[str, Grid] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("values", "weights", "grids"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))
        check_graph(self)

    @override
    def __reduce__(self) -> tuple[type["Graph"], tuple[object, ...]]:
        """Pickle read-only views of mappings, which cannot be pickled, as dictionaries."""
        values = [getattr(self, each.name) for each in fields(self)]
        return Graph, tuple(dict(v) if isinstance(v, MappingProxyType) else v for v in values)

    def shape(self, name: str) -> Shape:
        """Return the shape of a value (for one image) or of a weight."""
        value = self.values.get(name)
        return value.shape if value is not None else tuple(self.weights[name].shape)


def last_nodes(graph: Graph) -> list[Node]:
    """Return the nodes from the output back to the first, inclusive, that is no Reshape or
    Identity."""
    writers = {node.output: node for node in graph.nodes}
    value, found = graph.outputs[0], list[Node]()
    while (node := writers.get(value)) is not None:
        found.append(node)
        if not isinstance(node, Reshape | Identity):
            break
        value = node.x
    return found


class GraphError(ValueError):
    """Says how a graph breaks its rules, which is a defect in the loader or in a rewrite rule."""


def check_graph(graph: Graph) -> None:
    """Raise GraphError unless every operand is known, written once, and written before it is read.

    A value that others live inside is written when its slices are, which must cover it exactly.
    """
    pieces: dict[str, list[Value]] = {}
    for value in graph.values.values():
        if value.inside is not None:
            pieces.setdefault(value.inside.parent, []).append(value)
    for parent, parts in pieces.items():
        _check_cover(graph.values[parent], parts)

    written = set(graph.inputs)

    def is_written(name: str) -> bool:
        if name in written or name in graph.weights:
            return True
        return name in pieces and all(is_written(part.name) for part in pieces[name])

    for node in graph.nodes:
        for name in node.operands():
            if not is_written(name):
                raise GraphError(f"{node.name} reads {name} before anything wrote it")
        if node.output not in graph.values:
            raise GraphError(f"{node.name} writes {node.output}, which has no shape")
        if node.output in written or node.output in pieces:
            raise GraphError(f"{node.name} writes {node.output}, which is written already")
        written.add(node.output)
    for name in graph.outputs:
        if not is_written(name):
            raise GraphError(f"output {name} is never written")


def _check_cover(parent: Value, parts: list[Value]) -> None:
    end = 0
    for part in sorted(parts, key=lambda p: p.inside.offset if p.inside else 0):
        if part.inside is None or part.inside.offset != end or part.shape[1:] != parent.shape[1:]:
            raise GraphError(f"the slices of {parent.name} overlap, leave a gap or differ in shape")
        end += part.shape[0]
    if end != parent.shape[0]:
        raise GraphError(f"the slices of {parent.name} cover {end} of {parent.shape[0]} channels")
