"""Creates chains of ONNX nodes in the form in which exporters write them. Checks the results of
loaded chains."""

from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from models.onnx_loader import LoadedModel
from tests.support.models.reference import run_reference
from tests.support.onnx_models import run_onnxruntime

RNG = np.random.default_rng(7)
Weights = dict[str, NDArray[Any]]


def noise(*shape: int) -> NDArray[np.float32]:
    return RNG.normal(0, 1, shape).astype(np.float32)


def model(
    nodes: list[onnx.NodeProto],
    weights: Weights | None = None,
    shape: tuple[int | str, ...] = (1, 4, 6, 6),
    opset: int = 17,
    element: int = TensorProto.FLOAT,
    infer: bool = True,
) -> onnx.ModelProto:
    """Return a chain of nodes from x to y, as an exporter would write it."""
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", element, shape)],
        [helper.make_empty_tensor_value_info("y")],
        [numpy_helper.from_array(array, name) for name, array in (weights or {}).items()],
    )
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return onnx.shape_inference.infer_shapes(proto) if infer else proto


def node(op: str, inputs: str, output: str = "y", **attributes: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), [output], name=f"{op}_{output}", **attributes)


def assert_same_at_every_n(
    original: onnx.ModelProto, loaded: LoadedModel, image: tuple[int, ...] = (4, 6, 6)
) -> None:
    """Check that a batch has the same results as its images alone. The original model computes each
    image alone. The loaded graph and the loaded ONNX model compute all images in one batch."""
    images = noise(5, *image)
    alone = [run_onnxruntime(original, {"x": images[i : i + 1]})["y"] for i in range(5)]
    expected = np.concatenate(alone)
    normal = run_onnxruntime(loaded.proto, {"x": images})
    (typed,) = run_reference(loaded.graph, {"x": images}).values()
    np.testing.assert_allclose(next(iter(normal.values())), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(typed, expected, rtol=1e-5, atol=1e-5)
