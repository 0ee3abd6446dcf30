"""timm's networks with attention, reduced: entirely on kernels, in batches, with captured
graphs."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest

from benchmarks.networks.light import classifier as of_pixels
from benchmarks.networks.light import images_of
from benchmarks.networks.yolo import Yolo, yolo
from cusim.build import FAST
from cusim.device import CusimDevice
from kernels.problems.precision import Precision
from kernels.tuning.heuristic import heuristic
from models.classifier import Classifier
from models.engines.cuda_engine import CudaEngine
from models.engines.tolerance import network_tolerance, relative_error
from models.graph import Attention, Gemm, Product, Softmax
from models.onnx_loader import load_proto
from models.preprocessing import normalised
from models.quantization.candidate import Method, calibrate, quantized
from models.quantized_filters import is_quantized
from tests.support.models.quantized import quantized as quantized_by_onnxruntime
from tests.support.models.quantized import run_on_integers
from tests.support.models.small_timm import FOLDER, SMALL
from tests.support.onnx_models import run_onnxruntime

YOLO11 = "yolo11"
"""Return an Ultralytics network as that project builds it; its last layers are always large."""

NAMES = (*SMALL, YOLO11)
EACH = pytest.mark.parametrize("name", NAMES)


def network(name: str) -> tuple[onnx.ModelProto, Classifier]:
    if name == YOLO11:
        proto = yolo(Yolo(96, (4, 8, 8, 16, 32), 24, 7))
    else:
        proto = onnx.load(FOLDER / f"{name}.onnx")
    return proto, of_pixels(name, proto)


@EACH
def test_every_layer_of_tokens_is_a_convolution(name: str) -> None:
    _, classifier = network(name)
    graph = classifier.rewritten.graph
    assert not classifier.network.no_kernels
    # MobileViT v2 weighs tokens by a softmax over them, and multiplies no two matrices.
    assert any(isinstance(node, Attention | Product | Softmax) for node in graph.nodes)
    for node in graph.nodes:
        if isinstance(node, Gemm):
            assert graph.shape(node.x)[-1] == np.prod(graph.shape(node.x)), node.name


QUICK = ("vit", "swin")


@pytest.mark.parametrize(
    ("name", "precision", "most"),
    [
        *(
            pytest.param(name, Precision.FP16, 2, marks=[pytest.mark.slow] * (name not in QUICK))
            for name in NAMES
        ),
        *(
            pytest.param(name, precision, 8, marks=pytest.mark.slow)
            for name in NAMES
            for precision in (Precision.FP16, Precision.FP32)
        ),
    ],
)
def test_a_batch_on_the_simulator_has_the_files_scores(
    name: str, precision: Precision, most: int
) -> None:
    proto, classifier = network(name)
    images = images_of(classifier, most)
    inputs = normalised(images, classifier.preprocessing)
    (given,) = (value.name for value in proto.graph.input)
    alone = [run_onnxruntime(proto, {given: inputs[i : i + 1]}) for i in range(most)]
    expected = np.concatenate([next(iter(scores.values())) for scores in alone])
    device = CusimDevice(FAST)
    classifier = replace(classifier, precision=precision)
    engine = CudaEngine(classifier, device, max_batch=most, choose=heuristic(device))
    engine.warm_up()  # captures every N
    together = engine.run(images).scores
    bound = network_tolerance(classifier.rewritten.graph, heuristic(device))
    assert relative_error(together, expected) < bound
    assert np.array_equal(together.argmax(axis=1), expected.argmax(axis=1))
    assert np.array_equal(engine.run(images[::-1].copy()).scores[::-1], together)
    assert relative_error(engine.run(images[1:2]).scores, together[1:2]) < bound
    engine.close()
    device.close()


def test_a_quantized_vit_computes_attention_in_half() -> None:
    """`convoy quantize` uses bytes for layers, and floats for products of two computed values."""
    proto, in_float = network("vit")
    images = images_of(in_float, 8)
    inputs = normalised(images, in_float.preprocessing)
    in_bytes = quantized(proto, calibrate(proto, inputs, Method.MIN_MAX))
    classifier = replace(of_pixels("vit", in_bytes), precision=Precision.INT8)
    assert not classifier.network.no_kernels
    graph = classifier.rewritten.graph
    assert any(is_quantized(value.stored) for value in graph.values.values())
    products = [node for node in graph.nodes if isinstance(node, Attention | Product)]
    assert {node.precision for node in products} == {Precision.FP16}
    device = CusimDevice(FAST)
    engine = CudaEngine(classifier, device, max_batch=2, choose=heuristic(device))
    engine.warm_up()
    scores = engine.run(images[:2]).scores
    expected = run_on_integers(in_bytes, inputs[:2])
    assert relative_error(scores, expected) < 0.05  # a value between two codes may become either
    assert np.array_equal(scores.argmax(axis=1), expected.argmax(axis=1))
    engine.close()
    device.close()


def test_bytes_between_queries_and_keys_are_named(tmp_path: Path) -> None:
    """ONNX Runtime's quantizer writes these models, with one scale before Split; kernels do not run
    them."""
    proto, in_float = network("vit")
    onnx.save(proto, tmp_path / "float.onnx")
    inputs = normalised(images_of(in_float, 2), in_float.preprocessing)
    path = quantized_by_onnxruntime(tmp_path / "float.onnx", tmp_path / "int8.onnx", inputs)
    network_of_bytes = load_proto("vit", onnx.load(path), opaque=True)
    assert "DequantizeLinear" in network_of_bytes.no_kernels
    assert "/blocks/blocks.0/attn/Transpose_output_0" in network_of_bytes.no_kernels
