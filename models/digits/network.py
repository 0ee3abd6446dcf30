"""Defines the network of the digits model once, for training in PyTorch and for export to ONNX.

    1×32×32   conv 3×3, BatchNormalization, ReLU; max pool 2
    16×16×16  squeeze 1×1, ReLU; expand 1×1 and 3×3, ReLU, concatenated; max pool 2
    32×8×8    conv 3×3, BatchNormalization, ReLU, conv 3×3, BatchNormalization, added, ReLU
    32×8×8    conv 3×3 stride 2, BatchNormalization, ReLU
    32×4×4    flatten, fully connected, 10 logits

The network is small, but most rewrite rules apply to it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

SIDE = 32
CLASSES = 10
FEATURES = 32 * 4 * 4
OPSET = 17

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class ConvLayer:
    """A convolution, with either a bias or a BatchNormalization after it.

    With stride 1, the padding keeps the size of the input.
    """

    inputs: int
    outputs: int
    kernel: int
    stride: int = 1
    normalised: bool = True


CONVS: Mapping[str, ConvLayer] = {
    "stem": ConvLayer(1, 16, 3),
    "squeeze": ConvLayer(16, 8, 1, normalised=False),
    "expand1": ConvLayer(8, 16, 1, normalised=False),
    "expand3": ConvLayer(8, 16, 3, normalised=False),
    "residual1": ConvLayer(32, 32, 3),
    "residual2": ConvLayer(32, 32, 3),
    "down": ConvLayer(32, 32, 3, stride=2),
}


class Operations(Protocol[T]):
    """Declares the operations that the network uses. PyTorch tensors and ONNX values have one
    implementation each."""

    def conv(self, name: str, x: T) -> T:
        """Return the output of layer CONVS[name], including its BatchNormalization."""

    def relu(self, x: T) -> T:
        """Return max(x, 0)."""

    def pool(self, x: T) -> T:
        """Return the largest value of each 2×2 window."""

    def concat(self, a: T, b: T) -> T:
        """Return the channels of a followed by the channels of b."""

    def add(self, a: T, b: T) -> T:
        """Return a + b."""

    def classify(self, x: T) -> T:
        """Return CLASSES logits, computed from FEATURES numbers."""


def network(op: Operations[T], x: T) -> T:
    """Return the logits (N×10) of grey images (N×1×32×32) with pixels from 0 to 1."""
    x = op.pool(op.relu(op.conv("stem", x)))
    x = op.relu(op.conv("squeeze", x))
    x = op.concat(op.relu(op.conv("expand1", x)), op.relu(op.conv("expand3", x)))
    x = op.pool(x)
    x = op.relu(op.add(op.conv("residual2", op.relu(op.conv("residual1", x))), x))
    x = op.relu(op.conv("down", x))
    return op.classify(x)


def to_onnx(
    weights: Mapping[str, NDArray[np.float32]], notes: Mapping[str, str]
) -> onnx.ModelProto:
    """Return the network as an ONNX model with a symbolic batch size.

    The keys of `weights` are PyTorch's names, such as "stem.weight" and "stem_bn.running_mean".
    `notes` become the model's metadata. Equal arguments give equal bytes.
    """
    writer = _OnnxWriter()
    logits = network(writer, "image")
    used = sorted({name for node in writer.nodes for name in node.input} & weights.keys())
    graph = helper.make_graph(
        writer.nodes,
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["N", 1, SIDE, SIDE])],
        [helper.make_tensor_value_info(logits, TensorProto.FLOAT, ["N", CLASSES])],
        [numpy_helper.from_array(weights[name], name) for name in used],
    )
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=8,
        producer_name="convoy models.digits.train",
    )
    helper.set_model_props(model, dict(notes))
    onnx.checker.check_model(model, full_check=True)
    return model


class _OnnxWriter:
    """Implements the operations for ONNX. Each call adds nodes, and returns the name of their
    result."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []

    def _node(self, operator: str, name: str, inputs: list[str], **attributes: Any) -> str:
        self.nodes.append(helper.make_node(operator, inputs, [name], name, **attributes))
        return name

    def conv(self, name: str, x: str) -> str:
        layer = CONVS[name]
        inputs = [x, f"{name}.weight"]
        if not layer.normalised:
            inputs.append(f"{name}.bias")
        convolved = self._node(
            "Conv",
            name,
            inputs,
            kernel_shape=[layer.kernel] * 2,
            strides=[layer.stride] * 2,
            pads=[layer.kernel // 2] * 4,
        )
        if not layer.normalised:
            return convolved
        bn = f"{name}_bn"
        parameters = [f"{bn}.{p}" for p in ("weight", "bias", "running_mean", "running_var")]
        return self._node("BatchNormalization", bn, [convolved, *parameters], epsilon=1e-5)

    def relu(self, x: str) -> str:
        return self._node("Relu", f"{x}_relu", [x])

    def pool(self, x: str) -> str:
        return self._node("MaxPool", f"{x}_pool", [x], kernel_shape=[2, 2], strides=[2, 2])

    def concat(self, a: str, b: str) -> str:
        return self._node("Concat", f"{a}_{b}", [a, b], axis=1)

    def add(self, a: str, b: str) -> str:
        return self._node("Add", f"{a}_add", [a, b])

    def classify(self, x: str) -> str:
        features = self._node("Flatten", "features", [x], axis=1)
        parameters = ["classify.weight", "classify.bias"]
        return self._node("Gemm", "logits", [features, *parameters], transB=1)
