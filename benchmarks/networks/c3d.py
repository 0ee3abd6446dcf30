"""Builds C3D, which classifies clips, as an ONNX model with seeded weights.

    C × D×H×W
    3×16×112×112   conv1, pool 1×2×2
    32×16×56×56    conv2, pool 2×2×2
    64×8×28×28     conv3, pool 2×2×2
    256×4×14×14    conv4, pool 2×2×2
    256×2×7×7      conv5, pool 2×2×2
    256×1×4×4      fc6, fc7: 2048; fc8: 101; softmax

The convolutions follow Lan et al. 2017, "High Performance Implementation of 3D Convolutional Neural
Networks on a GPU", table 2. Each is 3×3×3, padded by 1, with a ReLU. The other layers follow Tran
et al. 2015, "Learning Spatiotemporal Features with 3D Convolutional Networks", section 3.2. As in
the authors' Caffe, a pooling window that begins inside the input may end outside the input, so 7
rows become 4.

    python -m benchmarks.networks.c3d c3d.onnx    and then    convoy inspect c3d.onnx --plan
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

from benchmarks.networks.nodes import Nodes

OPSET = 17
CHANNELS = 3


@dataclass(frozen=True, slots=True)
class C3D:
    """Sets the sizes of the network. The defaults are the paper's sizes."""

    clip: tuple[int, int, int] = (16, 112, 112)  # D×H×W
    filters: tuple[int, ...] = (32, 64, 256, 256, 256)  # of conv1, conv2, ...
    hidden: int = 2048
    classes: int = 101


PAPER = C3D()


def c3d(network: C3D = PAPER, seed: int = 0) -> onnx.ModelProto:
    """Return an ONNX model of C3D with the input `clip`, N×3×D×H×W, and the output `prob`,
    N×classes. `seed` determines the weights."""
    to = Nodes(np.random.default_rng(seed))
    x, channels = "clip", CHANNELS
    size: tuple[int, ...] = network.clip
    for index, filters in enumerate(network.filters, 1):
        x = _weighted(to, "Conv", f"conv{index}", x, (filters, channels, 3, 3, 3), pads=[1] * 6)
        x = to.add("Relu", f"relu{index}", x)
        window = (1 if index == 1 else 2, 2, 2)
        pooling = {"kernel_shape": window, "strides": window, "ceil_mode": 1}
        x = to.add("MaxPool", f"pool{index}", x, **pooling)
        size = tuple(-(-side // step) for side, step in zip(size, window, strict=True))
        channels = filters
    x = to.add("Flatten", "flat", x)
    features = channels * prod(size)
    for name in ("fc6", "fc7"):
        x = _weighted(to, "Gemm", name, x, (network.hidden, features), transB=1)
        x = to.add("Relu", name.replace("fc", "relu"), x)
        features = network.hidden
    x = _weighted(to, "Gemm", "fc8", x, (network.classes, features), transB=1)
    x = to.add("Softmax", "prob", x, axis=1)
    graph = helper.make_graph(
        to.nodes,
        "c3d",
        [helper.make_tensor_value_info("clip", TensorProto.FLOAT, ["N", CHANNELS, *network.clip])],
        [helper.make_tensor_value_info(x, TensorProto.FLOAT, ["N", network.classes])],
        to.weights,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=8)


def _weighted(
    to: Nodes, operator: str, name: str, x: str, shape: tuple[int, ...], **attributes: Any
) -> str:
    """Add a convolution or a fully connected layer with a random weight of `shape`. The weight has
    one row for each neuron.

    The weight's variance is 2 / (inputs of a neuron). With this variance, activations keep their
    size from layer to layer (He et al. 2015, "Delving Deep into Rectifiers", equation 10).
    """
    neurons, *inputs = shape
    weight = to.constant(f"{name}.weight", to.rng.normal(0, np.sqrt(2 / prod(inputs)), shape))
    bias = to.constant(f"{name}.bias", to.rng.normal(0, 0.1, neurons))
    return to.add(operator, name, x, weight, bias, **attributes)


def main(arguments: Sequence[str] | None = None) -> None:
    """Write C3D, as Lan et al. describe it, to an ONNX file."""
    parser = argparse.ArgumentParser(
        prog="benchmarks.networks.c3d", description="Write C3D as ONNX with random weights."
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    given.file.write_bytes(c3d(seed=given.seed).SerializeToString())


if __name__ == "__main__":
    main()
