"""Operators that only move elements, compared with ONNX Runtime."""

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from onnx import helper

from models.errors import UnsupportedModelError
from models.onnx_loader import load_proto
from models.rewrite import rewrite
from tests.support.models.graphs import kinds
from tests.support.models.onnx_chains import Weights, assert_same_at_every_n, model, node, noise
from tests.support.onnx_models import run_onnxruntime


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 3), st.integers(0, 3), st.integers(1, 4))
def test_a_slice_with_a_step(axis: int, start: int, step: int) -> None:
    original = model(
        [node("Slice", "x starts ends axes steps")],
        {
            "starts": np.array([start]),
            "ends": np.array([2**31]),
            "axes": np.array([axis]),
            "steps": np.array([step]),
        },
    )
    assert_same_at_every_n(original, load_proto("m", original))


def test_a_slice_backwards_is_refused() -> None:
    weights = {"s": np.array([-1]), "e": np.array([-9]), "a": np.array([2]), "t": np.array([-1])}
    with pytest.raises(UnsupportedModelError, match="step -1 is not supported"):
        load_proto("m", model([node("Slice", "x s e a t")], weights))


CHAINS: dict[str, tuple[list[onnx.NodeProto], Weights]] = {
    "a Gather of channels in another order": (
        [node("Gather", "x i", axis=1)],
        {"i": np.array([2, 1, 0, 3])},
    ),
    "an Expand within the image": (
        [node("GlobalAveragePool", "x", "p"), node("Expand", "p s", "e"), node("Mul", "x e")],
        {"s": np.array([1, 4, 6, 6])},
    ),
    "an Expand of a row": (
        [node("ReduceMean", "x a", "p"), node("Expand", "p s")],
        {"a": np.array([2]), "s": np.array([1, 4, 6, 6])},
    ),
    "SpaceToDepth": ([node("SpaceToDepth", "x", blocksize=2)], {}),
    "DepthToSpace": ([node("DepthToSpace", "x", blocksize=2)], {}),
    "DepthToSpace by columns": ([node("DepthToSpace", "x", blocksize=2, mode="CRD")], {}),
    "a 1-D convolution over channels": (
        [
            node("GlobalAveragePool", "x", "p"),
            node("Reshape", "p row", "r"),
            node("Conv", "r w b", "c", pads=[1, 1]),
            node("Sigmoid", "c", "s"),
            node("Reshape", "s column", "e"),
            node("Mul", "x e"),
        ],
        {
            "row": np.array([0, 1, -1]),
            "column": np.array([0, -1, 1, 1]),
            "w": noise(1, 1, 3),
            "b": noise(1),
        },
    ),
    "1-D pooling": (
        [
            node("Reshape", "x rows", "r"),
            node("MaxPool", "r", "m", kernel_shape=[3], strides=[2], pads=[1, 0]),
            node("AveragePool", "m", "a", kernel_shape=[2], ceil_mode=1, strides=[2]),
            node("GlobalMaxPool", "a"),
        ],
        {"rows": np.array([0, 4, 36])},
    ),
}


@pytest.mark.parametrize("name", CHAINS)
def test_a_chain_computes_what_onnxruntime_does(name: str) -> None:
    nodes, weights = CHAINS[name]
    original = model(nodes, weights, opset=17 if name != "an Expand of a row" else 18)
    loaded = load_proto("m", original)
    single = load_proto("m", original)
    assert_same_at_every_n(original, loaded)
    assert kinds(rewrite(single.graph))


def test_an_expand_that_an_operation_broadcasts_anyway_is_dropped() -> None:
    nodes, weights = CHAINS["an Expand within the image"]
    loaded = load_proto("m", model(nodes, weights))
    assert kinds(rewrite(loaded.graph)) == ["GlobalPool", "Binary"]


def test_a_squeeze_without_axes_keeps_the_batch() -> None:
    original = model([node("GlobalAveragePool", "x", "p"), node("Squeeze", "p")])
    loaded = load_proto("m", original)
    images = noise(3, 4, 6, 6)
    (scores,) = run_onnxruntime(loaded.proto, {"x": images}).values()
    np.testing.assert_allclose(scores, images.mean((2, 3)), rtol=1e-5, atol=1e-6)
    assert loaded.graph.shape("y") == (4,)


def test_a_gather_of_many_runs_is_refused() -> None:
    original = model(
        [helper.make_node("Gather", ["x", "i"], ["y"], axis=1)],
        {"i": np.arange(40)[::-1].copy()},
        shape=(1, 40, 2, 2),
    )
    with pytest.raises(UnsupportedModelError, match="up to 16 runs"):
        load_proto("m", original)
