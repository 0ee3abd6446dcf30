"""Clips in place of images: a small C3D, from its file to the scores of every engine."""

from itertools import groupby
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper

from benchmarks.networks.c3d import C3D, c3d
from kernels.device.device import Device
from kernels.device.gpus import H200
from kernels.tuning.heuristic import heuristic
from models.classifier import Classifier, load_classifier
from models.engines.engine import DeviceKind
from models.engines.open_engine import open_engine
from models.engines.tolerance import relative_error
from models.errors import EngineError
from models.plan import Plan, build_plan
from models.preprocessing import Layout
from tests.support.models.engines import (
    network_tolerance,
    opened,
    pixels,
    reference_scores,
)
from tests.support.models.plans import check_operands, lower_bound

# No axis divides by 2 as often as it is pooled, and flattened are 32 channels of 2×2×3.
SMALL = C3D(clip=(17, 40, 72), filters=(4, 8, 32, 32, 32), hidden=64, classes=11)


def classifier_of(folder: Path, model: onnx.ModelProto, **flags: object) -> Classifier:
    path = folder / "clips.onnx"
    path.write_bytes(model.SerializeToString())
    return load_classifier(path, overrides={"preset": "imagenet", **flags})


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Classifier:
    return classifier_of(tmp_path_factory.mktemp("c3d"), c3d(SMALL))


def check_every_engine(network: Classifier, device: Device, max_batch: int) -> None:
    """Compare Convoy's kernels and ONNX Runtime with the reference, at every N."""
    engines = [
        opened(network, device, max_batch),
        open_engine(network, device=DeviceKind.CPU, max_batch=max_batch),
    ]
    tolerance = network_tolerance(network.network.graph)
    for n in range(1, max_batch + 1):
        clips = pixels(network, n, seed=n)
        expected = reference_scores(network, clips)
        for engine in engines:
            assert relative_error(engine.run(clips).scores, expected) < tolerance
    for engine in engines:
        engine.close()


def test_every_engine_agrees_with_the_reference(network: Classifier, device: Device) -> None:
    check_every_engine(network, device, 2)


def test_a_network_that_reads_ndhwc_is_run(tmp_path: Path, device: Device) -> None:
    model = c3d(C3D(clip=(5, 8, 12), filters=(4, 8), hidden=8, classes=3))
    transpose = helper.make_node("Transpose", ["pixels"], ["clip"], perm=[0, 4, 1, 2, 3])
    model.graph.node.insert(0, transpose)
    image = helper.make_tensor_value_info("pixels", onnx.TensorProto.FLOAT, ["N", 5, 8, 12, 3])
    model.graph.input[0].CopyFrom(image)
    network = classifier_of(tmp_path, model)
    assert network.preprocessing.layout is Layout.NHWC
    check_every_engine(network, device, 2)


def test_a_network_that_leaves_its_frames_open_is_run_on_as_many_as_said(
    tmp_path: Path, device: Device
) -> None:
    model = c3d(C3D(clip=(5, 8, 12), filters=(4, 8), hidden=8, classes=3))
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "frames"
    check_every_engine(classifier_of(tmp_path, model, frames=5), device, 1)


def test_an_image_is_no_clip(network: Classifier, device: Device) -> None:
    cpu = open_engine(network, device=DeviceKind.CPU, max_batch=1)
    ours = opened(network, device)
    for engine in (cpu, ours):
        for shape in ((1, 40, 72, 3), (1, 16, 40, 72, 3)):
            with pytest.raises(EngineError, match=r"takes 1 to 1 images of uint8\(17, 40, 72, 3\)"):
                engine.run(np.zeros(shape, np.uint8))
        engine.close()


def plan_of(network: Classifier, n: int) -> Plan:
    graph = network.rewritten.graph
    return build_plan(graph, network.preprocessing, n, heuristic(H200))


def test_the_papers_network_has_a_short_plan_and_a_small_arena(tmp_path: Path) -> None:
    network = classifier_of(tmp_path, c3d(C3D(hidden=8)))
    for n in (1, 8, 32):
        plan = plan_of(network, n)
        # ReLUs and biases ride along, flattening moves nothing, and results have the softmax. A
        # convolution may take several launches.
        assert [name for name, _ in groupby(step.name for step in plan.steps)] == [
            "convoy/images",
            *[f"{layer}{index}" for index in range(1, 6) for layer in ("conv", "pool")],
            *["fc6", "fc7", "fc8", "convoy/results"],
        ]
        assert plan.input_bytes == n * 16 * 112 * 112 * 3
        assert plan.arena_bytes <= 1.15 * lower_bound(plan.buffers)
        check_operands(plan)
