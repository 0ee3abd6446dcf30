#!/usr/bin/env bash
# onnxruntime 1.32.0, onnx 1.23.2: convert_float_to_float16(model, keep_io_types=True) of
# onnxruntime.transformers.float16 appends the Cast of an input behind the nodes that read it. ONNX
# requires nodes in topological order, so onnx.checker refuses the converted model. The converter
# of onnxconverter-common 1.16.0, from which this one was made, sorts the nodes.
#
# Seen:
#     nodes: Relu, Neg, Cast, Cast
#     checker: Nodes in a graph must be topologically sorted, however input 'graph_input_cast_0'
# Exits with an error if the checker accepts the model.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export ORT_DISABLE_TELEMETRY=1
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    onnx==1.23.2 onnxruntime==1.32.0 numpy==2.4.6
cat > "$folder/run.py" <<'PYTHON'
import sys

import onnx
from onnxruntime.transformers.float16 import convert_float_to_float16

model = onnx.parser.parse_model(
    """<ir_version: 8, opset_import: ["" : 17]>
    g (float[1, 3] x) => (float[1, 3] y) { a = Relu(x) y = Neg(a) }"""
)
onnx.checker.check_model(model)
half = convert_float_to_float16(model, keep_io_types=True)
print("nodes:", ", ".join(node.op_type for node in half.graph.node))
try:
    onnx.checker.check_model(half)
except onnx.checker.ValidationError as error:
    print("checker:", " ".join(str(error).split()).partition(" of node")[0])
else:
    sys.exit("the checker accepts the model")
PYTHON
"$folder/venv/bin/python" "$folder/run.py"
