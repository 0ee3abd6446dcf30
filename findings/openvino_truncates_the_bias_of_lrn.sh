#!/usr/bin/env bash
# OpenVINO 2026.4.1, on the CPU: the bias of LRN (local response normalisation) loses its fraction.
#
# LRN divides x by (bias + alpha / size * sum of squares) to the power of beta. The bias, called k
# elsewhere, is a float in ONNX and in OpenVINO: the read model has it whole. The CPU computes with
# its integer part. A bias below 1 becomes 0, so that small numbers grow by any factor: 0.001
# becomes 1000. Whole numbers, 1 and 2 in AlexNet and GoogLeNet, hide it. The same model, converted
# from PyTorch by OpenVINO, is right: there, LocalResponseNorm becomes elementary operations.
#
# One number, size 1, alpha 1, beta 1: y is x / (bias + x * x). Seen:
#   bias 2, x 1: read 2, ONNX Runtime 0.333, OpenVINO 0.333
#   bias 1.5, x 1: read 1.5, ONNX Runtime 0.4, OpenVINO 0.5
#   bias 0.5, x 1: read 0.5, ONNX Runtime 0.667, OpenVINO 1
#   bias 0.5, x 0.001: read 0.5, ONNX Runtime 0.002, OpenVINO 1e+03
# Expected: equal numbers. No error, no warning. Exits with an error if this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export ORT_DISABLE_TELEMETRY=1
python3 -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
    onnx==1.23.2 onnxruntime==1.31.1 openvino==2026.4.1 numpy==2.4.6
cat > "$folder/run.py" <<'PYTHON'
import numpy as np
import onnxruntime as ort
import openvino as ov
from onnx import TensorProto, checker, helper

core = ov.Core()
shape = [1, 1, 1, 1]


def results(bias, number):
    node = helper.make_node("LRN", ["x"], ["y"], size=1, alpha=1.0, beta=1.0, bias=float(bias))
    values = (helper.make_tensor_value_info(each, TensorProto.FLOAT, shape) for each in "xy")
    graph = helper.make_graph([node], "g", *([each] for each in values))
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    checker.check_model(model, full_check=True)
    file = model.SerializeToString()
    x = np.full(shape, number, np.float32)
    (expected,) = ort.InferenceSession(file).run(None, {"x": x})
    read = core.read_model(file)
    (lrn,) = (each for each in read.get_ordered_ops() if each.get_type_name() == "LRN")
    compiled = core.compile_model(read, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    numbers = (lrn.get_attributes()["bias"], expected.item(), compiled([x])[0].item())
    return tuple(f"{each:.3g}" for each in numbers)


seen = {
    (2, 1): ("2", "0.333", "0.333"),
    (1.5, 1): ("1.5", "0.4", "0.5"),
    (0.5, 1): ("0.5", "0.667", "1"),
    (0.5, 0.001): ("0.5", "0.002", "1e+03"),
}
for (bias, number), expected in seen.items():
    found = results(bias, number)
    print("bias {}, x {}: read {}, ONNX Runtime {}, OpenVINO {}".format(bias, number, *found))
    assert found == expected, "this has changed"
PYTHON
"$folder/venv/bin/python" "$folder/run.py"
