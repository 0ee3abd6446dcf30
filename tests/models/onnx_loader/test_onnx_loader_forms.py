"""The typed graph and the ONNX model that the loader makes compute the same; otherwise it
refuses."""

import numpy as np
import pytest
from onnx import parser

from models.errors import NoKernelsError, UnsupportedModelError
from models.onnx_loader import LoadedModel, load_proto
from tests.support.models.reference import run_reference
from tests.support.onnx_models import run_onnxruntime
from tests.support.tolerance import EPS32, assert_within


def load(
    body: str, *, x: str = "float[N,4,3,3] x", y: str = "float y", opset: int = 24, ir: int = 10
) -> LoadedModel:
    text = f"""
        <ir_version: {ir}, opset_import: ["" : {opset}]>
        g ({x}) => ({y})
        <float[4,1,1] w = {{1, 2, 3, 4}}, float[1] v = {{2}}, float s = {{3}},
         int64[2] hw = {{2, 3}}, int64[2] wh = {{-1, -2}}, int64[4] wide = {{1, 1, 1, 1}}>
        {{ {body} }}"""
    model = parser.parse_model(text)
    for value in model.graph.output:  # the parser writes a scalar where no shape is given
        value.type.tensor_type.ClearField("shape")
    return load_proto("forms", model)


@pytest.mark.parametrize(
    "body",
    [
        "p = GlobalAveragePool(x) y = Sum(p, p, x)",
        "p = GlobalAveragePool(x) y = Sum(p, x, v, p)",
        "y = Sum(w, v, x)",
        "y = Sum(x)",
        "y = Mul(s, x)",
        "y = Swish(x)",
        "y = Swish<alpha = 1.702>(x)",
        "y = Swish<alpha = 0.0>(x)",
        "p = Swish(x) y = Sum(p, w)",
        "y = ReduceMean(x, hw)",
        "y = ReduceMean<keepdims = 0>(x, wh)",
        "y = Gather<axis = 1>(x, hw)",
        "y = Expand(x, wide)",
    ],
)
def test_both_forms_compute_the_same(body: str) -> None:
    loaded = load(body)
    x = np.random.default_rng(0).normal(size=(3, 4, 3, 3)).astype(np.float32)
    actual = run_reference(loaded.graph, {"x": x})["y"]
    # A mean of 9, then at most 3 sums, of numbers below 16.
    assert_within(actual, run_onnxruntime(loaded.proto, {"x": x})["y"], 16 * 16 * EPS32)


def test_one_number_an_image_meets_constants() -> None:
    # Tensors of one axis are all batch: an image's shape is () and so is what a constant leaves.
    loaded = load("p = Mul(x, s) q = Add(p, v) y = Relu(q)", x="float[N] x")
    x = np.array([-1.0, 0.5, 2.0], np.float32)
    assert run_reference(loaded.graph, {"x": x})["y"].tolist() == [0.0, 3.5, 8.0]


@pytest.mark.parametrize("ir", [8, 13, 14])
def test_the_onnx_form_has_an_ir_version_that_onnxruntime_reads(ir: int) -> None:
    loaded = load("y = Relu(x)", ir=ir)
    x = np.full((2, 4, 3, 3), -1.0, np.float32)
    assert not run_onnxruntime(loaded.proto, {"x": x})["y"].any()


@pytest.mark.parametrize("kind", ["int8", "uint8", "int32", "int64", "bool"])
def test_what_computes_on_other_types_than_floats_has_no_kernels(kind: str) -> None:
    with pytest.raises(NoKernelsError, match=r"a node reads the input x as "):
        load("y = Identity(x)", x=f"{kind}[N,4,3,3] x", y=f"{kind} y")


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("y, z = MaxPool<kernel_shape = [2, 2]>(x)", "the indices of MaxPool"),
        (
            "p = MaxPool<kernel_shape = [2, 2]>(x) y = Relu(p) q, z = Dropout(p)",
            "mask|the same for every image",
        ),
    ],
)
def test_a_second_output_is_refused_where_it_is_the_models(body: str, message: str) -> None:
    with pytest.raises(UnsupportedModelError, match=message):
        load(body, y="float y, int64 z")


@pytest.mark.parametrize("op", ["Sum", "Add"])
def test_broadcasting_that_moves_the_batch_axis_is_refused(op: str) -> None:
    with pytest.raises(UnsupportedModelError, match="move its batch axis"):
        load(f"p = GlobalAveragePool(x) q = Flatten(p) y = {op}(x, q)", x="float[N,4,4,4] x")


def test_a_quantized_model_lists_what_else_it_lacks() -> None:
    body = (
        "z = Cast<to = 2>(s) u = Det(x) q = QuantizeLinear(x, s, z) d = DequantizeLinear(q, s, z)"
        " r = Relu(d) y = Add(r, u)"
    )
    with pytest.raises(NoKernelsError, match="Det: the operator is not supported"):
        load(body)
