"""From a checked ModelProto to one plain form: float32, one opset, constants folded, shapes known.

    to_float32 → convert_opset → fix_shapes → fold → infer shapes

Everything that follows (typed nodes, ONNX Runtime) sees only this form. Folding, opset conversion,
shape inference and the folding of BatchNormalization into Conv are onnx's, onnx-ir's and
onnxscript's work.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod

import numpy as np
import onnx_ir as ir
from onnx import ModelProto
from onnx_ir.passes import common as passes
from onnxscript import optimizer, version_converter

from models.errors import UnsupportedModelError
from models.graph import Shape

# The form's opset: 24 is the first with Swish. Before 22 ONNX's shape inference counts pooling
# windows (ceil_mode) that start beyond the image, which no runtime computes.
OPSET = 24
# The oldest IR that has it: a model of a newer one may be ahead of ONNX Runtime's.
IR_VERSION = 12
# A folded constant may not be larger (elements): a tiny file must not ask for all of the memory.
FOLD_LIMIT = 2**28
# Nor may a flat tensor that a node makes be longer. Data propagation writes out every entry of one,
# known or not; no image needs one, for its own tensors have a batch axis.
FLAT_LIMIT = 2**20


def normalise(proto: ModelProto, input_shape: Shape | None) -> ir.Model:
    """The model with static shapes at its own batch size (1 where that is symbolic).

    `input_shape` is one image's shape, without the batch axis, for a model whose own input leaves
    axes open; UnsupportedModelError where it is needed and missing, or contradicts the model, and
    for what onnx.checker lets through though no library can read it.
    """
    try:
        return _normal_form(proto, input_shape)
    except (ir.serde.SerdeError, ir.passes.PassError, ValueError, TypeError) as error:
        raise UnsupportedModelError(f"the model contradicts itself: {_first(error)}") from error


def _normal_form(proto: ModelProto, input_shape: Shape | None) -> ir.Model:
    initializers = {tensor.name for tensor in proto.graph.initializer}
    model = ir.serde.deserialize_model(proto)
    model.ir_version = IR_VERSION
    # Up to IR version 3 every initializer is an input too; then it could not be folded.
    model.graph.inputs[:] = [v for v in model.graph.inputs if v.name not in initializers]
    names = {node.name for node in model.graph if node.name}
    with _quiet():
        _to_float32(model)
        _convert_opset(model)
        _fix_input_shapes(model, input_shape)
        # Known shapes first: old exports compute Reshape targets with Shape, Gather and Concat.
        _infer_shapes(model)
        optimizer.optimize_ir(
            model, num_iterations=4, output_size_limit=FOLD_LIMIT, should_fold=_may_fold
        )
        _infer_shapes(model)
    for node in model.graph:
        # Made by a library, or never named: people know it by what it writes.
        if node.name not in names:
            node.name = node.outputs[0].name
    return model


def _infer_shapes(model: ir.Model) -> None:
    # Not strict: a contradiction elsewhere would keep it from telling any size.
    passes.ShapeInferencePass(strict_mode=False, data_prop=False)(model)
    for node in model.graph:
        for output in node.outputs:
            size = output.shape[0] if output.shape is not None and len(output.shape) == 1 else 0
            if isinstance(size, int) and size > FLAT_LIMIT:
                raise UnsupportedModelError(
                    f"{output.name} has {size:,} entries in its one axis;"
                    f" at most {FLAT_LIMIT:,} are supported"
                )
    passes.ShapeInferencePass()(model)


def _may_fold(node: ir.Node) -> bool | None:
    """Fold whatever is constant, ConstantOfShape too, but nothing above FOLD_LIMIT elements.

    None, for a size that is not known beforehand, leaves it to onnxscript's own caution.
    """
    sizes = node.outputs[0].shape
    if sizes is None or not all(isinstance(size, int) for size in sizes):
        return None
    return prod(int(size) for size in sizes if isinstance(size, int)) <= FOLD_LIMIT


def _first(error: BaseException) -> str:
    """The innermost cause, in one line."""
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(error).strip() or type(error).__name__).splitlines()[0]


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the libraries' progress notes, one a weight, out of the log."""
    loggers = [logging.getLogger(name) for name in ("onnxscript", "onnx_ir")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _to_float32(model: ir.Model) -> None:
    """Read float16 as float32: every float16 number is a float32 number, so weights stay exact."""
    for graph in model.graphs():
        for initializer in graph.initializers.values():
            tensor = initializer.const_value
            if tensor is not None and tensor.dtype == ir.DataType.FLOAT16:
                initializer.const_value = _upcast(tensor)
                initializer.type = ir.TensorType(ir.DataType.FLOAT)
        for value in graph.inputs:
            _retype(value)
        for node in graph:
            for attribute in node.attributes.values():
                if attribute.is_ref():
                    continue
                if attribute.type == ir.AttributeType.TENSOR:
                    tensor = attribute.as_tensor()
                    if tensor.dtype == ir.DataType.FLOAT16:
                        node.attributes[attribute.name] = ir.AttrTensor(
                            attribute.name, _upcast(tensor)
                        )
                elif (
                    node.op_type == "Cast"
                    and attribute.name == "to"
                    and attribute.as_int() == ir.DataType.FLOAT16
                ):
                    node.attributes["to"] = ir.AttrInt64("to", int(ir.DataType.FLOAT))
            for value in node.outputs:
                _retype(value)


def _upcast(tensor: ir.TensorProtocol) -> ir.TensorProtocol:
    return ir.Tensor(tensor.numpy().astype(np.float32), name=tensor.name)


def _retype(value: ir.Value) -> None:
    if value.dtype == ir.DataType.FLOAT16:
        value.type = ir.TensorType(ir.DataType.FLOAT)


def _convert_opset(model: ir.Model) -> None:
    version = model.opset_imports.get("", OPSET)
    if version != OPSET:
        version_converter.ConvertVersionPass(OPSET, fallback=True)(model)
    if model.opset_imports.get("", OPSET) != OPSET:
        raise UnsupportedModelError(
            f"the model cannot be converted from opset {version} to {OPSET};"
            f" export it again with opset {OPSET}"
        )


def _fix_input_shapes(model: ir.Model, input_shape: Shape | None) -> None:
    for value in model.graph.inputs:
        if value.shape is None or len(value.shape) == 0:
            raise UnsupportedModelError(
                f"input {value.name} has no shape; export the model with one, batch axis first"
            )
        batch, *rest = (size if isinstance(size, int) else None for size in value.shape)
        given = input_shape if input_shape is not None else tuple(rest)
        if len(given) != len(rest):
            raise UnsupportedModelError(
                f"input {value.name} has {len(rest)} axes an image, not {len(given)}: {value.shape}"
            )
        for own, wanted in zip(rest, given, strict=True):
            if wanted is None:
                raise UnsupportedModelError(
                    f"input {value.name} leaves sizes open: {value.shape}."
                    " Say the size of its images: --set size=224, or size = 224 in model.toml"
                )
            if own is not None and own != wanted:
                raise UnsupportedModelError(
                    f"input {value.name} is {tuple(rest)} an image; {given} was asked for"
                )
        value.shape = ir.Shape([batch or 1, *given])
    batches = {v.shape[0] for v in model.graph.inputs if v.shape is not None}
    if len(batches) != 1:
        raise UnsupportedModelError(f"the inputs disagree about the batch size: {batches}")
    # What was inferred from other shapes would contradict these.
    for node in model.graph:
        for output in node.outputs:
            output.shape = None
