"""Resize and Pad of all kinds, compared with ONNX Runtime."""

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

from models import graph as g
from models.errors import UnsupportedModelError
from models.onnx_loader import load_proto
from tests.support.models.onnx_chains import assert_same_at_every_n, model, node

TRANSFORMS = ("half_pixel", "pytorch_half_pixel", "align_corners", "asymmetric")
ROUNDINGS = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["nearest", "linear"]),
    st.sampled_from(TRANSFORMS),
    st.sampled_from(ROUNDINGS),
    st.tuples(st.sampled_from([0.5, 1, 2, 3, 4]), st.sampled_from([1, 2, 3])),
)
def test_resizing_by_whole_factors(
    mode: str, transform: str, rounding: str, factors: tuple[float, float]
) -> None:
    original = model(
        [
            helper.make_node(
                "Resize",
                ["x", "", "scales"],
                ["y"],
                mode=mode,
                coordinate_transformation_mode=transform,
                nearest_mode=rounding,
            )
        ],
        {"scales": np.array([1, 1, *factors], np.float32)},
        shape=(1, 4, 6, 4),
        opset=19,
    )
    assert_same_at_every_n(original, load_proto("m", original), (4, 6, 4))


@settings(max_examples=40, deadline=None)
@given(st.sampled_from(TRANSFORMS), st.integers(1, 15), st.integers(1, 15))
def test_resizing_linearly_to_any_size(transform: str, height: int, width: int) -> None:
    original = model(
        [
            helper.make_node(
                "Resize",
                ["x", "", "", "sizes"],
                ["y"],
                mode="linear",
                coordinate_transformation_mode=transform,
            )
        ],
        {"sizes": np.array([1, 4, height, width])},
        opset=19,
    )
    assert_same_at_every_n(original, load_proto("m", original))


@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize("declared", [True, False])
def test_a_size_is_rounded_as_by_onnx_runtime(mode: str, declared: bool) -> None:
    """5 · 1.4 is 7 in float32, although float32 stores 1.4 as 1.39999998."""
    original = model(
        [
            helper.make_node(
                "Resize",
                ["x", "", "scales"],
                ["large"],
                mode=mode,
                coordinate_transformation_mode="asymmetric",
                nearest_mode="floor",
            ),
            node("Reshape", "large rows") if declared else node("Relu", "large"),
        ],
        {"scales": np.array([1, 1, 1.4, 1.4], np.float32), "rows": np.array([-1, 4 * 7 * 14])},
        shape=(1, 4, 5, 10),
        opset=19,
        infer=False,
    )
    if declared:  # otherwise, ONNX Runtime would refuse the Reshape
        value = helper.make_tensor_value_info("large", TensorProto.FLOAT, [1, 4, 7, 14])
        original.graph.value_info.append(value)
    assert_same_at_every_n(original, load_proto("m", original), (4, 5, 10))


def test_a_size_that_onnx_and_onnx_runtime_round_apart_is_refused() -> None:
    original = model(
        [helper.make_node("Resize", ["x", "", "scales"], ["y"], mode="nearest")],
        {"scales": np.array([1, 1, 1.4, 1.5], np.float32)},
        shape=(1, 4, 5, 5),
        opset=19,
    )
    with pytest.raises(UnsupportedModelError, match="export the model with sizes"):
        load_proto("m", original)


def test_an_upsample_of_an_old_opset_is_a_resize() -> None:
    original = model(
        [helper.make_node("Upsample", ["x", "s"], ["y"], mode="nearest")],
        {"s": np.array([1, 1, 2, 2], np.float32)},
        opset=9,
    )
    loaded = load_proto("m", original)
    assert [type(each) for each in loaded.graph.nodes] == [g.Resample]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "cubic": ({"mode": "cubic"}, "mode=cubic is not supported"),
    "antialias": ({"mode": "linear", "antialias": 1}, "antialias=1 is not supported"),
    "crops": (
        {"coordinate_transformation_mode": "tf_crop_and_resize"},
        "coordinate_transformation_mode=tf_crop_and_resize is not supported",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_other_resizing_is_refused(name: str) -> None:
    attributes, reason = REFUSED[name]
    resize = helper.make_node("Resize", ["x", "roi", "s"], ["y"], **attributes)
    weights = {"roi": np.zeros(8, np.float32), "s": np.array([1, 1, 2, 2], np.float32)}
    with pytest.raises(UnsupportedModelError, match=reason):
        load_proto("m", model([resize], weights, opset=19))


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["constant", "edge", "reflect", "wrap"]),
    st.lists(st.integers(-2, 4), min_size=4, max_size=4),
)
def test_padding_by_any_mode_and_negative_padding(mode: str, pads: list[int]) -> None:
    assume(mode == "constant" or min(pads) >= 0)  # ONNX Runtime refuses others
    top, left, bottom, right = pads
    original = model(
        [node("Pad", "x pads", mode=mode)],
        {"pads": np.array([0, 0, top, left, 0, 0, bottom, right])},
        opset=19,
    )
    assert_same_at_every_n(original, load_proto("m", original))


def test_padding_that_cannot_be_is_refused() -> None:
    pads = np.array([0, 0, 11, 0, 0, 0, 0, 0])
    with pytest.raises(UnsupportedModelError, match="mode=reflect cannot pad 6 pixels by 11 and 0"):
        load_proto("m", model([node("Pad", "x pads", mode="reflect")], {"pads": pads}))
    with pytest.raises(UnsupportedModelError, match="negative size"):
        load_proto("m", model([node("Pad", "x pads")], {"pads": -pads}, infer=False))
    channels = np.array([0, 1, 0, 0, 0, 0, 0, 0])
    with pytest.raises(UnsupportedModelError, match="only H and W"):
        load_proto("m", model([node("Pad", "x pads", mode="edge")], {"pads": channels}))
