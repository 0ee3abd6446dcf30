"""Constants that libraries do not fold, and shapes that they infer for a single batch size."""

from typing import Any

import numpy as np
import pytest
from onnx import helper

from models import graph as g
from models.errors import NoKernelsError
from models.onnx_loader import load_proto
from tests.support.models.onnx_chains import Weights, assert_same_at_every_n, model, node, noise
from tests.support.models.reference import run_reference
from tests.support.onnx_models import run_onnxruntime


def test_a_standardised_filter_is_a_constant() -> None:
    weights: Weights = {
        "w": noise(8, 4, 3, 3),
        "rows": np.array([1, 8, -1]),
        "back": np.array([8, 4, 3, 3]),
        "gain": np.abs(noise(8)),
        "zero": np.zeros(8, np.float32),
        "mean": np.zeros(8, np.float32),
        "one": np.ones(8, np.float32),
    }
    original = model(
        [
            node("Reshape", "w rows", "flat"),
            helper.make_node(
                "BatchNormalization",
                ["flat", "gain", "zero", "mean", "one"],
                ["standard", "mean_after", "variance_after"],
                training_mode=1,
                epsilon=1e-4,
            ),
            node("Reshape", "standard back", "filter"),
            node("Conv", "x filter", pads=[1, 1, 1, 1]),
        ],
        weights,
    )
    loaded = load_proto("m", original)
    assert [type(each) for each in loaded.graph.nodes] == [g.Conv]
    assert_same_at_every_n(original, loaded)


def test_all_of_a_flattened_tensor_gathered_in_order_is_a_reshape() -> None:
    original = model(
        [
            node("GlobalAveragePool", "x", "p"),
            node("Reshape", "p all", "flat"),
            node("Gather", "flat order", axis=0),
        ],
        {"all": np.array([-1]), "order": np.arange(4).reshape(1, 4, 1)},
    )
    loaded = load_proto("m", original)
    assert [type(each) for each in loaded.graph.nodes] == [g.GlobalPool, g.Reshape]
    assert_same_at_every_n(original, loaded)


def test_a_filter_normalised_by_constants_is_a_constant() -> None:
    names = ("scale", "shift", "mean")
    weights = {"w": noise(8, 4, 3, 3), **{name: noise(4) for name in names}}
    weights["variance"] = np.abs(noise(4)) + np.float32(0.5)
    original = model(
        [
            node("BatchNormalization", "w scale shift mean variance", "filter"),
            node("Conv", "x filter", pads=[1, 1, 1, 1]),
        ],
        weights,
    )
    loaded = load_proto("m", original)
    assert [type(each) for each in loaded.graph.nodes] == [g.Conv]
    assert_same_at_every_n(original, loaded)


def test_a_projection_of_a_constant_is_folded_and_a_convolution_of_one_is_not() -> None:
    """EdgeNeXt projects a constant encoding of positions."""
    nodes = [node("Conv", "k w", "p"), node("Add", "x p")]
    constant, pointwise = noise(1, 3, 6, 6), noise(4, 3, 1, 1)
    loaded = load_proto("small", model(nodes, {"k": constant, "w": pointwise}))
    assert [type(each) for each in loaded.graph.nodes] == [g.Binary]
    (added,) = loaded.graph.weights.values()
    expected = np.einsum("kc,chw->khw", pointwise[:, :, 0, 0], constant[0])
    np.testing.assert_allclose(added, expected, rtol=1e-5, atol=1e-5)
    wide = [node("Conv", "k w", "p", pads=[1, 1, 1, 1]), node("Add", "x p")]
    with pytest.raises(NoKernelsError, match="Conv: input 0 is a constant"):
        load_proto("small", model(wide, {"k": constant, "w": noise(4, 3, 3, 3)}))


@pytest.mark.parametrize("auto_pad", ["SAME_UPPER", "SAME_LOWER"])
@pytest.mark.parametrize("op", ["Conv", "MaxPool", "AveragePool"])
def test_padding_that_would_be_negative_is_none(op: str, auto_pad: str) -> None:
    """Check that windows of one pixel read each fourth pixel, the first one included."""
    attributes: dict[str, Any] = {
        "auto_pad": auto_pad,
        "strides": [4, 4],
        "kernel_shape": [1, 1],
    }
    weights = {"w": np.eye(4, dtype=np.float32).reshape(4, 4, 1, 1)} if op == "Conv" else {}
    original = model([node(op, "x w" if weights else "x", **attributes)], weights, (1, 4, 8, 9))
    loaded = load_proto("m", original)
    images = noise(2, 4, 8, 9)
    normal = run_onnxruntime(loaded.proto, {"x": images})
    (typed,) = run_reference(loaded.graph, {"x": images}).values()
    np.testing.assert_array_equal(next(iter(normal.values())), images[:, :, ::4, ::4])
    np.testing.assert_array_equal(typed, images[:, :, ::4, ::4])
