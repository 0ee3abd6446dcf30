#!/usr/bin/env bash
# ONNX Runtime 1.31.1: of two quantizers in a row, the optimiser drops the coarser one, whichever
# comes first. So numbers that a file rounds to halves are not rounded to halves.
#
# QuantizeLinear and DequantizeLinear with a scale of 0.5 round to multiples of 0.5. A second pair
# with another scale may follow, for example where two quantized parts of a network meet. The
# optimiser DoubleQDQPairsRemover, on by default, makes one pair of the two, here with the scale of
# the smaller range, 0.05. Where 0.5 comes last, the result is not even on the grid of the file's
# last quantizer. ONNX Runtime without it, or without optimisations, follows the file, as
# onnx.reference does.
#
# 1000 numbers from -6 to 6, uint8 codes with zero point 128. Seen:
#   0.5, then 0.05: 25 values in the file, 241 by default, up to 0.25 away
#   0.05, then 0.5: 25 values in the file, 241 by default, up to 0.25 away
# Expected: the file's values. Nothing is logged. Exits with an error if this changes.
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
from onnx import TensorProto, checker, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

x = np.linspace(-6, 6, 1000, dtype=np.float32)


def rounding(*scales):
    nodes, name = [], "x"
    constants = [numpy_helper.from_array(np.array(128, np.uint8), "zero")]
    for i, scale in enumerate(scales):
        result = "y" if i == len(scales) - 1 else f"d{i}"
        constants.append(numpy_helper.from_array(np.array(scale, np.float32), f"s{i}"))
        nodes += [
            helper.make_node("QuantizeLinear", [name, f"s{i}", "zero"], [f"q{i}"]),
            helper.make_node("DequantizeLinear", [f"q{i}", f"s{i}", "zero"], [result]),
        ]
        name = result
    values = (helper.make_tensor_value_info(each, TensorProto.FLOAT, x.shape) for each in "xy")
    graph = helper.make_graph(nodes, "g", *([each] for each in values), constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    checker.check_model(model, full_check=True)
    return model


def run(model, level=ort.GraphOptimizationLevel.ORT_ENABLE_ALL, disabled=""):
    options = ort.SessionOptions()
    options.graph_optimization_level = level
    if disabled:
        options.add_session_config_entry("optimization.disable_specified_optimizers", disabled)
    return ort.InferenceSession(model.SerializeToString(), options).run(None, {"x": x})[0]


for scales in ((0.5, 0.05), (0.05, 0.5)):
    model = rounding(*scales)
    file = run(model, ort.GraphOptimizationLevel.ORT_DISABLE_ALL)
    assert np.array_equal(file, run(model, disabled="DoubleQDQPairsRemover"))
    assert np.array_equal(file, ReferenceEvaluator(model).run(None, {"x": x})[0])
    y = run(model)
    far = float(np.abs(y - file).max())
    values = [len(np.unique(each)) for each in (file, y)]
    print(
        "{:g}, then {:g}: {} values in the file, {} by default, up to {:.2f} away".format(
            *scales, *values, far
        )
    )
    assert np.abs(file * 2 - np.rint(file * 2)).max() < 1e-5, "the file's values are no halves"
    assert values[1] > 5 * values[0] and far > 0.2, "the coarser rounding is kept"
PYTHON
"$folder/venv/bin/python" "$folder/run.py"
