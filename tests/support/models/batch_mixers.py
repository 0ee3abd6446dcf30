"""Creates classifiers in which an image's scores depend on the other images of its batch."""

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from tests.support.models.onnx_chains import Weights, node, noise

SIZE, CLASSES = 8, 5

# Nodes from the logits z, N×5, to the scores y, and their constants by name.
_ENDS: Mapping[str, tuple[list[onnx.NodeProto], Weights]] = {
    # The loader refuses such a Softmax as the last node.
    "softmax": (
        [node("Softmax", "z", "shares", axis=0), node("MatMul", "shares turned")],
        {"turned": noise(CLASSES, CLASSES)},
    ),
    "mean": (
        [node("ReduceMean", "z zero", "mean"), node("Sub", "z mean")],
        {"zero": np.array([0])},
    ),
    "non-zero": (
        [
            node("Greater", "z nought", "over"),
            node("NonZero", "over", "places"),
            node("Shape", "places", "shape"),
            node("Gather", "shape one", "count"),
            node("Cast", "count", "number", to=TensorProto.FLOAT),
            node("Div", "z number"),
        ],
        {"nought": np.array(0, np.float32), "one": np.array([1])},
    ),
    "gather": (
        [node("Gather", "z first", "head", axis=0), node("Add", "z head")],
        {"first": np.array([0])},
    ),
    "running sum": ([node("CumSum", "z zero")], {"zero": np.array(0)}),
    "product": (
        [
            node("Transpose", "z", "t", perm=[1, 0]),
            node("MatMul", "z t", "pairs"),
            node("MatMul", "pairs z"),
        ],
        {},
    ),
}

MIXERS = tuple(_ENDS)


def mixer(name: str) -> onnx.ModelProto:
    """Return a linear classifier of grey images, for any N. Its last nodes mix the images of the
    batch."""
    end, weights = _ENDS[name]
    constants = weights | {"w": noise(SIZE * SIZE, CLASSES)}
    graph = helper.make_graph(
        [node("Flatten", "x", "f"), node("MatMul", "f w", "z"), *end],
        name,
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ("N", 1, SIZE, SIZE))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ("N", CLASSES))],
        [numpy_helper.from_array(array, key) for key, array in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
