"""timm's networks with attention, reduced: wholly on kernels, in batches, by captured graphs."""

from dataclasses import replace

import numpy as np
import onnx
import pytest

from benchmarks.networks.light import classifier as of_pixels
from benchmarks.networks.light import images_of
from cusim.build import FAST
from cusim.device import CusimDevice
from kernels.problems.precision import Precision
from kernels.tuning.heuristic import heuristic
from models.classifier import Classifier
from models.engines.cuda_engine import CudaEngine
from models.engines.tolerance import network_tolerance, relative_error
from models.graph import Attention, Gemm, Product, Softmax
from models.preprocessing import normalised
from tests.support.models.small_timm import FOLDER, SMALL
from tests.support.onnx_models import run_onnxruntime

EACH = pytest.mark.parametrize("name", SMALL)


def network(name: str) -> tuple[onnx.ModelProto, Classifier]:
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
            for name in SMALL
        ),
        *(
            pytest.param(name, precision, 8, marks=pytest.mark.slow)
            for name in SMALL
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
