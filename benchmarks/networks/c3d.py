"""Builds C3D, which classifies clips, as an ONNX model with seeded weights.

    C × D×H×W
    3×16×112×112   conv1, pool 1×2×2
    32×16×56×56    conv2, pool 2×2×2
    64×8×28×28     conv3, pool 2×2×2
    256×4×14×14    conv4, pool 2×2×2
    256×2×7×7      conv5, pool 2×2×2
    256×1×4×4      fc6, fc7: 2048; fc8: 101; softmax

Convolutions: Lan et al. 2017, "High Performance Implementation of 3D Convolutional Neural Networks
on a GPU", table 2; each 3×3×3, padded by 1, with a ReLU. The rest: Tran et al. 2015, "Learning
Spatiotemporal Features with 3D Convolutional Networks", section 3.2. As in their Caffe, a pooling
window that begins inside may end outside: 7 become 4.

    python -m benchmarks.networks.c3d c3d.onnx    and then    convoy inspect c3d.onnx --plan
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
CHANNELS = 3


@dataclass(frozen=True, slots=True)
class C3D:
    """Sets the sizes of the network; the defaults are the paper's."""

    clip: tuple[int, int, int] = (16, 112, 112)  # D×H×W
    filters: tuple[int, ...] = (32, 64, 256, 256, 256)  # of conv1, conv2, ...
    hidden: int = 2048
    classes: int = 101


PAPER = C3D()


def c3d(network: C3D = PAPER, seed: int = 0) -> onnx.ModelProto:
    """Build a network from `clip`, N×3×D×H×W, to `prob`, N×classes, with weights fixed by
    `seed`.
    """
    layers = _Layers(np.random.default_rng(seed))
    x, channels = "clip", CHANNELS
    size: tuple[int, ...] = network.clip
    for index, filters in enumerate(network.filters, 1):
        x = layers.weighted("Conv", f"conv{index}", x, (filters, channels, 3, 3, 3), pads=[1] * 6)
        x = layers.add("Relu", f"relu{index}", x)
        window = (1 if index == 1 else 2, 2, 2)
        pooling = {"kernel_shape": window, "strides": window, "ceil_mode": 1}
        x = layers.add("MaxPool", f"pool{index}", x, **pooling)
        size = tuple(-(-side // step) for side, step in zip(size, window, strict=True))
        channels = filters
    x = layers.add("Flatten", "flat", x)
    features = channels * prod(size)
    for name in ("fc6", "fc7"):
        x = layers.weighted("Gemm", name, x, (network.hidden, features), transB=1)
        x = layers.add("Relu", name.replace("fc", "relu"), x)
        features = network.hidden
    x = layers.weighted("Gemm", "fc8", x, (network.classes, features), transB=1)
    x = layers.add("Softmax", "prob", x, axis=1)
    graph = helper.make_graph(
        layers.nodes,
        "c3d",
        [helper.make_tensor_value_info("clip", TensorProto.FLOAT, ["N", CHANNELS, *network.clip])],
        [helper.make_tensor_value_info(x, TensorProto.FLOAT, ["N", network.classes])],
        layers.weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)


@dataclass
class _Layers:
    """Collects nodes in order, each named after its output, and their weights."""

    rng: np.random.Generator
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    weights: list[onnx.TensorProto] = field(default_factory=list)

    def add(self, operator: str, name: str, *operands: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(operator, operands, [name], name, **attributes))
        return name

    def weighted(
        self, operator: str, name: str, x: str, shape: tuple[int, ...], **attributes: Any
    ) -> str:
        """Add a layer whose weight has `shape`, with one row for each neuron.

        The weight's variance is 2 / (inputs of a neuron), which keeps the size of activations from
        layer to layer (He et al. 2015, "Delving Deep into Rectifiers", equation 10).
        """
        neurons, *inputs = shape
        weight = self.rng.normal(0, np.sqrt(2 / prod(inputs)), shape)
        bias = self.rng.normal(0, 0.1, neurons)
        for kind, array in (("weight", weight), ("bias", bias)):
            tensor = numpy_helper.from_array(array.astype(np.float32), f"{name}.{kind}")
            self.weights.append(tensor)
        return self.add(operator, name, x, f"{name}.weight", f"{name}.bias", **attributes)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the paper's network to a file."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.networks.c3d", description="Write C3D as ONNX, its weights random."
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    given.file.write_bytes(c3d(seed=given.seed).SerializeToString())


if __name__ == "__main__":
    main()
