#!/usr/bin/env bash
# ONNX Runtime 1.31.1: a pool with auto_pad SAME_UPPER or SAME_LOWER and dilations returns fewer
# numbers than it reads. onnx.reference (onnx 1.23.2) fills them up with zeros.
#
# SAME_UPPER with stride 1 says: as many numbers as in the input, with pads for a window of
# (kernel - 1) * dilation + 1. ONNX Runtime's MaxPool, AveragePool and LpPool pad for the kernel
# alone, so the result is shorter, and its first number belongs to another window. ONNX Runtime's
# Conv refuses the same two attributes together. The reference evaluator is right for MaxPool; for
# the other two it has ONNX Runtime's numbers, and zeros at the end, which no window has. The same
# pads written out give the right numbers in both.
#
# Inputs 1 to 8, kernel 3, dilation 2. Seen:
#   MaxPool: with pads 3 4 5 6 7 8 7 8
#     auto_pad: ONNX Runtime 4 5 6 7 8 7, reference 3 4 5 6 7 8 7 8
#   AveragePool: with pads 2 3 3 4 5 6 6 7
#     auto_pad: ONNX Runtime 3 3 4 5 6 6, reference 3 3 4 5 6 6 0 0
#   LpPool: with pads 4 6 9 12 15 18 12 14
#     auto_pad: ONNX Runtime 6 9 12 15 18 12, reference 6 9 12 15 18 12 0 0
# Expected: the numbers with pads. Nothing is raised, with optimisations or without. Exits with an
# error if this changes.
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
from onnx import TensorProto, checker, helper
from onnx.reference import ReferenceEvaluator

x = np.arange(1, 9, dtype=np.float32).reshape(1, 1, 8)


def results(operator, **attributes):
    if operator == "LpPool":
        attributes["p"] = 1
    pool = helper.make_node(operator, ["x"], ["y"], kernel_shape=[3], dilations=[2], **attributes)
    graph = helper.make_graph(
        [pool],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 1, "width"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1, None])],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 22)], ir_version=10)
    checker.check_model(model, full_check=True)
    plain = ort.SessionOptions()
    plain.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    file = model.SerializeToString()
    off, default = (
        ort.InferenceSession(file, options).run(None, {"x": x})[0].ravel()
        for options in (plain, ort.SessionOptions())
    )
    assert np.array_equal(off, default)
    reference = ReferenceEvaluator(model).run(None, {"x": x})[0].ravel()
    return tuple(" ".join(f"{each:g}" for each in row) for row in (default, reference))


expected = {
    "MaxPool": ("3 4 5 6 7 8 7 8", "4 5 6 7 8 7", ""),
    "AveragePool": ("2 3 3 4 5 6 6 7", "3 3 4 5 6 6", " 0 0"),
    "LpPool": ("4 6 9 12 15 18 12 14", "6 9 12 15 18 12", " 0 0"),
}
for operator, (right, short, zeros) in expected.items():
    with_pads = results(operator, pads=[2, 2])
    print(f"{operator}: with pads {with_pads[0]}")
    assert with_pads == (right, right), "the pads are not followed"
    for auto_pad in ("SAME_LOWER", "SAME_UPPER"):
        found = results(operator, auto_pad=auto_pad)
        assert found == (short, short + zeros if zeros else right), "this has changed"
    print("  auto_pad: ONNX Runtime {}, reference {}".format(*found))
PYTHON
"$folder/venv/bin/python" "$folder/run.py"
