"""Refuses models whose answers are not those of inference: exported for training, or of weights
that are no numbers."""

import numpy as np
import onnx_ir as ir

from models.errors import UnsupportedModelError

# The first opset in which BatchNormalization says by an attribute that it trains; before, it said
# so by giving the means that it computes.
_TRAINING_MODE = 14
_RANDOM = frozenset(
    {
        "Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform",
        "RandomUniformLike",
    }
)  # fmt: skip
_REMEDY = (
    "Export the model for inference: call model.eval() first, and leave out"
    " training=TrainingMode.TRAINING"
)

# Every number of their weights reaches a score. Others may well read an infinite bound or mask.
_LINEAR = frozenset({"BatchNormalization", "Conv", "ConvTranspose", "Gemm", "MatMul"})
_ARITHMETIC = _LINEAR | {
    "Add", "Div", "GroupNormalization", "InstanceNormalization", "LayerNormalization", "Mul",
    "PRelu", "Sub",
}  # fmt: skip


def check_old_inference(model: ir.Model, opset: int) -> None:
    """Refuse a BatchNormalization that trains, in a model of the file's opset."""
    if opset >= _TRAINING_MODE:
        return
    for node in model.graph.all_nodes():
        if node.op_type == "BatchNormalization" and any(value.name for value in node.outputs[1:]):
            raise _trains(node, "it gives the mean and variance of its batch")


def check_inference(model: ir.Model) -> None:
    """Refuse nodes that compute as in training, or at random. Constants must be folded.

    Raises UnsupportedModelError, which names the node and the remedy.
    """
    for node in model.graph.all_nodes():
        training = node.attributes.get("training_mode")
        if node.op_type == "BatchNormalization" and training is not None and training.as_int():
            raise _trains(node, "training_mode = 1")
        if node.op_type == "Dropout" and _is_true(node, 2):
            raise _trains(node, "its training_mode is true")
        if node.op_type in _RANDOM:
            raise UnsupportedModelError(
                f"{_named(node)} makes random numbers, so each answer would be another. {_REMEDY}"
            )


def check_weights(model: ir.Model) -> None:
    """Refuse a weight that is not a number, or infinite where every score would be."""
    for node in model.graph.all_nodes():
        if node.op_type not in _ARITHMETIC:
            continue
        for value in node.inputs:
            tensor = None if value is None else value.const_value
            if value is None or tensor is None or tensor.dtype not in _FLOATS:
                continue
            numbers = tensor.numpy()
            if np.isfinite(numbers).all():
                continue
            bad = int(np.isnan(numbers).sum())
            what = f"{bad:,} of its {numbers.size:,} numbers are NaN"
            if not bad and node.op_type not in _LINEAR:
                continue
            if not bad:
                what = f"{int(np.isinf(numbers).sum()):,} of its {numbers.size:,} are infinite"
            raise UnsupportedModelError(
                f"the weight {value.name} of {_named(node)}: {what}. Its training went wrong, or"
                " its export; export an earlier checkpoint"
            )


_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16})


def _is_true(node: ir.Node, index: int) -> bool:
    value = node.inputs[index] if index < len(node.inputs) else None
    tensor = None if value is None else value.const_value
    return tensor is not None and bool(tensor.numpy().any())


def _trains(node: ir.Node, how: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{_named(node)} is in training mode ({how}): answers would depend on chance, or on the"
        f" images that arrive together. {_REMEDY}"
    )


def _named(node: ir.Node) -> str:
    return f"{node.op_type} {node.name or node.outputs[0].name}"
