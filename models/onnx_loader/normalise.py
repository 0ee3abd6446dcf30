"""Converts a checked ModelProto to its normal form: float32, one opset, folded constants, known
shapes.

    inline → to_float32 → spell_out_old → convert_opset → spell_out_integers → fix_shapes → fold →
    fold_into_integer_filters → move_integers → keep_old_sampling → infer shapes → flush →
    check_inference, check_weights

All later stages use only this form. The libraries onnx, onnx-ir and onnxscript do the inlining,
constant folding, opset conversion, shape inference, and folding of BatchNormalization into Conv.
"""

import logging
from collections.abc import Collection, Iterator
from contextlib import contextmanager

import numpy as np
import onnx
import onnx_ir as ir
from onnx import ModelProto
from onnx.inliner import inline_local_functions
from onnx_ir.passes import common as passes
from onnxscript import version_converter

from models.errors import ModelError, UnsupportedModelError
from models.graph import Shape
from models.onnx_loader.file import check_valid
from models.onnx_loader.fold import fold
from models.onnx_loader.inference import check_inference, check_old_inference, check_weights
from models.onnx_loader.integer_moves import move_integers
from models.onnx_loader.integer_scales import fold_into_integer_filters
from models.onnx_loader.integers import spell_out_integers
from models.onnx_loader.limits.bounds import CONSTANT_FACTOR, CONSTANT_FREE, NODE_LIMIT, shortened
from models.onnx_loader.limits.census import all_nodes
from models.onnx_loader.limits.ranks import check_ranks
from models.onnx_loader.limits.sizes import check_attributes, check_flat, check_reads, check_value
from models.onnx_loader.old_operators import keep_old_sampling, spell_out_old, unconverted
from models.onnx_loader.pixels import pixels_to_float32
from models.onnx_loader.subnormal import flush

# The opset of the normal form. 24 is the first opset with Swish. Before opset 22, ONNX's shape
# inference counts pooling windows (ceil_mode) that begin outside the image, which no runtime
# computes.
OPSET = 24
# The oldest IR version with this opset. ONNX Runtime may not support a newer version.
IR_VERSION = 12

_CONTRADICTIONS = (
    ir.serde.SerdeError,
    ir.passes.PassError,
    onnx.checker.ValidationError,
    RuntimeError,  # onnx asserts, or has no converter for an operator
    TypeError,
    ValueError,
)


def normalise(proto: ModelProto, input_shape: Shape | None) -> ir.Model:
    """Convert a checked model to its normal form, with static shapes, and return it.

    The batch size stays the same, or becomes 1 if it is symbolic. `input_shape` is the shape of one
    image. It is required if the file leaves a size of the input unknown. Raises
    UnsupportedModelError if `input_shape` is missing or contradicts the model, or if no library can
    read the model.
    """
    try:
        return _normal_form(proto, input_shape)
    except _CONTRADICTIONS as error:
        cause = _innermost(error)
        if isinstance(cause, ModelError):  # a pass raised it
            raise cause from error
        what = (
            "has parts that Convoy does not read" if isinstance(cause, NotImplementedError) else ""
        )
        raise UnsupportedModelError(
            f"the model {what or 'contradicts itself'}: {_first_line(cause)}"
        ) from error


def _normal_form(proto: ModelProto, input_shape: Shape | None) -> ir.Model:
    _check_values(proto)
    initializers = {tensor.name for tensor in proto.graph.initializer}
    room = CONSTANT_FREE + CONSTANT_FACTOR * proto.ByteSize()
    model = ir.serde.deserialize_model(_inlined(proto))
    model.ir_version = IR_VERSION
    model.metadata_props.clear()  # each conversion would copy these, and fail on invalid text
    # Up to IR version 3, every initializer is also an input. Such initializers could not be folded.
    model.graph.inputs[:] = [v for v in model.graph.inputs if v.name not in initializers]
    names = {node.name for node in model.graph if node.name}
    with _quiet():
        _open_sizes(model)
        passes.RemoveUnusedNodesPass()(model)
        check_attributes(model)
        check_ranks(model)
        check_reads(model, room)
        to_float32(model)
        opset = _opset(model)
        check_old_inference(model, opset)
        spell_out_old(model, opset)
        _convert_opset(model)
        pixels_to_float32(model)
        spell_out_integers(model)
        _fix_input_shapes(model, input_shape)
        fold(model, room)
        fold_into_integer_filters(model)
        move_integers(model)
        keep_old_sampling(model, opset)
        check_reads(model, room)
        _infer_shapes(model)
        flush(model)
    _name_nodes(model, names)
    check_inference(model)
    check_weights(model)
    return model


def _name_nodes(model: ir.Model, given: set[str]) -> None:
    """Give each unnamed node the name of its output. If another node has this name, append "_".

    ONNX Runtime refuses a model in which two nodes have the same name.
    """
    taken = {node.name for node in model.graph if node.name in given}
    for node in model.graph:
        if node.name in given:
            continue
        name = str(node.outputs[0].name)
        while name in taken:
            name += "_"
        taken.add(name)
        node.name = name


def _check_values(proto: ModelProto) -> None:
    """Raise an error if a value is not a dense tensor, because onnx-ir reads only dense tensors."""
    graph = proto.graph
    for value in (*graph.output, *graph.value_info):
        kind = value.type
        if kind.HasField("sequence_type"):
            kind = kind.sequence_type.elem_type
        if kind.HasField("map_type"):
            makers = [node for node in graph.node if value.name in node.output]
            by = "".join(f" of {node.op_type} {node.name or value.name}" for node in makers)
            raise UnsupportedModelError(
                f"{value.name}{by} is a map from labels to scores, not a tensor of scores. Export"
                " the model without it; for skl2onnx, pass options={'zipmap': False}"
            )
    for node in all_nodes(proto):
        for attribute in node.attribute:
            if attribute.type in _SPARSE:
                raise UnsupportedModelError(
                    f"{node.op_type} {node.name or node.output[0]} holds a sparse tensor; Convoy"
                    " reads only dense tensors. Convert the weights before exporting"
                )


_SPARSE = (onnx.AttributeProto.SPARSE_TENSOR, onnx.AttributeProto.SPARSE_TENSORS)


def _inlined(proto: ModelProto) -> ModelProto:
    if not proto.functions:
        return proto
    _write_defaults(proto)
    # This is onnx's function. onnx-ir's function searches for an unused name from 1 upwards at
    # every call.
    inlined = inline_local_functions(proto)
    if inlined.functions:
        left = inlined.functions[0]
        raise UnsupportedModelError(
            f"the function {left.domain}::{left.name} is written for another opset than the model;"
            " export the model again without functions"
        )
    # Check again, because the body of a function may contain names that only its caller defines,
    # even its own result.
    check_valid(inlined)
    return inlined


# Each call of a function gets a copy of the function's defaults.
_DEFAULT_BYTES = 1000


def _write_defaults(proto: ModelProto) -> None:
    """Give each call of a function the attributes that it leaves out. onnx's inlining ignores the
    function's defaults."""
    defaults = {(f.domain, f.name): f.attribute_proto for f in proto.functions}
    for (_, name), attributes in defaults.items():
        if any(each.ByteSize() > _DEFAULT_BYTES for each in attributes):
            raise UnsupportedModelError(
                f"a default of the function {name} has more than {_DEFAULT_BYTES:,} bytes; export"
                " the model again without functions"
            )
    for node in all_nodes(proto):
        if missing := defaults.get((node.domain, node.op_type)):
            given = {attribute.name for attribute in node.attribute}
            node.attribute.extend(each for each in missing if each.name not in given)


def _opset(model: ir.Model) -> int:
    """Return the model's opset. The operator domain "ai.onnx" is renamed to "", which means the
    same."""
    if "ai.onnx" in model.opset_imports:
        model.opset_imports.setdefault("", model.opset_imports.pop("ai.onnx"))
    return int(model.opset_imports.get("", OPSET))


def _open_sizes(model: ir.Model) -> None:
    """Declare negative sizes as unknown, as ONNX Runtime does. Paddle writes -1 for unknown
    sizes."""
    for graph in model.graphs():
        outputs = (value for node in graph for value in node.outputs)
        for value in (*graph.inputs, *outputs):
            if value.shape is not None and any(_is_negative(size) for size in value.shape):
                sizes = (None if _is_negative(size) else size for size in value.shape)
                value.shape = ir.Shape(sizes)


def _is_negative(size: int | ir.SymbolicDim) -> bool:
    return isinstance(size, int) and size < 0


def _infer_shapes(model: ir.Model) -> None:
    check_flat(model)  # data propagation stores every entry of these values
    passes.ShapeInferencePass()(model)
    for node in model.graph.all_nodes():
        for value in node.outputs:
            check_value(value)


def _innermost(error: BaseException) -> BaseException:
    while error.__cause__ is not None:
        error = error.__cause__
    return error


def _first_line(error: BaseException) -> str:
    # onnx-ir's messages end with a request to contribute ("Please ...").
    line = (str(error).strip() or type(error).__name__).partition("\n")[0].partition(" Please ")[0]
    return shortened(line)


@contextmanager
def _quiet() -> Iterator[None]:
    """Suppress the libraries' progress messages and NumPy's warnings within this block."""
    loggers = [logging.getLogger(name) for name in ("onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with np.errstate(all="ignore"):
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


_HALVES: frozenset[ir.DataType | None] = frozenset({ir.DataType.FLOAT16})
_OTHER_FLOATS: frozenset[ir.DataType | None] = frozenset({ir.DataType.DOUBLE, ir.DataType.BFLOAT16})


def to_float32(model: ir.Model) -> None:
    """Convert float16 to float32, which represents every float16 number exactly.

    If an input is bfloat16 or float64, all tensors of its type are converted, too. float64 numbers
    are rounded.
    """
    kinds = _HALVES | {value.dtype for value in model.graph.inputs} & _OTHER_FLOATS
    for graph in model.graphs():
        for initializer in graph.initializers.values():
            tensor = initializer.const_value
            if tensor is not None and tensor.dtype in kinds:
                initializer.const_value = _upcast(tensor)
                initializer.type = ir.TensorType(ir.DataType.FLOAT)
        for value in graph.inputs:
            _retype(value, kinds)
        for node in graph:
            for attribute in node.attributes.values():
                if attribute.is_ref():
                    continue
                if attribute.type == ir.AttributeType.TENSOR:
                    tensor = attribute.as_tensor()
                    if tensor.dtype in kinds:
                        node.attributes[attribute.name] = ir.AttrTensor(
                            attribute.name, _upcast(tensor)
                        )
                elif (
                    node.op_type == "Cast"
                    and attribute.name == "to"
                    and attribute.as_int() in kinds
                ):
                    node.attributes["to"] = ir.AttrInt64("to", int(ir.DataType.FLOAT))
            for value in node.outputs:
                _retype(value, kinds)


def _upcast(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    return ir.Tensor(tensor.numpy().astype(np.float32), name=tensor.name)


def _retype(value: ir.Value, kinds: Collection[ir.DataType | None]) -> None:
    if value.dtype in kinds:
        value.type = ir.TensorType(ir.DataType.FLOAT)


def _convert_opset(model: ir.Model) -> None:
    version = _opset(model)
    if version != OPSET:
        version_converter.ConvertVersionPass(OPSET, fallback=True)(model)
    if _opset(model) != OPSET:
        operators = unconverted(model, version, OPSET) or "the model as a whole"
        raise UnsupportedModelError(
            f"onnx cannot convert {operators} from opset {version} to {OPSET}, which Convoy needs;"
            f" replace these operators before exporting, or export with opset {OPSET}"
        )
    # The conversion turns attributes into nodes: three for each old Slice.
    nodes = sum(1 for _ in model.graph.all_nodes())
    if nodes > 2 * NODE_LIMIT:
        raise UnsupportedModelError(
            f"the model has {nodes:,} nodes once it is converted from opset {version} to {OPSET};"
            f" at most {2 * NODE_LIMIT:,} are supported"
        )
    passes.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    passes.DeduplicateInitializersPass()(model)


def _fix_input_shapes(model: ir.Model, input_shape: Shape | None) -> None:
    for value in model.graph.inputs:
        if value.shape is None or len(value.shape) == 0:
            raise UnsupportedModelError(
                f"input {value.name} has no shape; export the model with a shape that begins with"
                " the batch axis"
            )
        batch, *rest = (size if isinstance(size, int) else None for size in value.shape)
        given = input_shape if input_shape is not None else tuple(rest)
        if len(given) != len(rest):
            raise UnsupportedModelError(
                f"input {value.name} {value.shape} has {len(rest)} axes per image, but {given} was"
                " requested"
            )
        for own, wanted in zip(rest, given, strict=True):
            if wanted is None:
                raise UnsupportedModelError(
                    f"input {value.name} has unknown sizes: {value.shape}."
                    " Set the size of its images: --set size=224, or size = 224 in model.toml"
                )
            if own is not None and own != wanted:
                raise UnsupportedModelError(
                    f"input {value.name} is {tuple(rest)} per image, but {given} was requested"
                )
        value.shape = ir.Shape([batch or 1, *given])
        check_value(value)
    batches = {v.shape[0] for v in model.graph.inputs if v.shape is not None}
    if len(batches) != 1:
        raise UnsupportedModelError(f"the inputs have different batch sizes: {batches}")
    # Delete the shapes that were inferred earlier and the shapes in subgraphs, which would
    # contradict the new shapes.
    for node in model.graph.all_nodes():
        for output in node.outputs:
            output.shape = None
