"""Loads networks with seeded weights: C3D, twelve networks with attention, and nine networks from
the onnx package.

The onnx package contains well-known classifiers whose weights are all `ConstantOfShape(0.02)`. With
these weights, every image would have the same scores. So each of these constants is replaced by
seeded noise. The noise is scaled (He et al. 2015) so that activations neither vanish nor explode.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache, partial
from math import prod
from pathlib import Path

import numpy as np
import onnx
from onnx import numpy_helper

from benchmarks.networks.c3d import c3d
from benchmarks.networks.recorded import RECORDED, recorded
from benchmarks.networks.swin import swin
from benchmarks.networks.vit import DEIT_TINY, vit
from benchmarks.networks.yolo import yolo
from kernels.problems.precision import Precision
from models.classifier import Classifier
from models.engines.engine import Images
from models.onnx_loader import load_proto
from models.preprocessing import PRESETS, CropMode, normalised
from models.quantization.candidate import Method, calibrate, quantized
from models.scores import OutputKind

LIGHT = Path(onnx.__file__).parent / "backend/test/data/light"
LIGHT_NETWORKS = tuple(
    sorted(path.stem.removeprefix("light_") for path in LIGHT.glob("light_*.onnx"))
)


_CALIBRATED = 4
"""The number of images with which the ranges of int8 are calibrated. Speed does not depend on the
ranges."""

HEAD = 4096
"""The width of the fully connected layers of AlexNet, VGG and ZFNet, except the last layer."""


@lru_cache(maxsize=1)
def light_network(name: str, seed: int = 0, head: int = HEAD) -> onnx.ModelProto:
    """Return the model in `light_<name>.onnx` with its constant weights replaced by seeded random
    weights.

    `head` is the new width of the layers that have the width HEAD in the file. A smaller width
    leaves the convolutions unchanged, and reduces VGG's 574 MB of weights to as little as 107 MB.
    """
    model = onnx.load(LIGHT / f"light_{name}.onnx")
    model.ir_version = 4  # since version 4, initializers need not be graph inputs
    rng = np.random.default_rng(seed)
    shapes = {init.name: numpy_helper.to_array(init) for init in model.graph.initializer}
    readers = {
        name: (node, position)
        for node in model.graph.node
        for position, name in enumerate(node.input)
    }
    # With scales below 1, a sum of many residual branches stays within softmax's range.
    gain = 0.4 if any(node.op_type == "Sum" for node in model.graph.node) else 1.0
    kept = []
    for node in model.graph.node:
        if node.op_type != "ConstantOfShape":
            kept.append(node)
            continue
        whole = (int(size) for size in shapes[node.input[0]])
        shape = tuple(head if size == HEAD else size for size in whole)
        reader, position = readers[node.output[0]]
        if reader.op_type == "Unsqueeze":  # it passes a scale to a Mul, or a shift to an Add
            reader, position = readers[reader.output[0]]
        weights = _weights(rng, reader.op_type, position, shape, gain)
        model.graph.initializer.append(numpy_helper.from_array(weights, node.output[0]))
    del model.graph.node[:]
    model.graph.node.extend(kept)
    return model


def _weights(
    rng: np.random.Generator, op: str, position: int, shape: tuple[int, ...], gain: float
) -> np.ndarray:
    """Return random weights for an operand of a node. Their distribution suits the operand: a
    filter, a scale, a variance (positive) or a shift."""
    if op in ("Conv", "Gemm") and position == 1:
        noise = rng.standard_normal(shape, np.float32)
        return np.multiply(noise, np.sqrt(2 / prod(shape[1:])), dtype=np.float32)
    # BatchNormalization reads scale, shift, mean, variance.
    if op == "BatchNormalization" and position == 1:
        return rng.uniform(0.5 * gain, 1.5 * gain, shape).astype(np.float32)
    if op == "Mul" or (op == "BatchNormalization" and position == 4):
        return rng.uniform(0.5, 1.5, shape).astype(np.float32)
    return rng.normal(0, 0.1, shape).astype(np.float32)


NETWORKS: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "VGG-19": lambda: light_network("vgg19"),
    "ResNet-50": lambda: light_network("resnet50"),
    "GoogLeNet": lambda: light_network("inception_v1"),
    "SqueezeNet": lambda: light_network("squeezenet"),
    "C3D": c3d,
    "ViT-S/16": vit,
    "DeiT-Ti/16": lambda: vit(DEIT_TINY),
    "Swin-T": swin,
    "YOLO11n-cls": yolo,
    **{name: partial(recorded, name) for name in RECORDED},
}
"""The networks that are timed whole, by name."""


@lru_cache(maxsize=len(Precision))
def network(name: str, precision: Precision = Precision.FP32) -> Classifier:
    """Return the network with this name in NETWORKS at a precision. For int8, the network is
    quantized with ranges that a few synthetic images determine."""
    if precision is not Precision.INT8:
        return replace(classifier(name, NETWORKS[name]()), precision=precision)
    in_float = network(name)
    proto = in_float.network.proto
    images = normalised(images_of(in_float, _CALIBRATED), in_float.preprocessing)
    in_bytes = quantized(proto, calibrate(proto, images, Method.MIN_MAX))
    return replace(classifier(name, in_bytes), precision=Precision.INT8)


def images_of(network: Classifier, n: int, seed: int = 0) -> Images:
    """Return n synthetic images or clips, which consist of coarse random squares."""
    *spatial, channels = network.preprocessing.image_shape
    rng = np.random.default_rng(seed)
    images = rng.integers(0, 256, (n, *[4] * len(spatial), channels), np.uint8)
    for axis, size in enumerate(spatial, 1):
        images = images.take(np.arange(size) * 4 // size, axis)
    return images


def classifier(name: str, proto: onnx.ModelProto) -> Classifier:
    """Return an ONNX model as a classifier of uint8 pixels, which it first normalises to [-2,
    2)."""
    loaded = load_proto(name, proto)
    graph = loaded.graph
    channels, *frames, height, width = graph.shape(graph.inputs[0])
    preprocessing = replace(
        PRESETS["raw"].at(height, width),
        crop_mode=CropMode.SQUASH,
        resize=height,
        scale=1 / 64,
        mean=(2.0,) * channels,
        std=(1.0,) * channels,
        output=OutputKind.PROBABILITIES,
        frames=frames[0] if frames else None,
    )
    return Classifier(name, loaded, preprocessing, prod(graph.shape(graph.outputs[0])))
