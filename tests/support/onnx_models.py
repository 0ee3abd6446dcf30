"""Builds small ONNX models, and runs them with ONNX Runtime."""

from collections.abc import Mapping
from typing import Any

import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import helper, numpy_helper

Tensors = Mapping[str, NDArray[Any]]


def single_node(
    op: str,
    inputs: Tensors,
    attributes: Mapping[str, Any] | None = None,
    opset: int = 22,
    *,
    weights: Tensors | None = None,
    outputs: tuple[str, ...] = ("y",),
) -> onnx.ModelProto:
    """Return a model with one node `op`. The node reads the `inputs` in order, and then the
    `weights` (initialisers)."""
    weights = weights or {}
    node = helper.make_node(op, [*inputs, *weights], list(outputs), name=op, **(attributes or {}))
    graph = helper.make_graph(
        [node],
        f"one_{op}",
        [
            helper.make_tensor_value_info(
                name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape
            )
            for name, array in inputs.items()
        ],
        [helper.make_empty_tensor_value_info(name) for name in outputs],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    opsets = [helper.make_opsetid("", opset)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return onnx.shape_inference.infer_shapes(model, check_type=True, strict_mode=True)


def run_onnxruntime(model: onnx.ModelProto, inputs: Tensors) -> dict[str, NDArray[Any]]:
    """Return every output by name. ONNX Runtime computes node by node on the CPU, with one
    thread."""
    session = onnxruntime_session(model)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))


def onnxruntime_session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    """Return a session that runs the model unchanged, node by node, with one thread."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )


def onnxruntime_answer(
    op: str, inputs: Tensors, opset: int = 22, *, weights: Tensors | None = None, **attributes: Any
) -> NDArray[Any]:
    """Return the result that ONNX Runtime computes for a model with one node and one output."""
    model = single_node(op, inputs, attributes, opset, weights=weights)
    return run_onnxruntime(model, inputs)["y"]
