#!/usr/bin/env bash
# onnxscript 0.7.2, version_converter: GroupNormalization of opsets 18 to 20 is converted to that of
# opset 21, which has a scale for each channel instead of each group, without its epsilon: the
# default, 1e-5, takes its place.
#
# One image of 4 channels in 2 groups, epsilon 0.5, run by ONNX Runtime 1.31.1. Seen:
#   opset 20                 0.147 0.626 0.132
#   converted to opset 21    0.209 0.889 0.188    no epsilon among the node's attributes
# Nothing is said: no error, no warning. Exits with an error if the numbers become equal.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    onnx==1.23.2 onnxruntime==1.31.1 onnxscript==0.7.2 onnx-ir==1.1.0 numpy==2.4.6
cat > "$folder/run.py" <<'PYTHON'
import numpy as np
import onnx_ir as ir
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper
from onnxscript import version_converter

x = np.random.default_rng(1).normal(0, 1, (1, 4, 2, 2)).astype(np.float32)


def run(model):
    return ort.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0].ravel()


ones, zeros = np.ones(2, np.float32), np.zeros(2, np.float32)
image = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 4, 2, 2])
graph = helper.make_graph(
    [helper.make_node("GroupNormalization", ["x", "s", "b"], ["y"], num_groups=2, epsilon=0.5)],
    "g",
    [image],
    [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, 2, 2])],
    [numpy_helper.from_array(ones, "s"), numpy_helper.from_array(zeros, "b")],
)
old = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=9)
model = ir.from_proto(old)
version_converter.convert_version(model, target_version=21)
new = ir.to_proto(model)
(node,) = (node for node in new.graph.node if node.op_type == "GroupNormalization")
print("opset 20", run(old)[:3])
print("converted to opset 21", run(new)[:3], [a.name for a in node.attribute])
assert not np.allclose(run(old), run(new)), "they are equal now"
PYTHON
"$folder/venv/bin/python" "$folder/run.py"
