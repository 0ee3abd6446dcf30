"""The normalisation before a network in ONNX Runtime, bit-identical to NumPy's."""

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from models import BUILT_IN_MODEL, load_classifier
from models.engines.normalised import with_normalisation
from models.preprocessing import ChannelOrder, Layout, Preprocessing, normalised
from models.session import PIXELS, open_session

_RGB: dict[str, Any] = {
    "channels": ChannelOrder.RGB,
    "mean": (0.485, 0.456, 0.406),
    "std": (0.229, 0.224, 0.225),
}
FORMS: dict[str, dict[str, Any]] = {
    "grey": {},
    "RGB": _RGB,
    "channels last": {**_RGB, "layout": Layout.NHWC},
    "a clip": {**_RGB, "frames": 5},
    "a clip, channels last": {**_RGB, "frames": 5, "layout": Layout.NHWC},
}


@pytest.fixture(params=[*FORMS.values()], ids=[*FORMS])
def preprocessing(request: pytest.FixtureRequest) -> Preprocessing:
    digits = load_classifier(BUILT_IN_MODEL, overrides={"preset": "digits"}).preprocessing
    return replace(digits, height=7, width=9, scale=1 / 255, **request.param)


def _as_it_comes(preprocessing: Preprocessing) -> onnx.ModelProto:
    """Return a network whose output is its input."""
    shape = [None, *preprocessing.input_shape]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy")
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "net", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def test_pixels_are_normalised_to_the_bit(preprocessing: Preprocessing) -> None:
    session = open_session(
        with_normalisation(_as_it_comes(preprocessing), preprocessing).SerializeToString(), 1
    )
    pixels = np.random.default_rng(0).integers(0, 256, (3, *preprocessing.image_shape), np.uint8)
    (found,) = session.run(None, {PIXELS: pixels})
    assert np.array_equal(found, normalised(pixels, preprocessing))


def test_it_is_bytes_that_are_transposed(preprocessing: Preprocessing) -> None:
    """Floats would take four times as much memory, and neighbours would have different factors."""
    nodes = with_normalisation(_as_it_comes(preprocessing), preprocessing).graph.node
    first = "Transpose" if preprocessing.layout is Layout.NCHW else "Cast"
    operators = [node.op_type for node in nodes]
    assert operators == ["Transpose"] * (first == "Transpose") + ["Cast", "Mul", "Add", "Identity"]
    assert list(nodes[0].input) == [PIXELS]
