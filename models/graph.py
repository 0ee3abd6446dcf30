"""Defines the graph of a network. Nodes are immutable, with one class per operation.

Shapes describe one image, in ONNX's logical order (C, H, W). The batch axis always comes first but
is not part of a shape, and no node changes it. Axis numbers leave out the batch axis, so axis 0 is
C. The planner decides how tensors are stored in memory.

All tensors share one namespace. An operand is the name of a value, which is computed for each
image, or of a weight, which is constant. The loader converts strings that choose behaviour, such as
ONNX attributes, to types.
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
    """Return a dataclass field for a node's operand. The field holds one name (`str`), an optional
    name, or several names."""
    return field(metadata={"operand": True}, **options)


@dataclass(frozen=True, slots=True)
class ChannelSlice:
    """Locates a value that is stored in a range of channels of a larger value. The larger value is
    the output of a Concat that a rewrite removed. The Concat's inputs are written directly to their
    channels."""

    parent: str
    offset: int  # the first channel


@dataclass(frozen=True, slots=True)
class Value:
    """Describes a tensor that is computed for each image. `shape` is its shape for one image.

    A value stored as bytes is quantized: each byte represents a number.
    """

    name: str
    shape: Shape
    inside: ChannelSlice | None = None
    stored: Storage = FLOAT


@dataclass(frozen=True, kw_only=True)
class Node:
    """Describes an operation with one output value."""

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
        """Return the node with each operand x in `names` replaced by `names[x]`."""

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

    A prologue is a normalisation, or a scale and shift, of x before the convolution. `scale` and
    `shift` then have C numbers each. A projection is a 1×1 convolution that computes the residual.
    `residual` is then the projection's input, with C' channels, and `weight` holds both filters,
    K×(C + C')×1×1.
    """

    x: str = operand()
    weight: str = operand()
    bias: str | None = operand(default=None)
    residual: str | None = operand(default=None)  # in the output's shape; or a projection's input
    scale: str | None = operand(default=None)
    shift: str | None = operand(default=None)
    problem: ConvProblem  # for one image; `problem.with_batch(n)` for n
    activation: Activation | None = None
    rounded: Storage | None = None  # if bytes: the sum is rounded to this before the residual


@dataclass(frozen=True, kw_only=True)
class Gemm(Node):
    """Computes y = activation(x · weightᵀ + bias) over the last axis, weight K×C, bias K."""

    x: str = operand()
    weight: str = operand()
    bias: str | None = operand(default=None)
    activation: Activation | None = None


@dataclass(frozen=True, kw_only=True)
class Product(Node):
    """Computes y = a · b with matrices M×C and C×N along the last two axes. The other axes
    broadcast as in NumPy.

    One operand may be a weight, whose shape has no batch axis.
    """

    a: str = operand()
    b: str = operand()
    precision: Precision = Precision.FP32


@dataclass(frozen=True, kw_only=True)
class Attention(Node):
    """Computes y = softmax(scale · q · kᵀ + bias) · v with matrices along the last two axes.

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
    """Computes the maximum or average over H×W or D×H×W. The output keeps these axes with size
    1."""

    x: str = operand()
    kind: PoolKind


@dataclass(frozen=True, kw_only=True)
class ScaleShift(Node):
    """Computes y = activation(x · scale + shift) with one scale and one shift per channel (axis 0).

    The loader converts BatchNormalization to this form: scale = gamma / sqrt(var + eps), shift =
    beta - mean · scale.
    """

    x: str = operand()
    scale: str = operand()
    shift: str = operand()
    activation: Activation | None = None


@dataclass(frozen=True, kw_only=True)
class Lrn(Node):
    """Computes local response normalisation across channels.

    y = x / (bias + alpha / size · Σ x²)^beta. The sum is over the existing channels from c -
    floor((size - 1) / 2) to c + ceil((size - 1) / 2).
    """

    x: str = operand()
    size: int
    alpha: float
    beta: float
    bias: float


@dataclass(frozen=True, kw_only=True)
class Normalise(Node):
    """Computes y = activation((x - mean) / sqrt(variance + epsilon) · scale + shift).

    Mean and variance are over `axes`, after axis 0 is divided into `groups` equal parts.
    LayerNormalization has one axis, GroupNormalization has all axes and several groups, and
    InstanceNormalization has all axes except axis 0. scale and shift are weights that broadcast to
    x's shape as in NumPy.
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
    """Computes a sum, mean, maximum, minimum or L2 norm over `axes`, which are kept with size 1."""

    x: str = operand()
    kind: ReduceKind
    axes: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Resample(Node):
    """Computes each element of y as a weighted sum of elements of x, for resizing and for padding.

    y[c, p, q] = Σ_i,j h[p, i] · w[q, j] · x[c, h'[p, i], w'[q, j]] for 2 spatial axes, and likewise
    for 3. `taps` names one weight P×T×2 per axis. For each output position p, it has T pairs of an
    input position h' and its factor h.
    """

    x: str = operand()
    taps: tuple[str, ...] = operand()


@dataclass(frozen=True, kw_only=True)
class Binary(Node):
    """Computes y = activation(a op b), broadcast as in NumPy; one operand may be a weight.

    A weight's shape has no batch axis, and may have fewer axes than an image.
    """

    a: str = operand()
    b: str = operand()
    op: BinaryOp
    activation: Activation | None = None


@dataclass(frozen=True, kw_only=True)
class Activate(Node):
    """Computes y = activation(x) element by element."""

    x: str = operand()
    activation: Activation


@dataclass(frozen=True, kw_only=True)
class Concat(Node):
    """Concatenates its parts along `axis`."""

    parts: tuple[str, ...] = operand()
    axis: int


@dataclass(frozen=True, kw_only=True)
class Slice(Node):
    """Computes x[start:stop:step] along `axis`, where 0 <= start < stop <= size and step >= 1."""

    x: str = operand()
    axis: int
    start: int
    stop: int
    step: int = 1


@dataclass(frozen=True, kw_only=True)
class Reshape(Node):
    """Changes the shape of x to the shape of the output value.

    With `channels_last`, the elements of x (C, H, W) are taken in the order H, W, C. In an NHWC
    buffer this is the order in memory, so that flattening moves nothing.
    """

    x: str = operand()
    channels_last: bool = False


@dataclass(frozen=True, kw_only=True)
class Transpose(Node):
    """Permutes axes: axis `axes[i]` of the input becomes axis i of the output."""

    x: str = operand()
    axes: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class ChannelShuffle(Node):
    """Moves channel g · (C/groups) + i to position i · groups + g (ShuffleNet)."""

    x: str = operand()
    groups: int


@dataclass(frozen=True, kw_only=True)
class Pad(Node):
    """Pads x with `value`. `begin` and `end` have one number for each axis, which is 0 or more."""

    x: str = operand()
    begin: tuple[int, ...]
    end: tuple[int, ...]
    value: float


@dataclass(frozen=True, kw_only=True)
class Softmax(Node):
    """Computes a softmax, or its logarithm, along `axis`."""

    x: str = operand()
    axis: int
    log: bool = False


@dataclass(frozen=True, kw_only=True)
class Quantize(Node):
    """Quantizes x to the bytes of y's storage, as ONNX's QuantizeLinear does.

    A byte is round(x / scale) + zero point, clamped to 0..255; ties are rounded to even. ONNX's
    int8 numbers and zero points are stored 128 larger, as unsigned bytes. x may itself be
    quantized, with another scale.

    If `block` is not 1, one pixel of y holds block × block pixels of x: channel c of the pixel at
    row i and column j of the block becomes channel (i · block + j) · 4 + c. x has at most 4
    channels; missing channels are 0.
    """

    x: str = operand()
    block: int = 1


@dataclass(frozen=True, kw_only=True)
class Dequantize(Node):
    """Converts the bytes of x to the numbers that they represent, as ONNX's DequantizeLinear
    does."""

    x: str = operand()


@dataclass(frozen=True, kw_only=True)
class Identity(Node):
    """Computes y = x. Dropout is also loaded as Identity, because it has no effect in inference."""

    x: str = operand()


@dataclass(frozen=True, kw_only=True)
class Expand(Node):
    """Repeats x along axes of size 1 to the shape of the output value."""

    x: str = operand()


@dataclass(frozen=True, kw_only=True)
class Constant(Node):
    """Repeats a weight for each image, for a node whose operand must be a value."""

    weight: str = operand()


@dataclass(frozen=True, eq=False)
class Grid:
    """Holds a quantized weight as integers and scales. The weight is `numbers` · `scale`.

    There is one scale, or one per entry of the weight's first axis.
    """

    numbers: NDArray[np.int32]
    scale: NDArray[np.float32]

    @property
    def weight(self) -> Weight:
        """Return the weight as DequantizeLinear computes it."""
        scale = self.scale.reshape(-1, *[1] * (self.numbers.ndim - 1))
        return self.numbers.astype(np.float32) * scale


Move = ChannelShuffle | Concat | Constant | Expand | Identity | Pad | Reshape | Slice | Transpose
"""A node that only moves elements of its operands and computes nothing."""


@dataclass(frozen=True)
class Graph:
    """Holds a network. `nodes` are in an order in which every value is written before it is
    read."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    values: Mapping[str, Value]
    nodes: tuple[Node, ...]
    weights: Mapping[str, Weight]
    # The quantized weights, by name. A weight that a rule computes gets another name.
    grids: Mapping[str, Grid] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("values", "weights", "grids"):
            object.__setattr__(self, name, MappingProxyType(dict(getattr(self, name))))
        check_graph(self)

    @override
    def __reduce__(self) -> tuple[type["Graph"], tuple[object, ...]]:
        """Pickle the read-only mappings as dictionaries, because their views cannot be pickled."""
        values = [getattr(self, each.name) for each in fields(self)]
        return Graph, tuple(dict(v) if isinstance(v, MappingProxyType) else v for v in values)

    def shape(self, name: str) -> Shape:
        """Return the shape of a value (of one image) or of a weight."""
        value = self.values.get(name)
        return value.shape if value is not None else tuple(self.weights[name].shape)


def last_nodes(graph: Graph) -> list[Node]:
    """Return the last nodes of the graph, backwards from the output.

    The result ends with the first node that is neither a Reshape nor an Identity.
    """
    writers = {node.output: node for node in graph.nodes}
    value, found = graph.outputs[0], list[Node]()
    while (node := writers.get(value)) is not None:
        found.append(node)
        if not isinstance(node, Reshape | Identity):
            break
        value = node.x
    return found


class GraphError(ValueError):
    """Raised if a graph is inconsistent. The cause is a defect in the loader or in a rewrite
    rule."""


def check_graph(graph: Graph) -> None:
    """Raise GraphError unless every operand is known, written once, and written before it is read.

    A value that consists of slices counts as written when all its slices are written. The slices
    must cover the value exactly.
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
            raise GraphError(f"{node.name} writes {node.output}, which another node writes")
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
        raise GraphError(f"the slices of {parent.name} have {end} channels, not {parent.shape[0]}")
