"""Refuses models that were exported for training, and models with invalid weights (NaN or
infinite)."""

import numpy as np
import onnx_ir as ir

from models.errors import UnsupportedModelError
from models.onnx_loader.integers import input_of

# The first opset in which an attribute shows that BatchNormalization is in training mode. In older
# opsets, additional outputs (the means) show it.
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

# Every number of these operators' weights affects a score. Other operators may read infinite bounds
# or masks.
_LINEAR = frozenset({"BatchNormalization", "Conv", "ConvTranspose", "Gemm", "MatMul"})
_ARITHMETIC = _LINEAR | {
    "Add", "Div", "GroupNormalization", "InstanceNormalization", "LayerNormalization", "Mul",
    "PRelu", "Sub",
}  # fmt: skip


def check_old_inference(model: ir.Model, opset: int) -> None:
    """Raise an error if a BatchNormalization of an old opset is in training mode. Call this before
    the opset is converted."""
    if opset >= _TRAINING_MODE:
        return
    for node in model.graph.all_nodes():
        if node.op_type == "BatchNormalization" and any(value.name for value in node.outputs[1:]):
            raise _trains(node, "it returns the mean and variance of its batch")


def check_inference(model: ir.Model) -> None:
    """Raise UnsupportedModelError if a node is in training mode or generates random numbers.

    Constants must already be folded.
    """
    for node in model.graph.all_nodes():
        training = node.attributes.get("training_mode")
        if node.op_type == "BatchNormalization" and training is not None and training.as_int():
            raise _trains(node, "training_mode = 1")
        if node.op_type == "Dropout" and _is_true(node, 2):
            raise _trains(node, "its training_mode is true")
        if node.op_type in _RANDOM:
            raise UnsupportedModelError(
                f"{_named(node)} makes random numbers, so an image's scores would vary. {_REMEDY}"
            )


def check_weights(model: ir.Model) -> None:
    """Raise an error if a weight contains NaN, or if a weight of a linear operator is infinite."""
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
                f"the weight {value.name} of {_named(node)}: {what}. The model's training or"
                " export failed; export an earlier checkpoint"
            )


_FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16})


def _is_true(node: ir.Node, index: int) -> bool:
    value = input_of(node, index)
    tensor = None if value is None else value.const_value
    return tensor is not None and bool(tensor.numpy().any())


def _trains(node: ir.Node, how: str) -> UnsupportedModelError:
    return UnsupportedModelError(
        f"{_named(node)} is in training mode ({how}): scores would depend on chance, or on other"
        f" images in the batch. {_REMEDY}"
    )


def _named(node: ir.Node) -> str:
    return f"{node.op_type} {node.name or node.outputs[0].name}"
