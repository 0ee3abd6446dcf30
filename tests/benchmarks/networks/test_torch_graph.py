"""Graphs as PyTorch modules, compared with ONNX Runtime."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import onnx
import pytest

from benchmarks.networks.c3d import C3D, c3d
from benchmarks.networks.light import NETWORKS, classifier, light_network
from benchmarks.networks.swin import Swin, swin
from benchmarks.networks.torch_graph import torch_module
from benchmarks.networks.vit import DEIT_TINY, Vit, vit
from benchmarks.networks.yolo import Yolo, yolo
from models.engines.onnxruntime_engine import OnnxRuntimeEngine, SessionModel
from models.engines.tolerance import relative_error
from models.preprocessing import normalisation
from tests.support.models.engines import network_tolerance, pixels

torch: Any = pytest.importorskip("torch", reason="PyTorch computes the baselines")

MODELS: dict[str, Callable[[], onnx.ModelProto]] = {
    **NETWORKS,
    "C3D": lambda: c3d(C3D((6, 14, 14), (5, 6, 7), hidden=12, classes=9)),
    "ViT-S/16": lambda: vit(Vit(32, 8, 24, 2, 3, 48, 7)),
    "DeiT-Ti/16": lambda: vit(replace(DEIT_TINY, side=32, depth=2, classes=7)),
    "Swin-T": lambda: swin(Swin(56, 4, 8, (2, 1), (1, 2), 7, 7)),
    "YOLO11n-cls": lambda: yolo(Yolo(96, (4, 8, 8, 16, 32), 24, 7)),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_network_is_the_same_in_pytorch(name: str) -> None:
    network = classifier(name, MODELS[name]())
    graph = network.rewritten.graph
    module = torch_module(torch, graph, *normalisation(network.preprocessing))
    images = pixels(network, 2)
    engine = OnnxRuntimeEngine(SessionModel.of(network), max_batch=2, threads=1)
    expected = engine.run(images).scores
    engine.close()
    with torch.inference_mode():
        scores = module(torch.from_numpy(images)).numpy()
    assert relative_error(scores, expected) < 10 * network_tolerance(network.network.graph)
    assert relative_error(expected[:1], expected[1:]) > 1e-3  # the images are told apart


def test_activations_stay_with_their_channels_last() -> None:
    network = classifier("SqueezeNet", NETWORKS["SqueezeNet"]())
    graph = network.rewritten.graph
    module = torch_module(torch, graph, *normalisation(network.preprocessing))
    seen = []

    class Spy(torch.fx.Interpreter):  # type: ignore[misc]
        def call_function(self, target: Any, args: Any, kwargs: Any) -> Any:
            if target is torch.nn.functional.conv2d:
                x, weight, *_ = args
                last = {"memory_format": torch.channels_last}
                seen.append((x.is_contiguous(**last), weight.is_contiguous(**last)))
            return super().call_function(target, args, kwargs)

    Spy(module).run(torch.zeros((1, 224, 224, 3), dtype=torch.uint8))
    assert len(seen) == 26
    assert set(seen) == {(True, True)}


def test_a_compiler_takes_all_of_it_at_once() -> None:
    network = classifier("C3D", MODELS["C3D"]())
    graph = network.rewritten.graph
    module = torch_module(torch, graph, *normalisation(network.preprocessing))
    images = torch.from_numpy(pixels(network, 2))
    compiled = torch.compile(module, backend="eager", fullgraph=True)
    with torch.inference_mode():
        assert torch.equal(compiled(images), module(images))


def test_what_is_not_there_is_named() -> None:
    network = classifier("ShuffleNet", light_network("shufflenet"))
    graph = network.rewritten.graph
    with pytest.raises(TypeError, match="does not support this ChannelShuffle"):
        torch_module(torch, graph, *normalisation(network.preprocessing))
