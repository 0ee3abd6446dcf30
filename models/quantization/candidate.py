"""Builds quantized models with ONNX Runtime's calibrators and quantizer.

    photographs ─ calibrate ─ ranges ─┬─ quantize ─ QDQ model
                      layers in float ┘

ONNX Runtime finds the range of each tensor and quantizes the model. This module selects the nodes
that stay in float, and corrects biases.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass, field
from enum import Enum, unique
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, helper, numpy_helper

from models.session import open_session

Ranges = Mapping[str, tuple[float, float]]
"""For each tensor, the smallest and largest number that 8 bits must represent."""

Tensors = NDArray[np.float32]

_PRODUCTS = ("Conv", "Gemm", "MatMul")
# Operators that ONNX Runtime computes on integers, and operators that move them. The softmax at the
# end stays exact.
_OPERATORS = (
    *_PRODUCTS, "Add", "Clip", "Concat", "Flatten", "LeakyRelu", "MaxPool", "Mul", "Pad", "Relu",
    "Reshape", "Resize", "Sigmoid", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze",
)  # fmt: skip
# The library would give the output of these operators the scale of their input, whose numbers are
# larger.
_AVERAGES = ("AveragePool", "GlobalAveragePool")

# The number of images whose activations are in memory at the same time.
_CHUNK = 4


@unique
class Method(Enum):
    """A method that derives the range of an activation from its values for many images."""

    MIN_MAX = "min-max"
    PERCENTILE = "percentile"
    ENTROPY = "entropy"


_CALIBRATORS = {
    Method.MIN_MAX: ("MinMax", {}),
    Method.PERCENTILE: ("Percentile", {"percentile": 99.999}),
    Method.ENTROPY: ("Entropy", {}),
}


@contextmanager
def _quietly() -> Iterator[None]:
    """Suppress the messages that ONNX Runtime's quantization library prints."""
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.ERROR)
    try:
        with redirect_stdout(StringIO()):
            yield
    finally:
        root.setLevel(level)


def calibrate(proto: ModelProto, images: Tensors, method: Method) -> Ranges:
    """Return the range of each activation over a set of normalised images."""
    from onnxruntime.quantization import calibrate as library  # noqa: PLC0415  it takes 0.5 s

    name, options = _CALIBRATORS[method]
    with TemporaryDirectory() as folder, _quietly():
        path = Path(folder) / "model.onnx"
        onnx.save(proto, path)
        calibrator = library.create_calibrator(
            path,
            None,
            str(Path(folder) / "augmented.onnx"),
            calibrate_method=library.CalibrationMethod[name],
            extra_options=options,
        )
        for first in range(0, len(images), _CHUNK):
            calibrator.collect_data(_reader(proto, images[first : first + _CHUNK]))
        found = calibrator.compute_data()
    return {
        tensor: (np.asarray(low).item(), np.asarray(high).item())
        for tensor, (low, high) in ((t, found[t].range_value) for t in found)
    }


def _reader(proto: ModelProto, images: Tensors) -> Any:
    from onnxruntime.quantization import CalibrationDataReader  # noqa: PLC0415  as above

    class Reader(CalibrationDataReader):  # type: ignore[misc]  # the library is untyped
        def __init__(self) -> None:
            name = proto.graph.input[0].name
            self._rows = iter([{name: image[np.newaxis]} for image in images])

        def get_next(self) -> dict[str, Tensors] | None:
            return next(self._rows, None)

    return Reader()


def quantized(proto: ModelProto, ranges: Ranges, in_float: Sequence[str] = ()) -> ModelProto:
    """Return the model with uint8 activations and int8 weights. Weights have one scale per output
    channel.

    The nodes named in `in_float` stay in float, and so do the nodes of attention
    (`products_of_values`).
    """
    in_float = (*in_float, *products_of_values(proto))
    from onnxruntime.quantization import QuantType  # noqa: PLC0415  as above
    from onnxruntime.quantization.calibrate import (  # noqa: PLC0415
        CalibrationMethod,
        TensorsData,
    )
    from onnxruntime.quantization.qdq_quantizer import QDQQuantizer  # noqa: PLC0415

    copy = ModelProto()
    copy.CopyFrom(proto)
    _multiply_biases(copy)
    data = {
        name: (np.float32(low), np.float32(high))
        for name, (low, high) in _joined(proto, ranges, in_float).items()
    }
    with _quietly():
        quantizer = QDQQuantizer(
            copy,
            True,  # one scale per channel
            False,
            QuantType.QInt8,
            QuantType.QUInt8,
            TensorsData(CalibrationMethod.MinMax, data),
            [],
            list(in_float),
            list(_OPERATORS),
            {},
        )
        for node in copy.graph.node:
            if node.op_type in _AVERAGES and node.name not in in_float:
                for tensor in (*node.input, *node.output):
                    quantizer.quantize_activation_tensor(tensor)
        quantizer.quantize_model()
        quantizer.model.topological_sort()
    result: ModelProto = quantizer.model.model
    return result


def _multiply_biases(proto: ModelProto) -> None:
    """Multiply the constant bias of each Gemm by its `beta`, in place.

    The library would lose beta: it removes beta, and writes the bias without it.
    """
    weights = {tensor.name: tensor for tensor in proto.graph.initializer}
    for node in proto.graph.node:
        betas = [part for part in node.attribute if part.name == "beta" and part.f != 1]
        if node.op_type != "Gemm" or not betas or len(node.input) < 3:
            continue
        if (bias := weights.get(node.input[2])) is None:
            continue
        (beta,) = betas
        node.input[2] = f"{node.output[0]}/beta"
        product = numpy_helper.to_array(bias) * np.float32(beta.f)
        proto.graph.initializer.append(numpy_helper.from_array(product, node.input[2]))
        node.attribute.remove(beta)


def _joined(proto: ModelProto, ranges: Ranges, in_float: Sequence[str]) -> Ranges:
    """Return the ranges, with the range of each Concat's output also for the inputs of the Concat.

    A Concat converts its inputs to the scale of its output. If the ranges are equal, no conversion
    and no second rounding is needed. Inputs that other nodes read, too, are not changed.
    """
    readers = Counter(name for node in proto.graph.node for name in node.input)
    kept = {output.name for output in proto.graph.output}
    joined = dict(ranges)
    for node in reversed(proto.graph.node):  # a Concat inside another Concat comes later
        if node.op_type == "Concat" and node.name not in in_float:
            for part in node.input:
                if readers[part] == 1 and part in joined and part not in kept:
                    joined[part] = joined[node.output[0]]
    return joined


def products_of_values(proto: ModelProto) -> tuple[str, ...]:
    """Return the names of the matrix products without weights, and of the nodes between each
    product and the layers with weights before it.

    These are the nodes of attention. A GPU runs them in one float16 launch, which quantized values
    in between would split.
    """
    constants = {tensor.name for tensor in proto.graph.initializer}
    wanted: set[str] = set()  # names of values
    found: list[str] = []
    for node in reversed(proto.graph.node):
        is_layer = node.op_type in _PRODUCTS and not constants.isdisjoint(node.input)
        is_product = node.op_type == "MatMul" and not is_layer
        if is_product or (not is_layer and not wanted.isdisjoint(node.output)):
            found.append(node.name)
            wanted.update(node.input)
    return tuple(found)


def layers(proto: ModelProto) -> Mapping[str, tuple[str, ...]]:
    """Divide the model into layers. Return the names of the nodes in each layer, by the layer's
    name.

    A layer begins with a convolution or matrix product, and has its name. The layer also contains
    the nodes that depend on this node, up to the next convolution or matrix product.
    """
    order: dict[str, int] = {}  # by value: the index of the last product on which it depends
    found: list[list[str]] = []
    for node in proto.graph.node:
        before = max((order[name] for name in node.input if name in order), default=-1)
        if node.op_type in _PRODUCTS:
            found.append([])
            before = len(found) - 1
        if before >= 0:
            found[before].append(node.name)
        order.update(dict.fromkeys(node.output, before))
    return {names[0]: tuple(names) for names in found}


@dataclass
class _Product:
    node: NodeProto
    weight: NDArray[np.float32]
    mean: NDArray[np.float64] = field(default_factory=lambda: np.zeros(0))


def with_corrected_biases(proto: ModelProto, ranges: Ranges, images: Tensors) -> ModelProto:
    """Return the float model with biases that compensate for the rounding of the weights.

    If a convolution's filter has the rounding error ΔW, its outputs shift by ΔW·E[x] on average.
    E[x] is the mean of each input channel over the images. This shift is subtracted from the bias
    (Nagel et al. 2019, "Data-Free Quantization Through Weight Equalization and Bias Correction",
    section 4.2).
    """
    weights = {t.name: t for t in proto.graph.initializer}
    products = [
        _Product(node, numpy_helper.to_array(weights[node.input[1]]))
        for node in proto.graph.node
        if node.op_type == "Conv" and node.input[1] in weights
    ]
    if not products:
        return proto
    _find_means(proto, products, images)
    rounded = {t.name: t for t in quantized(proto, ranges).graph.initializer}
    result = ModelProto()
    result.CopyFrom(proto)
    nodes = {node.name: node for node in result.graph.node}
    for product in products:
        name = product.node.input[1]
        if f"{name}_quantized" not in rounded:
            continue
        integers = numpy_helper.to_array(rounded[f"{name}_quantized"]).astype(np.float64)
        scale = numpy_helper.to_array(rounded[f"{name}_scale"]).astype(np.float64)
        error = integers * scale.reshape(-1, *[1] * (integers.ndim - 1)) - product.weight
        error = error.sum(axis=tuple(range(2, error.ndim)))  # K × C/groups
        groups = len(product.mean) // error.shape[1]
        mean = np.repeat(product.mean.reshape(groups, -1), len(error) // groups, axis=0)
        shift = (error * mean).sum(axis=1)
        node = nodes[product.node.name]
        given = node.input[2] if len(node.input) > 2 else ""
        if given and given not in weights:
            continue
        bias = numpy_helper.to_array(weights[given]) if given else np.zeros(len(error))
        corrected = f"{node.name}/corrected"
        tensor = numpy_helper.from_array((bias - shift).astype(np.float32), corrected)
        result.graph.initializer.append(tensor)
        del node.input[2:]
        node.input.append(corrected)
    return result


def _find_means(proto: ModelProto, products: Sequence[_Product], images: Tensors) -> None:
    """Set `mean` of each convolution to the mean of each input channel over the images."""
    means = ModelProto()
    means.CopyFrom(proto)
    del means.graph.output[:]
    names = sorted({product.node.input[0] for product in products})
    for name in names:
        rank = {p.node.input[0]: p.weight.ndim for p in products}[name]
        axes = numpy_helper.from_array(np.array([0, *range(2, rank)]), f"{name}/mean/axes")
        means.graph.initializer.append(axes)
        output = f"{name}/mean"
        means.graph.node.append(
            helper.make_node("ReduceMean", [name, axes.name], [output], keepdims=0)
        )
        means.graph.output.append(helper.make_empty_tensor_value_info(output))
        means.graph.output[-1].type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    session = open_session(means.SerializeToString(), 1)
    image = proto.graph.input[0].name
    rows = [session.run(None, {image: x[np.newaxis]}) for x in images]
    found = dict(zip(names, _mean(rows), strict=True))
    for product in products:
        product.mean = np.asarray(found[product.node.input[0]], np.float64)


def _mean(rows: Sequence[Sequence[Tensors]]) -> list[NDArray[np.float64]]:
    return [np.mean(tensors, axis=0, dtype=np.float64) for tensors in zip(*rows, strict=True)]
