#!/usr/bin/env bash
# ONNX Runtime 1.31.1, OpenVINO 2026.4.1 and tract 0.23.9 take the bytes of a big-endian NumPy array
# as little-endian numbers, and say nothing.
#
# NumPy computes with '>f4' as with 'float32', says that the two are equal, and returns such arrays
# from np.load and np.frombuffer (FITS and IDX files are big-endian). Runtimes check the type of an
# input, and refuse float64 for float32. So one expects an error or the right numbers, which are
# what onnx.numpy_helper and safetensors.numpy give. ONNX Runtime and tract compute with the swapped
# bytes. OpenVINO does both: a compiled model that is called with the array is right, one that is
# given ov.Tensor(array) is not. 1 swapped is 4.6e-41, so that a network may answer as for an empty
# image, whatever the image is.
#
# x + 1 for x = 1 2 3. Seen here:
#   NumPy 2 3 4
#   ONNX Runtime, array 1 1 1
#   ONNX Runtime, OrtValue 1 1 1
#   OpenVINO, array 2 3 4
#   OpenVINO, ov.Tensor 1 1 1
#   tract, array 1 1 1
# Expected: 2 3 4, or an error. Exits with an error if this changes. Needs a little-endian machine.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export ORT_DISABLE_TELEMETRY=1
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    onnx==1.23.2 onnxruntime==1.31.1 openvino==2026.4.1 tract==0.23.9 numpy==2.4.6
cat > "$folder/run.py" <<'PYTHON'
import sys

import numpy as np
import onnx
import onnxruntime as ort
import openvino as ov
import tract
from onnx import TensorProto, helper, numpy_helper

graph = helper.make_graph(
    [helper.make_node("Add", ["x", "one"], ["y"])],
    "g",
    [helper.make_tensor_value_info("x", TensorProto.FLOAT, [3])],
    [helper.make_tensor_value_info("y", TensorProto.FLOAT, [3])],
    [numpy_helper.from_array(np.ones(3, np.float32), "one")],
)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
onnx.save(model, sys.argv[1])
native = np.array([1, 2, 3], np.float32)
x = native.astype(">f4")
assert np.array_equal(x, native)

session = ort.InferenceSession(sys.argv[1])
value = ort.OrtValue.ortvalue_from_numpy(x)
core = ov.Core()
compiled = core.compile_model(core.read_model(sys.argv[1]), "CPU")
request = compiled.create_infer_request()
request.set_input_tensor(ov.Tensor(x))
request.infer()
runnable = tract.onnx().load(sys.argv[1]).into_model().into_runnable()
found = {
    "NumPy": x + 1,
    "ONNX Runtime, array": session.run(None, {"x": x})[0],
    "ONNX Runtime, OrtValue": session.run_with_ort_values(None, {"x": value})[0].numpy(),
    "OpenVINO, array": compiled({"x": x})[0],
    "OpenVINO, ov.Tensor": request.get_output_tensor().data,
    "tract, array": runnable.run([x])[0].to_numpy(),
}
right = {"NumPy", "OpenVINO, array"}
for name, y in found.items():
    print(name, *(f"{each:g}" for each in y))
    assert np.array_equal(y, native + 1 if name in right else np.ones(3)), "this has changed"
PYTHON
"$folder/venv/bin/python" "$folder/run.py" "$folder/add.onnx"
