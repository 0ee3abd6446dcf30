"""Networks from onnxruntime.quantization on the simulator, compared with ONNX Runtime."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnxruntime.quantization import QuantFormat, QuantType

from cusim.build import PLAIN
from cusim.device import CusimDevice
from kernels.problems.precision import Precision
from models.classifier import Classifier
from models.graph import Conv, Dequantize, Gemm
from models.onnx_loader import load_model
from models.plan import build_plan
from models.preprocessing import normalised
from models.quantized_filters import is_quantized
from tests.support.models.engines import H200_CHOICE, classifier_of, opened
from tests.support.models.quantized import quantized, run_on_integers

U8, S8 = QuantType.QUInt8, QuantType.QInt8


@pytest.fixture(scope="module")
def device() -> Iterator[CusimDevice]:
    device = CusimDevice(PLAIN)
    yield device
    device.close()


class _Network:
    """Collects ONNX nodes with seeded weights."""

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)
        self._nodes: list[onnx.NodeProto] = []
        self._weights: list[onnx.TensorProto] = []

    def node(self, op: str, inputs: list[str], output: str, /, **attributes: Any) -> str:
        """Add any node, named after its output."""
        self._nodes.append(helper.make_node(op, inputs, [output], name=output, **attributes))
        return output

    def noise(self, name: str, *shape: int, size: float = 1.4) -> str:
        """Add a weight that keeps values at about the same size."""
        size /= float(np.sqrt(np.prod(shape[1:]))) if len(shape) > 1 else 10.0
        array = self._rng.normal(0, size, shape).astype(np.float32)
        self._weights.append(numpy_helper.from_array(array, name))
        return name

    def array(self, name: str, numbers: list[int]) -> None:
        """Add integers."""
        self._weights.append(numpy_helper.from_array(np.array(numbers), name))

    def conv(
        self,
        x: str,
        y: str,
        c: int,
        k: int,
        r: int,
        stride: int = 1,
        relu: bool = True,
        groups: int = 1,
    ) -> str:
        """Add a convolution that keeps the size, or halves it."""
        inputs = [x, self.noise(f"{y}_w", k, c // groups, r, r), self.noise(f"{y}_b", k)]
        self.node(
            "Conv",
            inputs,
            f"{y}_c" if relu else y,
            kernel_shape=[r, r],
            strides=[stride, stride],
            pads=[r // 2] * 4,
            group=groups,
        )
        return self.node("Relu", [f"{y}_c"], y) if relu else y

    def model(self, size: int) -> onnx.ModelProto:
        """Return the model, from x to y."""
        image = helper.make_tensor_value_info("x", 1, ["N", 3, size, size])
        scores = helper.make_tensor_value_info("y", 1, ["N", 10])
        graph = helper.make_graph(self._nodes, "net", [image], [scores], self._weights)
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def residual() -> onnx.ModelProto:
    """Return a stem, a residual block with a projected shortcut, a concatenation, and a
    classifier."""
    net = _Network()
    net.conv("x", "stem", 3, 32, 7, 2)
    net.node("MaxPool", ["stem"], "p", kernel_shape=[3, 3], strides=[2, 2], pads=[1] * 4)
    net.conv(net.conv("p", "b1", 32, 32, 1), "b2", 32, 32, 3)
    net.conv("b2", "b3", 32, 64, 1, relu=False)
    net.conv("p", "shortcut", 32, 64, 1, relu=False)
    net.node("Relu", [net.node("Add", ["b3", "shortcut"], "sum")], "r")
    net.node(
        "Concat", [net.conv("r", "c1", 64, 48, 1), net.conv("r", "c2", 64, 16, 3)], "cc", axis=1
    )
    net.node("GlobalAveragePool", [net.conv("cc", "d", 64, 64, 3, 2)], "gap")
    net.node("Flatten", ["gap"], "flat")
    net.node("Gemm", ["flat", net.noise("w", 10, 64), net.noise("bias", 10)], "y", transB=1)
    return net.model(40)


def grouped() -> onnx.ModelProto:
    """Return convolutions with groups, some of one channel; uneven channels; a sum of more than two
    values."""
    net = _Network(1)
    net.conv("x", "a", 3, 24, 3, 2)
    net.conv(net.conv("a", "b", 24, 24, 3, groups=24), "c", 24, 20, 1, relu=False)
    net.conv(net.conv("a", "d", 24, 36, 3, groups=3), "e", 36, 20, 1, relu=False)
    net.conv("a", "f", 24, 20, 1, relu=False)
    net.node("Add", [net.node("Add", ["c", "e"], "s"), "f"], "t")
    net.node("Relu", ["t"], "u")
    net.node("GlobalAveragePool", ["u"], "gap")
    net.node("Flatten", ["gap"], "flat")
    net.node("Gemm", ["flat", net.noise("w", 10, 20), net.noise("bias", 10)], "y", transB=1)
    return net.model(18)


def padded() -> onnx.ModelProto:
    """Return TensorFlow's padding in a first layer, a maximum and a later layer."""
    net = _Network(2)
    net.array("pads", [0, 0, 0, 0, 0, 0, 1, 1])
    net.conv(net.node("Pad", ["x", "pads"], "p"), "a", 3, 24, 3, 2)
    net.node("Pad", ["a", "pads"], "q")
    net.node("MaxPool", ["q"], "m", kernel_shape=[2, 2], strides=[2, 2])
    net.conv(net.node("Pad", ["m", "pads"], "r"), "b", 24, 20, 3)
    net.node("GlobalAveragePool", ["b"], "gap")
    net.node("Flatten", ["gap"], "flat")
    net.node("Gemm", ["flat", net.noise("w", 10, 20), net.noise("bias", 10)], "y", transB=1)
    return net.model(13)


def _images(size: int) -> NDArray[np.float32]:
    return np.random.default_rng(2).normal(size=(4, 3, size, size)).astype(np.float32)


def _classifier(path: Path) -> Classifier:
    return replace(classifier_of(load_model(path).graph), precision=Precision.INT8)


FORMS = {
    "u8s8 a channel": (QuantFormat.QDQ, True, U8, S8),
    "u8s8": (QuantFormat.QDQ, False, U8, S8),
    "s8s8 a channel": (QuantFormat.QDQ, True, S8, S8),
    "u8u8 a channel": (QuantFormat.QDQ, True, U8, U8),
    "u8u8": (QuantFormat.QDQ, False, U8, U8),
    "u8u8 as operators": (QuantFormat.QOperator, False, U8, U8),
    "u8s8 as operators": (QuantFormat.QOperator, False, U8, S8),
}


CASES = [
    *((make, size, form) for make, size in ((residual, 40), (grouped, 18)) for form in FORMS),
    (padded, 13, "u8s8 as operators"),
    (padded, 13, "s8s8 a channel"),
]


@pytest.mark.parametrize(("make", "size", "form"), CASES)
def test_a_quantized_network_has_the_scores_of_onnx_runtime_to_the_bit(
    device: CusimDevice,
    make: Callable[[], onnx.ModelProto],
    size: int,
    form: str,
    tmp_path: Path,
) -> None:
    onnx.save(make(), tmp_path / "float.onnx")
    images = _images(size)
    written, per_channel, activations, weights = FORMS[form]
    path = quantized(
        tmp_path / "float.onnx",
        tmp_path / "quantized.onnx",
        images,
        written,
        per_channel=per_channel,
        activations=activations,
        weights=weights,
    )
    classifier = _classifier(path)
    graph = classifier.rewritten.graph
    products = [node for node in graph.nodes if isinstance(node, Conv | Gemm)]
    assert all(is_quantized(graph.values[node.output].stored) for node in products)
    # Nothing in between is computed in float.
    floats = [node for node in graph.nodes if not is_quantized(graph.values[node.output].stored)]
    assert [type(node) for node in floats] == [Dequantize]
    engine = opened(classifier, device, 2)
    scores = np.concatenate([engine.run(list(images[i : i + 2])).scores for i in (0, 2)])
    engine.close()
    assert len(np.unique(scores)) > 10
    assert np.array_equal(scores, run_on_integers(path, images))


@pytest.fixture
def exact(tmp_path: Path) -> tuple[Path, Classifier]:
    """Return a quantized file and its classifier, with an input of multiples of 1/64.

    With such inputs, the order of rounding does not matter.
    """
    onnx.save(residual(), tmp_path / "float.onnx")
    path = quantized(tmp_path / "float.onnx", tmp_path / "quantized.onnx", _images(40))
    classifier = _classifier(path)
    preprocessing = replace(classifier.preprocessing, mean=(2.0,) * 3, std=(1.0,) * 3)
    return path, replace(classifier, preprocessing=preprocessing)


PIXELS = np.random.default_rng(4).integers(0, 256, (2, 40, 40, 3), np.uint8)


def test_neither_pixels_nor_scores_take_a_launch_to_become_bytes_or_numbers(
    device: CusimDevice, exact: tuple[Path, Classifier]
) -> None:
    path, classifier = exact
    first, *_ = (node for node in classifier.rewritten.graph.nodes if isinstance(node, Conv))
    assert first.problem.c == 16
    plan = build_plan(classifier.rewritten.graph, classifier.preprocessing, 2, H200_CHOICE)
    kernels = [step.launch.instantiation.kernel for step in plan.steps]
    assert kernels[:2] == ["pixels_to_bytes", "conv_integer_patch"]
    assert kernels[-2:] == ["conv_integer", "top_k"]
    engine = opened(classifier, device, 2)
    scores = engine.run(list(PIXELS)).scores
    engine.close()
    assert len(np.unique(scores)) > 10
    expected = normalised(PIXELS, classifier.preprocessing)
    assert np.array_equal(scores, run_on_integers(path, expected))


def test_an_input_that_is_kept_is_that_of_the_network_in_float(
    device: CusimDevice, exact: tuple[Path, Classifier]
) -> None:
    path, classifier = exact
    classifier = replace(classifier, keeps_input=True)
    engine = opened(classifier, device, 2)
    results = engine.run(list(PIXELS), [classifier.input.name])
    engine.close()
    expected = normalised(PIXELS, classifier.preprocessing)
    assert np.array_equal(results.inner[classifier.input.name], expected)
    assert np.array_equal(results.scores, run_on_integers(path, expected))
