"""Builds an ONNX model of a network with attention, node by node. The weights are random with a
fixed seed."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 20
CHANNELS = 3


@dataclass
class Nodes:
    """Collects the nodes and the initializers of a network. A method's `name` is the name of the
    new node or initializer, and of the node's output."""

    rng: np.random.Generator
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)

    def add(self, operator: str, name: str, *operands: str, **attributes: Any) -> str:
        """Add a node, and return the name of its output."""
        self.nodes.append(helper.make_node(operator, operands, [name], name, **attributes))
        return name

    def split(self, name: str, x: str, sizes: str, outputs: list[str], axis: int = 1) -> None:
        """Add a Split with the given output names."""
        self.nodes.append(helper.make_node("Split", [x, sizes], outputs, name, axis=axis))

    def constant(self, name: str, array: np.ndarray) -> str:
        """Add an initializer with the numbers of `array` as floats, and return its name."""
        self.weights.append(numpy_helper.from_array(array.astype(np.float32), name))
        return name

    def noise(self, name: str, shape: tuple[int, ...], terms: int) -> str:
        """Add an initializer with random numbers of variance 1 / terms, and return its name."""
        return self.constant(name, self.rng.normal(0, terms**-0.5, shape))

    def integers(self, name: str, *numbers: int, at: int = 0) -> str:
        """Add an int64 initializer, and return its name. Its value is the list `numbers`, or the
        single number `at` if no numbers are given."""
        array = np.array(numbers or at, np.int64)
        self.weights.append(numpy_helper.from_array(array, name))
        return name

    def reshape(self, name: str, x: str, *shape: int) -> str:
        """Add a Reshape."""
        return self.add("Reshape", name, x, self.integers(f"{name}.shape", *shape))

    def norm(self, name: str, x: str, width: int) -> str:
        """Add a LayerNormalization over the last axis."""
        scale = self.constant(f"{name}.scale", self.rng.uniform(0.5, 1.5, width))
        shift = self.noise(f"{name}.shift", (width,), 100)
        return self.add("LayerNormalization", name, x, scale, shift, axis=-1, epsilon=1e-6)

    def layer(self, name: str, x: str, inputs: int, outputs: int) -> str:
        """Add a linear layer over the last axis."""
        product = self.add(
            "MatMul", f"{name}.product", x, self.noise(f"{name}.weight", (inputs, outputs), inputs)
        )
        return self.add("Add", name, self.noise(f"{name}.bias", (outputs,), 100), product)

    def patches(self, x: str, width: int, side: int) -> str:
        """Add a convolution that computes `width` channels from each patch of side×side pixels. The
        patches do not overlap."""
        filters = self.noise("patch.weight", (width, CHANNELS, side, side), CHANNELS * side**2)
        shift = self.noise("patch.bias", (width,), 100)
        return self.add("Conv", "patch", x, filters, shift, strides=[side, side])

    def attention(
        self,
        name: str,
        x: str,
        shape: tuple[int, int, int, int],
        masked: Callable[[str], str] = lambda scores: scores,
    ) -> str:
        """Add attention within each row of tokens of `x`, including the output projection.

        `shape` has four numbers: rows, tokens per row, heads, and channels per head.
        """
        rows, tokens, heads, depth = shape
        width = heads * depth
        y = self.layer(f"{name}.qkv", x, width, 3 * width)
        y = self.reshape(f"{name}.apart", y, rows, tokens, 3, heads, depth)
        y = self.add("Transpose", f"{name}.turned", y, perm=[2, 0, 3, 1, 4])
        q, k, v = (
            self.add("Gather", f"{name}.{part}", y, self.integers(f"{name}.{part}.i", at=i), axis=0)
            for i, part in enumerate("qkv")
        )
        scale = self.constant(f"{name}.scale", np.array(depth**-0.5))
        q = self.add("Mul", f"{name}.scaled", q, scale)
        k = self.add("Transpose", f"{name}.k.turned", k, perm=[0, 1, 3, 2])
        scores = masked(self.add("MatMul", f"{name}.scores", q, k))
        y = self.add("Softmax", f"{name}.shares", scores, axis=-1)
        y = self.add("MatMul", f"{name}.seen", y, v)
        y = self.add("Transpose", f"{name}.back", y, perm=[0, 2, 1, 3])
        y = self.reshape(f"{name}.joined", y, rows, tokens, width)
        return self.layer(f"{name}.proj", y, width, width)

    def mlp(self, name: str, x: str, width: int, hidden: int) -> str:
        """Add nodes that compute x + fc2(gelu(fc1(norm(x)))), and return the name of the output."""
        y = self.layer(f"{name}.fc1", self.norm(f"{name}.norm", x, width), width, hidden)
        y = self.layer(f"{name}.fc2", self.add("Gelu", f"{name}.gelu", y), hidden, width)
        return self.add("Add", f"{name}.sum", x, y)

    def network(self, name: str, side: int, logits: str, classes: int) -> onnx.ModelProto:
        """Return the model with all collected nodes. Its input is `image`, 1×3×H×W. Its output is
        `prob`, 1×classes, the softmax of the logits."""
        prob = self.add("Softmax", "prob", logits, axis=1)
        graph = helper.make_graph(
            self.nodes,
            name,
            [helper.make_tensor_value_info("image", TensorProto.FLOAT, [1, CHANNELS, side, side])],
            [helper.make_tensor_value_info(prob, TensorProto.FLOAT, [1, classes])],
            self.weights,
        )
        return helper.make_model(
            graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9
        )
