"""ONNX operators of the normal form and the typed nodes they become: one function each."""

from collections.abc import Callable, Mapping
from math import prod

import numpy as np

from kernels.problems.activation import Activation, ActivationKind
from kernels.problems.binary_operation import BinaryOp
from kernels.problems.pool import PoolKind
from models.graph import (
    Activate,
    Binary,
    Concat,
    Constant,
    Gemm,
    GlobalPool,
    Identity,
    Lrn,
    Pad,
    Reshape,
    ScaleShift,
    Slice,
    Softmax,
    Transpose,
)
from models.onnx_loader import windows
from models.onnx_loader.importer import (
    Importer,
    OnnxNode,
    RefusedError,
    attributes_only,
    drop_batch_axis,
)

Operator = Callable[[Importer, OnnxNode], None]


def _activation(kind: ActivationKind) -> Operator:
    def read(to: Importer, node: OnnxNode) -> None:
        _activate(to, node, Activation(kind))

    return read


def _activate(to: Importer, node: OnnxNode, activation: Activation) -> None:
    output = to.declare(node.output)
    to.nodes.append(Activate(name=node.name, output=output, x=node.x(), activation=activation))


def _clip(to: Importer, node: OnnxNode) -> None:
    low, high = node.scalar(1, -np.inf), node.scalar(2, np.inf)
    if (low, high) == (0, np.inf):
        _activate(to, node, Activation(ActivationKind.RELU))
    else:
        _activate(to, node, Activation(ActivationKind.CLIP, low, high))


def _leaky_relu(to: Importer, node: OnnxNode) -> None:
    _activate(to, node, Activation(ActivationKind.LEAKY_RELU, node.number("alpha", 0.01)))


def _hard_sigmoid(to: Importer, node: OnnxNode) -> None:
    alpha, beta = node.number("alpha", 0.2), node.number("beta", 0.5)
    _activate(to, node, Activation(ActivationKind.HARD_SIGMOID, alpha, beta))


def _gelu(to: Importer, node: OnnxNode) -> None:
    kinds = {"none": ActivationKind.GELU, "tanh": ActivationKind.GELU_TANH}
    approximate = node.text("approximate", "none")
    if approximate not in kinds:
        raise RefusedError(f"approximate={approximate} is unknown")
    _activate(to, node, Activation(kinds[approximate]))


def _broadcast_operands(to: Importer, node: OnnxNode) -> list[str]:
    """The inputs of an elementwise node; none may be broadcast along the batch axis."""
    rank = len(node.output_shape)
    for index in range(len(node.node.inputs)):
        if node.input(index).const_value is None and len(node.input_shape(index)) != rank:
            raise RefusedError(
                f"input {index} has fewer axes than the output: broadcasting it would move"
                " its batch axis"
            )
    return [to.operand(node.input(index), rank) for index in range(len(node.node.inputs))]


def _binary(op: BinaryOp) -> Operator:
    def read(to: Importer, node: OnnxNode) -> None:
        a, b = _broadcast_operands(to, node)
        to.nodes.append(Binary(name=node.name, output=to.declare(node.output), a=a, b=b, op=op))

    return read


def _sum(to: Importer, node: OnnxNode) -> None:
    """A chain of additions; Sum of one tensor is that tensor."""
    output = to.declare(node.output)
    # Constants last: no typed node reads two of them.
    terms = sorted(_broadcast_operands(to, node), key=lambda name: name in to.weights)
    if len(terms) == 1:
        to.nodes.append(Identity(name=node.name, output=output, x=terms[0]))
    total, shape = terms[0], to.shape(terms[0])
    for index, term in enumerate(terms[1:], start=1):
        last = index == len(terms) - 1
        name = node.name if last else f"{node.name}/{index}"
        shape = np.broadcast_shapes(shape, to.shape(term))
        value = output if last else to.temporary(f"{output}/{index}", shape)
        to.nodes.append(Binary(name=name, output=value, a=total, b=term, op=BinaryOp.ADD))
        total = value


def _gemm(to: Importer, node: OnnxNode) -> None:
    attributes_only(node, {"transA": 0})
    weight = node.constant(1).astype(np.float64) * node.number("alpha", 1.0)
    _linear(to, node, weight if node.integer("transB", 0) else weight.T)


def _matmul(to: Importer, node: OnnxNode) -> None:
    weight = node.constant(1)
    if weight.ndim != 2:
        raise RefusedError(f"the second operand has {weight.ndim} axes; only a matrix is supported")
    _linear(to, node, weight.T)


def _linear(to: Importer, node: OnnxNode, weight: np.ndarray) -> None:
    """`weight` is K×C: one row an output."""
    bias = None
    if node.has(2):
        beta = node.number("beta", 1.0)
        full = np.atleast_1d(np.multiply(node.constant(2), beta))
        row = drop_batch_axis(str(node.input(2).name), full, 2)
        bias = to.weight(f"{node.name}/bias", np.broadcast_to(row, weight.shape[:1]))
    to.nodes.append(
        Gemm(
            name=node.name,
            output=to.declare(node.output),
            x=node.x(),
            weight=to.weight(f"{node.name}/weight", weight),
            bias=bias,
        )
    )


def _batch_normalization(to: Importer, node: OnnxNode) -> None:
    attributes_only(node, {"training_mode": 0})
    gamma, beta, mean, variance = (node.constant(i).astype(np.float64) for i in (1, 2, 3, 4))
    scale = gamma / np.sqrt(variance + node.number("epsilon", 1e-5))
    to.nodes.append(
        ScaleShift(
            name=node.name,
            output=to.declare(node.output),
            x=node.x(),
            scale=to.weight(f"{node.name}/scale", scale),
            shift=to.weight(f"{node.name}/shift", beta - mean * scale),
        )
    )


def _lrn(to: Importer, node: OnnxNode) -> None:
    size = node.integer("size", 0)
    if size < 1 or size % 2 == 0:
        raise RefusedError(f"size={size}: it must be odd and positive")
    to.nodes.append(
        Lrn(
            name=node.name,
            output=to.declare(node.output),
            x=node.x(),
            size=size,
            alpha=node.number("alpha", 1e-4),
            beta=node.number("beta", 0.75),
            bias=node.number("bias", 1.0),
        )
    )


def _reduce_mean(to: Importer, node: OnnxNode) -> None:
    shape = node.input_shape(0)
    rank = len(shape)
    given = node.constant_integers(1) if node.has(1) else list(range(rank))
    if {axis % rank for axis in given} != set(range(2, rank)) or rank not in (4, 5):
        raise RefusedError(f"axes={given}: only the mean over all of H×W is supported")
    output = to.declare(node.output)
    pooled = (shape[1], *[1] * (rank - 2))
    if output_is_pooled := node.output_shape[1:] == pooled:
        name = output
    else:
        name = to.temporary(f"{output}/pooled", pooled)
    to.nodes.append(GlobalPool(name=node.name, output=name, x=node.x(), kind=PoolKind.AVERAGE))
    if not output_is_pooled:
        to.nodes.append(Reshape(name=f"{node.name}/squeeze", output=output, x=name))


def _concat(to: Importer, node: OnnxNode) -> None:
    rank = len(node.output_shape)
    axis = node.axis(node.integer("axis", 0), rank)
    parts = []
    for index, value in enumerate(node.node.inputs):
        name = str(node.input(index).name)
        if value is not None and value.const_value is not None:
            image = drop_batch_axis(name, value.const_value.numpy(), rank)
            weight = to.weight(f"{name}/image", image)
            name = to.temporary(f"{node.name}/part{index}", image.shape)
            to.nodes.append(Constant(name=name, output=name, weight=weight))
        parts.append(name)
    output = to.declare(node.output)
    to.nodes.append(Concat(name=node.name, output=output, parts=tuple(parts), axis=axis))


def _split(to: Importer, node: OnnxNode) -> None:
    rank = len(node.input_shape(0))
    axis = node.axis(node.integer("axis", 0), rank)
    start = 0
    for index, output in enumerate(node.node.outputs):
        name = to.declare(output)
        stop = start + to.values[name].shape[axis]
        part = f"{node.name}/{index}"
        to.nodes.append(
            Slice(name=part, output=name, x=node.x(), axis=axis, start=start, stop=stop)
        )
        start = stop


def _slice(to: Importer, node: OnnxNode) -> None:
    shape = node.input_shape(0)
    rank = len(shape)
    starts, stops = node.constant_integers(1), node.constant_integers(2)
    axes = node.constant_integers(3) if node.has(3) else list(range(len(starts)))
    steps = node.constant_integers(4) if node.has(4) else [1] * len(starts)
    cuts = []
    for start, stop, axis, step in zip(starts, stops, axes, steps, strict=True):
        if step != 1:
            raise RefusedError(f"step {step} is not supported; only 1 is")
        size = shape[axis % rank]
        first, last, _ = slice(start, stop).indices(size)
        if last <= first:
            raise RefusedError(f"{start}:{stop} of {size} leaves nothing")
        if (first, last) != (0, size):
            cuts.append((node.axis(axis, rank), first, last))
    _cut(to, node, cuts)


def _gather(to: Importer, node: OnnxNode) -> None:
    """One index, or several that follow each other, as a Slice (x[:, 0] in PyTorch)."""
    shape, indices = node.input_shape(0), np.asarray(node.constant(1))
    rank = len(shape)
    axis = node.axis(node.integer("axis", 0), rank)
    size = shape[axis + 1]
    if not indices.size or indices.min() < -size or indices.max() >= size:
        raise RefusedError(f"indices {indices.tolist()} of {size}: there must be some, all inside")
    first = int(indices.flat[0]) % size
    run = first + np.arange(indices.size)
    if indices.ndim > 1 or (indices.reshape(-1) % size != run).any():
        raise RefusedError(f"indices {indices.tolist()}: only one index or a run is supported")
    _cut(to, node, [(axis, first, first + indices.size)])


def _cut(to: Importer, node: OnnxNode, cuts: list[tuple[int, int, int]]) -> None:
    """A chain of slices, then a Reshape where the output has fewer axes."""
    x, shape = node.x(), list(node.input_shape(0)[1:])
    output = to.declare(node.output)
    squeezed = len(to.values[output].shape) < len(shape)
    for index, (axis, start, stop) in enumerate(cuts):
        shape[axis] = stop - start
        last = index == len(cuts) - 1 and not squeezed
        name = output if last else to.temporary(f"{output}/cut{index}", tuple(shape))
        to.nodes.append(
            Slice(name=f"{node.name}/{index}", output=name, x=x, axis=axis, start=start, stop=stop)
        )
        x = name
    if squeezed:
        to.nodes.append(Reshape(name=node.name, output=output, x=x))
    elif not cuts:
        to.nodes.append(Identity(name=node.name, output=output, x=x))


def _reshape(to: Importer, node: OnnxNode) -> None:
    before, after = node.input_shape(0), node.output_shape
    if not after or before[0] != after[0] or prod(before[1:]) != prod(after[1:]):
        raise RefusedError(f"it turns {before} into {after}: axis 0, the batch, must stay")
    to.nodes.append(Reshape(name=node.name, output=to.declare(node.output), x=node.x()))


def _transpose(to: Importer, node: OnnxNode) -> None:
    rank = len(node.output_shape)
    axes = node.integers("perm", list(reversed(range(rank))))
    if sorted(axes) != list(range(len(node.input_shape(0)))):
        raise RefusedError(f"perm={list(axes)} does not name every axis once")
    if axes[0] != 0:
        raise RefusedError(f"perm={list(axes)} moves axis 0, which must stay the batch")
    order = tuple(axis - 1 for axis in axes[1:])
    to.nodes.append(
        Transpose(name=node.name, output=to.declare(node.output), x=node.x(), axes=order)
    )


def _pad(to: Importer, node: OnnxNode) -> None:
    mode = node.text("mode", "constant")
    if mode != "constant":
        raise RefusedError(f"mode={mode} is not supported; only constant is")
    rank = len(node.output_shape)
    pads = node.constant_integers(1)
    axes = node.constant_integers(3) if node.has(3) else list(range(rank))
    begin, end = [0] * rank, [0] * rank
    for index, axis in enumerate(axes):
        begin[axis], end[axis] = pads[index], pads[index + len(axes)]
    if min(begin + end) < 0:
        raise RefusedError(f"pads={pads}: negative padding is not supported")
    if begin[0] or end[0]:
        raise RefusedError(f"pads={pads} change the batch axis")
    to.nodes.append(
        Pad(
            name=node.name,
            output=to.declare(node.output),
            x=node.x(),
            begin=tuple(begin[1:]),
            end=tuple(end[1:]),
            value=node.scalar(2, 0.0),
        )
    )


def _softmax(to: Importer, node: OnnxNode) -> None:
    axis = node.axis(node.integer("axis", -1), len(node.output_shape))
    log = node.node.op_type == "LogSoftmax"
    to.nodes.append(
        Softmax(name=node.name, output=to.declare(node.output), x=node.x(), axis=axis, log=log)
    )


def _identity(to: Importer, node: OnnxNode) -> None:
    if node.node.op_type == "Dropout":
        if node.gives(1):
            raise RefusedError("the mask of Dropout (its second output) is not supported")
        if node.has(2) and node.constant(2).item():
            raise RefusedError("training_mode is not supported: export the model for inference")
    if node.node.op_type == "Expand" and node.input_shape(0) != node.output_shape:
        raise RefusedError(f"it expands {node.input_shape(0)} to {node.output_shape}")
    if node.node.op_type == "Cast" and node.input(0).dtype != node.output.dtype:
        raise RefusedError(f"it casts {node.input(0).dtype} to {node.output.dtype}")
    to.nodes.append(Identity(name=node.name, output=to.declare(node.output), x=node.x()))


OPERATORS: Mapping[str, Operator] = {
    "Add": _binary(BinaryOp.ADD),
    "AveragePool": windows.pool,
    "BatchNormalization": _batch_normalization,
    "Cast": _identity,
    "Clip": _clip,
    "Concat": _concat,
    "Conv": windows.conv,
    "Div": _binary(BinaryOp.DIV),
    "Dropout": _identity,
    "Erf": _activation(ActivationKind.ERF),
    "Expand": _identity,
    "Flatten": _reshape,
    "Gather": _gather,
    "Gelu": _gelu,
    "Gemm": _gemm,
    "GlobalAveragePool": windows.global_pool,
    "GlobalMaxPool": windows.global_pool,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _activation(ActivationKind.HARD_SWISH),
    "Identity": _identity,
    "LRN": _lrn,
    "LeakyRelu": _leaky_relu,
    "LogSoftmax": _softmax,
    "MatMul": _matmul,
    "MaxPool": windows.pool,
    "Mul": _binary(BinaryOp.MUL),
    "Pad": _pad,
    "ReduceMean": _reduce_mean,
    "Relu": _activation(ActivationKind.RELU),
    "Reshape": _reshape,
    "Sigmoid": _activation(ActivationKind.SIGMOID),
    "Slice": _slice,
    "Softmax": _softmax,
    "Split": _split,
    "Squeeze": _reshape,
    "Sub": _binary(BinaryOp.SUB),
    "Sum": _sum,
    "Swish": _activation(ActivationKind.SILU),
    "Tanh": _activation(ActivationKind.TANH),
    "Transpose": _transpose,
    "Unsqueeze": _reshape,
}
