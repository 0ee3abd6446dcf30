"""Computes the constant parts of a model in advance, and removes nodes without effect.

The passes are from onnxscript.optimizer.optimize_ir, with three changes against hostile files.
Rules that compare every pair of nodes are left out. The history of folded constants is deleted. The
number of computed elements is limited.
"""

from collections.abc import Sequence
from math import prod

import numpy as np
import onnx_ir as ir
from onnx_ir.passes import common as passes
from onnxscript.optimizer import FOLDED_FROM_KEY

# The public fold_constants_ir accepts no subclass. Only a subclass can check each node as soon as
# its shape is known. Inference on the whole graph would first compute every shape that follows from
# a large one.
from onnxscript.optimizer._constant_folding import FoldConstantsPass, Replacement
from onnxscript.rewriter import MatchResult, RewritePass
from onnxscript.rewriter.rules import common as rules
from onnxscript.rewriter.rules.common._fuse_batchnorm import (
    FuseBatchNormIntoConv,
    FuseBatchNormIntoGemm,
    _FuseBatchNormBase,
)
from typing_extensions import override

from models.errors import UnsupportedModelError
from models.onnx_loader.integers import input_of, stays_integer
from models.onnx_loader.limits.bounds import shown
from models.onnx_loader.limits.sizes import check_value, known_shape

_ITERATIONS = 4


class _OfInference(_FuseBatchNormBase):
    """Applies onnxscript's rule that folds BatchNormalization into the layer before it, except in
    training mode."""

    @override
    def check(
        self, context: object, x: ir.Value, inbound_out: ir.Value, batchnorm_out: ir.Value
    ) -> MatchResult:
        if _trains(batchnorm_out.producer()):
            return MatchResult().fail("it normalises with the mean and variance of its batch")
        return super().check(context, x, inbound_out, batchnorm_out)


class _IntoConv(_OfInference, FuseBatchNormIntoConv):
    pass


class _IntoGemm(_OfInference, FuseBatchNormIntoGemm):
    pass


def _trains(node: ir.Node | None) -> bool:
    """Return whether a BatchNormalization is in training mode. It then uses the mean and variance
    of its input."""
    training = None if node is None else node.attributes.get("training_mode")
    return training is not None and training.as_int() == 1


# onnxscript's default rules, in the default order, with two exceptions. Rules for operators that
# are not supported (ConvTranspose, ScatterND, ...) are left out. So is slice_split, which walks all
# nodes for each node; models/rewrite joins slices itself.
_RULES = (
    rules.add_0_rule,
    rules.sub_0_rule,
    rules.mul_by_1_rule,
    rules.div_by_1_rule,
    rules.dropout_zero_rule,
    rules.dropout_inference_rule,
    rules.one_reshape_matmul_reshape_rule,
    rules.two_reshapes_matmul_reshape_rule,
    rules.cast_constant_of_shape_rule,
    rules.cast_constant_of_shape_without_value_rule,
    rules.collapse_slice_rule,
    rules.collapse_slice2_rule,
    rules.materialize_reshape_shape_rule,
    rules.min_min_rule,
    rules.max_max_rule,
    rules.min_max_rule,
    rules.max_min_rule,
    rules.successive_relu_rule,
    rules.successive_clip_rule,
    rules.successive_clip_relu_rule,
    rules.successive_relu_clip_rule,
    rules.cast_cast_rule,
    rules.no_op_cast_rule,
    rules.no_op_expand_rule,
    rules.flatten_to_reshape_rule,
    rules.reshape_reshape_rule,
    rules.no_op_transpose_rule,
    rules.transpose_transpose_rule,
    rules.unsqueeze_unsqueeze_rule,
    rules.squeeze_reshape_1d_rule,
    rules.normalize_pad_format_conv_rule,
    rules.fuse_pad_into_conv_rule,
    _IntoConv().rule(),  # type: ignore[no-untyped-call]
    _IntoGemm().rule(),  # type: ignore[no-untyped-call]
    rules.remove_optional_bias_from_conv_rule,
    rules.remove_optional_bias_from_gemm_rule,
)

# The operators to fold. Their time and memory are linear in their inputs and outputs, except for
# products, which are counted. A loop or a regular expression could take any time.
# fmt: off
_FOLDED = frozenset(
    {
        "Abs", "Add", "And", "ArgMax", "ArgMin", "BatchNormalization", "BitShift", "Cast",
        "CastLike", "Ceil", "Clip", "Concat", "ConstantOfShape", "Conv", "Cos", "CumSum",
        "DepthToSpace", "DequantizeLinear", "Div",
        "Equal", "Exp", "Expand", "EyeLike", "Flatten", "Floor", "Gather", "GatherND", "Gemm",
        "Greater", "GreaterOrEqual", "Identity", "IsInf", "IsNaN", "Less", "LessOrEqual", "Log",
        "MatMul",
        "Max", "Mean", "Min", "Mod", "Mul", "Neg", "Not", "NonZero", "OneHot", "Or", "Pad",
        "Pow", "QuantizeLinear", "Range", "Reciprocal", "ReduceL1", "ReduceL2", "ReduceMax",
        "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum", "ReduceSumSquare", "Relu",
        "Reshape", "Round", "Shape", "Sigmoid", "Sign", "Sin", "Size", "Slice", "Softmax",
        "SpaceToDepth", "Split", "Sqrt", "Squeeze", "Sub", "Sum", "Tanh", "Tile", "Transpose",
        "Trilu", "Unsqueeze", "Where", "Xor",
    }
)
# fmt: on
# The size of these operators' output is unknown in advance, but at most the size of their input.
_SHRINKING = frozenset({"NonZero"})
_WINDOWS = frozenset({"AveragePool", "Conv", "MaxPool"})
# Each number of the output is a sum along an axis of the first input. Convolutions are folded only
# if their window is one position.
_PRODUCTS = frozenset({"MatMul", "Gemm", "Conv"})


def fold(model: ir.Model, room: int) -> None:
    """Compute the constant parts of `model` in advance.

    Functions must already be inlined, and the inputs must have static shapes. `room` is the largest
    number of elements that may be read or computed. Raises UnsupportedModelError if folding needs
    more, or if a shape is too large.
    """
    folding = _Folding(room)
    ir.passes.Sequential(
        ir.passes.PassManager(
            [
                folding,
                RewritePass(_RULES),
                passes.RemoveUnusedNodesPass(),
                passes.RemoveUnusedOpsetsPass(),
            ],
            steps=_ITERATIONS,
            early_stop=True,
        ),
        passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0),
        passes.LiftSubgraphInitializersToMainGraphPass(),
        passes.DeduplicateInitializersPass(),
        passes.CommonSubexpressionEliminationPass(),
        passes.OutputFixPass(),
        passes.NameFixPass(),
    )(model)


def _keep_batch(node: ir.Node) -> None:
    """Give a Squeeze without axes all axes of size 1, except the batch axis.

    Without this change, the Squeeze would also remove the batch axis if the batch has one image.
    """
    x = node.inputs[0] if node.inputs else None
    named = len(node.inputs) > 1 and node.inputs[1] is not None
    if node.op_type != "Squeeze" or named or x is None or x.const_value is not None:
        return
    shape = known_shape(x)
    graph = node.graph
    if shape is None or len(shape) < 2 or x.dtype != ir.DataType.FLOAT or graph is None:
        return
    node.resize_inputs(2)
    axes = [axis for axis, size in enumerate(shape) if axis and size == 1]
    node.replace_input_with(1, _integers(graph, f"{node.outputs[0].name}/axes", axes))


def _undo_strides(node: ir.Node) -> None:
    """If a Gather reads all elements of a flattened tensor in order, replace it by a Reshape.

    PyTorch's as_strided is exported as such a Gather.
    """
    if node.op_type != "Gather" or len(node.inputs) != 2:
        return
    flat, indices = node.inputs
    flatten = flat.producer() if flat is not None else None
    if flatten is None or flatten.op_type != "Reshape" or indices is None:
        return
    source = flatten.inputs[0]
    shape = known_shape(source) if source is not None else None
    if indices.const_value is None or shape is None or node.graph is None:
        return
    order = indices.const_value.numpy()
    if (
        known_shape(flat) == (prod(shape),) == (order.size,)
        and order.shape[:1] == shape[:1]
        and (order.reshape(-1) == np.arange(order.size)).all()
    ):
        target = _integers(node.graph, f"{node.outputs[0].name}/shape", order.shape)
        node.op_type = "Reshape"
        node.attributes.pop("axis", None)
        node.replace_input_with(0, source)
        node.replace_input_with(1, target)


def _round_sizes(node: ir.Node) -> None:
    """Give a Resize its sizes instead of its scales, if onnx and ONNX Runtime round them apart.

    For 10 pixels and the scale 2.3, onnx's shape inference returns 22, because float32 stores 2.3
    as 2.29999995. ONNX Runtime multiplies in float32 and returns 23, as PyTorch does. It computes
    the same scale from the size 23. Raises UnsupportedModelError if an axis has another scale.
    """
    x, scales = (input_of(node, index) for index in (0, 2))
    shape = None if x is None else known_shape(x)
    if node.op_type != "Resize" or scales is None or scales.const_value is None or shape is None:
        return
    factors = scales.const_value.numpy().reshape(-1).astype(np.float32)
    given, graph = node.attributes.get("axes"), node.graph
    axes = range(len(shape)) if given is None else given.as_ints()
    if graph is None or len(factors) != len(axes) or not np.isfinite(factors).all():
        return
    before = np.array([shape[axis] for axis in axes])
    after = np.floor(before.astype(np.float32) * factors).astype(np.int64)
    if (after == np.floor(before * factors.astype(np.float64))).all():
        return
    if (after.astype(np.float32) / before.astype(np.float32) != factors).any():
        name = node.name or node.outputs[0].name
        raise UnsupportedModelError(
            f"Resize {name}: onnx and ONNX Runtime disagree on the size of {shape} after scaling by"
            f" {factors.tolist()}; export the model with sizes instead of scales"
        )
    node.resize_inputs(4)
    node.replace_input_with(2, None)
    node.replace_input_with(3, _integers(graph, f"{node.outputs[0].name}/sizes", after.tolist()))
    node.attributes.pop("keep_aspect_ratio_policy", None)  # it has no effect on scales


def _pad_nothing(node: ir.Node) -> None:
    """Give a window explicit pads, if its padding SAME is negative because it is below the stride.

    TensorFlow, whose padding this is, adds no pixels then. ONNX Runtime cuts pixels off before a
    Conv, and refuses some poolings.
    """
    auto_pad, x = node.attributes.get("auto_pad"), input_of(node, 0)
    if node.op_type not in _WINDOWS or node.domain or auto_pad is None or x is None:
        return
    filters = input_of(node, 1) if node.op_type == "Conv" else None
    filter_shape = None if filters is None else known_shape(filters)
    found = node.attributes.get("kernel_shape")
    kernel = list(filter_shape[2:]) if filter_shape else [] if found is None else found.as_ints()
    sizes, ones = (known_shape(x) or ())[2:], [1] * len(kernel)
    strides, dilations = (
        ones if given is None else given.as_ints()
        for given in map(node.attributes.get, ("strides", "dilations"))
    )
    is_same = auto_pad.as_string() in ("SAME_UPPER", "SAME_LOWER") and set(dilations) == {1}
    if not is_same or not len(sizes) == len(kernel) == len(strides) or min(strides, default=0) < 1:
        return
    axes = list(zip(sizes, kernel, strides, strict=True))
    total = [(-(-size // stride) - 1) * stride + side - size for size, side, stride in axes]
    if min(total) >= 0:
        return
    small = [max(pad, 0) // 2 for pad in total]
    large = [max(pad, 0) - least for pad, least in zip(total, small, strict=True)]
    pads = small + large if auto_pad.as_string() == "SAME_UPPER" else large + small
    node.attributes.pop("auto_pad")
    node.attributes.pop("ceil_mode", None)  # it has no effect on the padding SAME
    node.attributes["pads"] = ir.AttrInt64s("pads", pads)


def _check_divisor(node: ir.Node) -> None:
    """Raise an error if the node divides integers by 0. Without this check, NumPy would return 0 as
    the quotient."""
    divisor = node.inputs[1] if node.op_type in ("Div", "Mod") and len(node.inputs) > 1 else None
    if divisor is None or divisor.const_value is None:
        return
    numbers = divisor.const_value.numpy()
    if numbers.dtype.kind in "iu" and (numbers == 0).any():
        name = node.name or node.outputs[0].name
        raise UnsupportedModelError(
            f"{node.op_type} {name} divides integers by 0; correct its divisor"
        )


def _is_standardisation(node: ir.Node) -> bool:
    """Return whether a node is a BatchNormalization in training mode that reads only constants."""
    return (
        node.op_type == "BatchNormalization"
        and _trains(node)
        and all(value is not None and value.const_value is not None for value in node.inputs[:3])
        and isinstance(node.graph, ir.Graph)
        and not any(value.uses() or value.is_graph_output() for value in node.outputs[1:])
    )


def _standardise(node: ir.Node) -> None:
    """Compute a BatchNormalization of constants in float64, and store the result as a constant.

    The node becomes an Identity of this constant. Exporters write weight standardisation (Qiao et
    al. 2019) as such a node. onnxscript does not fold it, because it has several outputs.
    """
    x, scale, shift = (
        value.const_value.numpy().astype(np.float64)
        for value in node.inputs[:3]
        if value is not None and value.const_value is not None
    )
    given = node.attributes.get("epsilon")
    epsilon = 1e-5 if given is None else given.as_float()
    axes = tuple(axis for axis in range(x.ndim) if axis != 1)
    along = [-1 if axis == 1 else 1 for axis in range(x.ndim)]
    deviation = np.sqrt(x.var(axis=axes, keepdims=True) + epsilon)
    y = (x - x.mean(axis=axes, keepdims=True)) / deviation
    array = (y * scale.reshape(along) + shift.reshape(along)).astype(np.float32)
    name = f"{node.outputs[0].name}/standardised"
    constant = ir.Value(
        name=name,
        type=ir.TensorType(ir.DataType.FLOAT),
        shape=ir.Shape(array.shape),
        const_value=ir.Tensor(array, name=name),
    )
    if isinstance(node.graph, ir.Graph):
        node.graph.register_initializer(constant)
    node.op_type = "Identity"
    node.attributes.clear()
    node.replace_input_with(0, constant)
    node.resize_inputs(1)
    node.resize_outputs(1)


def _integers(graph: ir.Graph | ir.Function, name: str, numbers: Sequence[int]) -> ir.Value:
    array = np.array(numbers, np.int64)
    constant = ir.Value(
        name=name,
        type=ir.TensorType(ir.DataType.INT64),
        shape=ir.Shape(array.shape),
        const_value=ir.Tensor(array, name=name),
    )
    if isinstance(graph, ir.Graph):
        graph.register_initializer(constant)
    return constant


def _is_linear(conv: ir.Node) -> bool:
    """Return whether a convolution's filter is 1×1, so that the convolution is a matrix product."""
    weight = conv.inputs[1] if len(conv.inputs) > 1 else None
    shape = known_shape(weight) if weight is not None else None
    return shape is not None and len(shape) > 2 and set(shape[2:]) == {1}


class _Folding(FoldConstantsPass):
    """Folds constants like onnxscript's pass, and limits the number of computed elements."""

    def __init__(self, room: int) -> None:
        super().__init__(
            shape_inference=True,
            input_size_limit=room,
            output_size_limit=room,
            should_fold=self._may_fold,
        )
        self._room = room
        self._computed = 0

    @override
    def process_node(self, node: ir.Node, is_function: bool) -> Replacement | None:
        """Fold a node, and check the inferred shapes before another node uses them."""
        _keep_batch(node)
        _undo_strides(node)
        _round_sizes(node)
        _pad_nothing(node)
        _check_divisor(node)
        if _is_standardisation(node):
            self._count(node, 3 * node.inputs[0].const_value.size)  # type: ignore[union-attr]
            _standardise(node)
        replacement: Replacement | None = super().process_node(node, is_function)
        if node.op_type == "GroupNormalization" and node.inputs[0] is not None:
            node.outputs[0].shape = node.inputs[0].shape  # onnx does not infer it
        for value in node.outputs:
            check_value(value)
        return replacement

    @override
    def replace_node(
        self, node: ir.Node, replacement: Replacement, root: ir.Graph | ir.Function
    ) -> None:
        """Replace a folded node, and delete onnxscript's record of the nodes that were folded into
        it.

        In a chain of n nodes, these records would have n²/2 names in total.
        """
        super().replace_node(node, replacement, root)
        for value in replacement.new_outputs:
            value.meta.pop(FOLDED_FROM_KEY, None)
            value.metadata_props.pop(FOLDED_FROM_KEY, None)

    def _may_fold(self, node: ir.Node) -> bool:
        if node.op_type not in _FOLDED or node.domain != "" or stays_integer(node):
            return False
        constants = [value.const_value for value in node.inputs if value is not None]
        if any(tensor is None or tensor.dtype == ir.DataType.STRING for tensor in constants):
            return False
        for value in node.outputs:
            check_value(value)
        read = sum(tensor.size for tensor in constants if tensor is not None)
        shape = known_shape(node.outputs[0])
        if shape is None and node.op_type not in _SHRINKING:
            return False
        if node.op_type == "Conv" and not _is_linear(node):
            return False
        work = prod(shape or ())
        if node.op_type in _PRODUCTS and constants[0] is not None:
            work *= max(constants[0].shape.numpy(), default=1)
        self._count(node, max(read, work))
        return True

    def _count(self, node: ir.Node, numbers: int) -> None:
        self._computed += numbers
        if self._computed > self._room:
            raise UnsupportedModelError(
                f"computing its constants up to {node.outputs[0].name} processes"
                f" {shown(self._computed)} numbers; at most {self._room:,} are supported for a file"
                " of this size"
            )
