"""Converts ONNX operators to Convoy's typed nodes, with one function per operator."""

from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from kernels.problems.activation import Activation, ActivationKind
from kernels.problems.binary_operation import BinaryOp
from kernels.problems.precision import BYTE, Storage
from models.graph import (
    Activate,
    Binary,
    Concat,
    Constant,
    Dequantize,
    Gemm,
    Grid,
    Identity,
    Lrn,
    Product,
    Quantize,
    ScaleShift,
    Slice,
    Softmax,
)
from models.onnx_loader import moving, reducing, resampling, windows
from models.onnx_loader.einsum import einsum
from models.onnx_loader.importer import (
    Importer,
    ImpossibleError,
    OnnxNode,
    RefusedError,
    attributes_only,
    drop_batch_axis,
    extends,
)
from models.onnx_loader.integers import BYTE_SHIFTS, constant_of, dequantized_constant

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
        raise RefusedError(
            f"approximate={approximate} is unknown; only none and tanh are supported"
        )
    _activate(to, node, Activation(kinds[approximate]))


def _broadcast_operands(to: Importer, node: OnnxNode) -> list[str]:
    """Return the names of an elementwise node's inputs. Raises an error if an input is broadcast
    along the batch axis."""
    rank = len(node.output_shape)
    for index in range(len(node.node.inputs)):
        if constant_of(node.input(index)) is None and len(node.input_shape(index)) != rank:
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


def _all_of(op: BinaryOp) -> Operator:
    """Return a function that converts an operator with any number of inputs, such as Sum.

    The function adds a chain of nodes with two inputs each. A single input is copied to the output.
    """

    def read(to: Importer, node: OnnxNode) -> None:
        _chain(to, node, op)

    return read


def _chain(to: Importer, node: OnnxNode, op: BinaryOp) -> None:
    output = to.declare(node.output)
    # Constants come last, because no typed node reads two constants.
    terms = sorted(_broadcast_operands(to, node), key=lambda name: name in to.weights)
    if len(terms) == 1:
        to.nodes.append(Identity(name=node.name, output=output, x=terms[0]))
    total, shape = terms[0], to.shape(terms[0])
    for index, term in enumerate(terms[1:], start=1):
        last = index == len(terms) - 1
        name = node.name if last else f"{node.name}/{index}"
        shape = np.broadcast_shapes(shape, to.shape(term))
        value = output if last else to.temporary(f"{output}/{index}", shape)
        to.nodes.append(Binary(name=name, output=value, a=total, b=term, op=op))
        total = value


def _prelu(to: Importer, node: OnnxNode) -> None:
    slope = node.constant(1)
    if not extends(slope.shape, node.input_shape(0)):
        raise ImpossibleError(
            f"the slopes {slope.shape} must broadcast to the input {node.input_shape(0)}"
        )
    if slope.size == 1:
        _activate(to, node, Activation(ActivationKind.LEAKY_RELU, float(slope.item())))
    else:
        _binary(BinaryOp.PRELU)(to, node)


def _swish(to: Importer, node: OnnxNode) -> None:
    """Convert a Swish, x · sigmoid(alpha x), to an activation if alpha is 1, otherwise to three
    nodes."""
    alpha = node.number("alpha", 1.0)
    if alpha == 1:
        _activate(to, node, Activation(ActivationKind.SILU))
        return
    output, x = to.declare(node.output), node.x()
    names = [to.temporary(f"{output}/{part}", to.shape(x)) for part in ("scaled", "gate")]
    weight = to.weight(f"{node.name}/alpha", np.array(alpha))
    to.nodes += [
        Binary(name=names[0], output=names[0], a=x, b=weight, op=BinaryOp.MUL),
        Activate(
            name=names[1],
            output=names[1],
            x=names[0],
            activation=Activation(ActivationKind.SIGMOID),
        ),
        Binary(name=node.name, output=output, a=x, b=names[1], op=BinaryOp.MUL),
    ]


def _elu(to: Importer, node: OnnxNode) -> None:
    _activate(to, node, Activation(ActivationKind.ELU, node.number("alpha", 1.0), 1.0))


def _selu(to: Importer, node: OnnxNode) -> None:
    alpha = node.number("alpha", 1.6732632423543772)
    gamma = node.number("gamma", 1.0507009873554805)
    _activate(to, node, Activation(ActivationKind.ELU, alpha * gamma, gamma))


def _pow(to: Importer, node: OnnxNode) -> None:
    """Convert a Pow with the exponent 1/2 to a square root, or with the exponent 2 or 3 to
    products."""
    exponents = np.unique(node.constant(1))
    exponent = float(exponents[0]) if exponents.size == 1 else None
    output, x = to.declare(node.output), node.x()
    if exponent == 0.5:
        _activate(to, node, Activation(ActivationKind.SQRT))
    elif exponent == 2:
        to.nodes.append(Binary(name=node.name, output=output, a=x, b=x, op=BinaryOp.MUL))
    elif exponent == 3:
        square = to.temporary(f"{output}/square", to.shape(x))
        to.nodes.append(Binary(name=square, output=square, a=x, b=x, op=BinaryOp.MUL))
        to.nodes.append(Binary(name=node.name, output=output, a=square, b=x, op=BinaryOp.MUL))
    else:
        raise RefusedError(
            f"the exponent {exponents.tolist()} is not supported; only 1/2, 2 and 3 are supported"
        )


def _with_number(op: BinaryOp, number: float, *, first: bool = False) -> Operator:
    """Return a function that converts an operator to `x op number`, or to `number op x` if `first`
    is True."""

    def read(to: Importer, node: OnnxNode) -> None:
        weight = to.weight(f"{node.name}/number", np.array(number))
        a, b = (weight, node.x()) if first else (node.x(), weight)
        to.nodes.append(Binary(name=node.name, output=to.declare(node.output), a=a, b=b, op=op))

    return read


def _gemm(to: Importer, node: OnnxNode) -> None:
    attributes_only(node, {"transA": 0})
    alpha, transposed = node.number("alpha", 1.0), node.integer("transB", 0) == 0
    weight = node.constant(1).astype(np.float64) * alpha
    grid = node.grid(1, transposed=transposed) if alpha == 1 else None
    _linear(to, node, weight.T if transposed else weight, grid)


def _matmul(to: Importer, node: OnnxNode) -> None:
    """Convert a MatMul with a constant matrix to a Gemm, and any other MatMul to a Product."""
    weight = constant_of(node.input(1))
    if weight is not None and weight.ndim == 2:
        _linear(to, node, weight.T, node.grid(1, transposed=True))
        return
    if len(node.output_shape) < 3:
        raise RefusedError(
            f"the product of {node.input_shape(0)} and {node.input_shape(1)} must have a batch axis"
            " before the two axes of a matrix"
        )
    a, b = _broadcast_operands(to, node)
    if weight is not None and weight.ndim < 2:
        raise RefusedError("the second operand has one axis; only matrices are supported")
    to.nodes.append(Product(name=node.name, output=to.declare(node.output), a=a, b=b))


def _linear(to: Importer, node: OnnxNode, weight: np.ndarray, grid: Grid | None) -> None:
    """Add a linear layer (Gemm) whose `weight` is K×C, with one row per output."""
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
            weight=to.weight(f"{node.name}/weight", weight, grid),
            bias=bias,
        )
    )


def _batch_normalisation(to: Importer, node: OnnxNode) -> None:
    attributes_only(node, {"training_mode": 0})
    gamma, beta, mean, variance = (node.constant(i).astype(np.float64) for i in (1, 2, 3, 4))
    with np.errstate(invalid="ignore"):  # scores that are not finite are refused
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
        raise ImpossibleError(f"size={size} must be odd and positive")
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


def _storage(node: OnnxNode, integers: ir.Value) -> Storage:
    """Return the type, scale and zero point that a QuantizeLinear or DequantizeLinear uses."""
    if integers.dtype not in BYTE_SHIFTS:
        raise RefusedError(f"its integers are {integers.dtype}; only int8 and uint8 are supported")
    attributes_only(node, {"block_size": 0})
    scale, zero = node.constant(1), node.constant(2) if node.has(2) else np.zeros(1, np.int64)
    if scale.size != 1 or zero.size != 1:
        raise RefusedError(f"it has {scale.size} scales; only one per tensor is supported")
    if not 0 < scale.item() < np.inf:
        raise ImpossibleError(f"its scale is {scale.item()}; it must be a number above 0")
    return Storage(BYTE.dtype, float(scale.item()), int(zero.item()) + BYTE_SHIFTS[integers.dtype])


def _quantize(to: Importer, node: OnnxNode) -> None:
    stored = _storage(node, node.output)
    name = to.declare(node.output)
    to.values[name] = replace(to.values[name], stored=stored)
    to.nodes.append(Quantize(name=node.name, output=name, x=node.x()))


def _dequantize(to: Importer, node: OnnxNode) -> None:
    if dequantized_constant(node.output) is not None:
        return  # its readers read the dequantized constant
    stored, x = _storage(node, node.input(0)), node.x()
    if stored != to.values[x].stored:
        raise RefusedError(
            f"it dequantizes {stored}, but its input is stored as {to.values[x].stored}; both must"
            " be equal"
        )
    to.nodes.append(Dequantize(name=node.name, output=to.declare(node.output), x=x))


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
            raise RefusedError("training_mode is not supported; export the model for inference")
    if node.node.op_type == "Cast" and node.input(0).dtype != node.output.dtype:
        types = f"{node.input(0).dtype} to {node.output.dtype}"
        raise RefusedError(f"it casts {types}, which is not supported")
    to.nodes.append(Identity(name=node.name, output=to.declare(node.output), x=node.x()))


OPERATORS: Mapping[str, Operator] = {
    "Abs": reducing.absolute,
    "Add": _binary(BinaryOp.ADD),
    "AveragePool": windows.pool,
    "BatchNormalization": _batch_normalisation,
    "Cast": _identity,
    "Clip": _clip,
    "Concat": _concat,
    "Conv": windows.conv,
    "DepthToSpace": moving.depth_to_space,
    "DequantizeLinear": _dequantize,
    "Div": _binary(BinaryOp.DIV),
    "Dropout": _identity,
    "Einsum": einsum,
    "Elu": _elu,
    "Erf": _activation(ActivationKind.ERF),
    "Expand": moving.expand,
    "Flatten": moving.reshape,
    "Gather": moving.gather,
    "Gelu": _gelu,
    "Gemm": _gemm,
    "GlobalAveragePool": windows.global_pool,
    "GlobalMaxPool": windows.global_pool,
    "GroupNormalization": reducing.group_normalisation,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _activation(ActivationKind.HARD_SWISH),
    "Identity": _identity,
    "InstanceNormalization": reducing.instance_normalisation,
    "LRN": _lrn,
    "LayerNormalization": reducing.layer_normalisation,
    "LeakyRelu": _leaky_relu,
    "LogSoftmax": _softmax,
    "MatMul": _matmul,
    "Max": _all_of(BinaryOp.MAX),
    "MaxPool": windows.pool,
    "Min": _all_of(BinaryOp.MIN),
    "Mish": _activation(ActivationKind.MISH),
    "Mul": _binary(BinaryOp.MUL),
    "Neg": _with_number(BinaryOp.MUL, -1.0),
    "PRelu": _prelu,
    "QuantizeLinear": _quantize,
    "Pad": resampling.pad,
    "Pow": _pow,
    "Reciprocal": _with_number(BinaryOp.DIV, 1.0, first=True),
    "ReduceL2": reducing.reduce,
    "ReduceMax": reducing.reduce,
    "ReduceMean": reducing.reduce,
    "ReduceMin": reducing.reduce,
    "ReduceSum": reducing.reduce,
    "Relu": _activation(ActivationKind.RELU),
    "Reshape": moving.reshape,
    "Resize": resampling.resize,
    "Selu": _selu,
    "Sigmoid": _activation(ActivationKind.SIGMOID),
    "Slice": moving.slice_,
    "Softmax": _softmax,
    "Softplus": _activation(ActivationKind.SOFTPLUS),
    "SpaceToDepth": moving.space_to_depth,
    "Split": _split,
    "Sqrt": _activation(ActivationKind.SQRT),
    "Squeeze": moving.reshape,
    "Sub": _binary(BinaryOp.SUB),
    "Sum": _all_of(BinaryOp.ADD),
    "Swish": _swish,
    "Tanh": _activation(ActivationKind.TANH),
    "Transpose": moving.transpose,
    "Unsqueeze": moving.reshape,
}
