"""Bytes are moved in place of floats, so that convolutions read and write bytes."""

import numpy as np
import onnx
import pytest
from onnx import helper

from models.onnx_loader import load_proto
from tests.models.onnx_loader.test_integer_scales import (
    BASE,
    BEGIN,
    CONV,
    Arrays,
    C,
    model_of,
    operators,
)
from tests.support.models.onnx_chains import node, noise
from tests.support.models.quantized import run_node_by_node

POOL = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}
PADS: Arrays = {
    "pads": np.array([0, 0, 0, 1, 0, 0, 1, 0]),
    "half": np.array(np.float32(0.02) * np.float32(25)),
    "odd": np.array(0.013, np.float32),
}
LAST = [
    node("DequantizeLinear", "w ws wz", "g", axis=0),
    node("Conv", "m g b", "y", pads=[1, 1, 1, 1]),
]


def reads(model: onnx.ModelProto, operator: str) -> set[str]:
    """Return the operators that produce the first input of the nodes of one operator."""
    makers = {name: each.op_type for each in model.graph.node for name in each.output}
    return {makers.get(e.input[0], "") for e in model.graph.node if e.op_type == operator}


def loaded(nodes: list[onnx.NodeProto], output: str = "y", size: int = 6) -> onnx.ModelProto:
    """Return the normalised model, after checking that it computes the same, node by node and
    typed."""
    model = model_of(nodes, BASE | PADS, output)
    for axis in (2, 3):
        model.graph.output[0].type.tensor_type.shape.dim[axis].dim_value = size
    found = load_proto("small", model)
    x = noise(2, C, 6, 6)
    np.testing.assert_allclose(
        run_node_by_node(found.proto, x), run_node_by_node(model, x), rtol=0, atol=1e-5
    )
    return found.proto


@pytest.mark.parametrize(
    "move",
    [
        [node("MaxPool", "d", "m", **POOL)],
        [node("Transpose", "d", "m", perm=[0, 1, 3, 2])],
        [node("MaxPool", "d", "p", **POOL), node("Transpose", "p", "m", perm=[0, 1, 3, 2])],
    ],
    ids=["maximum", "transposition", "both"],
)
def test_what_only_moves_reads_bytes_so_that_the_convolution_does(
    move: list[onnx.NodeProto],
) -> None:
    proto = loaded([*BEGIN[:2], *move, *LAST])
    assert reads(proto, move[-1].op_type) <= {"QuantizeLinear", "MaxPool"}
    assert reads(proto, "Conv") == {"DequantizeLinear"}
    assert operators(proto)["DequantizeLinear"] == 2


def test_parts_that_are_quantized_alike_are_joined_as_bytes() -> None:
    half = helper.make_node("Split", ["x"], ["one", "two"], name="half", axis=1, num_outputs=2)
    nodes = [
        half,
        *(node("QuantizeLinear", f"{part} s z", f"{part}_q") for part in ("one", "two")),
        *(node("DequantizeLinear", f"{part}_q s z", f"{part}_d") for part in ("one", "two")),
        node("Concat", "two_d one_d", "m", axis=1),
        *LAST,
    ]
    model = model_of(nodes, BASE, "y")
    model.opset_import[0].version = 18
    proto = load_proto("small", model).proto
    assert reads(proto, "Concat") == {"QuantizeLinear"}
    x = noise(2, C, 6, 6)
    np.testing.assert_allclose(
        run_node_by_node(proto, x), run_node_by_node(model, x), rtol=0, atol=1e-5
    )


def test_parts_of_different_scales_stay_numbers() -> None:
    nodes = [
        *BEGIN[:2],
        node("QuantizeLinear", "x half z", "o"),
        node("DequantizeLinear", "o half z", "e"),
        node("Add", "d e", "sum"),
        node("Concat", "d e", "both", axis=2),
        node("MaxPool", "both", "m", kernel_shape=[2, 1], strides=[2, 1]),
        *LAST,
    ]
    proto = loaded([each for each in nodes if each.output[0] != "sum"])
    assert reads(proto, "Concat") == {"DequantizeLinear"}


def test_a_maximum_is_of_bytes_that_the_convolution_ahead_gives() -> None:
    """TensorRT's quantizer writes a quantizer only after the maximum."""
    nodes = [
        *BEGIN,
        CONV,
        node("Relu", "c", "r"),
        node("MaxPool", "r", "p", **POOL),
        node("QuantizeLinear", "p s z", "pq"),
        node("DequantizeLinear", "pq s z", "m"),
        *LAST,
    ]
    proto = loaded(nodes)
    assert reads(proto, "MaxPool") == {"QuantizeLinear"}
    assert reads(proto, "QuantizeLinear") == {"", "Relu"}
    nodes.append(node("Add", "y r", "z_"))
    assert reads(loaded(nodes, "z_"), "MaxPool") == {"Relu"}  # the numbers are read, too


@pytest.mark.parametrize("form", ["behind", "ahead", "bytes"])
def test_a_pad_with_the_zero_point_is_the_convolutions_own(form: str) -> None:
    quantize, dequantize = BEGIN[:2]
    pads = {
        "behind": [quantize, dequantize, node("Pad", "d pads", "m")],
        "ahead": [
            node("Pad", "x pads", "e"),
            node("QuantizeLinear", "e s z", "q"),
            node("DequantizeLinear", "q s z", "m"),
        ],
        "bytes": [
            quantize,
            node("Pad", "q pads z", "e"),
            node("DequantizeLinear", "e s z", "m"),
        ],
    }[form]
    proto = loaded([*pads, *LAST], size=7)
    assert operators(proto)["Pad"] == 0
    (conv,) = (each for each in proto.graph.node if each.op_type == "Conv")
    (found,) = (list(a.ints) for a in conv.attribute if a.name == "pads")
    assert found == [1, 2, 2, 1]
    assert reads(proto, "Conv") == {"DequantizeLinear"}


def test_a_pad_that_no_convolution_takes_moves_bytes() -> None:
    nodes = [
        *BEGIN[:2],
        node("Pad", "d pads", "e"),
        node("MaxPool", "e", "m", **POOL),
        *LAST,
    ]
    proto = loaded(nodes, size=7)
    assert reads(proto, "Pad") == {"QuantizeLinear"}
    assert reads(proto, "MaxPool") == {"Pad"}


@pytest.mark.parametrize(
    ("pads", "reader"),
    [
        ([*BEGIN[:2], node("Pad", "d pads half", "m")], "QuantizeLinear"),
        ([*BEGIN[:2], node("Pad", "d pads odd", "m")], "DequantizeLinear"),
        ([*BEGIN[:2], node("Pad", "d pads", "m", mode="edge")], "DequantizeLinear"),
        (
            [BEGIN[0], node("Pad", "q pads", "e"), node("DequantizeLinear", "e s z", "m")],
            "QuantizeLinear",
        ),
        (
            [
                BEGIN[0],
                node("Pad", "q pads", "e", mode="reflect"),
                node("DequantizeLinear", "e s z", "m"),
            ],
            "DequantizeLinear",
        ),
    ],
    ids=["a byte's number", "no byte's number", "the edge", "byte 0", "bytes reflected"],
)
def test_a_pad_with_another_number_is_not_the_convolutions(
    pads: list[onnx.NodeProto], reader: str
) -> None:
    proto = loaded([*pads, *LAST], size=7)
    assert operators(proto)["Pad"] == 1
    assert reads(proto, "Pad") == {reader}
