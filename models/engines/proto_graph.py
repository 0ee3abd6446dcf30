"""Indexes the nodes and constants of a ModelProto's graph by name. Rewrites for ONNX Runtime use
this index."""

from collections import defaultdict
from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, NodeProto, TensorProto, helper, numpy_helper


@dataclass(frozen=True)
class QuantizedWeights:
    """Holds the constants of a DequantizeLinear with one scale, or with one scale per entry of axis
    0."""

    integers: NDArray[np.generic]
    scale: NDArray[np.float32]  # one number, or one number per entry of axis 0
    zero: NDArray[np.generic]  # as many numbers as `scale`

    @property
    def floats(self) -> NDArray[np.float32]:
        """Return the dequantized numbers in float32, each rounded once as in ONNX Runtime."""
        along = (-1, *[1] * (self.integers.ndim - 1))
        numbers = self.integers.astype(np.int64) - self.zero.astype(np.int64).reshape(along)
        floats: NDArray[np.float32] = numbers.astype(np.float32) * self.scale.reshape(along)
        return floats


def attribute_of(node: NodeProto, name: str, default: Any) -> Any:
    """Return the value of a node's attribute, or `default` if the node does not have it."""
    found = (helper.get_attribute_value(p) for p in node.attribute if p.name == name)
    return next(found, default)


@dataclass(frozen=True)
class ProtoGraph:
    """Holds a graph, its constants by name, and the nodes that write and read each value."""

    proto: GraphProto
    constants: dict[str, TensorProto]
    makers: Mapping[str, NodeProto]
    readers: Mapping[str, list[NodeProto]]
    outputs: AbstractSet[str]

    @staticmethod
    def of(proto: GraphProto, kept: Collection[str] = ()) -> "ProtoGraph":
        """Return the index of a graph. The values in `kept` count as outputs of the graph."""
        readers: dict[str, list[NodeProto]] = defaultdict(list)
        for node in proto.node:
            for name in node.input:
                readers[name].append(node)
        return ProtoGraph(
            proto,
            {tensor.name: tensor for tensor in proto.initializer},
            {name: node for node in proto.node for name in node.output},
            readers,
            {*kept, *(output.name for output in proto.output)},
        )

    def array(self, name: str) -> NDArray[np.generic] | None:
        """Return the array of a constant, or None if the value is computed."""
        tensor = self.constants.get(name)
        return None if tensor is None else numpy_helper.to_array(tensor)

    def weights(self, name: str) -> QuantizedWeights | None:
        """Return the quantized constant and its scales if a DequantizeLinear computes the value
        `name` from them, or otherwise None."""
        node = self.makers.get(name)
        if node is None or node.op_type != "DequantizeLinear" or node.domain:
            return None
        integers, scale, *zeros = map(self.array, node.input)
        zero = zeros[0] if zeros else None
        if integers is None or scale is None or (zeros and zero is None):
            return None
        axis = attribute_of(node, "axis", 1)
        several = scale.size > 1
        if several and (axis % max(1, integers.ndim) or scale.shape != integers.shape[:1]):
            return None
        if zero is None:
            zero = np.zeros(scale.shape, integers.dtype)
        if zero.size != scale.size or scale.dtype != np.float32:
            return None
        return QuantizedWeights(integers, scale.astype(np.float32).reshape(-1), zero.reshape(-1))

    def add(self, name: str, array: NDArray[np.generic]) -> str:
        """Add a constant to the graph unless it already has a constant of this name. Return the
        name."""
        if name not in self.constants:
            self.proto.initializer.append(numpy_helper.from_array(array, name))
            self.constants[name] = self.proto.initializer[-1]
        return name

    def drop(self, unread: Collection[str]) -> None:
        """Remove the DequantizeLinear nodes and the constants in `unread` that no node reads."""
        names, nodes = set(unread), self.proto.node
        made = [self.makers[name] for name in names if name in self.makers]
        read = {name for node in nodes for name in node.input} | self.outputs
        for node in made:
            if node.op_type == "DequantizeLinear" and node.output[0] not in read:
                nodes.remove(node)
                names.update(node.input)
        names -= {name for node in nodes for name in node.input} | self.outputs
        for tensor in [each for each in self.proto.initializer if each.name in names]:
            self.proto.initializer.remove(tensor)
