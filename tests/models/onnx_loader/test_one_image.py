"""If a model merges the batch with other axes, the batch gets its own axis."""

import numpy as np
import onnx
import pytest

from models.errors import NoKernelsError
from models.onnx_loader import load_proto
from tests.support.models.attention import SIZE, attention
from tests.support.models.onnx_chains import Weights, assert_same_at_every_n, model, node, noise

IMAGE = (4, 6, 6)


def windowed(*inside: onnx.NodeProto, **weights: np.ndarray) -> onnx.ModelProto:
    """Return a chain with 4 windows of 3×3 pixels, as Swin cuts them: from w, 4×9×4, to z."""
    numbers: Weights = {
        "cut": np.array([1, 2, 3, 2, 3, 4]),
        "windows": np.array([4, 9, 4]),
        "joined": np.array([1, 2, 2, 3, 3, 4]),
        "whole": np.array([1, 6, 6, 4]),
    }
    nodes = [
        node("Transpose", "x", "last", perm=[0, 2, 3, 1]),
        node("Reshape", "last cut", "apart"),
        node("Transpose", "apart", "turned", perm=[0, 1, 3, 2, 4, 5]),
        node("Reshape", "turned windows", "w"),
        *inside,
        node("Reshape", "z joined", "back"),
        node("Transpose", "back", "beside", perm=[0, 1, 3, 2, 4, 5]),
        node("Reshape", "beside whole"),
    ]
    return model(nodes, numbers | weights, opset=18)


ROW, MATRIX = np.array([9 * 4, 4]), noise(4, 4)
INSIDE: dict[str, tuple[list[onnx.NodeProto], dict[str, np.ndarray]]] = {
    "attention": (
        [
            node("Transpose", "w", "k", perm=[0, 2, 1]),
            node("MatMul", "w k", "scores"),
            node("Add", "scores b", "biased"),
            node("Softmax", "biased", "shares", axis=2),
            node("MatMul", "shares w", "z"),
        ],
        {"b": noise(4, 9, 9)},
    ),
    "a layer, normalised": (
        [
            node("LayerNormalization", "w s t", "n", axis=-1),
            node("MatMul", "n m", "l"),
            node("Add", "l t", "z"),
        ],
        {"s": noise(4), "t": noise(4), "m": MATRIX},
    ),
    "rows of all windows, as LeViT normalises them": (
        [
            node("Reshape", "w row", "r"),
            node("Gemm", "r m", "l", transB=1),
            node("BatchNormalization", "l s t t v", "n"),
            node("Reshape", "n windows", "z"),
        ],
        {"row": ROW, "m": MATRIX, "s": noise(4), "t": noise(4), "v": noise(4) ** 2 + 0.5},
    ),
    "halves, joined the other way round": (
        [
            node("Slice", "w from to axis", "second"),
            node("Slice", "w nought from axis", "head"),
            node("Concat", "second head", "z", axis=0),
        ],
        {
            "from": np.array([1]),
            "to": np.array([4]),
            "axis": np.array([0]),
            "nought": np.array([0]),
        },
    ),
    "one number for all windows": (
        [node("ReduceMax", "w", "m", keepdims=0), node("Sub", "w m", "z")],
        {},
    ),
    "the mean of all windows": (
        [node("ReduceMean", "w axis", "m", keepdims=1), node("Sub", "w m", "z")],
        {"axis": np.array([0])},
    ),
    "one window, added to all": (
        [node("Gather", "w one", "first", axis=0), node("Add", "w first", "z")],
        {"one": np.array(1)},
    ),
}


@pytest.mark.parametrize("name", INSIDE)
def test_windows_are_parts_of_one_image(name: str) -> None:
    nodes, weights = INSIDE[name]
    proto = windowed(*nodes, **weights)
    assert_same_at_every_n(proto, load_proto("windows", proto))


def test_queries_keys_and_values_come_apart_along_axis_0() -> None:
    proto = attention()
    assert_same_at_every_n(proto, load_proto("vit", proto), (3, SIZE, SIZE))


def test_a_convolution_of_windows_is_refused_by_its_name() -> None:
    nodes = [
        node("Transpose", "w", "t", perm=[0, 2, 1]),
        node("Conv", "t f", "c"),
        node("Transpose", "c", "z", perm=[0, 2, 1]),
    ]
    with pytest.raises(NoKernelsError, match="Conv Conv_c cannot have an axis for the batch"):
        load_proto("windows", windowed(*nodes, f=noise(4, 4, 1)))


def test_a_matrix_of_images_is_not_turned() -> None:
    """This would mix the images of a batch."""
    nodes = [
        node("Flatten", "x", "f"),
        node("Transpose", "f", "t", perm=[1, 0]),
        node("MatMul", "f t", "y"),
    ]
    with pytest.raises(NoKernelsError, match="moves axis 0, the batch, which must stay"):
        load_proto("pairs", model(nodes))
