#!/usr/bin/env bash
# onnx 1.23.2: onnx.version_converter keeps the axis of a Softmax on its way from opset 13 to 12,
# where the same axis means something else. Hardmax loses its meaning on the way from 12 to 13.
#
# Up to opset 12, axis is the first of the axes that are normalised together. From 13 on, it is the
# only one. So unless it is the last axis, as in a segmentation (NCHW, axis 1), a node needs others
# around it in the other opset. On the way up, the converter puts Flatten and Reshape around Softmax
# and LogSoftmax. On the way down, both have an adapter, too, which only makes a negative axis
# positive. Hardmax is refused on the way down, and passes unchanged on the way up. The new models
# are valid, so nothing tells that they compute something else.
#
# Scores of 2 classes for 2 pixels, axis 1, run by ONNX Runtime 1.31.1. Seen:
#   Softmax, 12 to 13: the same numbers
#   Softmax, 13 to 12: class 0 of the pixels 0.50 0.88, then 0.10 0.71
#   LogSoftmax, 12 to 13: the same numbers
#   LogSoftmax, 13 to 12: class 0 of the pixels -0.69 -0.13, then -2.34 -0.34
#   Hardmax, 12 to 13: class 0 of the pixels 0.00 1.00, then 1.00 1.00
#   Hardmax, 13 to 12: refused
# Expected: the same numbers, or a refusal. Exits with an error if this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export ORT_DISABLE_TELEMETRY=1
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    onnx==1.23.2 onnxruntime==1.31.1 numpy==2.4.6
cat > "$folder/run.py" <<'PYTHON'
import numpy as np
import onnxruntime as ort
from onnx import TensorProto, checker, helper, version_converter

scores = np.array([[[[1, 3]], [[1, 1]]]], np.float32)


def model(operator, opset):
    values = (helper.make_tensor_value_info(each, TensorProto.FLOAT, scores.shape) for each in "xy")
    graph = helper.make_graph(
        [helper.make_node(operator, ["x"], ["y"], axis=1)], "g", *([each] for each in values)
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=7)


def numbers(made):
    checker.check_model(made, full_check=True)
    return ort.InferenceSession(made.SerializeToString()).run(None, {"x": scores})[0]


def outcome(operator, old, new):
    made = model(operator, old)
    before = numbers(made)
    try:
        converted = version_converter.convert_version(made, new)
    except Exception as error:
        assert "No Adapter" in str(error)
        return "refused"
    after = numbers(converted)
    if np.allclose(before, after):
        return "the same numbers"
    assert [(node.op_type, len(node.attribute)) for node in converted.graph.node] == [(operator, 1)]
    pairs = (" ".join(f"{each:.2f}" for each in y[0, 0, 0]) for y in (before, after))
    return "class 0 of the pixels {}, then {}".format(*pairs)


seen = {
    ("Softmax", 12, 13): "the same numbers",
    ("Softmax", 13, 12): "class 0 of the pixels 0.50 0.88, then 0.10 0.71",
    ("LogSoftmax", 12, 13): "the same numbers",
    ("LogSoftmax", 13, 12): "class 0 of the pixels -0.69 -0.13, then -2.34 -0.34",
    ("Hardmax", 12, 13): "class 0 of the pixels 0.00 1.00, then 1.00 1.00",
    ("Hardmax", 13, 12): "refused",
}
for (operator, old, new), expected in seen.items():
    found = outcome(operator, old, new)
    print(f"{operator}, {old} to {new}: {found}")
    assert found == expected, "this has changed"
PYTHON
"$folder/venv/bin/python" "$folder/run.py"
