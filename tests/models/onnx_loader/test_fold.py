"""Constants that libraries leave, and shapes that they infer for one batch only."""

import numpy as np
from onnx import helper

from models import graph as g
from models.onnx_loader import load_proto
from tests.support.models.onnx_chains import Weights, assert_same_at_every_n, model, node, noise


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
