"""Operators between an integer convolution and its quantizer are folded into its scales."""

from collections import Counter
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from models.errors import UnsupportedModelError
from models.onnx_loader import load_proto
from tests.support.models.onnx_chains import node, noise
from tests.support.models.quantized import run_node_by_node

Arrays = dict[str, NDArray[Any]]
C = 8
RNG = np.random.default_rng(0)
FILTER = RNG.integers(-127, 128, (C, C, 3, 3)).astype(np.int8)
DEPTHWISE = RNG.integers(-127, 128, (C, 1, 3, 3)).astype(np.int8)
SCALES = np.linspace(0.001, 0.004, C).astype(np.float32)
BASE: Arrays = {
    "s": np.array(0.02, np.float32),
    "z": np.array(117, np.uint8),
    "w": FILTER,
    "ws": SCALES,
    "wz": np.zeros(C, np.int8),
    "b": RNG.normal(size=C).astype(np.float32),
}
NORM: Arrays = {
    "gamma": np.array([1, -1, 0, 0, 1e-7, -0.3, 1e-40, 2], np.float32),
    "beta": np.array([0.5, 0.1, 0.7, 0, 3, -1, 1, 0], np.float32),
    "mean": RNG.normal(size=C).astype(np.float32),
    "variance": RNG.uniform(0.5, 2, C).astype(np.float32),
}
BEGIN = [
    node("QuantizeLinear", "x s z", "q"),
    node("DequantizeLinear", "q s z", "d"),
    node("DequantizeLinear", "w ws wz", "f", axis=0),
]
CONV = node("Conv", "d f b", "c", pads=[1, 1, 1, 1])
BATCH_NORM = node("BatchNormalization", "c gamma beta mean variance", "n")


def model_of(nodes: list[onnx.NodeProto], constants: Arrays, output: str) -> onnx.ModelProto:
    used = {name for each in nodes for name in each.input}
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", C, 6, 6])],
        [helper.make_tensor_value_info(output, TensorProto.FLOAT, ["N", C, 6, 6])],
        [numpy_helper.from_array(a, name) for name, a in constants.items() if name in used],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def assert_same(found: onnx.ModelProto, model: onnx.ModelProto, atol: float) -> None:
    """Check that two models compute the same, node by node."""
    x = noise(2, C, 6, 6)
    expected = run_node_by_node(model, x)
    np.testing.assert_allclose(run_node_by_node(found, x), expected, rtol=0, atol=atol)


def operators(model: onnx.ModelProto) -> Counter[str]:
    return Counter(each.op_type for each in model.graph.node)


def scales_of(model: onnx.ModelProto) -> list[NDArray[np.float32]]:
    """Return the scales of the filters."""
    arrays = {t.name: numpy_helper.to_array(t) for t in model.graph.initializer}
    return [
        arrays[each.input[1]]
        for each in model.graph.node
        if each.op_type == "DequantizeLinear" and each.input[0] in arrays
    ]


@pytest.mark.parametrize("per_channel", [True, False], ids=["a channel", "a tensor"])
@pytest.mark.parametrize("bias", ["", " b"], ids=["no bias", "bias"])
def test_batch_norm_behind_a_convolution_is_folded_into_its_scales(
    per_channel: bool, bias: str
) -> None:
    """The test covers gammas below 0, equal to 0, and too small to count."""
    constants = BASE | NORM
    if not per_channel:
        constants |= {"ws": SCALES[3], "wz": np.array(0, np.int8)}
    conv = node("Conv", f"d f{bias}", "c", pads=[1, 1, 1, 1])
    model = model_of([*BEGIN, conv, BATCH_NORM], constants, "n")
    folded = load_proto("small", model).proto
    assert operators(folded)["BatchNormalization"] == 0
    (scales,) = scales_of(folded)
    assert scales.shape == (C,)
    assert (scales > 1e-20).all()
    x = noise(3, C, 6, 6)
    expected = run_node_by_node(model, x)
    np.testing.assert_allclose(run_node_by_node(folded, x), expected, rtol=1e-5, atol=1e-5)
    assert (expected.std(axis=(0, 2, 3))[[0, 1, 5, 7]] > 0.1).all()


def test_the_typed_graph_multiplies_the_folded_filter_as_integers() -> None:
    loaded = load_proto("small", model_of([*BEGIN, CONV, BATCH_NORM], BASE | NORM, "n"))
    (grid,) = loaded.graph.grids.values()
    kept, turned = FILTER[[0, 7]], -FILTER[[1, 5]].astype(int)
    np.testing.assert_array_equal(grid.numbers[[0, 7]], kept)
    np.testing.assert_array_equal(grid.numbers[[1, 5]], turned)
    assert not grid.numbers[[2, 3, 6]].any()


@pytest.mark.parametrize("kept", ["reader", "output", "ninth bit", "statistics"])
def test_batch_norm_that_is_no_such_factor_stays(kept: str) -> None:
    constants, nodes, output = BASE | NORM, [*BEGIN, CONV, BATCH_NORM], "n"
    if kept == "reader":
        nodes.append(node("Add", "n c", "y"))
        output = "y"
    elif kept == "output":
        output = "c"
        nodes.append(node("Relu", "n", "y"))
    elif kept == "ninth bit":
        constants["w"] = FILTER.copy()
        constants["w"][1, 0, 0, 0] = -128  # its gamma is below 0
    else:
        nodes[-1:] = [
            node("GlobalAveragePool", "x", "p"),
            node("ReduceMean", "p", "mean_", axes=[0, 2, 3], keepdims=0),
            node("BatchNormalization", "c gamma beta mean_ variance", "n"),
        ]
    model = model_of(nodes, constants, output)
    if kept == "output":
        model.graph.output.append(helper.make_tensor_value_info("y", 1, ["N", C, 6, 6]))
    loaded = load_proto("small", model, opaque=True)
    assert operators(loaded.proto)["BatchNormalization"] == 1
    x = noise(1, C, 6, 6)
    np.testing.assert_allclose(
        run_node_by_node(loaded.proto, x), run_node_by_node(model, x), rtol=1e-5, atol=1e-5
    )


def test_batch_norm_of_the_batch_is_refused_as_before() -> None:
    norm = node("BatchNormalization", "c gamma beta mean variance", "n", training_mode=1)
    with pytest.raises(UnsupportedModelError, match="is in training mode"):
        load_proto("small", model_of([*BEGIN, CONV, norm], BASE | NORM, "n"))


MANY = np.geomspace(0.005, 0.05, C).astype(np.float32)
"""The scales of an activation, one per channel."""


def shared(activation: str, constants: Arrays, kind: type = np.uint8) -> onnx.ModelProto:
    """Return a convolution, an activation, one scale per channel, and a depthwise convolution."""
    between = {
        "Relu": [node("Relu", "c", "r")],
        "Clip": [node("Clip", "c low high", "r")],
        "": [node("Identity", "c", "r")],
        "HardSwish": [node("HardSwish", "c", "r")],
    }[activation]
    nodes = [
        *BEGIN,
        CONV,
        *between,
        node("QuantizeLinear", "r many zeros", "rq", axis=1),
        node("DequantizeLinear", "rq many zeros", "rd", axis=1),
        node("DequantizeLinear", "dw ws wz", "df", axis=0),
        node("Conv", "rd df b", "y", group=C, pads=[1, 1, 1, 1]),
    ]
    extra: Arrays = {
        "many": MANY,
        "zeros": np.full(C, np.iinfo(kind).min, kind),
        "dw": DEPTHWISE,
        "low": np.array(0, np.float32),
        "high": np.array(255 * 0.05, np.float32),
    }
    return model_of(nodes, BASE | extra | constants, "y")


@pytest.mark.parametrize("kind", [np.uint8, np.int8])
@pytest.mark.parametrize("activation", ["Relu", "Clip", ""])
def test_scales_of_channels_become_one_beside_a_depthwise_convolution(
    activation: str, kind: type
) -> None:
    constants: Arrays = {} if activation else {"zeros": np.full(C, 64, kind)}
    model = shared(activation, constants, kind)
    loaded = load_proto("small", model)
    x = noise(3, C, 6, 6)
    np.testing.assert_allclose(
        run_node_by_node(loaded.proto, x), run_node_by_node(model, x), rtol=0, atol=1e-4
    )
    assert all(value.shape in {(C, 6, 6)} for value in loaded.graph.values.values())
    assert operators(loaded.proto)["Clip"] == 0
    (many,) = {
        numpy_helper.to_array(t).item()
        for t in loaded.proto.graph.initializer
        if t.name == "rq/scale"
    }
    assert many == np.float32(0.05)


def test_a_channel_that_was_always_0_keeps_its_range() -> None:
    """NNCF writes a dead channel like this, with int8 and zero point -128."""
    many, zeros = MANY.copy(), np.full(C, -128, np.int8)
    many[2], zeros[2] = 1e-5, 0
    model = shared("Relu", {"many": many, "zeros": zeros}, np.int8)
    loaded = load_proto("small", model)
    assert "rq/scale" in {t.name for t in loaded.proto.graph.initializer}
    x = noise(3, C, 6, 6)
    expected = run_node_by_node(model, x)
    np.testing.assert_allclose(run_node_by_node(loaded.proto, x), expected, rtol=0, atol=1e-4)
    assert expected[:, 2].std() > 1e-4  # its range is filled


@pytest.mark.parametrize("kept", ["zero points", "clip", "activation", "wide", "reader"])
def test_scales_of_channels_stay_where_one_would_mean_another_thing(kept: str) -> None:
    zeros = np.zeros(C, np.uint8)
    zeros[4] = 9
    constants: Arrays = {"zero points": {"zeros": zeros}, "wide": {"zeros": zeros}}.get(kept, {})
    if kept == "clip":
        constants = {"high": np.array(6, np.float32)}  # of 255 * 0.05
    activation = {"clip": "Clip", "activation": "HardSwish", "zero points": ""}.get(kept, "Relu")
    model = shared(activation, constants)
    if kept == "reader":
        model.graph.node[-1].output[0] = "depthwise"
        model.graph.node.append(node("Add", "depthwise rd", "y"))
    loaded = load_proto("small", model, opaque=True)
    assert not loaded.no_kernels
    assert "rq/factor" in {t.name for t in loaded.proto.graph.initializer}
    x = noise(2, C, 6, 6)
    np.testing.assert_allclose(
        run_node_by_node(loaded.proto, x), run_node_by_node(model, x), rtol=0, atol=1e-4
    )
