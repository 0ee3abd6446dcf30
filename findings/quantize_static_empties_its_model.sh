#!/usr/bin/env bash
# onnxruntime 1.31.1, onnx 1.23.2: quantize_static(model, ...) takes a ModelProto, and leaves that
# same object without its weights: its initializers point to an external file that is deleted when
# the call returns. The model was valid before, and cannot be checked, saved or run afterwards.
#
# Seen:
#     before: raw data 5184 bytes, external no
#     after: raw data 0 bytes, external yes, its file is there: no
# Exits with an error if the model keeps its weights.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export ORT_DISABLE_TELEMETRY=1
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    onnx==1.23.2 onnxruntime==1.31.1 numpy==2.4.6
cat > "$folder/run.py" <<'PYTHON'
import logging
import os
import sys

import numpy as np
from onnx import TensorProto, helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

logging.disable(logging.WARNING)
weights = np.random.default_rng(0).normal(size=(144, 3, 3, 1)).astype(np.float32)
weights = weights.transpose(0, 3, 1, 2)
graph = helper.make_graph(
    [helper.make_node("Conv", ["x", "w"], ["y"])],
    "g",
    [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, 8, 8])],
    [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 144, 6, 6])],
    [numpy_helper.from_array(weights, "w")],
)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=10)


class One(CalibrationDataReader):
    left = [{"x": np.ones((1, 1, 8, 8), np.float32)}]

    def get_next(self):
        return self.left.pop() if self.left else None


def told(when):
    (tensor,) = model.graph.initializer
    external = tensor.data_location == TensorProto.EXTERNAL
    places = {entry.key: entry.value for entry in tensor.external_data}
    there = "" if not external else (
        f", its file is there: {'yes' if os.path.exists(places['location']) else 'no'}"
    )
    print(f"{when}: raw data {len(tensor.raw_data)} bytes, external {'yes' if external else 'no'}{there}")
    return len(tensor.raw_data)


assert told("before") == weights.nbytes
quantize_static(model, os.path.join(sys.argv[1], "int8.onnx"), One(), quant_format=QuantFormat.QDQ)
assert told("after") == 0, "it keeps its weights now"
PYTHON
cd "$folder"
"$folder/venv/bin/python" "$folder/run.py" "$folder"
