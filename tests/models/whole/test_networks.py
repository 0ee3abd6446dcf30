"""Whole networks: both forms of the loader compared with the original, image by image."""

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from models.graph import Softmax
from models.onnx_loader import LoadedModel, load_model, load_proto
from tests.support.models.reference import run_reference
from tests.support.networks import (
    LIGHT_NETWORKS,
    SQUEEZENET,
    light_network,
    needs_shared,
    random_images,
)
from tests.support.onnx_models import onnxruntime_session

IMAGE = (3, 224, 224)
# float32 against float64 over the depth of these networks; a wrong shape, pad or axis errs by 1.
TOLERANCE = 2e-5


class Network:
    """A model that is opened once and scores many times."""

    def __init__(self, model: onnx.ModelProto) -> None:
        weights = {tensor.name for tensor in model.graph.initializer}
        (self.input,) = (v.name for v in model.graph.input if v.name not in weights)
        self.session = onnxruntime_session(model)

    def scores(self, images: NDArray[np.float32]) -> NDArray[np.float32]:
        (output,) = self.session.run(None, {self.input: images})
        return np.reshape(output, (len(images), -1))


def error(actual: NDArray[np.floating], expected: NDArray[np.floating]) -> float:
    """Return the largest error of an image, relative to its largest score."""
    scale = np.abs(expected).max(axis=1)
    return float((np.abs(actual - expected).max(axis=1) / scale).max())


def check_network(original: onnx.ModelProto, loaded: LoadedModel, scale: float = 1.0) -> None:
    images = random_images(8, IMAGE) * np.float32(scale)
    network = Network(loaded.proto)
    alone = np.concatenate([network.scores(images[i : i + 1]) for i in range(8)])
    assert error(alone[:1], Network(original).scores(images[:1])) < TOLERANCE

    for n in (2, 5, 8):
        assert error(network.scores(images[:n]), alone[:n]) < TOLERANCE, n

    (typed,) = run_reference(loaded.graph, {loaded.graph.inputs[0]: images[:2]}).values()
    assert error(alone[:2], typed.reshape(2, -1)) < TOLERANCE
    # The images are told apart, or agreement would show nothing.
    assert error(alone[:1], alone[1:2]) > 100 * TOLERANCE


# Of each kind of network one; in float64 VGG takes 2 GB.
QUICK = ("bvlc_alexnet", "inception_v1", "shufflenet", "squeezenet")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.slow] * (name not in QUICK)) for name in LIGHT_NETWORKS],
)
def test_a_light_network_gives_each_image_of_a_batch_what_it_gives_alone(name: str) -> None:
    original = light_network(name)
    check_network(original, load_proto(name, original))


@needs_shared
def test_squeezenet_with_float16_weights_gives_each_image_of_a_batch_what_it_gives_alone() -> None:
    loaded = load_model(SQUEEZENET)
    assert isinstance(loaded.graph.nodes[-2], Softmax)
    # The original mixes float32 input with float16 weights, which ONNX Runtime refuses to run.
    check_network(loaded.proto, loaded, scale=60)
