"""torchvision's classifiers as PyTorch exports them, compared with PyTorch.

Needs torch and torchvision, which are too large for the dev extra: install them beside the
project's own packages and run `make test-all`.
"""

import io
from typing import Any

import numpy as np
import onnx
import pytest
from onnxruntime import InferenceSession

from models.onnx_loader import load_proto
from models.rewrite import rewrite
from tests.support.models.reference import run_reference

torch = pytest.importorskip("torch", reason="needs torch, which is not installed")
torchvision = pytest.importorskip("torchvision", reason="needs torchvision, which is not installed")

pytestmark = pytest.mark.slow

# name: nodes left after rewriting
NETWORKS = {
    "alexnet": 12,
    "vgg11_bn": 17,
    "resnet18": 24,
    "resnext50_32x4d": 57,
    "wide_resnet50_2": 57,
    "densenet121": 189,
    "squeezenet1_0": 31,
    "googlenet": 74,
    "inception_v3": 110,
    "mobilenet_v2": 55,
    "mobilenet_v3_small": 74,
    "mobilenet_v3_large": 82,
    "shufflenet_v2_x1_0": 114,
    "efficientnet_b0": 116,
    "efficientnet_v2_s": 235,
    "mnasnet1_0": 55,
    "regnet_x_400mf": 74,
    "regnet_y_400mf": 120,
}
EXPORTERS = {
    "torchscript, opset 11": {"dynamo": False, "opset_version": 11},
    "torchscript, opset 17": {"dynamo": False, "opset_version": 17},
    "dynamo": {"dynamo": True, "opset_version": 18, "external_data": False},
}


def seeded(name: str) -> Any:
    """Return the network for inference, with statistics in its batch normalisations as if it were
    trained."""
    torch.manual_seed(0)
    options = {}
    if name in ("googlenet", "inception_v3"):
        options = {"transform_input": True, "aux_logits": True, "init_weights": False}
    network = getattr(torchvision.models, name)(weights=None, **options).eval()
    for module in network.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
            module.weight.data.uniform_(0.5, 1.5)
            module.bias.data.normal_(0, 0.1)
    return network


@pytest.mark.parametrize("exporter", EXPORTERS)
@pytest.mark.parametrize("name", NETWORKS)
def test_an_export_for_batch_1_gives_what_pytorch_gives_at_n_2(name: str, exporter: str) -> None:
    network = seeded(name)
    size = 299 if name == "inception_v3" else 224
    images = torch.randn(2, 3, size, size) * 0.5 + torch.randn(2, 3, 1, 1)
    with torch.no_grad():
        expected = network(images).numpy()
    file = io.BytesIO()
    torch.onnx.export(network, (images[:1],), file, **EXPORTERS[exporter])
    loaded = load_proto(name, onnx.load_from_string(file.getvalue()))

    session = InferenceSession(loaded.proto.SerializeToString())
    normal = session.run(None, {loaded.graph.inputs[0]: images.numpy()})[0]
    graph = rewrite(loaded.graph).graph
    inputs = {graph.inputs[0]: images.numpy()}
    (rewritten,) = run_reference(graph, inputs, dtype=np.float32).values()

    for actual in (normal, rewritten):
        assert np.abs(actual - expected).max() / np.abs(expected).max() < 1e-5
    assert len(graph.nodes) == NETWORKS[name]
