"""Reductions and normalisations over any axes, compared with ONNX Runtime."""

from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models import graph as g
from models.errors import UnsupportedModelError
from models.onnx_loader import load_proto
from models.rewrite import rewrite
from tests.support.models.graphs import kinds
from tests.support.models.onnx_chains import Weights, assert_same_at_every_n, model, node, noise

KINDS = ("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceL2")


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(KINDS),
    st.lists(st.sampled_from([1, 2, 3, -1, -2]), min_size=1, max_size=3),
    st.booleans(),
)
def test_a_reduction_of_any_axes_of_an_image(kind: str, axes: list[int], keep: bool) -> None:
    axes = sorted({axis % 4 for axis in axes})
    original = model([node(kind, "x axes", keepdims=int(keep))], {"axes": np.array(axes)}, opset=18)
    assert_same_at_every_n(original, load_proto("m", original))


def test_a_mean_over_the_pixels_of_a_channels_last_tensor_is_a_global_pool() -> None:
    original = model(
        [node("Transpose", "x", "t", perm=[0, 2, 3, 1]), node("ReduceMean", "t axes", keepdims=0)],
        {"axes": np.array([1, 2])},
        opset=18,
    )
    loaded = load_proto("m", original)
    assert_same_at_every_n(original, loaded)
    assert kinds(rewrite(loaded.graph)) == ["GlobalPool", "Reshape"]


@pytest.mark.parametrize("keep", [0, 1])
@pytest.mark.parametrize("kind", KINDS)
def test_reductions_of_one_axis_after_another_are_one(kind: str, keep: int) -> None:
    original = model(
        [node(kind, "x last", "a", keepdims=keep), node(kind, "a second", keepdims=keep)],
        {"last": np.array([3]), "second": np.array([2])},
        opset=18,
    )
    loaded = load_proto("m", original)
    assert_same_at_every_n(original, loaded)
    one = "GlobalPool" if kind in ("ReduceMean", "ReduceMax") else "Reduce"
    assert kinds(rewrite(loaded.graph)) == ([one] if keep else [one, "Reshape"])


def test_a_reduction_without_axes_is_of_the_batch_too_and_refused() -> None:
    with pytest.raises(UnsupportedModelError, match="along axis 0, the batch"):
        load_proto("m", model([node("ReduceMax", "x")], opset=18))


def test_a_reduction_of_no_axes_changes_nothing() -> None:
    original = model(
        [
            node("ReduceSum", "x", noop_with_empty_axes=1),
        ],
        opset=18,
    )
    (only,) = load_proto("m", original).graph.nodes
    assert isinstance(only, g.Identity)


def layer_norm(inner: list[onnx.NodeProto], perm: list[int]) -> list[onnx.NodeProto]:
    back = [perm.index(axis) for axis in range(4)]
    return [
        node("Transpose", "x", "t", perm=perm),
        *inner,
        node("Transpose", "u", perm=back),
    ]


SPELLED_OUT = [
    node("ReduceMean", "x c", "m", keepdims=1),
    node("Sub", "x m", "d"),
    node("Pow", "d two", "s"),
    node("ReduceMean", "s c", "v", keepdims=1),
    node("Add", "v eps", "w"),
    node("Sqrt", "w", "r"),
    node("Div", "d r", "n"),
    node("Mul", "n g", "o"),
    node("Add", "o b"),
]
NUMBERS: Weights = {"two": np.array(2, np.float32), "eps": np.array(1e-3, np.float32)}
CHAINS: dict[str, tuple[list[onnx.NodeProto], Weights, dict[str, Any]]] = {
    "LayerNormalization over the channels": (
        layer_norm([node("LayerNormalization", "t g b", "u", epsilon=1e-3)], [0, 2, 3, 1]),
        {"g": noise(4), "b": noise(4)},
        {"axes": (0,)},
    ),
    "LayerNormalization without a shift": (
        layer_norm([node("LayerNormalization", "t g", "u")], [0, 2, 3, 1]),
        {"g": noise(4)},
        {"axes": (0,)},
    ),
    "LayerNormalization over whole images": (
        [node("LayerNormalization", "x g b", axis=1)],
        {"g": noise(4, 6, 6), "b": noise(4, 6, 6)},
        {"axes": (0, 1, 2)},
    ),
    "LayerNormalization spelled out": (
        SPELLED_OUT,
        {**NUMBERS, "c": np.array([1]), "g": noise(4, 1, 1), "b": noise(4, 1, 1)},
        {"axes": (0,), "epsilon": pytest.approx(1e-3)},
    ),
    "LayerNormalization spelled out, channels last": (
        layer_norm(
            [
                onnx.helper.make_node(
                    each.op_type,
                    ["t" if name == "x" else name for name in each.input],
                    ["u" if name == "y" else name for name in each.output],
                    keepdims=1,
                )
                if each.op_type == "ReduceMean"
                else onnx.helper.make_node(
                    each.op_type,
                    ["t" if name == "x" else name for name in each.input],
                    ["u" if name == "y" else name for name in each.output],
                )
                for each in SPELLED_OUT
            ],
            [0, 2, 3, 1],
        ),
        {**NUMBERS, "c": np.array([3]), "g": noise(4), "b": noise(4)},
        {"axes": (0,)},
    ),
    "InstanceNormalization": (
        [node("InstanceNormalization", "x g b", epsilon=1e-3)],
        {"g": noise(4), "b": noise(4)},
        {"axes": (1, 2)},
    ),
    "InstanceNormalization of the pixels spelled out": (
        SPELLED_OUT,
        {**NUMBERS, "c": np.array([2, 3]), "g": noise(4, 1, 1), "b": noise(4, 1, 1)},
        {"axes": (1, 2)},
    ),
    "groups by InstanceNormalization": (
        [
            node("Reshape", "x apart", "a"),
            node("InstanceNormalization", "a g b", "n"),
            node("Reshape", "n back", "r"),
            node("Mul", "r s", "m"),
            node("Add", "m t"),
        ],
        {
            "apart": np.array([0, 2, -1]),
            "back": np.array([1, 4, 6, 6]),
            "g": noise(2),
            "b": noise(2),
            "s": noise(4, 1, 1),
            "t": noise(4, 1, 1),
        },
        {"axes": (0, 1, 2), "groups": 2},
    ),
}


@pytest.mark.parametrize("name", CHAINS)
def test_a_normalisation_becomes_one_node(name: str) -> None:
    nodes, weights, expected = CHAINS[name]
    original = model(nodes, weights, opset=18)
    loaded = load_proto("m", original)
    assert_same_at_every_n(original, loaded)
    (only,) = rewrite(loaded.graph).graph.nodes
    assert isinstance(only, g.Normalise)
    for field, value in expected.items():
        assert getattr(only, field) == value


def test_group_normalisation_scales_each_channel() -> None:
    original = model(
        [node("GroupNormalization", "x g b", num_groups=2)],
        {"g": noise(4), "b": noise(4)},
        opset=21,
    )
    loaded = load_proto("m", original)
    assert_same_at_every_n(original, loaded)


def test_a_scale_that_does_not_fit_is_refused() -> None:
    original = model(
        [node("InstanceNormalization", "x g b")], {"g": noise(3), "b": noise(3)}, infer=False
    )
    with pytest.raises(UnsupportedModelError, match=r"scale \(3,\) does not fit 4 channels"):
        load_proto("m", original)
