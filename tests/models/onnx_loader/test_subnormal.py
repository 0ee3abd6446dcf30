"""Subnormal weights become 0, wherever they come from."""

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, numpy_helper

from models.onnx_loader import load_proto
from tests.support.models.onnx_chains import model, node, noise

TINY = float(np.finfo(np.float32).tiny)


def weights_of(proto: onnx.ModelProto) -> list[NDArray[np.float32]]:
    arrays = [numpy_helper.to_array(tensor) for tensor in proto.graph.initializer]
    constants = (each for each in proto.graph.node if each.op_type == "Constant")
    arrays += [numpy_helper.to_array(each.attribute[0].t) for each in constants]
    return [array for array in arrays if array.dtype == np.float32]


def subnormal(array: NDArray[np.float32]) -> bool:
    return bool(((array != 0) & (np.abs(array) < TINY)).any())


def dead(weight: NDArray[np.float32]) -> NDArray[np.float32]:
    """Some filters decayed to almost nothing during training."""
    weight[0] = 1e-40
    weight[1, 0] = -TINY / 2
    weight[2, 0] = TINY
    return weight


@pytest.mark.parametrize("served_as_it_is", [False, True])
def test_subnormal_weights_are_0_in_what_is_served(served_as_it_is: bool) -> None:
    weight = dead(noise(5, 4, 3, 3))
    nodes = [node("Conv", "x w", "c"), node("Sin" if served_as_it_is else "Relu", "c")]
    loaded = load_proto("m", model(nodes, {"w": weight}, opset=20), opaque=True)
    assert bool(loaded.no_kernels) is served_as_it_is
    (served,) = weights_of(loaded.proto)
    normal = np.where(np.abs(weight) < TINY, 0, weight)
    np.testing.assert_array_equal(served, normal)
    for array in loaded.graph.weights.values():
        assert not subnormal(array)


def test_what_folding_makes_subnormal_is_0_too() -> None:
    small = np.full(5, 1e-20, np.float32)
    nodes = [node("Conv", "x w", "c"), node("BatchNormalization", "c s b m v")]
    weights = {"w": noise(5, 4, 3, 3) * np.float32(1e-20), "s": small, "b": noise(5)}
    weights |= {"m": np.zeros(5, np.float32), "v": np.ones(5, np.float32)}
    loaded = load_proto("m", model(nodes, weights))
    assert [each.op_type for each in loaded.proto.graph.node] == ["Conv"]
    assert not any(map(subnormal, weights_of(loaded.proto)))
    assert any((array == 0).all() for array in weights_of(loaded.proto))


def test_numbers_that_are_subnormal_in_float16_stay() -> None:
    weight = noise(5, 4, 3, 3).astype(np.float16)
    weight[0] = np.float16(1e-6)
    original = model([node("Conv", "x w")], {"w": weight}, element=TensorProto.FLOAT16)
    (served,) = weights_of(load_proto("m", original).proto)
    np.testing.assert_array_equal(served, weight.astype(np.float32))
