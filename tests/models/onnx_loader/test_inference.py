"""Models in training mode, with random operators or with weights that are not finite are refused,
with a remedy."""

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from models import UnsupportedModelError
from models.onnx_loader import load_proto
from tests.support.models.onnx_chains import model, node, noise

STATISTICS = {"s": noise(4), "b": noise(4), "m": noise(4), "v": noise(4) ** 2 + 0.5}


def batch_norm(outputs: str, opset: int, **attributes: Any) -> onnx.ModelProto:
    inputs = ["x", "s", "b", "m", "v"]
    norm = helper.make_node("BatchNormalization", inputs, outputs.split(), "bn", **attributes)
    return model([norm], STATISTICS, ("N", 4, 6, 6), opset, infer=False)


def dropout(ratio: float, training: bool) -> onnx.ModelProto:
    weights = {"r": np.array(ratio, np.float32), "t": np.array(training)}
    nodes = [node("Dropout", "x r t", "d"), node("Relu", "d")]
    return model(nodes, weights, ("N", 4, 6, 6), 17, infer=False)


def stochastic_depth(maker: str) -> onnx.ModelProto:
    """Return a network with a randomly skipped block, as in timm's and torchvision's training."""
    nodes = [
        helper.make_node(maker, ["x"], ["u"], name="the_dice"),
        node("Floor", "u", "kept"),
        node("Mul", "x kept", "y"),
    ]
    return model(nodes, {}, ("N", 4, 6, 6), 17, infer=False)


TRAINING = {
    "by its attribute": batch_norm("y m2 v2", 15, training_mode=1),
    "by its attribute, newer": batch_norm("y m2 v2", 22, training_mode=1),
    "by its outputs": batch_norm("y m2 v2 sm sv", 9),
    "Dropout": dropout(0.5, True),
    "RandomUniformLike": stochastic_depth("RandomUniformLike"),
    "RandomNormalLike": stochastic_depth("RandomNormalLike"),
    "Bernoulli": stochastic_depth("Bernoulli"),
}


@pytest.mark.parametrize("proto", TRAINING.values(), ids=TRAINING)
@pytest.mark.parametrize("opaque", [False, True])
def test_a_model_in_training_mode_is_refused_on_every_engine(
    proto: onnx.ModelProto, opaque: bool
) -> None:
    with pytest.raises(UnsupportedModelError, match=r"call model\.eval\(\) first") as caught:
        load_proto("m", proto, opaque=opaque)
    first, *_ = (each for each in proto.graph.node if each.op_type not in ("Floor", "Mul"))
    assert f"{first.op_type} {first.name} " in str(caught.value)


@pytest.mark.parametrize("proto", [dropout(0.5, False), dropout(0.0, True), batch_norm("y", 9)])
def test_inference_is_loaded(proto: onnx.ModelProto) -> None:
    assert load_proto("m", proto).proto.graph.node


def layer(op: str, first: float) -> onnx.ModelProto:
    weight = noise(8, 5) if op == "MatMul" else noise(5, 8)
    weight[0, 0] = first
    return model([node(op, "x w", "y", **({"transB": 1} if op == "Gemm" else {}))], {"w": weight},
                 (1, 8))  # fmt: skip


@pytest.mark.parametrize("op", ["Gemm", "MatMul"])
@pytest.mark.parametrize(
    ("number", "says"),
    [(np.nan, "1 of its 40 numbers are NaN"), (-np.inf, "1 of its 40 are infinite")],
)
def test_weights_that_are_no_numbers_are_refused(op: str, number: float, says: str) -> None:
    with pytest.raises(UnsupportedModelError, match=f"the weight w of {op} .*: {says}"):
        load_proto("m", layer(op, number))


def test_a_variance_below_0_is_refused_once_it_is_folded() -> None:
    nodes = [node("Conv", "x w", "c"), node("BatchNormalization", "c s b m v")]
    weights = {"w": noise(4, 4, 1, 1)} | STATISTICS | {"v": np.full(4, -1, np.float32)}
    with pytest.raises(UnsupportedModelError, match="are NaN"):
        load_proto("m", model(nodes, weights, ("N", 4, 6, 6)))


def test_infinite_bounds_and_masks_are_no_weights() -> None:
    mask = np.where(np.eye(6, dtype=bool), np.float32(0), np.float32(-np.inf))
    nodes = [node("Add", "x mask", "a"), node("Clip", "a low high")]
    limits = {"low": np.array(-np.inf, np.float32), "high": np.array(np.inf, np.float32)}
    loaded = load_proto("m", model(nodes, {"mask": mask} | limits, ("N", 4, 6, 6)))
    assert loaded.graph.nodes
