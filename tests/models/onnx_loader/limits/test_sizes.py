"""Numbers of constants and indices are counted exactly, each once per reader."""

import numpy as np
import onnx_ir as ir
import pytest

from models.errors import UnsupportedModelError
from models.onnx_loader.limits.bounds import FLAT_LIMIT
from models.onnx_loader.limits.sizes import check_flat, check_reads


def small_model(nodes: list[ir.Node], x: ir.Value) -> ir.Model:
    graph = ir.Graph([x], nodes[-1].outputs, nodes=nodes, opset_imports={"": 21}, name="g")
    return ir.Model(graph, ir_version=10)


def constant(name: str, array: np.ndarray) -> ir.Value:
    return ir.Value(name=name, const_value=ir.tensor(array))


def flat(*sizes: int, kind: ir.DataType = ir.DataType.INT64) -> ir.Model:
    x = ir.Value(name="x")
    nodes = [ir.node("Identity", [x]) for _ in sizes]
    for node, size in zip(nodes, sizes, strict=True):
        node.outputs[0].shape, node.outputs[0].type = ir.Shape([size]), ir.TensorType(kind)
    return small_model(nodes, x)


def test_flat_values_are_counted_together() -> None:
    check_flat(flat(FLAT_LIMIT - 1, 1))
    check_flat(flat(FLAT_LIMIT, 1, kind=ir.DataType.FLOAT))
    with pytest.raises(UnsupportedModelError, match="1,048,577 sizes and indices; at most 1,048,5"):
        check_flat(flat(FLAT_LIMIT - 1, 2))


def test_a_constant_counts_once_for_each_node_that_reads_it() -> None:
    x, w = ir.Value(name="x"), constant("w", np.ones(5, np.float32))
    first = ir.node("Add", [x, w])
    model = small_model([first, ir.node("Mul", [first.outputs[0], w])], x)
    check_reads(model, 10)
    with pytest.raises(UnsupportedModelError, match="nodes read 10 constant numbers"):
        check_reads(model, 9)


def test_what_is_dequantized_counts_at_its_readers_too() -> None:
    x, scale = ir.Value(name="x"), constant("s", np.ones((), np.float32))
    weight = ir.node("DequantizeLinear", [constant("w", np.ones(5, np.int8)), scale])
    model = small_model([weight, ir.node("Add", [x, weight.outputs[0]])], x)
    check_reads(model, 5 + 1 + 5)
    with pytest.raises(UnsupportedModelError, match="nodes read 11 constant numbers"):
        check_reads(model, 10)
