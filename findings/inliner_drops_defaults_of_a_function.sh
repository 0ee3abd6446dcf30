#!/usr/bin/env bash
# onnx 1.23.2: onnx.inliner.inline_local_functions forgets the defaults that a function has for its
# attributes, and the operators' own defaults take their place.
#
# A function of a model (FunctionProto) may give its attributes defaults, in attribute_proto, for
# calls that leave them out. ONNX Runtime 1.31.1 follows them. The inliner removes the attributes of
# inner nodes that refer to one left out. The new model is as valid as the old one, and computes
# something else: here, LeakyRelu's alpha is 0.01 instead of 0.5.
#
# LeakyRelu of -1 in a function. Seen:
#   call with alpha 0.25: as a function -0.25, inlined -0.25
#   call without alpha: as a function -0.5, inlined -0.01
# Expected: -0.5 twice. No error, no warning. Exits with an error if this changes.
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
from onnx import checker, inliner, parser


def numbers(call):
    model = parser.parse_model(f"""
        <ir_version: 9, opset_import: ["" : 17, "own" : 1]>
        g (float[1] x) => (float[1] y) {{ y = own.Activation{call}(x) }}
        <domain: "own", opset_import: ["" : 17]>
        Activation <alpha: float = 0.5> (a) => (b) {{ b = LeakyRelu<alpha: float = @alpha>(a) }}
    """)
    inlined = inliner.inline_local_functions(model)
    assert [node.op_type for node in inlined.graph.node] == ["LeakyRelu"]
    results = []
    for each in (model, inlined):
        checker.check_model(each, full_check=True)
        session = ort.InferenceSession(each.SerializeToString())
        results.append(float(session.run(None, {"x": np.array([-1], np.float32)})[0][0]))
    return results


given, left_out = numbers("<alpha = 0.25>"), numbers("")
print("call with alpha 0.25: as a function {:g}, inlined {:g}".format(*given))
print("call without alpha: as a function {:g}, inlined {:g}".format(*left_out))
assert given == [-0.25, -0.25], "a given attribute is lost"
assert np.allclose(left_out, [-0.5, -0.01]), "this has changed"
PYTHON
"$folder/venv/bin/python" "$folder/run.py"
