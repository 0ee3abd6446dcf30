#!/usr/bin/env bash
# ONNX Runtime 1.31.1: session.set_denormal_as_zero, an option of a session, obeys the first session
# of the process: what it says holds for all later ones, whatever they say.
#
# A Mul of 1e-20 by 1e-20, whose product is subnormal. Each line is a process of two sessions; seen:
#   first 0, second 1:  1e-40 1e-40      the second should give 0
#   first 1, second 0:  0 0              the second should give 1e-40
# Nothing is said: no error, no warning. Exits with an error if this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    onnx==1.23.2 onnxruntime==1.31.1 numpy==2.4.6
cat > "$folder/run.py" <<'PYTHON'
import sys

import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper

size = [1 << 16]
graph = helper.make_graph(
    [helper.make_node("Mul", ["x", "x"], ["y"])],
    "g",
    [helper.make_tensor_value_info("x", TensorProto.FLOAT, size)],
    [helper.make_tensor_value_info("y", TensorProto.FLOAT, size)],
)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
x = np.full(size, 1e-20, np.float32)
found = []
for value in sys.argv[1:]:
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.set_denormal_as_zero", value)
    session = ort.InferenceSession(model.SerializeToString(), options)
    found.append(float(session.run(None, {"x": x})[0].max()))
print(f"first {sys.argv[1]}, second {sys.argv[2]}:", *found)
assert found[0] == found[1], "each session has its own setting now"
assert (found[0] == 0) is (sys.argv[1] == "1"), "the first session is not obeyed"
PYTHON
"$folder/venv/bin/python" "$folder/run.py" 0 1
"$folder/venv/bin/python" "$folder/run.py" 1 0
