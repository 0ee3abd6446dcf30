"""Layers that ONNX Runtime's integer kernels would compute wrong are computed as the file says."""

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from models.engines.saturation import pairs_saturate
from models.engines.unsigned import on_integers
from models.onnx_loader import load_proto
from models.session import session_options
from tests.support.models.quantized import run_node_by_node
from tests.support.models.reference import run_reference

STEP = 0.05  # of the results
# Numbers between two codes may be rounded to either of them.
ONE_STEP = 1.01 * STEP


def _between(
    nodes: list[NodeProto], shape: tuple[int, ...], opset: int = 17, **constants: Any
) -> ModelProto:
    """Return nodes between quantizers, which compute `c` from `xd`."""
    given = {
        "step": np.float32(0.03),
        "zero": np.uint8(128),
        "end": np.float32(STEP),
        **constants,
    }
    whole = [
        helper.make_node("QuantizeLinear", ["x", "step", "zero"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "step", "zero"], ["xd"]),
        *nodes,
        helper.make_node("QuantizeLinear", ["c", "end", "zero"], ["yq"]),
        helper.make_node("DequantizeLinear", ["yq", "end", "zero"], ["y"]),
    ]
    graph = helper.make_graph(
        whole,
        "layer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", *shape])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [numpy_helper.from_array(np.asarray(a), name) for name, a in given.items()],
    )
    opsets = [helper.make_opsetid("", opset)]
    ir_version = 10 if opset > 20 else 9
    model = helper.make_model(graph, opset_imports=opsets, ir_version=ir_version)
    return onnx.shape_inference.infer_shapes(model)


def _images(shape: tuple[int, ...]) -> NDArray[np.float32]:
    return np.random.default_rng(5).normal(0, 1.5, (3, *shape)).astype(np.float32)


def _check(model: ModelProto, shape: tuple[int, ...], folder: Path) -> set[str]:
    """Check that the served model has the numbers of the file, computed node by node. Return the
    operators that ONNX Runtime runs for the served model."""
    images = _images(shape)
    served = on_integers(model, pairs_saturate=pairs_saturate()).SerializeToString()
    options = session_options(served, 1)
    options.optimized_model_filepath = str(folder / "optimised.onnx")
    session = ort.InferenceSession(served, options, providers=["CPUExecutionProvider"])
    (y,) = session.run(None, {"x": images})
    expected = run_node_by_node(model, images)
    assert len(np.unique(expected)) > 6
    assert y.shape == expected.shape
    steps = np.abs(y - expected)
    assert steps.max() <= ONE_STEP
    return {node.op_type for node in onnx.load(folder / "optimised.onnx").graph.node}


def _check_kernels(model: ModelProto, shape: tuple[int, ...]) -> None:
    """Check that Convoy's typed nodes have the numbers of the file, too."""
    loaded = load_proto("layer", model)
    assert not loaded.no_kernels
    images = _images(shape)
    (typed,) = run_reference(loaded.graph, {"x": images}, np.float32).values()
    assert np.abs(typed - run_node_by_node(model, images)).max() <= ONE_STEP


def _filter(
    operator: str,
    size: tuple[int, ...],
    axis: int,
    shape: tuple[int, ...],
    bias: bool = False,
    **given: Any,
) -> ModelProto:
    rng = np.random.default_rng(6)
    count = size[axis]
    constants: dict[str, Any] = {
        "w": rng.integers(-127, 128, size).astype(np.int8),
        "ws": np.geomspace(0.0005, 0.005, count).astype(np.float32),
        "wz": np.zeros(count, np.int8),
    }
    if bias:
        constants["b"] = rng.normal(size=size[0]).astype(np.float32)
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wd"], axis=axis),
        helper.make_node(operator, ["xd", "wd", *["b"][:bias]], ["c"], **given),
    ]
    return _between(nodes, shape, **constants)


C = 6
IMAGE = (C, 5, 5)
FILTERS: dict[str, tuple[ModelProto, tuple[int, ...], bool]] = {
    "Conv": (_filter("Conv", (C, C, 3, 3), 0, IMAGE), IMAGE, True),
    "Conv, counted from the end": (_filter("Conv", (C, C, 3, 3), -4, IMAGE), IMAGE, True),
    "Conv of inputs": (_filter("Conv", (C, C, 3, 3), 1, IMAGE), IMAGE, False),
    "Conv of inputs, bias": (_filter("Conv", (C, C, 3, 3), 1, IMAGE, bias=True), IMAGE, False),
    "Conv of inputs, from the end": (_filter("Conv", (C, C, 3, 3), -3, IMAGE), IMAGE, False),
    "Conv of more outputs": (_filter("Conv", (8, C, 3, 3), 1, IMAGE), IMAGE, False),
    "Conv of taps": (_filter("Conv", (3, C, 3, 3), 2, IMAGE), IMAGE, False),
    "Conv of groups": (_filter("Conv", (3, 2, 3, 3), 1, IMAGE, group=3), IMAGE, False),
    "Conv of rows": (_filter("Conv", (C, C, 3), 1, (C, 9)), (C, 9), False),
    "ConvTranspose": (_filter("ConvTranspose", (C, C, 3, 3), 0, IMAGE), IMAGE, False),
    "MatMul": (_filter("MatMul", (C, C), 1, (C,)), (C,), True),
    "MatMul of inputs": (_filter("MatMul", (C, C), 0, (C,)), (C,), False),
    "MatMul of tokens": (_filter("MatMul", (C, C), 1, (5, C)), (5, C), True),
    "MatMul of tokens' inputs": (_filter("MatMul", (C, C), 0, (5, C)), (5, C), False),
    "MatMul of matrices": (_filter("MatMul", (4, C, C), 2, (4, 5, C)), (4, 5, C), False),
    "MatMul of matrices' inputs": (_filter("MatMul", (4, C, C), 1, (4, 5, C)), (4, 5, C), False),
    "Gemm": (_filter("Gemm", (C, C), 1, (C,)), (C,), True),
    "Gemm of inputs": (_filter("Gemm", (C, C), 0, (C,)), (C,), False),
    "Gemm of inputs, bias": (_filter("Gemm", (C, C), 0, (C,), bias=True), (C,), False),
    "Gemm, transposed": (_filter("Gemm", (C, C), 0, (C,), transB=1), (C,), True),
    "Gemm of inputs, transposed": (_filter("Gemm", (C, C), 1, (C,), transB=1), (C,), False),
}
ON_INTEGERS = {"QLinearConv", "QLinearMatMul", "QGemm"}


@pytest.mark.parametrize("name", FILTERS)
def test_scales_of_a_filter_count_along_their_own_axis(name: str, tmp_path: Path) -> None:
    model, shape, integers = FILTERS[name]
    found = _check(model, shape, tmp_path)
    assert bool(found & ON_INTEGERS) == integers
    assert ("DequantizeLinear" in found) or integers


@pytest.mark.parametrize("name", ["Conv of inputs", "Conv of groups"])
def test_kernels_know_the_axis_of_scales(name: str) -> None:
    model, shape, _ = FILTERS[name]
    _check_kernels(model, shape)


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("operator", ["Gemm", "MatMul"])
def test_scales_are_followed_through_a_transpose(operator: str, axis: int, tmp_path: Path) -> None:
    model = _filter(operator, (C, C), axis, (C,))
    nodes = model.graph.node
    nodes[3].input[1] = "turned"
    nodes.insert(3, helper.make_node("Transpose", ["wd"], ["turned"], perm=[1, 0]))
    assert bool(_check(model, (C,), tmp_path) & ON_INTEGERS) == (axis == 0)


def test_scales_of_constant_nodes_and_of_branches_count_too(tmp_path: Path) -> None:
    model = _filter("MatMul", (C, C), 0, (C,))
    graph = model.graph
    (weights,) = (tensor for tensor in graph.initializer if tensor.name == "w")
    graph.initializer.remove(weights)
    graph.node.insert(0, helper.make_node("Constant", [], ["w"], value=weights))
    assert not _check(model, (C,), tmp_path) & ON_INTEGERS
    inner = list(graph.node)
    del graph.node[:], graph.value_info[:]
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    result = helper.make_tensor_value_info("z", TensorProto.FLOAT, None)
    branch = helper.make_graph(inner, "branch", [], [y])
    sides = {"then_branch": branch, "else_branch": branch}
    graph.node.extend(
        [
            helper.make_node("ReduceSum", ["x"], ["sum"], keepdims=0),
            helper.make_node("Cast", ["sum"], ["some"], to=TensorProto.BOOL),
            helper.make_node("If", ["some"], ["z"], **sides),
        ]
    )
    graph.output[0].CopyFrom(result)
    assert "If" in _check(model, (C,), tmp_path)


ALONE = ["AveragePool", "GlobalAveragePool", "LeakyRelu", "Sigmoid", "Softmax"]


def _node(operator: str, operands: list[str], result: str) -> NodeProto:
    given: dict[str, Any] = {"axis": 1} if operator == "Concat" else {}
    given |= {"kernel_shape": [2, 2]} if operator == "AveragePool" else {}
    condition = ["mask"] if operator == "Where" else []
    return helper.make_node(operator, [*condition, *operands], [result], **given)


MASK = np.eye(C, dtype=bool)


@pytest.mark.parametrize("operator", ["Add", "Concat", "MatMul", "Mul", "Where", *ALONE])
def test_scales_of_a_computed_operand_are_kept(operator: str, tmp_path: Path) -> None:
    """ONNX Runtime cannot open these models, fails when it runs them, or uses the first scale."""
    shape = (4, C, C)
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "ws", "wz"], ["w"], axis=3),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wd"], axis=3),
        _node(operator, ["wd"] if operator in ALONE else ["xd", "wd"], "c"),
    ]
    scales = np.geomspace(0.02, 0.05, C).astype(np.float32)
    model = _between(nodes, shape, ws=scales, wz=np.full(C, 128, np.uint8), mask=MASK)
    assert operator in _check(model, shape, tmp_path)


@pytest.mark.parametrize("operator", ["Add", "MatMul", "Where", *ALONE])
def test_scales_of_a_result_are_kept(operator: str, tmp_path: Path) -> None:
    shape = (4, C, C)
    count = {"AveragePool": C - 1, "GlobalAveragePool": 1}.get(operator, C)
    nodes = [
        _node(operator, ["xd"] if operator in ALONE else ["xd", "xd"], "r"),
        helper.make_node("QuantizeLinear", ["r", "ws", "wz"], ["w"], axis=3),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["c"], axis=3),
    ]
    scales = np.geomspace(0.02, 0.05, count).astype(np.float32)
    model = _between(nodes, shape, ws=scales, wz=np.full(count, 128, np.uint8), mask=MASK)
    found = _check(model, shape, tmp_path)
    assert operator in found or count == 1


BIASES: dict[str, dict[str, Any]] = {
    "the product": {"bs": np.float32(0.03 * 0.01)},
    "twice the product": {"bs": np.float32(2 * 0.03 * 0.01)},
    "a scale per channel": {"bs": np.geomspace(1e-4, 1e-3, C).astype(np.float32)},
    "a zero point": {"bs": np.float32(0.03 * 0.01), "bz": np.int32(2000)},
    "a scale of 0": {"bs": np.float32(0)},
}


@pytest.mark.parametrize("channels", [False, True], ids=["a filter", "a filter per channel"])
@pytest.mark.parametrize("name", BIASES)
def test_the_scale_of_a_bias_counts(name: str, channels: bool, tmp_path: Path) -> None:
    """quantize_static multiplies the scale by beta, and ONNX Runtime does not read it."""
    given = BIASES[name]
    rng = np.random.default_rng(7)
    parts = ["b", *given]
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wd"], axis=0),
        helper.make_node("DequantizeLinear", parts, ["bd"], axis=0),
        helper.make_node("Gemm", ["xd", "wd", "bd"], ["c"], transB=1),
    ]
    scales = np.float32(0.01) * np.linspace(1, 2, C).astype(np.float32)
    model = _between(
        nodes,
        (C,),
        w=rng.integers(-60, 61, (C, C)).astype(np.int8),
        ws=scales if channels else np.float32(0.01),
        wz=np.zeros(C if channels else (), np.int8),
        b=rng.integers(-5000, 5000, C).astype(np.int32),
        **given,
    )
    assert "QGemm" in _check(model, (C,), tmp_path)


@pytest.mark.parametrize("form", ["floats", "integers"])
def test_a_bias_with_a_number_a_row_stays_in_float(form: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["wd"], axis=0),
        helper.make_node("DequantizeLinear", ["q", "qs"], ["bd"]),
        helper.make_node("Gemm", ["xd", "wd", "b" if form == "floats" else "bd"], ["c"], transB=1),
    ]
    model = _between(
        nodes,
        (C,),
        w=rng.integers(-60, 61, (3, C)).astype(np.int8),
        ws=np.float32(0.01),
        wz=np.int8(0),
        b=rng.normal(size=(3, 1)).astype(np.float32),
        q=rng.integers(-99, 99, (3, 1)).astype(np.int32),
        qs=np.float32(0.02),
    )
    assert "Gemm" in _check(model, (C,), tmp_path)


def test_a_bias_of_a_gemm_may_be_a_matrix_of_one_row(tmp_path: Path) -> None:
    model = _filter("Gemm", (C, C), 1, (C,), bias=True)
    (bias,) = (tensor for tensor in model.graph.initializer if tensor.name == "b")
    bias.dims[:] = [1, C]
    assert "QGemm" in _check(model, (C,), tmp_path)


SMALL = (4, 6, 6)
WINDOW: dict[str, Any] = {"kernel_shape": [3, 3], "strides": [2, 2]}
POOLS: dict[str, tuple[dict[str, Any], tuple[int, ...], bool]] = {
    "plain": (WINDOW, SMALL, True),
    "padded": ({**WINDOW, "pads": [1] * 4, "count_include_pad": 1}, SMALL, True),
    "ceil": ({**WINDOW, "ceil_mode": 1}, SMALL, True),
    "ceil, padded": ({**WINDOW, "ceil_mode": 1, "count_include_pad": 1}, SMALL, False),
    "ceil, padded more": (
        {**WINDOW, "pads": [1] * 4, "ceil_mode": 1, "count_include_pad": 1},
        SMALL,
        False,
    ),
    "ceil, padded at the ends": (
        {**WINDOW, "pads": [0, 0, 1, 1], "ceil_mode": 1, "count_include_pad": 1},
        SMALL,
        True,
    ),
    "ceil, padded, one axis too long": (
        {**WINDOW, "pads": [0, 0, 1, 0], "ceil_mode": 1, "count_include_pad": 1},
        SMALL,
        False,
    ),
    "ceil, same": (
        {**WINDOW, "auto_pad": "SAME_UPPER", "ceil_mode": 1, "count_include_pad": 1},
        SMALL,
        True,
    ),
    "ceil, valid": (
        {**WINDOW, "auto_pad": "VALID", "ceil_mode": 1, "count_include_pad": 1},
        SMALL,
        False,
    ),
    "ceil, a row": (
        {"kernel_shape": [3], "strides": [2], "ceil_mode": 1, "count_include_pad": 1},
        (4, 8),
        False,
    ),
    "ceil, a clip": (
        {"kernel_shape": [3] * 3, "strides": [2] * 3, "ceil_mode": 1, "count_include_pad": 1},
        (2, 6, 6, 6),
        False,
    ),
    "dilations": ({"kernel_shape": [2, 2], "dilations": [2, 2]}, SMALL, False),
    "dilations of 1": ({"kernel_shape": [2, 2], "dilations": [1, 1]}, SMALL, True),
}


@pytest.mark.parametrize("name", POOLS)
def test_an_average_counts_the_positions_of_its_window(name: str, tmp_path: Path) -> None:
    given, shape, integers = POOLS[name]
    opset = 19 if "dilations" in given else 17
    model = _between([helper.make_node("AveragePool", ["xd"], ["c"], **given)], shape, opset)
    assert ("QLinearAveragePool" in _check(model, shape, tmp_path)) == integers
    if "same" not in name:
        _check_kernels(model, shape)


def test_an_average_of_an_unknown_size_stays_in_float(tmp_path: Path) -> None:
    given, shape, _ = POOLS["ceil, padded at the ends"]
    model = _between([helper.make_node("AveragePool", ["xd"], ["c"], **given)], shape)
    del model.graph.value_info[:]
    assert "AveragePool" in _check(model, shape, tmp_path)


@pytest.mark.parametrize("ahead", ["", "Flatten", "Reshape"])
@pytest.mark.parametrize("scales", [1, 8], ids=["a tensor", "a column"])
@pytest.mark.parametrize("product", ["Gemm", "MatMul"])
def test_what_weights_multiply_is_not_rounded(
    product: str, scales: int, ahead: str, tmp_path: Path
) -> None:
    """Check a product of floats with weights that are stored in 8 bits.

    If a Reshape is ahead, the other operand is quantized, too, so the product is one of integers.
    """
    rng = np.random.default_rng(7)
    constants: dict[str, NDArray[Any]] = {
        "w": rng.integers(-128, 128, (32, 8)).astype(np.int8),
        "scale": rng.uniform(0.01, 0.02, scales).astype(np.float32),
        "zeros": np.zeros(scales, np.int8),
        "step": np.array(0.03, np.float32),
        "zero": np.array(128, np.uint8),
        "shape": np.array([-1, 32]),
    }
    if scales == 1:
        constants |= {name: constants[name].reshape(()) for name in ("scale", "zeros")}
    nodes = [helper.make_node("Relu", ["x"], ["r"])]
    if ahead:
        nodes += [
            helper.make_node("QuantizeLinear", ["r", "step", "zero"], ["q"]),
            helper.make_node("DequantizeLinear", ["q", "step", "zero"], ["d"]),
            helper.make_node(ahead, ["d", "shape"][: 1 + (ahead == "Reshape")], ["f"]),
        ]
    nodes += [
        helper.make_node("DequantizeLinear", ["w", "scale", "zeros"], ["floats"], axis=1),
        helper.make_node(product, ["f" if ahead else "r", "floats"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "weights",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 32])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 8])],
        [numpy_helper.from_array(array, name) for name, array in constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    data = on_integers(model).SerializeToString()
    options = session_options(data, 1)
    options.optimized_model_filepath = str(tmp_path / "optimised.onnx")
    session = ort.InferenceSession(data, options, providers=["CPUExecutionProvider"])
    x = rng.normal(size=(3, 32)).astype(np.float32)
    expected = run_node_by_node(model, x)
    assert np.abs(session.run(None, {"x": x})[0] - expected).max() < 1e-5 * np.abs(expected).max()
    used = {node.op_type for node in onnx.load(tmp_path / "optimised.onnx").graph.node}
    assert bool(used & {"QGemm", "MatMulIntegerToFloat"}) == (ahead == "Reshape")
