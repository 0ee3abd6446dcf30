#!/usr/bin/env bash
# onnx 1.23.2, onnx.version_converter: Upsample of opsets 7 to 9, and Resize of opset 10, become a
# Resize without coordinate_transformation_mode, whose default since opset 11 is half_pixel. The old
# operators read the input at i / scale, as ONNX Runtime 1.31.1 does, and as asymmetric says.
#
# Input 0 1 2 3, scale 2, linear. Seen:
#   Upsample 9   0 0.5 1 1.5 2 2.5 3 3      converted to opset 13: 0 0.25 0.75 1.25 1.75 2.25 2.75 3
#   Resize 10    0 0.5 1 1.5 2 2.5 3 3      converted to opset 13: 0 0.25 0.75 1.25 1.75 2.25 2.75 3
# Nothing is said: no error, no warning. Exits with an error if the numbers become equal.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    onnx==1.23.2 onnxruntime==1.31.1 numpy==2.4.6
cat > "$folder/run.py" <<'PYTHON'
import numpy as np
import onnxruntime as ort
from onnx import TensorProto, helper, numpy_helper, version_converter

x = np.arange(4, dtype=np.float32).reshape(1, 1, 1, 4)


def run(model):
    return ort.InferenceSession(model.SerializeToString()).run(None, {"x": x})[0].ravel()


for op, opset in (("Upsample", 9), ("Resize", 10)):
    graph = helper.make_graph(
        [helper.make_node(op, ["x", "s"], ["y"], mode="linear")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 1, 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1, 1, 8])],
        [numpy_helper.from_array(np.array([1, 1, 1, 2], np.float32), "s")],
    )
    old = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=5)
    new = version_converter.convert_version(old, 13)
    print(op, opset, run(old), "converted to opset 13:", run(new))
    assert not np.allclose(run(old), run(new)), "they are equal now"
PYTHON
"$folder/venv/bin/python" "$folder/run.py"
